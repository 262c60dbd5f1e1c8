"""Much of what is allowed, and of what is not: the bounds of docs/backpressure.md and docs/security.md."""

import select
import threading
import time

import wire
import world as the_world
from session import Closed, Member, Refused, Silent, Store, dial, exactly
from world import (FAIR_BYTES, FAIR_CALLS, HANDLERS, LOG_LINES, LOG_SECONDS, MESSAGE_BYTES, MIB, SERVED_BYTES,
                   SERVED_BYTES_OF_ALL, SERVED_CALLS, SERVED_CALLS_OF_ALL, UNWRITTEN_BYTES, UNWRITTEN_BYTES_OF_ALL, attack,
                   named)


def pour(connection, data, seconds=2.0, most=1 << 30):
    """Sends again and again, until the victim takes no more; returns how often."""
    times, until = 0, time.monotonic() + seconds
    try:
        while times < most and time.monotonic() < until and select.select([], [connection.sock], [], 0.3)[1]:
            if not send_whole(connection.sock, data, 0.5):
                break
            times += 1
    except OSError:
        pass  # closed by the victim
    return times


def send_whole(sock, data, patience):
    """False if the other end took nothing for so long. Leaves alone the socket's timeout, which a Reader uses."""
    rest = memoryview(data)
    while rest:
        if not select.select([], [sock], [], patience)[1]:
            return False
        rest = rest[sock.send(rest):]
    return True


class Reader(threading.Thread):
    """Takes what comes, and counts it."""

    def __init__(self, connection):
        super().__init__(daemon=True)
        self.connection = connection
        self.kinds = {}
        self.start()

    def run(self):
        try:
            while True:
                frame = self.connection.receive(30)
                self.kinds[frame.kind] = self.kinds.get(frame.kind, 0) + 1
        except (Closed, Silent, OSError, ValueError):
            pass  # the end of the flood

    def total(self):
        return sum(self.kinds.values())


def largest(world, name, seconds=0.5):
    """The largest value that one of the victim's figures has during that time."""
    until, most = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        most = max(most, world.figure(name))
    return most


@attack("calls that are never answered")
def held(world):
    """The victim reads no more of a peer than it may serve at once; others are not held up."""
    with Member(world) as member:
        with member.connect() as connection:
            for call in range(1, 400):
                try:
                    connection.sock.settimeout(0.2)
                    connection.request(named("hold"), wire.string("x" * 1000), timeout=300_000_000, call=call)
                except (Silent, Closed):
                    break
            world.bound("calls served at once for a peer", SERVED_CALLS, largest(world, "agent.server_active_async_calls"),
                        exactly=True)
            world.eventually(lambda: world.figure("agent.paused_connections") >= 1, "a connection is paused")
            for _ in range(20):
                world.must_serve()
        world.eventually(lambda: world.figure("agent.server_active_async_calls") == 0,
                         "the calls of a peer that has gone are over")
        with member.connect() as connection:
            pour(connection, wire.message(wire.REQUEST, wire.string("x" * 200_000), call=7, timeout=300_000_000,
                                          **named("hold")), 1.0)
            world.bound("bytes served at once for a peer", SERVED_BYTES + MESSAGE_BYTES,
                        largest(world, "agent.served_bytes"), "B", exactly=True)
    # The end of that connection stands behind what the victim does not read, but the member has left.
    world.eventually(lambda: world.figure("agent.served_bytes") < 10_000, "what they took is given back")
    world.honest_connection.call(named("release"))


@attack("calls of many members that are never answered", memory=96)
def held_of_all(world):
    """Above the bounds of the worker, each member still has its share."""
    members = [Member(world) for _ in range(8)]
    peers = len(members)
    try:
        for what, text, most, limit, figure, left, unit in [
                ("calls served at once for all peers", "x", 80, SERVED_CALLS_OF_ALL + peers * FAIR_CALLS,
                 "agent.server_active_async_calls", 1, ""),
                ("bytes served at once for all peers", "x" * 200_000, 40,
                 SERVED_BYTES_OF_ALL + peers * (FAIR_BYTES + MESSAGE_BYTES), "agent.served_bytes", 10_000, "B")]:
            open_ones = [member.connect() for member in members]
            data = wire.message(wire.REQUEST, wire.string(text), call=7, timeout=300_000_000, **named("hold"))
            for connection in open_ones:
                pour(connection, data, 0.5, most)
            world.eventually(lambda: world.figure("agent.paused_connections") >= 1, f"a connection is paused: {what}")
            world.bound(what, limit, largest(world, figure), unit, exactly=True)
            world.must_serve()
            for connection in open_ones:
                connection.close()
            # What stands behind that was read before the end, and is held again.
            world.eventually(lambda: world.honest_connection.call(named("release")) and world.figure(figure) < left,
                             f"what they took is given back: {what}")
    finally:
        for member in members:
            member.leave()


