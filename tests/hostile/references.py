"""Objects, references and their controls, as no worker uses them."""

import session
import wire
from session import Closed
from world import attack

DONE, TOO_LATE = 0, 1


def life(pair):
    return wire.u64(pair[0]) + wire.u64(pair[1])


def object_record(flags, *ids):
    return wire.record(wire.OBJECT, wire.u64(flags) + b"".join(ids), critical=True)


def reference_record(sender, *references):
    """`references`: object id and transfer."""
    return wire.record(wire.REFERENCES, wire.u64(sender) + b"".join(each + wire.u64(transfer)
                                                                    for each, transfer in references), critical=True)


def me(world):
    return (world.honest.id, world.honest.incarnation)


def tell(world, connection, *items, sender=None, meant=None, count=None, behind=b""):
    """Sends reference controls; returns the answer."""
    body = wire.u64(world.honest.incarnation if sender is None else sender)
    body += wire.u64(world.victim[1] if meant is None else meant)
    body += wire.u64(len(items) if count is None else count) + b"".join(items) + behind
    return connection.call(world.named("ferry/references"), body)


def make(world, connection, number, start=5):
    """Has the victim make a counter; `number` is its creator's."""
    target = wire.object_id(world.victim, me(world), number)
    frame = connection.call(world.named("counter", "new:"), wire.i32(start), extension=object_record(2, target))
    world.must(frame.kind == wire.REPLY, f"make: a frame of kind {frame.kind}: {frame.text()}")
    return target


def add(world, connection, target, more=1, flags=1, extra=b""):
    return connection.call(world.named("counter.add", "on:"), wire.i32(more), timeout=3_000_000,
                           extension=object_record(flags, target) + extra)


def delete(target, number):
    """The control with which a holder says that its reference, made by the creator's claim `number`, is gone."""
    return wire.reference_control(wire.USER_DELETE, target, (0, number))


def control_id(world, number, owner=None, creator=None):
    return wire.control_object(owner or world.victim, creator or me(world), number)


@attack("objects that are made, used and deleted")
def honest_life(world):
    """The same protocol without a fault, so that the attacks below attack what they mean to."""
    with world.honest.connect() as connection:
        before = world.figure("num_owner_rrefs")
        numbers = range(101, 111)
        targets = [make(world, connection, number) for number in numbers]
        world.must(world.figure("num_owner_rrefs") == before + 10, "ten objects are not counted")
        for target in targets:
            frame = add(world, connection, target)
            world.must(frame.payload == wire.i32(6), f"5 + 1: kind {frame.kind}, {frame.payload[:90]!r}")
        forget(world, connection, numbers)
        world.eventually(lambda: world.figure("num_owner_rrefs") == before, "ten objects are gone")


def forget(world, connection, numbers):
    frame = tell(world, connection, *(delete(control_id(world, number), number) for number in numbers))
    world.must(frame.kind == wire.REPLY, f"user_delete: {frame.kind} {frame.payload[:90]!r}")


