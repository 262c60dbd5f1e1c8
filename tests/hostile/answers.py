"""The victim calls the hostile member, and gets answers that no worker gives."""

import threading

import wire
from session import Closed, Member, Refused, Silent
from world import MIB, attack, named

PHRASES = ("rpc_timeout", "peer_lost", "connection_lost", "protocol_error", "bad_result", "truncated", "malformed",
           "limit_exceeded", "unknown_extension", "remote_exception", "exception", "bad_device", "reference",
           "connect_failed", "handshake_failed")


def string_of(frame):
    return frame.payload[8:].decode(errors="replace")


PROMPT = 120_000  # milliseconds that the victim's call may take: an answer comes, whatever it is
SILENCE = 1000  # none may come, and the call ends then


def ask(world, question, member, limit=PROMPT):
    """What the victim's call of the member's method "answer" ended with."""
    with world.honest.connect() as own:
        frame = own.call(named(question), wire.string(member.name) + wire.i64(limit))
        world.must(frame.kind == wire.REPLY, f"{question}: a frame of kind {frame.kind}: "
                   f"{frame.text() if frame.kind == wire.FAILURE else ''}")
        return string_of(frame)


def check(world, what, answers, question, expected=PHRASES, limit=PROMPT):
    """A member that answers so: the victim's call must end with one of these."""
    with Member(world, answers) as member:
        outcome = ask(world, question, member, limit)
        world.must(any(outcome.startswith(phrase) for phrase in expected), f"{what}: the call ended with '{outcome}'")
        return outcome


def reply(payload=b"", **fields):
    return lambda sock, frame: sock.sendall(wire.message(wire.REPLY, payload, call=frame.call, **fields))


def failure(code, payload):
    return lambda sock, frame: sock.sendall(wire.message(wire.FAILURE, payload, call=frame.call, code=code))


def exception(payload):
    return lambda sock, frame: sock.sendall(wire.message(wire.EXCEPTION, payload, call=frame.call))


@attack("results that cannot be decoded")
def results(world):
    check(world, "a right answer", reply(wire.i32(49)), "ask_number", ("49",))
    for what, payload in {"nothing": b"", "3 bytes": b"\1\2\3", "5 bytes": b"\1" * 5, "1 MiB": bytes(MIB)}.items():
        outcome = check(world, f"{what} for an i32", reply(payload), "ask_number")
        world.must("answer" in outcome, f"'{outcome}' does not name the method")
    for count in [5, 1 << 31, 1 << 62, (1 << 64) - 1]:
        check(world, f"a string of {count} bytes", reply(wire.u64(count) + b"abc"), "ask_text")
    check(world, "text that is no UTF-8", reply(wire.string(b"\xff\xfe\0\x1b")), "ask_text", PHRASES + ("\ufffd",))


@attack("results with tensors that lie")
def tensors(world):
    entry = wire.table_entry
    check(world, "a right tensor", reply(wire.u32(0), table=entry("u8", (3,)), data=bytes(3), tensors=1), "ask_tensor",
          ("3",))
    for what, fields in {
            "no tensor": {}, "too little data": dict(table=entry("f32", (3,)), data=bytes(3), tensors=1),
            "gaps": dict(table=entry("u8", (3,), strides=[2]), data=bytes(3), tensors=1),
            "a negative stride": dict(table=entry("u8", (3,), strides=[-1]), data=bytes(3), tensors=1),
            "two tensors": dict(table=entry("u8", (3,)) * 2, data=bytes(6), tensors=2),
            "a device that is not there": dict(table=entry("u8", (3,), device=(1, 0)), data=bytes(3), tensors=1),
            "a size that overflows": dict(table=entry("f64", ((1 << 61) + 1,)), data=bytes(8), tensors=1)}.items():
        check(world, f"a result with {what}", reply(wire.u32(0), **fields), "ask_tensor")