@attack("large messages that stop before their end", memory=96)
def unfinished(world):
    """What has been received of messages: at most one message for each connection."""
    before = world.peak.begin()
    with Member(world) as member:
        open_ones = []
        try:
            for _ in range(6):
                connection = member.connect()
                open_ones.append(connection)
                payload = 7 * MIB
                connection.send(wire.header(call=1, payload=payload, timeout=300_000_000, **named("echo")))
                connection.send(wire.u64(payload - 8) + bytes(payload - 9))
            for _ in range(10):
                world.must_serve()
            world.bound("memory of unfinished messages (6 connections)", 6 * MESSAGE_BYTES * world.memory_factor,
                        world.peak.memory - before, "B")
        finally:
            for connection in open_ones:
                connection.close()


@attack("results that are never read", memory=64)
def unread(world):
    before = world.peak.begin()
    with Member(world) as member:
        with member.connect() as connection:
            pour(connection, wire.message(wire.REQUEST, wire.i64(MIB), call=5, timeout=300_000_000, **named("zeros")), 2.0)
            world.bound("bytes of results for a peer that does not read", UNWRITTEN_BYTES + HANDLERS * MESSAGE_BYTES,
                        largest(world, "agent.unwritten_replies"), "B", exactly=True)
            for _ in range(20):
                world.must_serve()
            world.bound("memory of results that are not read",
                        (UNWRITTEN_BYTES + HANDLERS * MESSAGE_BYTES) * world.memory_factor, world.peak.memory - before, "B")
    world.eventually(lambda: world.figure("agent.unwritten_replies") < 10_000, "what they took is given back")


@attack("results that many members never read", memory=96)
def unread_of_all(world):
    members = [Member(world) for _ in range(8)]
    open_ones = [member.connect() for member in members]
    try:
        for connection in open_ones:
            pour(connection, wire.message(wire.REQUEST, wire.i64(MIB), call=5, timeout=300_000_000, **named("zeros")), 0.4, 200)
        world.bound("bytes of results for peers that do not read",
                    UNWRITTEN_BYTES_OF_ALL + len(members) * FAIR_BYTES + HANDLERS * MESSAGE_BYTES,
                    largest(world, "agent.unwritten_replies"), "B", exactly=True)
        world.must_serve()
    finally:
        for connection in open_ones:
            connection.close()
        for member in members:
            member.leave()
    world.eventually(lambda: world.figure("agent.unwritten_replies") < 10_000, "what they took is given back")


def lines_allowed(seconds, peers=2):
    # 20 in any 5 s for the member, as many for unauthenticated peers, and the lines that count what was left out
    periods = int(seconds / LOG_SECONDS) + 2
    return (LOG_LINES + 1) * peers * periods


def log_lines(world):
    return world.log().count("\n")


@attack("connections that break the protocol, as fast as they can")
def broken_connections(world):
    """Connections of a member, of strangers, and of clients of the store: each kind has its own limit of log lines."""

    def of_a_member():
        with world.honest.connect() as connection:
            connection.send(wire.header(kind=77) * 100)

    def of_a_stranger():
        with dial(world.victim_address, world.patience) as sock:
            sock.sendall(wire.prefixed(wire.HELLO_MAGIC, b"", version=77, oldest=77))
            exactly(sock, 1)

    def of_a_client():
        Store(world.store_port, None if world.secret else b"a secret", world.patience).close()

    for what, kind in [("a member's connections", of_a_member), ("strangers' connections", of_a_stranger),
                       ("clients of the store", of_a_client)]:
        before, began, times = log_lines(world), time.monotonic(), 0
        while time.monotonic() - began < 1 or times < 100:
            try:
                kind()
            except (Closed, Refused, Silent, OSError):
                pass
            times += 1
        seconds = time.monotonic() - began
        world.bound(f"log lines of {what} that break", lines_allowed(seconds), log_lines(world) - before, exactly=True)
        world.must_serve()


