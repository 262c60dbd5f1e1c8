"""Messages that no worker sends: headers, extension records, tensor tables, transfer statuses, and their ends."""

import wire
import world as the_world
from session import Closed, Member, Silent
from world import MIB, attack, named

PROTOCOL_ERROR, TRUNCATED, LIMIT_EXCEEDED, MALFORMED, UNKNOWN_EXTENSION = 306, 500, 501, 502, 503
BAD_ARGUMENTS, BAD_DEVICE, UNKNOWN_METHOD = 406, 602, 404
UNDECODABLE = (BAD_ARGUMENTS, TRUNCATED, LIMIT_EXCEEDED, MALFORMED, UNKNOWN_EXTENSION)


def add(**fields):
    """A right call of add, but for `fields`."""
    said = dict(payload=wire.i32(1) + wire.i32(2), **named("add"))
    said.update(fields)
    return wire.message(wire.REQUEST, **said)


@attack("headers that are no headers")
def headers(world):
    wrong = {"kind 0": {"kind": 0}, "kind 7": {"kind": 7}, "kind 255": {"kind": 255}}
    wrong.update({f"flag {bit}": {"flags": 1 << bit} for bit in range(3, 8)})
    wrong.update({
        "extension bytes that are no multiple of 8": {"extension": 7},
        "too many extension bytes": {"extension": 0xFFFFFFF8},
        "too large a payload": {"payload": the_world.MESSAGE_BYTES + 1},
        "the largest payload": {"payload": (1 << 64) - 1},
        "sizes whose sum overflows": {"payload": 1 << 63, "tensor_bytes": 1 << 63, "tensors": 1, "table": 8},
        "sizes whose sum is just too large": {"payload": the_world.MESSAGE_BYTES - 8, "tensor_bytes": 16, "tensors": 1,
                                              "table": 24},
        "tensor bytes without tensors": {"tensor_bytes": 8},
        "a table without tensors": {"table": 8},
        "a table too small": {"tensors": 2, "table": 15},
        "a table too large": {"tensors": 1, "table": 0xFFFFFFFF},
        "no table": {"tensors": 1},
        "65535 tensors": {"tensors": 65535, "table": 65535 * 8},
    })
    for what, fields in wrong.items():
        for kind in ([fields["kind"]] if "kind" in fields else
                     [wire.REQUEST, wire.REPLY, wire.EXCEPTION, wire.FAILURE, wire.CANCEL, wire.CONTROL]):
            with world.honest.connect() as connection:
                said = dict(call=1, **named("add"), **{"kind": kind, **fields})
                world.must_close_or_wait(connection, wire.header(**said), f"{what} in a frame of kind {kind}")
    for flags in [wire.NO_REPLY, wire.NEVER_TIMES_OUT, wire.NO_REPLY | wire.NEVER_TIMES_OUT]:
        for kind in [wire.REPLY, wire.EXCEPTION, wire.FAILURE, wire.CANCEL, wire.CONTROL]:
            with world.honest.connect() as connection:
                world.must_close(connection, wire.header(kind, flags), f"flags {flags} in a frame of kind {kind}")


@attack("headers of random bytes")
def random_headers(world):
    for _ in range(60):
        with world.honest.connect() as connection:
            try:
                connection.send(world.random.randbytes(64 * world.random.randint(1, 40)))
                connection.sock.shutdown(1)
            except (Closed, OSError):
                continue
            world.must(connection.is_closed(), "the connection stays open at the end of its stream")


@attack("frames that only the other end may send")
def wrong_direction(world):
    """A caller's connection carries requests and cancels; answers to what was never asked say that it is confused."""
    for kind in [wire.REPLY, wire.EXCEPTION, wire.FAILURE]:
        for call in [0, 1, 77, (1 << 64) - 1]:
            with world.honest.connect() as connection:
                connection.send(wire.message(kind, wire.i32(1), call=call, code=400 if kind == wire.FAILURE else 0))
                world.must_serve_or_close(connection)


