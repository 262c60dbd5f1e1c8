"""A member of the victim's group that speaks the protocol correctly until an attack has it do otherwise."""

import itertools
import os
import random
import socket
import struct
import threading
import time

import wire


class Refused(Exception):
    """The other end answered a handshake, or a request to the store, with an error."""

    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


class Closed(Exception):
    """The other end has closed the connection."""


class Silent(Exception):
    """The other end said nothing in time."""


def exactly(sock, count):
    """`count` bytes from a socket."""
    parts = []
    while count:
        try:
            part = sock.recv(min(count, 1 << 20))
        except socket.timeout as error:
            raise Silent() from error
        except OSError as error:
            raise Closed(str(error)) from error
        if not part:
            raise Closed("end of the stream")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def dial(address, patience):
    sock = socket.create_connection(address, timeout=patience)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


# ---------------------------------------------------------------- store


class Store:
    """A client of the group's store."""

    def __init__(self, port, secret, patience):
        self.sock = dial(("127.0.0.1", port), patience)
        hello = wire.store_hello(1 if secret else 0, random.getrandbits(64)) + (os.urandom(32) if secret else b"")
        self.send(hello)
        first = exactly(self.sock, 32)
        status = struct.unpack_from("<H", first, 6)[0]
        if secret and status == 3:
            first += exactly(self.sock, 32)
            self.send(wire.proof(secret, "ferry store client", hello, first))
            second = exactly(self.sock, 32)
            status = struct.unpack_from("<H", second, 6)[0]
            if status != 4:
                theirs = exactly(self.sock, 32)
                if theirs != wire.proof(secret, "ferry store server", hello, first, second):
                    raise AssertionError("the store's proof is wrong")
        if status != 0:
            raise Refused(status, "the store's hello")

    def send(self, data):
        try:
            self.sock.sendall(data)
        except socket.timeout as error:
            raise Silent() from error
        except OSError as error:
            raise Closed(str(error)) from error

    def receive(self):
        length, status = struct.unpack("<IB3x", exactly(self.sock, 8))
        return status, exactly(self.sock, length)

    def request(self, operation, body):
        self.send(wire.store_message(operation, body))
        status, answer = self.receive()
        if status == wire.ERROR:
            raise Refused(struct.unpack_from("<H", answer)[0], answer[2:].decode(errors="replace"))
        return status, answer

    def get(self, key):
        """The value, or None."""
        status, body = self.request(wire.GET, wire.u8(2) + wire.u32(1) + wire.store_text(key))
        return body[4:] if status == wire.OK else None

    def set(self, key, value):
        self.request(wire.SET, wire.store_text(key) + wire.store_text(value))

    def compare_set(self, key, expected, desired):
        texts = wire.store_text(key) + wire.store_text(expected) + wire.store_text(desired)
        return self.request(wire.COMPARE_SET, texts)[1]

    def erase(self, key):
        self.request(wire.ERASE, wire.store_text(key))

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


# ---------------------------------------------------------------- connections


class Frame:
    """A message that arrived."""

    def __init__(self, sock):
        (self.kind, self.flags, tensors, extension, self.call, payload, data, table, self.code, self.method,
         self.signature, self.timeout) = struct.unpack("<BBHIQQQIIQQQ", exactly(sock, wire.HEADER_BYTES))
        self.tensors = tensors
        self.payload = exactly(sock, payload)
        self.extension = exactly(sock, extension)
        self.table = exactly(sock, table)
        self.data = exactly(sock, data)
        self.status = exactly(sock, 128) if self.flags & wire.TRANSFER_STATUS else b""

    def text(self):
        """The text of a failure; of an exception, its type."""
        if len(self.payload) < 8:
            return ""
        size = struct.unpack_from("<Q", self.payload)[0]
        return self.payload[8:8 + size].decode(errors="replace")

    def reference(self):
        """The first reference of the frame: owner, creator, number of the object, number of the transfer."""
        numbers = struct.unpack_from("<QQQQQQ", self.extension, 16)
        return (numbers[0], numbers[1]), (numbers[2], numbers[3]), numbers[4], numbers[5]


def error_of(answer):
    """The status of a handshake's answer, and its text."""
    status = struct.unpack_from("<I", answer)[0]
    size = struct.unpack_from("<H", answer, 4)[0] if status and len(answer) >= 6 else 0
    return status, answer[6:6 + size].decode(errors="replace")