@attack("failures and exceptions that cannot be decoded")
def failures(world):
    check(world, "a right failure", failure(409, wire.string("too much to do")), "ask_number", ("resource_exhausted",))
    check(world, "a right exception", exception(wire.string("std::runtime_error") + wire.string("no") + wire.string("")),
          "ask_number", ("exception", "remote_exception"))
    text = wire.string
    for code in [0, 1, 99, 99999, 0xFFFFFFFF]:
        outcome = check(world, f"a failure {code}", failure(code, text("why")), "ask_number", ("",))
        world.must(outcome != "", f"a failure {code}: no words")
    for what, payload in {"nothing": b"", "half a size": b"\1\0", "a text cut off": wire.u64(100) + b"short",
                          "a text of 2^64 - 1": wire.u64((1 << 64) - 1), "bytes behind": text("why") + b"x",
                          "no UTF-8": text(b"\xff\x1b[2J\0")}.items():
        check(world, f"a failure with {what}", failure(409, payload), "ask_number", ("",))
        check(world, f"an exception with {what}", exception(payload), "ask_number", ("",))
    for what, payload in {"an unknown type": text("a::b<c>") + text("t") + text(""),
                          "no type": text("") + text("") + text(""),
                          "an error with a number that is none": text("ferry::error") + text("t") + text("9x"),
                          "an error with a number of 30 digits": text("ferry::error") + text("t") + text("9" * 30),
                          "an error with number 0": text("ferry::error") + text("t") + text("0"),
                          "two texts": text("std::runtime_error") + text("t"),
                          "a type of 1 MiB": text("x" * MIB) + text("t") + text("")}.items():
        check(world, f"an exception of {what}", exception(payload), "ask_number", ("",))


@attack("answers to other calls, of other kinds, and twice")
def confusion(world):
    right = wire.i32(49)

    def other_ids(sock, frame):
        for call in [frame.call + 1, 0, (1 << 64) - 1, frame.call ^ (1 << 63)]:
            sock.sendall(wire.message(wire.REPLY, wire.i32(666), call=call))
        sock.sendall(wire.message(wire.REPLY, right, call=frame.call))

    check(world, "answers to other ids", other_ids, "ask_number", PHRASES + ("49",))

    def twice(sock, frame):
        for value in [49, 666, 667]:
            sock.sendall(wire.message(wire.REPLY, wire.i32(value), call=frame.call))
        sock.sendall(wire.message(wire.FAILURE, wire.string("late"), call=frame.call, code=400))

    check(world, "an answer four times", twice, "ask_number", ("49",))
    for kind in [wire.REQUEST, wire.CANCEL, wire.CONTROL, 0, 9]:
        check(world, f"a frame of kind {kind} for an answer",
              lambda sock, frame, kind=kind: sock.sendall(wire.message(kind, right, call=frame.call, **named("add"))),
              "ask_number", limit=SILENCE)
    check(world, "a critical record", reply(right, extension=wire.record(99, b"", critical=True)), "ask_number")
    check(world, "a record that is skipped", reply(right, extension=wire.record(99, b"")), "ask_number", ("49",))
    check(world, "flags", reply(right, flags=wire.NO_REPLY), "ask_number")


@attack("answers that stop in the middle")
def halves(world):
    whole = wire.message(wire.REPLY, wire.i32(49), call=0)
    for size in [0, 1, 63, 64, len(whole) - 1]:
        for ending in ["silence", "end"]:

            def half(sock, frame, size=size, ending=ending):
                sock.sendall(wire.message(wire.REPLY, wire.i32(49), call=frame.call)[:size])
                if ending == "end":
                    sock.shutdown(2)

            if ending == "silence" and size not in (0, 64):
                continue  # each takes the call's whole limit
            check(world, f"{size} bytes of an answer, then {ending}", half, "ask_number",
                  limit=SILENCE if ending == "silence" else PROMPT)