@attack("control frames that make no sense")
def controls(world):
    with world.honest.connect() as connection:
        for code in [0, 5, 77, 0xFFFFFFFF]:
            connection.send(wire.message(wire.CONTROL, b"unknown" * 9, code=code))
        for payload in [b"x", b"\xff" * 4096]:
            connection.send(wire.message(wire.CONTROL, payload, code=wire.HEARTBEAT))
        connection.send(wire.message(wire.CONTROL, code=wire.CANCEL_CALL, call=12345))
        connection.send(wire.message(wire.CANCEL, call=12345))
        connection.send(wire.message(wire.CANCEL, b"payload", call=(1 << 64) - 1))
        world.must_serve_or_close(connection)
    fence = wire.string("victim") + wire.i32(0) + wire.u64(world.victim[1]) + wire.string("because I say so")
    stranger = wire.string("stranger") + wire.i32(4711) + wire.u64(99) + wire.string("x" * 4096)
    for payload in [b"", b"\0", fence[:9], fence[:-1], fence + b"x", wire.u64(1 << 60), stranger,
                    wire.string(b"\xff\xfe") + wire.i32(-1) + wire.u64(0) + wire.string(b"\0\n\x1b[2J")]:
        with world.honest.connect() as connection:
            connection.send(wire.message(wire.CONTROL, payload, code=wire.FENCE))
            world.must_serve_or_close(connection)


@attack("calls that are cancelled before, during and after, and ids used twice")
def call_ids(world):
    with world.honest.connect() as connection:
        for call in [1, 1, 2, 0, (1 << 64) - 1, 2]:
            connection.send(wire.message(wire.CONTROL, code=wire.CANCEL_CALL, call=call))
            connection.send(add(call=call, timeout=300_000_000))
            connection.send(wire.message(wire.CANCEL, call=call))
            connection.send(wire.message(wire.CANCEL, call=call))
        hold = dict(payload=wire.string("x"), timeout=300_000_000, **named("hold"))
        for _ in range(3):
            connection.send(wire.message(wire.REQUEST, call=9, **hold))  # three at once, of one id
        connection.send(wire.message(wire.CANCEL, call=9))
        world.must_serve_or_close(connection)
    for timeout in [0, 1, (1 << 63) - 1, (1 << 63), (1 << 64) - 1]:
        for flags in [0, wire.NEVER_TIMES_OUT, wire.NO_REPLY, wire.NO_REPLY | wire.NEVER_TIMES_OUT]:
            with world.honest.connect() as connection:
                connection.send(add(call=3, timeout=timeout, flags=flags))
                world.must_serve_or_close(connection)


