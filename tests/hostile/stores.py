"""Clients of the group's store that are no workers, and junk in the group's log."""

import os
import socket
import struct
import time

import wire
import world as the_world
from session import Closed, Member, Refused, Silent, Store, dial, exactly
from handshakes import kept
from world import MIB, attack

PROTOCOL_ERROR, AUTHENTICATION_FAILED = 306, 309


def store_hello(world, **changes):
    features = 1 if world.secret else 0
    return wire.store_hello(**{"features": features, **changes}) + (os.urandom(32) if world.secret else b"")


def store_address(world):
    return ("127.0.0.1", world.store_port)


def must_end(world, sock, what):
    world.must_not_hang(sock, what)
    sock.close()


@attack("hellos to the store that are none")
def hellos(world):
    good = store_hello(world)
    for size in range(len(good)):
        sock = dial(store_address(world), world.patience)
        sock.sendall(good[:size])
        sock.shutdown(socket.SHUT_WR)
        must_end(world, sock, f"{size} bytes of a hello to the store")
    for changes in [{"magic": b"FSTX"}, {"magic": b"GET "}, {"version": 0}, {"version": 2}, {"version": 0xFFFF}]:
        sock = dial(store_address(world), world.patience)
        sock.sendall(store_hello(world, **changes))
        must_end(world, sock, f"a hello with {changes}")
    if world.secret:
        for secret in [None, b"guess"]:
            try:
                Store(world.store_port, secret, world.patience).close()
                world.must(False, "a client without the secret is welcome")
            except (Refused, Closed):
                pass
        sock = dial(store_address(world), world.patience)
        sock.sendall(good)
        exactly(sock, 64)
        sock.sendall(bytes(31))
        began = time.monotonic()
        must_end(world, sock, "a proof cut off")
        world.bound("seconds of a handshake with the store that stops", the_world.STORE_HANDSHAKE_SECONDS,
                    time.monotonic() - began, "s")
    else:
        try:
            Store(world.store_port, b"a secret", world.patience).close()
            world.must(False, "a client with a secret is welcome where there is none")
        except (Refused, Closed):
            pass
    for said in [b"", good[:9]]:
        sock = dial(store_address(world), world.patience)
        began = time.monotonic()
        sock.sendall(said)
        must_end(world, sock, "a hello that does not come")
        world.bound("seconds of a handshake with the store that stops", the_world.STORE_HANDSHAKE_SECONDS,
                    time.monotonic() - began, "s")


@attack("requests to the store that are none")
def requests(world):
    text = wire.store_text
    bad = {"operation 0": (0, b""), "operation 10": (10, b""), "operation 255": (255, b""), "a set of nothing": (1, b""),
           "a set without a value": (1, text("k")), "an empty key": (1, text("") + text("v")),
           "a key of 4097 bytes": (1, text("k" * 4097) + text("v")), "a key of 4 GiB": (1, wire.u32(0xFFFFFFFF) + b"k"),
           "a value of 4 GiB": (1, text("k") + wire.u32(0xFFFFFFFF)), "bytes behind a set": (1, text("k") + text("v") + b"x"),
           "a get of no key": (2, b""), "a get of 65537 keys": (2, b"\0" + wire.u32(65537) + text("k") * 65537),
           "a get of 4294967295 keys": (2, b"\0" + wire.u32(0xFFFFFFFF)), "a get with unknown flags": (2, b"\xf0" + wire.u32(1) + text("k")),
           "an add of a half number": (3, text("k") + b"\1\2"), "a compare_set of two texts": (4, text("k") * 2),
           "a list without its end": (6, text("k")), "a wait_change without a version": (8, text("k")),
           "a cancel with a body": (9, b"x" * 100)}
    for what, (operation, body) in bad.items():
        with world.open_store() as client:
            try:
                client.send(wire.store_message(operation, body))
                status, answer = client.receive()
                world.must(status in (wire.ERROR, wire.ABSENT) or (operation == 2 and status == wire.OK),
                           f"{what}: status {status}, {answer[:60]!r}")
            except Closed:
                pass
            except Silent:
                world.must(operation == 9, f"{what}: neither an answer nor an end")
    for length in [0x7FFFFFFF, 0xFFFFFFFF, 2 * MIB + 4161]:
        with world.open_store() as client:
            client.send(wire.store_message(1, b"", length=length))
            try:
                status, _ = client.receive()
                world.must(status == wire.ERROR, f"a body of {length} bytes")
            except Closed:
                pass
    with world.open_store() as client:  # what a number cannot be
        client.set("hostile/text", "no number")
        for request in [(wire.ADD, text("hostile/text") + wire.i64(1)),
                        (wire.ADD, text("hostile/number") + wire.i64((1 << 63) - 1)),
                        (wire.ADD, text("hostile/number") + wire.i64((1 << 63) - 1))]:
            client.send(wire.store_message(*request))
            status, _ = client.receive()
        world.must(status == wire.ERROR, "a sum that overflows")
        client.erase("hostile/text")
        client.erase("hostile/number")


