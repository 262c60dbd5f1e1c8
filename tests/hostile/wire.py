"""The bytes of ferry's protocol, as docs/protocol.md describes them. Nothing here knows ferry's sources.

Writers take every field as an argument, so that an attack can give each a wrong value.
"""

import hashlib
import hmac
import struct

HELLO_MAGIC = bytes.fromhex("894645525259 3e0a")
ANSWER_MAGIC = bytes.fromhex("894645525259 3c0a")
VERSION = 1

CONTROL_ONLY, HAS_SECRET, URGENT, DEVICE_TENSORS, OBSERVER = 1, 2, 4, 8, 128  # features
REQUEST, REPLY, EXCEPTION, FAILURE, CANCEL, CONTROL = 1, 2, 3, 4, 5, 6  # kinds of frames
NO_REPLY, NEVER_TIMES_OUT, TRANSFER_STATUS = 1, 2, 4  # flags of frames
HEARTBEAT, GOODBYE, FENCE, CANCEL_CALL = 1, 2, 3, 4  # codes of control frames
OBJECT, REFERENCES, CALL_CHAIN, PLACEMENT = 1, 2, 3, 4  # types of extension records
FORK_REQUEST, CHILD_ACCEPT, USER_DELETE, TRANSFER_QUERY, CREATION_QUERY, WATERMARK = 1, 2, 3, 4, 5, 6

HEADER_BYTES = 64
NOTHING = 0xFFFFFFFF  # index of an undefined tensor and of an empty reference
DTYPES = {"bool": 1, "u8": 2, "i8": 3, "i32": 5, "f32": 9, "f64": 10}


def u8(value):
    return struct.pack("<B", value)


def u16(value):
    return struct.pack("<H", value)


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


def i32(value):
    return struct.pack("<i", value)


def i64(value):
    return struct.pack("<q", value)


def f64(value):
    return struct.pack("<d", value)


def string(text):
    """A string in a payload."""
    data = text if isinstance(text, bytes) else text.encode()
    return u64(len(data)) + data


def vector(items):
    return u64(len(items)) + b"".join(items)


def short_text(text):
    """A text of the handshake."""
    data = text if isinstance(text, bytes) else text.encode()
    return u16(len(data)) + data


def proof(secret, label, *parts):
    return hmac.new(secret, label.encode() + b"\0" + b"".join(parts), hashlib.sha256).digest()


# ---------------------------------------------------------------- handshake


def prefixed(magic, body, version=VERSION, oldest=VERSION, length=None):
    return magic + u32(version) + u32(oldest) + u32(len(body) if length is None else length) + body


def hello_body(features, incarnation, worker_id, joined, group, name, meant, nonce=b""):
    return (u64(features) + u64(incarnation) + i32(worker_id) + u64(joined) + short_text(group) + short_text(name) +
            short_text(meant) + nonce)


# ---------------------------------------------------------------- messages


def fingerprint(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    value ^= value >> 32
    value = (value * 0xD6E8FEB86659FD93) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 32)


def header(kind=REQUEST, flags=0, tensors=0, extension=0, call=1, payload=0, tensor_bytes=0, table=0, code=0, method=0,
           signature=0, timeout=0):
    return struct.pack("<BBHIQQQIIQQQ", kind, flags, tensors, extension, call, payload, tensor_bytes, table, code,
                       method, signature, timeout)


def record(kind, content, critical=False, flags=None, length=None, padding=b"\0"):
    size = len(content) if length is None else length
    return (u16(kind) + u16((1 if critical else 0) if flags is None else flags) + u32(size) + content +
            padding * (-len(content) % 8))


def table_entry(dtype="f32", shape=(), strides=None, device=(0, 0), rank=None, reserved=b"\0\0\0"):
    if strides is None:
        strides, step = [], 1
        for size in reversed(shape):
            strides.insert(0, step)
            step *= max(size, 1)
    number = dtype if isinstance(dtype, int) else DTYPES[dtype]
    return (u8(number) + u8(device[0]) + struct.pack("<h", device[1]) + u8(len(shape) if rank is None else rank) +
            reserved + b"".join(u64(size) for size in shape) + b"".join(i64(stride) for stride in strides))


def message(kind=REQUEST, payload=b"", extension=b"", table=b"", data=b"", status=b"", **fields):
    """A whole message; `fields` replace what the parts say of themselves."""
    said = dict(kind=kind, extension=len(extension), payload=len(payload), tensor_bytes=len(data), table=len(table))
    said.update(fields)
    return header(**said) + payload + extension + table + data + status


def object_id(owner, creator, number):
    """Owner and creator are lives: an id and an incarnation. As the records have it, all numbers are u64."""
    return u64(owner[0]) + u64(owner[1]) + u64(creator[0]) + u64(creator[1]) + u64(number)


def control_object(owner, creator, number):
    """The same as the reference controls have it: an id is an i32."""
    return i32(owner[0]) + u64(owner[1]) + i32(creator[0]) + u64(creator[1]) + u64(number)


def reference_control(kind, target=None, fork=(0, 0), number=0):
    return (u8(kind) + (target or control_object((0, 0), (0, 0), 0)) + u8(fork[0]) + u64(fork[1]) + u64(number))


# ---------------------------------------------------------------- store


def store_text(text):
    data = text if isinstance(text, bytes) else text.encode()
    return u32(len(data)) + data


def store_message(code, body, length=None):
    return u32(len(body) if length is None else length) + u8(code) + b"\0\0\0" + body


SET, GET, ADD, COMPARE_SET, ERASE, LIST, COUNT, WAIT_CHANGE, STORE_CANCEL = range(1, 10)
OK, ABSENT, CANCELLED, ERROR = range(4)


def store_hello(features=0, client=1, magic=b"FSTR", version=VERSION):
    return magic + u16(version) + u16(0) + u64(features) + u64(client)
