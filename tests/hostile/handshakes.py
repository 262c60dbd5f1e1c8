"""Connections that do not become members' connections."""

import os
import socket
import struct
import time

import wire
import world as the_world
from session import Closed, Connection, Member, Refused, Silent, dial, error_of, exactly
from world import attack, named

UNKNOWN_WORKER, HANDSHAKE_FAILED, VERSION_MISMATCH, PROTOCOL_ERROR, AUTHENTICATION_FAILED = 103, 303, 304, 306, 309
RESOURCE_EXHAUSTED, JOIN_PENDING, GROUP_MISMATCH, FENCED = 409, 210, 207, 403


def hello(world, **changes):
    """A right hello of the honest member, but for the changes."""
    said = dict(features=wire.HAS_SECRET if world.secret else 0, incarnation=world.honest.incarnation,
                worker_id=world.honest.id, joined=world.honest.joined, group=world.group, name=world.honest.name,
                meant="victim", nonce=os.urandom(32) if world.secret else b"")
    said.update(changes)
    return wire.prefixed(wire.HELLO_MAGIC, wire.hello_body(**said))


def outcome(world, data, patience=None):
    """What the victim says to these bytes: the status of its answer, or None if it just closes the connection.
    Its challenge counts as status 1."""
    patience = patience or world.patience
    with dial(world.victim_address, patience) as sock:
        try:
            sock.sendall(data)
            prefix = exactly(sock, 20)
            world.must(prefix[:8] == wire.ANSWER_MAGIC, f"an answer begins with {prefix[:8]!r}")
            size = struct.unpack_from("<I", prefix, 16)[0]
            world.must(size <= 4096, f"an answer of {size} bytes")
            return error_of(exactly(sock, size))[0]
        except (Closed, ConnectionError, BrokenPipeError):
            return None


@attack("handshakes cut off, after each byte")
def cut_off(world):
    good = hello(world)
    for size in range(len(good)):
        with dial(world.victim_address, world.patience) as sock:
            sock.sendall(good[:size])
            sock.shutdown(socket.SHUT_WR)
            world.must_not_hang(sock, f"a hello cut off after {size} bytes")


@attack("handshakes with another magic or version")
def other_protocols(world):
    body = hello(world)[20:]
    for magic in [b"\0" * 8, b"\xff" * 8, wire.ANSWER_MAGIC, wire.HELLO_MAGIC[:7] + b"\r", b"GET / HT", b"FSTR\1\0\0\0"]:
        world.must(outcome(world, magic + hello(world)[8:]) is None, f"the magic {magic!r} was answered")
    for version, oldest in [(0, 0), (2, 2), (0xFFFFFFFF, 2), (0xFFFFFFFF, 0xFFFFFFFF)]:
        got = outcome(world, wire.prefixed(wire.HELLO_MAGIC, body, version, oldest))
        world.must(got == VERSION_MISMATCH, f"version {version}, oldest {oldest}: {got}")
    for version, oldest in [(7, 0), (0xFFFFFFFF, 1)]:  # later versions that speak this one, too
        got = outcome(world, wire.prefixed(wire.HELLO_MAGIC, body, version, oldest))
        world.must(got == (1 if world.secret else 0), f"version {version}, oldest {oldest}: {got}")