@attack("requests to the store that are cut off or come while one waits")
def order(world):
    text = wire.store_text
    waiting = wire.store_message(wire.GET, b"\3" + wire.u32(1) + text("hostile/never"))
    with world.open_store() as client:
        client.send(waiting)
        client.send(wire.store_message(wire.SET, text("hostile/k") + text("v")))
        world.must_not_hang(client.sock, "a request while another one waits")
    with world.open_store() as client:
        client.send(waiting)
        client.send(wire.store_message(wire.STORE_CANCEL, b""))
        status, body = client.receive()
        world.must(status == wire.CANCELLED and body[:4] == wire.u32(1), f"a cancelled get: {status} {body!r}")
        client.send(wire.store_message(wire.STORE_CANCEL, b"") * 100)
        world.must(client.get("ferry/dynamic/group").decode() == world.group, "cancels of nothing are not ignored")
    whole = wire.store_message(wire.SET, text("hostile/k") + text("v" * 100))
    for size in range(0, len(whole), 9):
        with world.open_store() as client:
            client.send(whole[:size])
            client.sock.shutdown(socket.SHUT_WR)
            world.must_not_hang(client.sock, f"a request cut off after {size} bytes")
    began = time.monotonic()
    with world.open_store() as client:
        client.send(whole[:20])
        world.must_not_hang(client.sock, "a request that stops in the middle")
    world.bound("seconds of a request to the store that stops", the_world.STORE_SECONDS, time.monotonic() - began, "s")
    with world.open_store() as client:
        client.set("hostile/large", "v" * (MIB - 100))
        open_before = world.peak.now()[1]
        client.send(wire.store_message(wire.GET, b"\2" + wire.u32(1) + text("hostile/large")) * 16)
        began = time.monotonic()  # the replies are more than the sockets hold, so that the end is not seen here
        world.eventually(lambda: world.peak.now()[1] < open_before, "a client that does not read its reply is dropped")
        world.bound("seconds of a reply of the store that is not read", the_world.STORE_SECONDS, time.monotonic() - began, "s")
    with world.open_store() as client:
        client.erase("hostile/large")


@attack("more clients of the store than it takes")
def clients(world):
    open_ones, refused = [], 0
    try:
        for _ in range(100):
            try:
                open_ones.append(world.open_store())
            except (Refused, Closed):
                refused += 1
        world.must(refused > 0, "100 clients are welcome where 64 are")
        world.bound("clients of the store", the_world.STORE_CLIENTS, len(open_ones), exactly=True)
        world.must(world.store.get("ferry/dynamic/group").decode() == world.group, "the store does not serve")
    finally:
        for client in open_ones:
            client.close()
    world.eventually(lambda: opens(world), "clients that have gone make room")
    # With the clients that have a place; beyond both, those that say nothing make room for others.
    world.bound("clients of the store that say nothing", the_world.STORE_CLIENTS + the_world.STORE_STRANGERS,
                kept(world, store_address(world), b"", 200))
    world.open_store().close()


def opens(world):
    try:
        world.open_store().close()
        return True
    except (Refused, Closed, Silent):
        return False


@attack("a store that is full", memory=24)
def full(world):
    """Values, with their overhead, up to the limit of 16 MiB; then an error, and the group goes on."""
    before = world.peak.begin()
    kept = 0
    with world.open_store() as client:
        for size in [MIB - 100, 1000, 0]:
            try:
                for number in range(200_000):
                    client.set(f"hostile/full/{size}/{number}", "v" * size)
                    kept += size + 128
            except Refused:
                pass
        world.must(kept <= the_world.STORE_BYTES, f"{kept} bytes are kept")
        try:
            client.set("hostile/one-more", "v" * 200)
            world.must(False, "a full store takes another value")
        except Refused as refused:
            world.must("full" in refused.text, f"a full store says {refused}")
        world.must_serve()
        world.bound("memory of the store's values", the_world.STORE_BYTES * world.memory_factor,
                    world.peak.memory - before, "B")
        remove(client, "hostile/")