@attack("extension records that are none, or unknown")
def extensions(world):
    life = wire.u64(0) + wire.u64(world.victim[1])
    call = dict(call=1, timeout=300_000_000)
    refused = {
        "an unknown critical record": wire.record(99, b"12345678", critical=True),
        "an unknown critical record behind a known one": wire.record(3, b"") + wire.record(99, b"", critical=True),
        "a record cut off": wire.u16(99) + wire.u16(0) + wire.u32(64),
        "a record of 4 GiB": wire.record(99, b"12345678", length=0xFFFFFFFF),
        "padding that is not zero": wire.record(99, b"123", padding=b"\1"),
        "unknown flags": wire.record(99, b"12345678", flags=2),
        "all flags": wire.record(99, b"12345678", flags=0xFFFF),
        "a record of the reserved type": wire.record(0, b"12345678"),
        "an unknown critical record of the registered range": wire.record(1024, b"", critical=True),
        "an unknown critical record of the private range": wire.record(32768, b"", critical=True),
        "one record too many": wire.record(99, b"") * 65,
        "as many records as fit into the bytes": wire.record(32768, b"") * ((4 << 20) // 8),
        "records of zeros": bytes(64),
        "an object record without content": wire.record(wire.OBJECT, b"", critical=True),
        "an object record with unknown flags": wire.record(wire.OBJECT, wire.u64(4) + life + life + wire.u64(1), True),
        "an object record with too few ids": wire.record(wire.OBJECT, wire.u64(3) + life + life + wire.u64(1), True),
        "an object record with a half id": wire.record(wire.OBJECT, wire.u64(1) + life, True),
        "an object record twice": wire.record(wire.OBJECT, wire.u64(1) + life + life + wire.u64(1), True) * 2,
        "two records of references": wire.record(wire.REFERENCES, wire.u64(1), True) * 2,
        "references of half a number": wire.record(wire.REFERENCES, b"1234", True),
        "half a reference": wire.record(wire.REFERENCES, wire.u64(1) + life, True),
        "half a placement": wire.record(wire.PLACEMENT, wire.u64(0), True),
        "a placement that is not one-to-one": wire.record(
            wire.PLACEMENT, wire.u64(1 << 32) + wire.u64(0) + wire.u64(2 << 32) + wire.u64(0), True),
        "a placement of garbage": wire.record(wire.PLACEMENT, b"\xff" * 160, True),
    }
    for what, extension in refused.items():
        with world.honest.connect() as connection:
            connection.send(add(extension=extension, **call))
            try:
                frame = connection.receive()
            except (Closed, Silent):
                world.must(not connection_is_open(connection), f"{what}: no answer")
                continue
            world.must(frame.kind == wire.FAILURE, f"{what}: answered by a frame of kind {frame.kind}")
    with world.honest.connect() as connection:
        for what, extension in {
                "an unknown record": wire.record(99, b"12345678"),
                "an empty unknown record": wire.record(0xFFFF, b""),
                "as many unknown records as there may be": wire.record(1024, b"") * 32 + wire.record(40000, b"x") * 32,
                "an empty call chain": wire.record(wire.CALL_CHAIN, b"")}.items():
            frame = exchange(connection, add(extension=extension, **call))
            world.must(frame.kind == wire.REPLY and frame.payload == wire.i32(3), f"{what} is not skipped")
    for chain in [b"1", wire.u64(1), b"\xff" * 64, life + life + wire.u64(1) * 3, (life + life + wire.u64(1) * 3) * 50,
                  (life + life + wire.u64((1 << 64) - 1) * 4)]:
        with world.honest.connect() as connection:
            connection.send(add(extension=wire.record(wire.CALL_CHAIN, chain), **call))
            world.must_serve_or_close(connection)


def exchange(connection, data):
    connection.send(data)
    return connection.receive()


def connection_is_open(connection):
    return not connection.is_closed(0.2)


def tensors(table, data, count=1, payload=None, call=1, method="shapes", **fields):
    if payload is None:
        payload = (wire.u32(0) if method == "tensor_back" else
                   wire.vector([wire.u32(index) for index in range(count)]))
    return wire.message(wire.REQUEST, payload, table=table, data=data, tensors=count, call=call, timeout=300_000_000,
                        **named(method), **fields)


@attack("tensor tables that lie")
def tables(world):
    entry = wire.table_entry
    good = entry("f32", (2, 3))
    with world.honest.connect() as connection:
        frame = exchange(connection, tensors(good, bytes(24)))
        world.must(frame.kind == wire.REPLY and frame.payload == wire.u64(6), "an honest tensor")
    wrong = {
        "dtype 0": (entry(0, (2, 3)), bytes(24)),
        "dtype 15": (entry(15, (2, 3)), bytes(24)),
        "dtype 255": (entry(255, (2, 3)), bytes(24)),
        "rank 33": (entry("u8", (1,) * 33), bytes(1)),
        "rank 255": (entry("u8", (1,) * 255), bytes(1)),
        "a rank beyond the entry": (entry("u8", (1,), rank=2), bytes(1)),
        "a rank below the entry": (entry("u8", (1, 1), rank=1), bytes(1)),
        "reserved bytes": (entry("u8", (1,), reserved=b"\1\0\0"), bytes(1)),
        "a size of 2^63": (entry("u8", (1 << 63,)), bytes(1)),
        "a size of 2^64 - 1": (entry("u8", ((1 << 64) - 1,), strides=[1]), bytes(1)),
        "sizes whose product overflows": (entry("u8", (1 << 32, 1 << 32), strides=[1 << 32, 1]), bytes(1)),
        "sizes whose product overflows to the right value": (
            entry("u8", (1 << 32, (1 << 32) + 1), strides=[1, 1 << 32]), bytes(8)),
        "bytes that overflow": (entry("f64", ((1 << 61) + 1,)), bytes(8)),
        "a negative stride": (entry("u8", (4,), strides=[-1]), bytes(4)),
        "gaps": (entry("u8", (4,), strides=[2]), bytes(4)),
        "overlaps": (entry("u8", (2, 2), strides=[1, 1]), bytes(4)),
        "the smallest stride": (entry("u8", (4,), strides=[-(1 << 63)]), bytes(4)),
        "strides that overflow": (entry("u8", (2, 2), strides=[(1 << 63) - 1, 1]), bytes(4)),
        "less data": (good, bytes(20)),
        "more data": (good, bytes(28)),
        "no data": (good, b""),
        "bytes behind the entries": (good + bytes(8), bytes(24)),
        "a size of 0 with data": (entry("f32", (0, 4)), bytes(8)),
        "a broadcast that is too large": (entry("f64", (1 << 50, 1 << 13), strides=[0, 0]), bytes(8)),
        "a bool that is 2": (entry("bool", (2,)), b"\1\2"),
        "device kind 99": (entry("u8", (1,), device=(99, 0)), bytes(1)),
        "device kind 255": (entry("u8", (1,), device=(255, -1)), bytes(1)),
        "cpu 1": (entry("u8", (1,), device=(0, 1)), bytes(1)),
        "cpu -1": (entry("u8", (1,), device=(0, -1)), bytes(1)),
        "cuda 0, which is not there": (entry("u8", (1,), device=(1, 0)), bytes(1)),
    }
    for what, (table, data) in wrong.items():
        for features in [0, wire.DEVICE_TENSORS]:
            with world.honest.connect(features) as connection:
                try:
                    frame = exchange(connection, tensors(table, data))
                except Closed:
                    continue
                except Silent:
                    world.must(False, f"{what}: neither an answer nor an end")
                world.must(frame.kind == wire.FAILURE, f"{what}: a frame of kind {frame.kind} came back")
    with world.honest.connect() as connection:  # what looks strange and is right
        for what, table, data, elements in [
                ("a transposed tensor", entry("u8", (2, 3), strides=[1, 2]), bytes(6), 6),
                ("an empty tensor", entry("f32", (0, 7)), b"", 0),
                ("no axes", entry("f32", ()), bytes(4), 1),
                ("a broadcast", entry("u8", (1000, 2), strides=[0, 1]), bytes(2), 2000),
                ("axes of size 1 with any stride", entry("u8", (1, 2), strides=[1 << 40, 1]), bytes(2), 2)]:
            frame = exchange(connection, tensors(table, data))
            world.must(frame.kind == wire.REPLY and frame.payload == wire.u64(elements),
                       f"{what}: a frame of kind {frame.kind}, {frame.payload[:80]!r}")


@attack("indices of tensors that are not there")
def indices(world):
    good = wire.table_entry("u8", (2,))
    for what, payload in {
            "beyond the table": wire.vector([wire.u32(1)]),
            "far beyond the table": wire.vector([wire.u32(0xFFFFFFFE)]),
            "not in order": wire.vector([wire.u32(1), wire.u32(0)]),
            "none of them used": wire.vector([]),
            "undefined ones only": wire.vector([wire.u32(wire.NOTHING)])}.items():
        with world.honest.connect() as connection:
            world.must_fail(connection, tensors(good * 2, bytes(4), 2, payload), UNDECODABLE, f"tensors {what}")
    with world.honest.connect() as connection:
        frame = exchange(connection, tensors(good, bytes(2), 1, wire.vector([wire.u32(0)] * 5)))
        world.must(frame.payload == wire.u64(10), "one tensor five times")
        frame = exchange(connection, tensors(b"", b"", 0, wire.u32(wire.NOTHING), method="tensor_back", call=2))
        world.must(frame.payload == wire.u32(wire.NOTHING), "an undefined tensor does not come back as one")


@attack("65535 tensors claimed in one frame", memory=24)
def many_tensors(world):
    """The claims of a table cost memory only as the bytes of the tensors come."""
    world.peak.begin()
    before = world.peak.memory
    connections = []
    try:
        for size in [the_world.MESSAGE_BYTES // 65535 - 20, 1, 0]:
            connection = world.honest.connect()
            connections.append(connection)
            table = wire.table_entry("u8", (size,)) * 65535
            payload = wire.u64(65535)
            connection.send(wire.header(tensors=65535, call=1, payload=len(payload), tensor_bytes=size * 65535,
                                        table=len(table), timeout=300_000_000, **named("shapes")) + payload + table[:-1])
        world.must_serve()
        for connection in connections:
            try:
                connection.send(b"\0" * 9)
            except Closed:
                pass
        world.must_serve()
    finally:
        for connection in connections:
            connection.close()
    world.bound("memory for claimed tensors (3 frames)", 16 * MIB * world.memory_factor, world.peak.memory - before,
                "B")


@attack("messages cut off at every boundary, then an end or a reset")
def cuts(world):
    table = wire.table_entry("f32", (4,))
    whole = tensors(table, bytes(16), extension=wire.record(99, b"12345678"))
    for size in list(range(0, 72, 5)) + list(range(64, len(whole))):
        connection = world.honest.connect()
        connection.send(whole[:size])
        if size % 2:
            connection.reset()
        else:
            connection.sock.shutdown(1)
            world.must(connection.is_closed(), f"a connection that ended after {size} bytes of a message stays open")
            connection.close()
    with world.honest.connect() as connection:  # byte by byte it is right all the same
        for at in range(len(whole)):
            connection.send(whole[at:at + 1])
        frame = connection.receive()
        world.must(frame.payload == wire.u64(4), "a message of single bytes")


@attack("transfer statuses that are none")
def transfer_statuses(world):
    table = wire.table_entry("u8", (4,))
    call = dict(flags=wire.TRANSFER_STATUS)

    def status(code, length, text=b""):
        return (wire.u32(code) + wire.u32(length) + text).ljust(128, b"\xee")

    with world.honest.connect(wire.DEVICE_TENSORS) as connection:
        frame = exchange(connection, tensors(table, bytes(4), status=status(0, 0), **call))
        world.must(frame.kind == wire.REPLY, "a right transfer status")
        frame = exchange(connection, tensors(table, bytes(4), status=status(604, 5, b"smoke"), call=2, **call))
        world.must(frame.kind == wire.FAILURE and "smoke" in frame.text(), "a failed transfer")
    for what, wrong in {"an unknown code": status(99999, 1, b"x"), "too long a text": status(604, 121, b"x" * 120),
                        "a text of 4 GiB": status(604, 0xFFFFFFFF), "success with a text": status(0, 9, b"x"),
                        "garbage": b"\xff" * 128, "no UTF-8": status(604, 4, b"\xff\xfe\x80\0")}.items():
        for features in [0, wire.DEVICE_TENSORS]:
            with world.honest.connect(features) as connection:
                connection.send(tensors(table, bytes(4), status=wrong, **call))
                try:
                    frame = connection.receive()
                    world.must(frame.kind == wire.FAILURE, f"a transfer status of {what} counts as success")
                except Closed:
                    pass
    with world.honest.connect() as connection:  # cut off
        connection.send(tensors(table, bytes(4), status=b"", **call))
        connection.sock.shutdown(1)
        world.must(connection.is_closed(), "a connection that ended before the transfer status stays open")


@attack("pauses in the middle of everything")
def pauses(world):
    """A peer that stops in the middle of a message holds up itself only."""
    table = wire.table_entry("f32", (4,))
    whole = tensors(table, bytes(16), extension=wire.record(99, b"12345678"))
    stopped = []
    members = [Member(world) for _ in range(4)]
    try:
        for number, size in enumerate(range(1, len(whole), 11)):
            connection = members[number % len(members)].connect()
            connection.send(whole[:size])
            stopped.append((connection, size))
        slowest = max(world.must_serve() for _ in range(20))
        world.bound("seconds of a call beside stopped ones", 1.0, slowest, "s", exactly=True)
        for connection, size in stopped:
            connection.send(whole[size:])
            world.must(connection.receive().payload == wire.u64(4), f"a message that stopped after {size} bytes")
    finally:
        for connection, _ in stopped:
            connection.close()
        for member in members:
            member.leave()