@attack("handshakes whose sizes are wrong")
def wrong_sizes(world):
    for length in [4097, 1 << 16, 0x7FFFFFFF, 0xFFFFFFFF]:
        got = outcome(world, wire.prefixed(wire.HELLO_MAGIC, hello(world)[20:], length=length))
        world.must(got in (None, HANDSHAKE_FAILED, PROTOCOL_ERROR), f"a body of {length} bytes: {got}")
    body = hello(world)[20:]
    for length in range(0, len(body), 3):  # the fields run beyond the body
        got = outcome(world, wire.prefixed(wire.HELLO_MAGIC, body[:length]))
        world.must(got in (None, HANDSHAKE_FAILED, AUTHENTICATION_FAILED), f"a body of {length} bytes: {got}")
    fixed = wire.u64(1) * 2 + wire.i32(1) + wire.u64(0)
    for text in [wire.u16(0xFFFF), wire.u16(513) + b"g" * 513, wire.u16(512) + b"g" * 512,
                 wire.short_text("g") + wire.u16(128) + b"n" * 128,
                 wire.short_text("g") + wire.short_text("n") + wire.u16(128) + b"m" * 128]:
        got = outcome(world, wire.prefixed(wire.HELLO_MAGIC, fixed + text))
        world.must(got in (None, HANDSHAKE_FAILED, AUTHENTICATION_FAILED), f"texts {text[:20]!r}: {got}")
    with Connection(world, world.honest, nonce=(os.urandom(32) if world.secret else b"") + b"later fields") as later:
        frame = later.call(named("add"), wire.i32(1) + wire.i32(1))
        world.must(frame.payload == wire.i32(2), "a hello with further fields")


@attack("handshakes of strangers and of those who pretend to be others")
def strangers(world):
    for what, codes, changes in [
            ("another group", (UNKNOWN_WORKER, GROUP_MISMATCH), {"group": "0" * 16}),
            ("no group", (UNKNOWN_WORKER, GROUP_MISMATCH), {"group": ""}),
            ("another worker", (UNKNOWN_WORKER,), {"meant": "no-such-worker"}),
            ("no worker", (UNKNOWN_WORKER, HANDSHAKE_FAILED), {"meant": ""}),
            ("text that is no UTF-8", (UNKNOWN_WORKER, HANDSHAKE_FAILED), {"meant": b"\xff\xfe\0\x80"}),
            ("an unused id", None, {"worker_id": 77777}),
            ("a negative id", None, {"worker_id": -1}),
            ("the victim's own name and id", None, {"name": "victim", "worker_id": 0}),
            ("the victim itself", None, {"name": "victim", "worker_id": 0, "incarnation": world.victim[1]}),
            ("another name", None, {"name": "impostor"}),
            ("another incarnation", None, {"incarnation": 1}),
            ("incarnation 0", None, {"incarnation": 0}),
            ("an entry of the log that is another's", None, {"joined": 1}),
            ("an entry of the log that is to come", None, {"joined": 1 << 40}),
            ("an entry beyond all", None, {"joined": (1 << 64) - 1})]:
        try:
            Connection(world, world.honest, **changes).close()
            world.must(codes is None and "entry" in what, f"{what}: welcome")
        except Refused as refused:
            world.must(codes is None or refused.status in codes, f"{what}: {refused}")
        except Closed:
            pass  # refused without a word


@attack("handshakes with all features, and with unknown ones")
def features(world):
    own = wire.HAS_SECRET if world.secret else 0
    with Connection(world, world.honest, features=((1 << 64) - 1) & ~(wire.HAS_SECRET | wire.CONTROL_ONLY | wire.OBSERVER)) as every:
        world.must(every.call(named("add"), wire.i32(4) + wire.i32(5)).payload == wire.i32(9), "unknown features")
    for bits in range(16):
        if bits & wire.HAS_SECRET == own:
            Connection(world, world.honest, features=bits).close()
    with Connection(world, world.honest, features=wire.CONTROL_ONLY) as control:
        world.must_close(control, wire.message(call=1, payload=wire.i32(1) + wire.i32(2), **named("add")),
                         "a call on a connection for control frames")
    with Connection(world, world.honest, features=wire.OBSERVER) as observer:
        world.must_close(observer, wire.message(call=1, payload=wire.i32(1) + wire.i32(2), **named("add")),
                         "a call of an observer")


