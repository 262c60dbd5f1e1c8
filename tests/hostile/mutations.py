"""Valid messages with bytes changed, taken out, put in and repeated, from a seed."""

import time

import references
import wire
from session import Closed, Member
from world import named


def valid_messages(world, member):
    """What a member may send; the mutations begin with these."""
    life = wire.u64(member.id) + wire.u64(member.incarnation)
    target = wire.object_id(world.victim, (member.id, member.incarnation), 77)
    call = dict(call=1, timeout=300_000)
    f32 = wire.table_entry("f32", (2, 3))
    bools = wire.table_entry("bool", (4,), strides=[1])
    everything = wire.i32(0) + wire.u64(1) + wire.string("k") + wire.u64(2) + b"\0" + wire.f64(1) + b"\1"
    chain = wire.u64(1) + life + life + wire.u64(1) * 3
    holder = wire.control_object(world.victim, (member.id, member.incarnation), 77)
    body = wire.u64(member.incarnation) + wire.u64(world.victim[1]) + wire.u64(2) + wire.reference_control(
        wire.USER_DELETE, holder, (0, 77)) + wire.reference_control(wire.FORK_REQUEST, holder, (0, 0), 78)

    def request(method, payload, **fields):
        return wire.message(wire.REQUEST, payload, **call, **method, **fields)

    stranger = wire.string("stranger") + wire.i32(4711) + wire.u64(99) + wire.string("gone")
    return [
        request(named("add"), wire.i32(1) + wire.i32(2)),
        request(named("echo"), wire.string("text " * 20)),
        request(named("shapes"), wire.vector([wire.u32(0), wire.u32(1), wire.u32(0)]), table=f32 + bools,
                data=bytes(24) + b"\0\1\0\1", tensors=2),
        request(named("tensor_back"), wire.u32(0), table=f32, data=bytes(24), tensors=1, flags=wire.TRANSFER_STATUS,
                status=bytes(128)),
        request(named("take_everything"), everything),
        request(named("take_everything"), wire.i32(1) + wire.vector([wire.string("a"), wire.string("bc")])),
        request(world.named("take_chain"), b"\1" + wire.i32(1) + b"\1" + wire.i32(2) + b"\0"),
        request(world.named("take_shared"), wire.vector([wire.u32((1 << 31) + 1) + wire.string("x"), wire.u32(1)])),
        request(world.named("take_nothings"), wire.vector([wire.u64(3), wire.u64(0)])),
        request(world.named("counter", "new:"), wire.i32(5), extension=references.object_record(2, target)),
        request(world.named("counter.add", "on:"), wire.i32(1), extension=references.object_record(1, target)),
        request(world.named("use"), wire.u32(0), extension=references.reference_record(member.incarnation, (target, 9))),
        request(world.named("lend"), b""),
        request(world.named("ferry/references"), body),
        request(named("add"), wire.i32(1) + wire.i32(2),
                extension=wire.record(wire.CALL_CHAIN, chain) + wire.record(99, b"skipped")),
        request(named("add"), wire.i32(1) + wire.i32(2), flags=wire.NO_REPLY),
        wire.message(wire.CANCEL, call=1),
        wire.message(wire.CONTROL, code=wire.HEARTBEAT),
        wire.message(wire.CONTROL, stranger, code=wire.FENCE),
        wire.message(wire.CONTROL, code=wire.CANCEL_CALL, call=1),
    ]


def mutate(random, data):
    """One to four changes, most of them in the header and in small numbers."""
    data = bytearray(data)
    for _ in range(random.randint(1, 4)):
        if not data:
            break
        at = random.randrange(min(len(data), random.choice([64, 128, 1 << 20])))
        change = random.randrange(7)
        if change == 0:
            data[at] ^= 1 << random.randrange(8)
        elif change == 1:
            data[at] = random.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
        elif change == 2:
            data[at:at + 8] = wire.u64(random.choice([0, 1, 8, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]))
        elif change == 3:
            data[at:at + random.choice([1, 4, 8])] = b""
        elif change == 4:
            data[at:at] = random.randbytes(random.choice([1, 4, 8, 40]))
        elif change == 5:
            size = random.choice([4, 8, 16, 64])
            data[at:at] = data[at:at + size]
        else:
            del data[at:]
    return bytes(data)


def attack_for(world, seconds):
    """Mutations until the time is over; returns how many."""
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        with Member(world) as member:
            messages = valid_messages(world, member)
            for _ in range(12):
                if time.monotonic() > until:
                    break
                try:
                    with member.connect(wire.DEVICE_TENSORS) as connection:
                        for _ in range(world.random.randint(1, 6)):
                            connection.send(mutate(world.random, world.random.choice(messages)))
                            count += 1
                        if world.random.random() < 0.2:
                            connection.reset()
                            continue
                        connection.sock.shutdown(1)
                        world.must(connection.is_closed(), "a connection that has ended stays open")
                except (Closed, OSError):
                    pass  # what the victim does with most of them
        if world.random.random() < 0.1:
            world.must_serve()
    return count