@attack("calls of unknown methods and with wrong arguments, as fast as they can")
def refused_calls(world):
    before, began = log_lines(world), time.monotonic()
    with Member(world) as member:
        for what, fields in [("unknown methods", dict(method=1, signature=1)), ("wrong arguments", named("add")),
                             ("wrong signatures", dict(named("add"), signature=1))]:
            with member.connect() as connection:
                reader = Reader(connection)
                sent = pour(connection, wire.message(wire.REQUEST, b"bad", call=3, timeout=300_000_000, **fields) * 50, 1.0, 30)
                world.eventually(lambda: reader.total() >= 50 * sent, f"all of the {50 * sent} calls of {what} are answered")
                world.must(set(reader.kinds) <= {wire.FAILURE, wire.CONTROL}, f"{what}: frames of the kinds {set(reader.kinds)}")
            world.must_serve()
    seconds = time.monotonic() - began
    world.bound("log lines of calls that are refused", lines_allowed(seconds), log_lines(world) - before, exactly=True)


@attack("control frames that cannot be read, as fast as they can")
def broken_controls(world):
    before, began = log_lines(world), time.monotonic()
    with Member(world) as member, member.connect(wire.CONTROL_ONLY) as connection:
        pour(connection, wire.message(wire.CONTROL, b"\xff" * 9, code=wire.FENCE) * 100, 1.0)
        pour(connection, wire.message(wire.CONTROL, b"", code=77) * 500, 1.0)
        pour(connection, wire.message(wire.CONTROL, b"", code=wire.HEARTBEAT) * 500, 1.0)
        world.must_serve()
    seconds = time.monotonic() - began
    world.bound("log lines of broken control frames", lines_allowed(seconds), log_lines(world) - before, exactly=True)


@attack("notifications, and cancels and answers without a call")
def one_way(world):
    with Member(world) as member:
        for data in [wire.message(wire.REQUEST, wire.i32(1) * 2, call=1, flags=wire.NO_REPLY, timeout=300_000_000,
                                  **named("add")) * 100,
                     wire.message(wire.CANCEL, call=1) * 500,
                     wire.message(wire.CONTROL, code=wire.CANCEL_CALL, call=1) * 500,
                     wire.message(wire.REPLY, wire.i32(1), call=1 << 40) * 500]:
            with member.connect() as connection:
                pour(connection, data, 0.7, 100)
                world.must_serve()
                world.must_serve_or_close(connection)  # behind what was poured
    world.eventually(lambda: world.figure("agent.server_active_async_calls") == 0, "all notifications have run")


@attack("members that come and go")
def comings_and_goings(world):
    for _ in range(15):
        members = [Member(world) for _ in range(4)]
        for member in members:
            with member.connect() as connection:
                connection.request(named("hold"), wire.string("x"), timeout=300_000_000)
                connection.send(wire.message(wire.CONTROL, code=wire.GOODBYE))
        for member in members:
            member.leave()
    world.eventually(lambda: world.figure("agent.server_active_async_calls") == 0, "the calls of members that left are over")
    world.honest_connection.call(named("release"))


# Served at once for all peers 16 MiB and a share of 1 MiB for each of 24 connections, as much in unwritten answers: 80 MiB, and what
# the allocator keeps for each thread. Without a sanitizer 79 to 94 MiB after other attacks.
@attack("an honest member while others flood", memory=112)
def beside_floods(world):
    """Calls of one member beside three that send as much as the victim takes."""
    over = threading.Event()

    def flood(member):
        data = wire.message(wire.REQUEST, wire.string("x" * 50_000), call=1, timeout=300_000_000, **named("echo")) * 4
        while not over.is_set():
            try:
                with member.connect() as connection:
                    Reader(connection)
                    pour(connection, data, 0.5)
            except (Closed, Silent, OSError):
                pass

    members = [Member(world) for _ in range(3)]
    threads = [threading.Thread(target=flood, args=(member,), daemon=True) for member in members]
    for thread in threads:
        thread.start()
    try:
        until, slowest = time.monotonic() + 3, 0.0
        while time.monotonic() < until:
            slowest = max(slowest, world.must_serve())
    finally:
        over.set()
        for thread in threads:
            thread.join()
        for member in members:
            member.leave()
    world.bound("seconds of an honest call beside floods", the_world.LONGEST_HONEST_CALL * max(1, world.memory_factor / 2),
                slowest, "s", exactly=True)