@attack("proofs that are missing, wrong, replayed or sent back")
def proofs(world):
    if not world.secret:
        got = outcome(world, hello(world, features=wire.HAS_SECRET, nonce=os.urandom(32)))
        world.must(got == AUTHENTICATION_FAILED, f"a secret where there is none: {got}")
        return
    got = outcome(world, hello(world, features=0))
    world.must(got == AUTHENTICATION_FAILED, f"no secret: {got}")
    for nonce in [b"", b"\1" * 31]:
        got = outcome(world, hello(world, nonce=nonce))
        world.must(got in (None, HANDSHAKE_FAILED, AUTHENTICATION_FAILED), f"a nonce of {len(nonce)} bytes: {got}")

    def answer_to(made, magic=wire.HELLO_MAGIC):
        """What follows on a proof that `made` makes of hello and challenge."""
        with dial(world.victim_address, world.patience) as sock:
            said = hello(world)
            sock.sendall(said)
            prefix = exactly(sock, 20)
            challenge = prefix + exactly(sock, struct.unpack_from("<I", prefix, 16)[0])
            try:
                sock.sendall(wire.prefixed(magic, made(said, challenge)))
                prefix = exactly(sock, 20)
                return error_of(exactly(sock, struct.unpack_from("<I", prefix, 16)[0]))[0]
            except (Closed, ConnectionError, BrokenPipeError):
                return None

    kept = []

    def honest(said, challenge):
        kept.append(wire.proof(world.secret, "ferry connecting worker", said, challenge))
        return kept[0]

    world.must(answer_to(honest) == 0, "a right proof")
    wrong = {
        "replayed": lambda said, challenge: kept[0],
        "zeros": lambda said, challenge: bytes(32),
        "of another secret": lambda said, challenge: wire.proof(b"guess", "ferry connecting worker", said, challenge),
        "of the other end": lambda said, challenge: wire.proof(world.secret, "ferry accepting worker", said, challenge),
        "the challenge sent back": lambda said, challenge: challenge[-32:],
        "without the challenge": lambda said, challenge: wire.proof(world.secret, "ferry connecting worker", said),
        "one bit off": lambda said, challenge: bytes([honest(said, challenge)[0] ^ 1]) + kept[-1][1:],
    }
    for what, made in wrong.items():
        world.must(answer_to(made) == AUTHENTICATION_FAILED, f"a proof that is wrong ({what}) was not refused")
    for size in [0, 31, 33, 4096]:
        got = answer_to(lambda said, challenge: bytes(size))
        world.must(got in (None, HANDSHAKE_FAILED, AUTHENTICATION_FAILED), f"a proof of {size} bytes: {got}")
    world.must(answer_to(honest, wire.ANSWER_MAGIC) is None, "a proof with the magic of an answer")


@attack("handshakes that trickle")
def trickle(world):
    """However many bytes come, the handshake ends in time."""
    began = time.monotonic()
    socks = [dial(world.victim_address, world.patience) for _ in range(8)]
    good = hello(world)
    at = 0
    ended = {}
    while len(ended) != len(socks) and time.monotonic() - began < the_world.HANDSHAKE_SECONDS + world.patience:
        for index, sock in enumerate(socks):
            if index in ended:
                continue
            try:
                sock.send(good[at:at + 1] or b"\0")
                sock.settimeout(0.001)
                if not sock.recv(1):
                    raise ConnectionError
            except (socket.timeout, BlockingIOError):
                continue
            except OSError:
                ended[index] = time.monotonic() - began
        at = min(at + 1, 40)
        time.sleep(0.05)
    for sock in socks:
        sock.close()
    world.must(len(ended) == len(socks), f"{len(socks) - len(ended)} handshakes that trickle go on")
    world.bound("seconds of a handshake that trickles", the_world.HANDSHAKE_SECONDS, max(ended.values()), "s")


