"""Arguments that no encoder writes, and calls that the victim does not serve."""

import wire
import world as the_world
from session import Closed
from world import MIB, attack, named

TRUNCATED, LIMIT_EXCEEDED, MALFORMED, BAD_ARGUMENTS = 500, 501, 502, 406
UNKNOWN_METHOD, SIGNATURE_MISMATCH = 404, 405
UNDECODABLE = (BAD_ARGUMENTS, TRUNCATED, LIMIT_EXCEEDED, MALFORMED)
HUGE = [1 << 20, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 60, 1 << 61, (1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1]

MAP, STRINGS, BITS, PAIRS, NUMBER = range(5)  # alternatives of take_everything


def call(method, payload, number=1, **fields):
    return wire.message(wire.REQUEST, payload, call=number, timeout=300_000_000, **named(method), **fields)


def chain(length):
    """Nodes behind pointers, each in the one before."""
    return b"".join(b"\1" + wire.i32(number) for number in range(length)) + b"\0"


@attack("methods that are not there, or are others")
def methods(world):
    with world.honest.connect() as connection:
        right = named("add")
        for method, signature, code in [(0, 0, UNKNOWN_METHOD), ((1 << 64) - 1, right["signature"], UNKNOWN_METHOD),
                                        (right["method"] ^ 1, right["signature"], UNKNOWN_METHOD),
                                        (right["method"], 0, SIGNATURE_MISMATCH),
                                        (right["method"], right["signature"] ^ (1 << 63), SIGNATURE_MISMATCH)]:
            world.must_fail(connection, wire.message(wire.REQUEST, wire.i32(1) * 2, call=1, timeout=300_000_000,
                                                     method=method, signature=signature), (code,),
                            f"method {method:x}, signature {signature:x}")
        for flavour in ["on:", "new:", "new-on:"]:  # no object in sight
            connection.send(wire.message(wire.REQUEST, wire.i32(1) * 2, call=2, timeout=300_000_000,
                                         **named("add", flavour=flavour)))
            world.must(connection.receive().kind in (wire.FAILURE, wire.EXCEPTION), f"{flavour} without an object")


@attack("arguments that are too short, too long, or nothing")
def sizes(world):
    with world.honest.connect() as connection:
        for size in [0, 1, 4, 7, 9, 12, 4096, MIB]:
            world.must_fail(connection, call("add", b"\1" * size), UNDECODABLE, f"{size} bytes for two i32")
        for count in HUGE:
            world.must_fail(connection, call("echo", wire.u64(count) + b"text"), UNDECODABLE, f"a string of {count}")
            world.must_fail(connection, call("shapes", wire.u64(count) + wire.u32(wire.NOTHING)), UNDECODABLE,
                            f"{count} tensors")
        world.must_fail(connection, call("echo", wire.string("text") + b"x"), UNDECODABLE, "a byte behind a string")
        for text in [b"\xff\xfe\xfd", b"\0" * 100, b"\x1b[31m\r\n" * 10, b"%s%n{}{0}" * 3]:
            connection.send(call("echo", wire.string(text)))
            world.must(connection.receive().payload == wire.string(text), f"the text {text!r} does not come back")


@attack("containers and variants that lie")
def containers(world):
    i32 = wire.i32
    wrong = {"alternative 5": i32(5) + wire.f64(1), "alternative -1": i32(-1) + wire.f64(1),
             "the smallest alternative": i32(-(1 << 31)), "the largest alternative": i32((1 << 31) - 1),
             "no alternative": b"", "half an alternative": b"\1\0",
             "an optional that is 2": i32(MAP) + wire.u64(1) + wire.string("k") + wire.u64(1) + b"\2" + wire.f64(1),
             "an optional without its value": i32(MAP) + wire.u64(1) + wire.string("k") + wire.u64(1) + b"\0",
             "a bool that is 255": i32(PAIRS) + i32(1) + b"\xff" + i32(1) + b"\0",
             "vector<bool> with 2": i32(BITS) + wire.u64(2) + b"\1\2",
             "an array too short": i32(PAIRS) + i32(1) + b"\1"}
    with world.honest.connect() as connection:
        for what, payload in wrong.items():
            world.must_fail(connection, call("take_everything", payload), UNDECODABLE, what)
        for count in HUGE:
            for alternative in [MAP, STRINGS, BITS]:
                world.must_fail(connection, call("take_everything", i32(alternative) + wire.u64(count) + b"\0" * 64),
                                UNDECODABLE, f"alternative {alternative} of {count} elements")
        right = {MAP: wire.u64(1) + wire.string("k") + wire.u64(2) + b"\0" + wire.f64(1) + b"\1",
                 STRINGS: wire.vector([wire.string("a"), wire.string("")]), BITS: wire.u64(2) + b"\1\0",
                 PAIRS: (i32(1) + b"\1") * 2, NUMBER: wire.f64(float("nan"))}
        for alternative, value in right.items():
            connection.send(call("take_everything", i32(alternative) + value))
            world.must(connection.receive().payload == wire.u64(alternative), f"alternative {alternative}, which is right")
        many = wire.u64(2) + (wire.string("the same key") + wire.u64(0)) * 2
        connection.send(call("take_everything", i32(MAP) + many))
        world.must(connection.receive().kind in (wire.REPLY, wire.FAILURE), "a key twice")


@attack("messages that decode to much more than they are", memory=200)
def expansion(world):
    """The decoder's budgets: 64 MiB in all, and 16 MiB beside what the payload's size justifies."""
    before = world.peak.begin()
    with world.honest.connect() as connection:
        # As many as fit take a sanitizer's worker minutes.
        for count in [1 << 16, 1 << (24 if world.memory_factor == 1 else 20), 1 << 32, (1 << 63) - 1, (1 << 64) - 1]:
            connection.send(wire.message(wire.REQUEST, wire.u64(1) + wire.u64(count), call=1, timeout=300_000_000,
                                         **world.named("take_nothings")))
            frame = connection.receive()
            world.must(frame.kind in (wire.REPLY, wire.FAILURE), f"{count} elements without bytes")
            world.must(count <= 1 << 24 or frame.kind == wire.FAILURE, f"{count} elements without bytes are accepted")
        empties = wire.i32(STRINGS) + wire.u64(900_000) + bytes(8 * 900_000)  # 7 MB become 29 MB
        connection.send(call("take_everything", empties))
        world.must(connection.receive().kind == wire.REPLY, "900,000 empty strings, which fit into the budget")
        nodes = wire.i32(MAP) + wire.u64(400_000) + b"".join(
            wire.u64(8) + b"%08d" % number + wire.u64(0) for number in range(300_000))
        connection.send(call("take_everything", nodes))
        world.must(connection.receive().kind == wire.FAILURE, "a map of 400,000 that holds 300,000")
    world.bound("memory of a decoded message", 64 * MIB * world.memory_factor + 2 * the_world.MESSAGE_BYTES,
                world.peak.memory - before, "B")


@attack("chains of pointers, deep and wrong")
def pointers(world):

    def chained(payload):
        return wire.message(wire.REQUEST, payload, call=1, timeout=300_000_000, **world.named("take_chain"))

    with world.honest.connect() as connection:
        for length in [0, 1, 10]:
            connection.send(chained(chain(length)))
            frame = connection.receive()
            world.must(frame.payload == wire.i32(length), f"a chain of {length}: {frame.kind} {frame.payload[:90]!r}")
        for length in [65, 1000, 100_000, 1_000_000]:
            world.must_fail(connection, chained(chain(length)), UNDECODABLE, f"a chain of {length}")
        for what, payload in {"cut off": chain(3)[:-1], "too long": chain(3) + b"\0"}.items():
            world.must_fail(connection, chained(payload), UNDECODABLE, f"a chain: {what}")


@attack("shared pointers to what is not there")
def shared_pointers(world):
    first, text = wire.u32((1 << 31) + 1), wire.string("x")

    def shared(*numbers):
        return wire.message(wire.REQUEST, wire.vector(list(numbers)), call=1, timeout=300_000_000,
                            **world.named("take_shared"))

    with world.honest.connect() as connection:
        connection.send(shared(first + text, wire.u32(1), wire.u32(0), wire.u32((1 << 31) + 2) + text, wire.u32(2)))
        world.must(connection.receive().payload == wire.u64(5), "right pointers")
        for what, number in {"an object that did not come": wire.u32(5), "itself": wire.u32(1),
                             "an object out of order": wire.u32((1 << 31) + 2) + text,
                             "the largest number": wire.u32(0xFFFFFFFF) + text, "2^30": wire.u32(1 << 30),
                             "2^30 and a name": wire.u32((1 << 30) + (1 << 31)) + text}.items():
            world.must_fail(connection, shared(number), UNDECODABLE, f"a pointer to {what}")
        world.must_fail(connection, shared(first + text, first + text), UNDECODABLE, "one number twice")


@attack("results that are too large for the caller or the wire")
def results(world):
    with world.honest.connect() as connection:
        for size in [-1, -(1 << 63), 1 << 40, (1 << 63) - 1]:
            connection.send(call("zeros", wire.i64(size)))
            frame = connection.receive()
            world.must(frame.kind in (wire.EXCEPTION, wire.FAILURE), f"zeros({size}): a frame of kind {frame.kind}")
        connection.send(call("zeros", wire.i64(1000)))
        world.must(len(connection.receive().data) == 1000, "zeros(1000)")


@attack("payloads of random bytes")
def random_payloads(world):
    connection = world.honest.connect()
    for _ in range(400):
        name = world.random.choice(["add", "echo", "shapes", "take_everything", "tensor_back", "use"])
        payload = world.random.randbytes(world.random.choice([0, 3, 8, 16, 33, 200]))
        if world.random.random() < 0.5:
            payload = bytes(byte & world.random.choice([0, 1, 3]) for byte in payload)
        try:
            connection.send(wire.message(wire.REQUEST, payload, call=1, timeout=1_000_000, **world.named(name)))
            frame = connection.receive()
            world.must(frame.call == 1 and frame.kind in (wire.REPLY, wire.FAILURE, wire.EXCEPTION),
                       f"{name}: a frame of kind {frame.kind}")
        except Closed:
            connection.close()
            connection = world.honest.connect()
    connection.close()