@attack("a member that refuses connections, or does not shake hands")
def no_handshake(world):
    with Member(world, refuse=True) as member:
        outcome = ask(world, "ask_number", member)
        world.must(any(outcome.startswith(phrase) for phrase in PHRASES), f"the call ended with '{outcome}'")

    def garbage(sock):
        sock.sendall(world.random.randbytes(5000))

    def other_member(sock):
        body = wire.u32(0) + wire.u64(0) + wire.u64(1) + wire.i32(3) + wire.short_text("another")
        sock.sendall(wire.prefixed(wire.ANSWER_MAGIC, body))

    def long_refusal(sock):
        sock.sendall(wire.prefixed(wire.ANSWER_MAGIC, wire.u32(303) + wire.short_text("x" * 4000)))

    def unknown_status(sock):
        sock.sendall(wire.prefixed(wire.ANSWER_MAGIC, wire.u32(0xFFFFFFFF) + wire.short_text(b"\xff\x1b[2J")))

    def huge(sock):
        sock.sendall(wire.ANSWER_MAGIC + wire.u32(1) + wire.u32(1) + wire.u32(0xFFFFFFFF))

    def version(sock):
        sock.sendall(wire.prefixed(wire.ANSWER_MAGIC, wire.u32(0), version=9, oldest=9))

    def cut(sock):
        sock.sendall(wire.prefixed(wire.ANSWER_MAGIC, wire.u32(0))[:19])
        sock.shutdown(2)

    def secret_challenge(sock):
        sock.sendall(wire.prefixed(wire.ANSWER_MAGIC, wire.u32(1) + b"n" * 32))

    for behaviour in [garbage, other_member, long_refusal, unknown_status, huge, version, cut, secret_challenge]:
        with Member(world) as member:
            member.welcome = behaviour
            outcome = ask(world, "ask_number", member)
            world.must(outcome and not outcome.isdigit(), f"{behaviour.__name__}: the call ended with '{outcome}'")


@attack("calls that the hostile member answers by calls", memory=64)
def recursion(world):
    """Each answers the other by asking again, until the victim's bound of blocked handlers."""
    asked = []

    def ask_back(sock, frame):
        asked.append(frame)
        if len(asked) < 60:
            threading.Thread(target=again, daemon=True).start()
        # never answered: the victim's call ends at its limit of a second

    def again():
        try:
            ask(world, "ask_number", member, SILENCE)
        except (AssertionError, Closed, Refused, Silent, OSError):
            pass  # refused: the bound

    with Member(world, ask_back) as member:
        outcome = ask(world, "ask_number", member, SILENCE)
        world.must(outcome.startswith(PHRASES), f"the call ended with '{outcome}'")
        world.eventually(lambda: world.figure("agent.client_active_calls") == 0, "the victim's calls end")


@attack("references to what was never made, as results")
def references(world):
    def life(pair):
        return wire.u64(pair[0]) + wire.u64(pair[1])

    def with_record(member, owner, creator, number=5, transfer=1, said=None, count=1, payload=wire.u32(0)):
        one = life(owner) + life(creator) + wire.u64(number) + wire.u64(transfer)
        record = wire.record(wire.REFERENCES, wire.u64(member.incarnation if said is None else said) + one * count, True)
        return reply(payload, extension=record)

    for what, made in {
            "of the member's own": lambda m: with_record(m, (m.id, m.incarnation), (m.id, m.incarnation)),
            "of an object of the victim that never was": lambda m: with_record(m, world.victim, world.victim, 1 << 50),
            "of a worker that never was": lambda m: with_record(m, (4711, 1), (4711, 1)),
            "of another incarnation": lambda m: with_record(m, (m.id, 1), (m.id, 1), said=1),
            "without a record": lambda m: reply(wire.u32(0)),
            "behind the record": lambda m: with_record(m, (m.id, m.incarnation), (m.id, m.incarnation),
                                                       payload=wire.u32(7)),
            "a thousand times": lambda m: with_record(m, (m.id, m.incarnation), (m.id, m.incarnation), count=1000),
            "with the largest numbers": lambda m: with_record(m, (m.id, m.incarnation), (m.id, m.incarnation),
                                                              (1 << 64) - 1, (1 << 64) - 1),
            "of an id that is none": lambda m: with_record(m, ((1 << 64) - 1, 1), (1 << 40, 1))}.items():
        with Member(world) as member:
            member.answers = made(member)
            outcome = ask(world, "ask_reference", member)
            world.must(outcome != "", f"a reference {what}: no words")