class Connection:
    """To the victim. Opened as the protocol says, unless told otherwise."""

    def __init__(self, world, member, features=0, patience=None, **changes):
        self.world = world
        self.calls = itertools.count(1)
        self.sock = dial(world.victim_address, patience or world.patience)
        said = dict(features=features | (wire.HAS_SECRET if world.secret else 0), incarnation=member.incarnation,
                    worker_id=member.id, joined=member.joined, group=world.group, name=member.name,
                    meant="victim", nonce=os.urandom(32) if world.secret else b"")
        said.update(changes)
        try:
            self.shake_hands(wire.prefixed(wire.HELLO_MAGIC, wire.hello_body(**said)))
        except BaseException:
            self.sock.close()
            raise

    def shake_hands(self, hello):
        self.send(hello)
        prefix, body = self.answer()
        if self.world.secret and error_of(body)[0] == 1:
            challenge = prefix + body
            self.send(wire.prefixed(wire.HELLO_MAGIC,
                                    wire.proof(self.world.secret, "ferry connecting worker", hello, challenge)))
            prefix, body = self.answer()
            if error_of(body)[0] == 0:
                proof = wire.proof(self.world.secret, "ferry accepting worker", hello, challenge, prefix + body[:-32])
                if body[-32:] != proof:
                    raise AssertionError("the victim's proof is wrong")
        status, text = error_of(body)
        if status:
            raise Refused(status, text)

    def answer(self):
        prefix = exactly(self.sock, 20)
        if prefix[:8] != wire.ANSWER_MAGIC:
            raise AssertionError(f"an answer begins with {prefix[:8]!r}")
        return prefix, exactly(self.sock, struct.unpack_from("<I", prefix, 16)[0])

    def send(self, data):
        try:
            self.sock.sendall(data)
        except socket.timeout as error:
            raise Silent() from error
        except OSError as error:
            raise Closed(str(error)) from error

    def receive(self, patience=None):
        """The next message that is no control frame: heartbeats come at any time."""
        self.sock.settimeout(patience or self.world.patience)
        while True:
            frame = Frame(self.sock)
            if frame.kind != wire.CONTROL:
                return frame

    def request(self, method, payload=b"", timeout=300_000_000, **fields):
        """Sends a call; returns its id."""
        said = dict(call=next(self.calls), timeout=timeout, **method)
        said.update(fields)
        self.send(wire.message(wire.REQUEST, payload, **said))
        return said["call"]

    def call(self, method, payload=b"", patience=None, **fields):
        """Sends a call and waits for what it ends with."""
        number = self.request(method, payload, **fields)
        while True:
            frame = self.receive(patience)
            if frame.call == number and frame.kind in (wire.REPLY, wire.EXCEPTION, wire.FAILURE):
                return frame

    def is_closed(self, patience=None):
        """Whether the other end closes the connection in time. Skips what it still sends."""
        until = time.monotonic() + (patience or self.world.patience)
        try:
            while time.monotonic() < until:
                self.sock.settimeout(max(0.01, until - time.monotonic()))
                if not self.sock.recv(1 << 16):
                    return True
        except socket.timeout:
            return False
        except OSError:
            return True
        return False

    def reset(self):
        """Closes with a reset in place of an end."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


# ---------------------------------------------------------------- members


class Member:
    """Joins the group under a name of its own, and answers what the victim sends to it.

    `answers` is called with a connection and a request of the victim that is not about references.
    """

    def __init__(self, world, answers=None, refuse=False):
        self.world = world
        self.answers = answers
        self.refuse = refuse
        self.incarnation = world.random.getrandbits(64)
        self.received = []  # requests of the victim
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.accepted = []
        self.over = False
        threading.Thread(target=self.accept, daemon=True).start()
        self.name = f"hostile{world.next_member()}"
        self.id = world.member_number + 1
        record = f"{self.name}\n{self.incarnation:016x}\n@elsewhere\ntcp://127.0.0.1:{self.listener.getsockname()[1]}\n\n"
        self.joined = world.append(f"join {self.id}\n{record}")

    def connect(self, features=0, **changes):
        """A connection to the victim; waits until the victim has read that this member has joined."""
        until = time.monotonic() + self.world.patience
        while True:
            try:
                return Connection(self.world, self, features, **changes)
            except Refused as refused:
                if "has not read yet" not in refused.text or time.monotonic() > until:
                    raise
                time.sleep(0.01)  # the protocol's own way: the connecting end tries again

    def accept(self):
        while not self.over:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.accepted.append(sock)
            threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def serve(self, sock):
        try:
            if self.refuse:
                sock.close()
                return
            self.welcome(sock)
            while True:
                frame = Frame(sock)
                if frame.kind != wire.REQUEST:
                    continue
                if frame.method == wire.fingerprint("name:ferry/references"):
                    controls = struct.unpack_from("<Q", frame.payload, 16)[0]
                    reply = wire.u64(controls) + b"\0" * controls
                    sock.sendall(wire.message(wire.REPLY, reply, call=frame.call))
                else:
                    self.received.append(frame)
                    if self.answers:
                        self.answers(sock, frame)
        except (Closed, Silent, OSError):
            sock.close()

    def welcome(self, sock):
        """The accepting end of a handshake."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        prefix = exactly(sock, 20)
        hello = prefix + exactly(sock, struct.unpack_from("<I", prefix, 16)[0])
        answer = wire.u32(0) + wire.u64(0) + wire.u64(self.incarnation) + wire.i32(self.id) + wire.short_text(self.name)
        if not self.world.secret:
            sock.sendall(wire.prefixed(wire.ANSWER_MAGIC, answer))
            return
        challenge = wire.prefixed(wire.ANSWER_MAGIC, wire.u32(1) + os.urandom(32))
        sock.sendall(challenge)
        prefix = exactly(sock, 20)
        theirs = exactly(sock, struct.unpack_from("<I", prefix, 16)[0])
        if theirs != wire.proof(self.world.secret, "ferry connecting worker", hello, challenge):
            raise AssertionError("the victim's proof is wrong")
        unproved = wire.prefixed(wire.ANSWER_MAGIC, answer, length=len(answer) + 32)
        sock.sendall(unproved + wire.proof(self.world.secret, "ferry accepting worker", hello, challenge, unproved))

    def hang_up(self):
        """Ends all connections that the victim has opened to this member."""
        for sock in self.accepted:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed already
            sock.close()
        self.accepted.clear()

    def leave(self):
        self.over = True
        self.world.append(f"gone {self.incarnation:016x}\n")
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it never had a connection
        self.listener.close()
        self.hang_up()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.leave()