def set_at_last(world, key, value):
    """What the clients of an attack before left unfinished counts until the server has seen that they are gone."""
    until = time.monotonic() + 60
    while True:
        try:
            with world.open_store() as client:
                return client.set(key, value)
        except (Refused, Closed):
            world.must(time.monotonic() < until, "the store takes no large value")
            time.sleep(0.05)


def remove(client, prefix):
    while True:
        _, body = client.request(wire.LIST, wire.store_text(prefix) + wire.store_text(""))
        at, keys = 1, []
        while at < len(body):
            size = struct.unpack_from("<I", body, at)[0]
            keys.append(body[at + 4:at + 4 + size])
            at += 4 + size
            at += 4 + struct.unpack_from("<I", body, at)[0]
        for key in keys:
            client.erase(key)
        if not keys:
            return


@attack("clients of the store that send, and never finish or read", memory=56)
def slow_clients(world):
    before = world.peak.begin()
    text = wire.store_text
    value = b"v" * (MIB - 100)
    set_at_last(world, "hostile/large", value)
    half = wire.store_message(wire.SET, text("hostile/half") + text(value))[:-1]
    ask = wire.store_message(wire.GET, b"\2" + wire.u32(1) + text("hostile/large"))
    wait = wire.store_message(wire.GET, b"\3" + wire.u32(2000) + text("hostile/never/" + "k" * 500) * 2000)
    for what, request, times in [("unfinished messages", half, 1), ("replies that are not read", ask, 8),
                                 ("requests that wait", wait, 1)]:
        open_ones = []
        try:
            for _ in range(40):
                try:
                    client = world.open_store()
                    open_ones.append(client)
                    client.sock.settimeout(0.5)
                    for _ in range(times):
                        client.send(request)
                except (Refused, Closed, Silent):
                    continue
            world.must_serve()
        finally:
            for client in open_ones:
                client.close()
        world.bound(f"memory of {what} to the store", (the_world.STORE_BYTES + 12 * MIB) * world.memory_factor,
                    world.peak.memory - before, "B")
    with world.open_store() as client:
        remove(client, "hostile/")


@attack("junk in the group's log")
def junk(world):
    """Entries that do not fit count as nothing; the members go on reading."""
    me = f"{world.honest.incarnation:016x}"
    record = f"pretender\n{1:016x}\n@elsewhere\ntcp://127.0.0.1:1\n\n"
    for entry in ["", "\n", "join", "join \n", f"join -1\n{record}", f"join 99999999999999999999\n{record}",
                  f"join {world.honest.id}\n{record}", f"join 7\nvictim\n{2:016x}\n@m\n\n", "join 8\n" + "x" * 500,
                  "join 9\n\n\n\n\n\n", f"join 10\nbad name!\n{3:016x}\n@m\n\n", "leave", "leave \n", "leave zz\n",
                  f"leave {99:016x}\n", "gone\n", f"gone {99:016x}\n", "suspect\n", f"suspect {me}\n",
                  f"suspect {99:016x} {98:016x}\n", f"suspect {99:016x} {me}\n", "alive\n", f"alive {99:016x}\n", "lost\n",
                  f"lost {99:016x} {me} 0\nbecause", f"lost {me}\n", f"lost {me} {98:016x} 0\nx",
                  f"lost {me} {me} 99999999999999999999\nx", "unknown words\n", b"\xff\xfe\0\n\0", "x" * 60_000]:
        if not entry:
            continue  # compare_set with nothing desired erases
        world.append(entry)
    world.must_serve()
    with Member(world) as member, member.connect() as connection:
        world.must(connection.call(the_world.named("add"), wire.i32(1) + wire.i32(2)).payload == wire.i32(3),
                   "a member that joined behind the junk")
    for key, value in [("ferry/dynamic/tail", "junk"), ("ferry/dynamic/tail", "99999999999999999999"),
                       ("ferry/dynamic/tail", "-1"), ("ferry/dynamic/tail", str(1 << 62)), ("ferry/dynamic/members", "junk"),
                       ("ferry/dynamic/members", "99999999 4294967295\n")]:
        before = world.store.get(key)
        world.store.set(key, value)
        world.must_serve()
        if before is None:
            world.store.erase(key)
        else:
            world.store.set(key, before)
    world.store.set("ferry/dynamic/tail", str(world.log_index))
    world.must_serve()