@attack("connections that say nothing, hundreds of them")
def silence(world):
    """An honest member gets in among 1000 silent connections a second."""
    silent, slowest = [], 0.0
    began = time.monotonic()
    try:
        while time.monotonic() - began < 3:
            until = time.monotonic() + 0.1
            for _ in range(100):
                sock = socket.socket()
                sock.setblocking(False)
                sock.connect_ex(world.victim_address)
                silent.append(sock)
                if len(silent) > 300:
                    silent.pop(0).close()
            tried = time.monotonic()
            world.connect_honest().close()
            slowest = max(slowest, time.monotonic() - tried)
            time.sleep(max(0, until - time.monotonic()))
    finally:
        for sock in silent:
            sock.close()
    world.bound("seconds of a handshake among silent connections", 1 if world.memory_factor == 1 else 2, slowest, "s",
                exactly=True)


@attack("more handshakes than a worker keeps")
def many_handshakes(world):
    """Of those that have said nothing, and of those that stop in the middle, at most so many are kept."""
    good = hello(world)
    for what, said in [("say nothing", b""), ("stop in the middle", good[:30])]:
        world.bound(f"handshakes kept that {what}", the_world.MOST_HANDSHAKES,
                    kept(world, world.victim_address, said, 3 * the_world.MOST_HANDSHAKES))
        world.connect_honest().close()


def kept(world, address, said, count):
    """Opens so many connections that say this; returns how many descriptors the victim has for them at most."""
    world.peak.begin()
    before = world.peak.descriptors
    socks = []
    try:
        for _ in range(count):
            sock = dial(address, world.patience)
            socks.append(sock)
            try:
                sock.sendall(said)
            except OSError:
                pass  # has made room already
        until = time.monotonic() + 1
        while time.monotonic() < until and world.peak.descriptors == before:
            time.sleep(0.05)
        time.sleep(0.3)  # the samples of what the victim has
        return world.peak.descriptors - before
    finally:
        for sock in socks:
            sock.close()


@attack("more connections than a member needs")
def of_one_member(world):
    """Those of one member are counted by what they are for."""
    for what, features in [("calls", 0), ("control", wire.CONTROL_ONLY)]:
        open_ones, refused = [], 0
        with Member(world) as member:
            try:
                for _ in range(3 * the_world.CONNECTIONS_OF_A_MEMBER):
                    try:
                        open_ones.append(member.connect(features))
                    except (Refused, Closed) as no:
                        world.must(isinstance(no, Closed) or no.status == RESOURCE_EXHAUSTED, f"refused with {no}")
                        refused += 1
                world.must(refused > 0, f"{len(open_ones)} connections of one member for {what} are open")
                world.bound(f"connections of a member for {what}", the_world.CONNECTIONS_OF_A_MEMBER, len(open_ones),
                            exactly=True)
                world.must_serve()
            finally:
                for connection in open_ones:
                    connection.close()


@attack("more connections than a worker takes")
def too_many(world):
    """Beyond the bound connections are refused, with words; those that are open go on."""
    members = [Member(world) for _ in range(24)]
    open_ones, refused = [], 0
    try:
        for member in members:
            for _ in range(8):
                try:
                    open_ones.append(member.connect())
                except (Refused, Closed) as no:
                    world.must(isinstance(no, Closed) or no.status == RESOURCE_EXHAUSTED, f"refused with {no}")
                    refused += 1
        world.must(refused > 0, "192 connections are open where 128 may be")
        world.bound("connections of all members", the_world.MOST_CONNECTIONS, len(open_ones), exactly=True)
        world.must(open_ones[-1].call(named("add"), wire.i32(1) + wire.i32(1)).payload == wire.i32(2),
                   "the last connection does not serve")
    finally:
        for connection in open_ones:
            connection.close()
        for member in members:
            member.leave()
    world.eventually(lambda: can_connect(world), "connections that have closed make room")


def can_connect(world):
    try:
        Connection(world, world.honest).close()
        return True
    except (Refused, Closed, Silent):
        return False


@attack("a reset in the middle of each handshake")
def resets(world):
    good = hello(world)
    for size in range(0, len(good), 7):
        sock = dial(world.victim_address, world.patience)
        sock.sendall(good[:size])
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