@attack("controls that cannot be decoded")
def garbage(world):
    good = delete(control_id(world, 1), 1)
    with world.honest.connect() as connection:
        for count in [2, 1 << 20, 1 << 32, (1 << 62) // 3, (1 << 64) - 1]:
            frame = tell(world, connection, good, count=count)
            world.must(frame.kind in (wire.FAILURE, wire.EXCEPTION), f"{count} controls in the place of one")
        for what, data in {"cut off": good[:-1], "a fork of 2": good[:25] + b"\2" + good[26:], "half": good[:20]}.items():
            frame = tell(world, connection, data, count=1)
            world.must(frame.kind != wire.REPLY or what == "a fork of 2", f"a control that is {what} is answered")
        frame = tell(world, connection, good, behind=b"\0")
        world.must(frame.kind == wire.FAILURE, "a byte behind the controls")
        for kind in [0, 7, 8, 99, 255]:
            frame = tell(world, connection, wire.reference_control(kind, control_id(world, 1), (0, 0), 1))
            world.must(frame.payload == wire.u64(1) + b"\1" or frame.kind == wire.FAILURE,
                       f"a control of kind {kind}: {frame.kind}, {frame.payload[:90]!r}")


@attack("controls for what never was, of others, and far too often")
def lies(world):
    far = (1 << 64) - 1
    with world.honest.connect() as connection:
        for sender, meant in [(1, None), (None, 1), (0, 0), (far, far)]:
            frame = tell(world, connection, delete(control_id(world, 1), 1), sender=sender, meant=meant)
            world.must(frame.kind in (wire.REPLY, wire.FAILURE), f"from {sender} to {meant}: {frame.kind}")
        for kind in [wire.FORK_REQUEST, wire.CHILD_ACCEPT, wire.USER_DELETE, wire.TRANSFER_QUERY, wire.CREATION_QUERY,
                     wire.WATERMARK]:
            for number in [0, 1, 1 << 40, far]:
                for target in [control_id(world, number), control_id(world, number, (4711, 1)),
                               control_id(world, number, creator=(4711, 1)), control_id(world, number, me(world)),
                               wire.control_object((-1, far), (-(1 << 31), 0), number)]:
                    if kind == wire.WATERMARK and number > 1:
                        continue  # that one is below: it is true for ever
                    for fork in [(0, 0), (1, number)]:
                        frame = tell(world, connection, wire.reference_control(kind, target, fork, number))
                        world.must(frame.kind in (wire.REPLY, wire.FAILURE),
                                   f"kind {kind}, {number}: a frame of kind {frame.kind}")
        many = [wire.reference_control(wire.USER_DELETE, control_id(world, number), (0, number))
                for number in range(1 << 20, (1 << 20) + 50_000)]
        frame = tell(world, connection, *many)
        world.must(frame.kind in (wire.REPLY, wire.FAILURE), "50,000 deletions of nothing")


@attack("objects that are used wrongly")
def wrong_use(world):
    with world.honest.connect() as connection:
        target = make(world, connection, 201)
        mine = wire.object_id(me(world), me(world), 201)
        never = wire.object_id(world.victim, me(world), 1 << 41)
        foreign = wire.object_id(world.victim, (4711, 1), 201)
        other_life = wire.object_id((world.victim[0], 1), me(world), 201)
        far = wire.object_id(((1 << 64) - 1, 1), ((1 << 63), 1), 1)
        for what, id_ in {"of another's": mine, "of an earlier life": other_life, "of an id that is none": far}.items():
            frame = add(world, connection, id_)
            world.must(frame.kind in (wire.FAILURE, wire.EXCEPTION), f"an object {what}: a frame of kind {frame.kind}")
        for id_ in [never, foreign]:  # it may yet be made: the call waits, until its caller goes at the latest
            connection.send(wire.message(wire.REQUEST, wire.i32(1), call=901, timeout=300_000,
                                         extension=object_record(1, id_), **world.named("counter.add", "on:")))
        for flags in [0, 2, 3]:
            frame = add(world, connection, target, flags=flags)
            world.must(frame.kind in (wire.FAILURE, wire.EXCEPTION, wire.REPLY), f"object flags {flags}")
            world.must(flags != 0 or frame.kind == wire.FAILURE, "an object record that says nothing but has an id")
        connection.call(world.named("counter", "new:"), wire.i32(1), extension=object_record(2, target))
        # Made twice: an answer is all that is asked.
        frame = add(world, connection, target)
        world.must(frame.kind == wire.REPLY, f"the object after its second making: {frame.kind} {frame.text()}")
        for _ in range(3):
            forget(world, connection, [201])
        frame = add(world, connection, target)
        world.must(frame.kind in (wire.FAILURE, wire.EXCEPTION),
                   f"a deleted object serves: {frame.kind}, {frame.payload[:60]!r}")
    world.eventually(lambda: world.figure("agent.server_active_calls") <= 1, "calls of objects that never were end")


@attack("calls of objects that are never made")
def never_made(world):
    """Each waits until it is given up; nothing of its object stays, whether the creator exists or not."""
    before = world.figure("num_expected_rrefs")
    with world.honest.connect() as connection:
        calls = range(2001, 2049)  # fewer than are served at once
        for call in calls:
            creator = me(world) if call % 2 else (4711, call)
            connection.send(wire.message(wire.REQUEST, wire.i32(1), call=call, timeout=600_000_000,
                                         extension=object_record(1, wire.object_id(world.victim, creator, (1 << 42) + call)),
                                         **world.named("counter.add", "on:")))
        world.eventually(lambda: world.figure("num_expected_rrefs") >= before + len(calls), "as many objects are expected")
        for call in calls:
            connection.send(wire.message(wire.CANCEL, call=call))
        world.eventually(lambda: world.figure("num_expected_rrefs") <= before, "objects that are never made are forgotten")


@attack("references handed over that do not exist")
def handed_over(world):
    one = me(world)
    with world.honest.connect() as connection:

        def use(record, payload=wire.u32(0)):
            return connection.call(world.named("use"), payload, timeout=1_000_000, extension=record)

        make(world, connection, 301)
        for what, record, payload in [
                ("of an unknown owner", reference_record(one[1], (wire.object_id((4711, 1), one, 1), 1)), wire.u32(0)),
                ("of a past life of the victim", reference_record(one[1], (wire.object_id((0, 1), one, 1), 2)),
                 wire.u32(0)),
                ("of another sender", reference_record(12345, (wire.object_id(world.victim, one, 301), 3)), wire.u32(0)),
                ("without a record", b"", wire.u32(0)),
                ("that is empty", b"", wire.u32(wire.NOTHING)),
                ("beyond the record", reference_record(one[1], (wire.object_id(world.victim, one, 301), 4)),
                 wire.u32(1)),
                ("with the largest transfer", reference_record(one[1],
                                                               (wire.object_id(world.victim, one, 301), (1 << 64) - 1)),
                 wire.u32(0)),
                ("in a second record", reference_record(one[1]) * 2, wire.u32(0))]:
            frame = use(record, payload)
            world.must(frame.kind in (wire.FAILURE, wire.EXCEPTION, wire.REPLY), f"a reference {what}: {frame.kind}")
        many = reference_record(one[1], *((wire.object_id(world.victim, one, 301), 100 + number) for number in range(400)))
        frame = use(many)
        world.must(frame.kind in (wire.FAILURE, wire.EXCEPTION, wire.REPLY), "400 references in one message")
        forget(world, connection, [301])


@attack("objects that are lent and never given back")
def lent(world):
    """What a member holds of the victim's is given back when it leaves."""
    before = world.figure("num_owner_rrefs")
    with session.Member(world) as member:
        with member.connect() as connection:
            for number in range(200):
                connection.send(wire.message(wire.REQUEST, b"", call=number + 1, timeout=300_000_000,
                                             **world.named("lend")))
                frame = connection.receive()
                world.must(frame.kind == wire.REPLY, f"lend: a frame of kind {frame.kind}")
                owner, _, _, _ = frame.reference()
                world.must(owner == world.victim, f"lend: an object of {owner}")
            world.must(world.figure("num_owner_rrefs") >= before + 200, "200 lent objects are not counted")
    world.eventually(lambda: world.figure("num_owner_rrefs") <= before, "what a member that left had borrowed is gone")


@attack("watermarks that are too high, and what comes late")
def watermark(world):
    """A member that lies about what it will hand over harms itself only."""
    with session.Member(world) as member:
        with member.connect() as connection:
            body = wire.u64(member.incarnation) + wire.u64(world.victim[1]) + wire.u64(1) + wire.reference_control(
                wire.WATERMARK, number=(1 << 64) - 1)
            connection.send(wire.message(wire.REQUEST, body, call=1, timeout=300_000_000,
                                         **world.named("ferry/references")))
            world.must(connection.receive().kind in (wire.REPLY, wire.FAILURE), "the highest watermark")
            target = wire.object_id(world.victim, (member.id, member.incarnation), 1)
            record = reference_record(member.incarnation, (target, 5))
            connection.send(wire.message(wire.REQUEST, wire.u32(0), call=2, timeout=1_000_000, extension=record,
                                         **world.named("use")))
            try:
                connection.receive()
            except Closed:
                pass  # as good an answer as any
