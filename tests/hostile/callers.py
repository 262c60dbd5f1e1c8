"""Members that the victim calls, and that neither answer nor read: its bounds as a caller."""

import re

import wire
from floods import largest
from session import Closed, Member, Silent
from world import (CALLS, CALLS_OF_ALL, FAIR_BYTES, FAIR_CALLS, MESSAGE_BYTES, MIB, QUEUED_BYTES, QUEUED_BYTES_OF_ALL,
                   QUEUED_CALLS, QUEUED_CALLS_OF_ALL, UNWRITTEN_BYTES, UNWRITTEN_BYTES_OF_ALL, attack, named)

ANSWERED_LATE = 300_000  # milliseconds that the victim's calls may take; the members leave before


def ask_often(world, member, times, size):
    """Has the victim call the member so often; returns how many calls it took, and what the next one ended with."""
    frame = world.honest_connection.call(
        named("ask_often"), wire.string(member.name) + wire.i64(ANSWERED_LATE) + wire.u64(times) + wire.u64(size))
    world.must(frame.kind == wire.REPLY, f"ask_often: a frame of kind {frame.kind}: {frame.text()}")
    text = frame.payload[8:].decode()
    made, refusal = re.fullmatch(r"(\d+) calls, then (.*)", text, re.DOTALL).groups()
    return int(made), refusal


class Deaf(Member):
    """Shakes hands and reads nothing more."""

    def serve(self, sock):
        try:
            self.welcome(sock)
        except (Closed, Silent, OSError):
            sock.close()


def ended(world, members):
    for member in members:
        member.leave()
    world.eventually(lambda: world.figure("agent.client_active_calls") == 0, "the calls of members that left have ended")
    world.eventually(lambda: world.figure("agent.queued_calls") == 0, "nothing waits for members that left")
    world.eventually(lambda: world.figure("agent.queued_bytes") == 0, "no bytes wait for members that left")


@attack("members that never answer the victim's calls")
def unanswered(world):
    """Of the calls to a member some are sent, others wait, and the rest is refused."""
    for count, of, sent_limit, queued_limit in [
            (1, "a peer", CALLS, QUEUED_CALLS),
            (6, "all peers", CALLS_OF_ALL + 6 * FAIR_CALLS, QUEUED_CALLS_OF_ALL + 6 * FAIR_CALLS)]:
        members = [Member(world) for _ in range(count)]
        try:
            all_made = 0
            for member in members:
                made, refusal = ask_often(world, member, 2 * (CALLS + QUEUED_CALLS), 10)
                world.must(refusal.startswith("resource_exhausted"), f"call {made} ended with '{refusal}'")
                all_made += made
                world.must_serve()
            world.eventually(lambda: sum(len(member.received) for member in members) >= min(count * CALLS, CALLS_OF_ALL),
                             "the calls that may be under way have arrived")
            arrived = sum(len(member.received) for member in members)
            world.bound(f"calls to {of} that were sent and not answered", sent_limit, arrived, exactly=True)
            # While the victim is sending, what it may send is in its queue, too: the two bounds hold together.
            world.bound(f"calls to {of}, sent or in the queue", sent_limit + queued_limit, all_made, exactly=True)
        finally:
            ended(world, members)


@attack("members that do not read the victim's calls", memory=96)
def unread(world):
    """What the transport holds and what waits, in bytes."""
    size = MIB // 4
    for count, of, held, queued in [
            # While the victim is sending, what the transport may take is in the queue, too.
            (1, "a peer", UNWRITTEN_BYTES + MESSAGE_BYTES, QUEUED_BYTES + UNWRITTEN_BYTES),
            (6, "all peers", UNWRITTEN_BYTES_OF_ALL + 6 * MESSAGE_BYTES, QUEUED_BYTES_OF_ALL + 6 * FAIR_BYTES)]:
        members = [Deaf(world) for _ in range(count)]
        try:
            for member in members:
                made, refusal = ask_often(world, member, 200, size)
                world.must(refusal.startswith("resource_exhausted"), f"call {made} ended with '{refusal}'")
                world.must_serve()
            world.bound(f"bytes of calls to {of} that the transport holds", held, largest(world, "agent.unwritten_bytes"), "B",
                        exactly=True)
            world.bound(f"bytes of calls to {of} in the queue", queued, largest(world, "agent.queued_bytes"), "B", exactly=True)
        finally:
            ended(world, members)
