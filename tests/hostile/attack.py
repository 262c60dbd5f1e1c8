#!/usr/bin/env python3
"""A hostile peer, written from docs/protocol.md, attacks a worker: CONTRIBUTING.md says how to run it.

    attack.py VICTIM [--seconds N] [--seed N] [--only TEXT]

Runs every attack on victims with a secret and on victims without one, and sends them mutations of valid messages. After
each attack the victim must live, answer the calls of an honest member, and have taken no more memory, descriptors and
threads than it may. Prints what was measured of each bound.
"""

import argparse
import concurrent.futures
import multiprocessing
import random
import sys
import time
import traceback

import world as the_world
from world import ATTACKS, MIB, World

import answers  # noqa: F401  (each registers its attacks)
import callers  # noqa: F401
import floods  # noqa: F401
import frames  # noqa: F401
import handshakes  # noqa: F401
import mutations
import payloads  # noqa: F401
import references  # noqa: F401
import stores  # noqa: F401

# Handlers that run and that wait, the monitor, control connections and the store; and threads that receive, of which there
# are the more, up to one for each connection, the longer each has to wait for a processor.
def most_threads(world):
    return the_world.HANDLERS + the_world.BLOCKED_HANDLERS + int(44 * max(1, world.memory_factor / 2))


def run(world, name, allowance, attack):
    """One attack; returns the memory that the victim took on for it, in bytes."""
    world.random.seed(f"{world.seed} {name}")
    world.load.begin()
    before = world.peak.begin()
    attack(world)
    waited = world.must_serve()
    allowed = the_world.LONGEST_HONEST_CALL * max(1, world.memory_factor / 2)
    world.bound("seconds of an honest call after an attack", allowed, waited, "s", exactly=True)
    grown = world.peak.memory - before
    world.must(grown <= allowance * world.memory_factor,
               f"the victim took {grown / MIB:.0f} MiB, allowed are {allowance * world.memory_factor / MIB:.0f}")
    world.bound("descriptors", the_world.MOST_DESCRIPTORS, world.peak.descriptors, exactly=True)
    world.bound("threads", most_threads(world), world.peak.threads, exactly=True)
    return grown


def one_share(options, secret, seed, attacks, mutating):
    """These attacks on a victim of their own, then mutations for so many seconds; returns the bounds that were measured."""
    world = World(options.victim, secret, seed, options.patience, options.memory_factor)
    where = "start"
    try:
        for name, allowance, attack in attacks + ([("mutations", 96 * MIB, None)] if mutating else []):
            where = name
            began = time.monotonic()
            grown = run(world, name, allowance, attack or (lambda world: mutations.attack_for(world, mutating)))
            if options.verbose:
                of_victim, own = world.load.of_victim_and_self()
                print(f"  {time.monotonic() - began:6.2f} s ({of_victim:5.2f} s and {own:5.2f} s of the processors, slowdown "
                      f"{world.load.slowdown():4.1f}) {grown / MIB:6.1f} MiB  {name}", flush=True)
        where = "end"
        world.end()
        return world.bounds
    except BaseException as error:
        print(f"\nFAILED: {where} (seed {seed}, {'with' if secret else 'without'} a secret): {error}", flush=True)
        if not isinstance(error, the_world.Violation):
            traceback.print_exc()
        if world.process.poll() is not None:
            print(f"the victim had ended with status {world.process.returncode}", flush=True)
        print(f"the victim's log: {world.log_path}\n{world.log()[-4000:]}", flush=True)
        world.process.kill()
        world.process.wait()
        return None


def one_pass(options, seed, attacks, mutating):
    """The attacks with and without a secret, spread over victims that are attacked at the same time: an attack waits more
    than it computes. Returns the bounds that were measured; None if something failed."""
    secrets = [None] if options.no_secret else [b"a secret of the tests", None]
    shares = max(1, options.jobs // len(secrets))
    with concurrent.futures.ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        names = [[name for name, _, _ in attacks[share::shares]] for share in range(shares)]
        running = [pool.submit(run_share, options, secret, seed, names[share], mutating if share == 0 else 0)
                   for share in range(shares) for secret in secrets]
        results = [each.result() for each in running]
    return None if None in results else [bound for bounds in results for bound in bounds]


def run_share(options, secret, seed, names, mutating):
    return one_share(options, secret, seed, [each for each in ATTACKS if each[0] in names], mutating)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("victim", help="the program built from tests/hostile/victim.cpp")
    parser.add_argument("--seconds", type=float, default=0, help="go on with further seeds for that long (one pass)")
    parser.add_argument("--seed", type=int, help="of the first pass (random)")
    parser.add_argument("--jobs", type=int, default=4, help="victims that are attacked at the same time (4)")
    parser.add_argument("--only", help="run only attacks whose names contain this")
    parser.add_argument("--mutations", type=float, default=3, help="seconds of them in a pass over a victim (3)")
    parser.add_argument("--patience", type=float, default=180, help="seconds until a missing answer is a failure (180)")
    parser.add_argument("--memory-factor", type=float, default=1, help="a sanitizer takes that much more memory (1)")
    parser.add_argument("--no-secret", action="store_true", help="only without a secret, as in a build without libcrypto")
    parser.add_argument("--verbose", action="store_true", help="print each attack")
    parser.add_argument("--table", action="store_true", help="print what was measured as a table of docs/security.md")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    attacks = [each for each in ATTACKS if not options.only or options.only in each[0]]
    mutating = options.mutations if not options.only or options.only in "mutations" else 0
    began = time.monotonic()
    print(f"seed {seed}, {len(attacks)} attacks", flush=True)
    worst, passes = {}, 0
    while passes == 0 or time.monotonic() - began < options.seconds:
        bounds = one_pass(options, seed, attacks, mutating)
        if bounds is None:
            print_bounds(worst)
            print(f"\nRan {len(attacks)} tests in {time.monotonic() - began:.1f}s\n\nFAILED (failures=1)", flush=True)
            return 1
        for what, limit, seen, unit in bounds:
            if what not in worst or seen > worst[what][1]:
                worst[what] = (limit, seen, unit)
        passes += 1
        print(f"pass {passes}: seed {seed}, {len(attacks)} attacks, {time.monotonic() - began:.0f} s", flush=True)
        seed += 1
    (print_markdown if options.table else print_bounds)(worst)
    print(f"\nRan {len(attacks)} tests in {time.monotonic() - began:.1f}s\n\nOK")
    return 0


def shown(value, unit):
    """A limit or a figure, for people."""
    if unit == "B":
        return f"{value / MIB:.1f} MiB"
    return f"{value:.2f} s" if unit == "s" else f"{value:.0f}"


def print_bounds(worst):
    if not worst:
        return
    print(f"\n{'bound':66} {'limit':>10} {'largest':>10} {'of it':>6}")
    for what, (limit, seen, unit) in sorted(worst.items()):
        print(f"{what:66} {shown(limit, unit):>10} {shown(seen, unit):>10} {seen / limit:6.2f}")


def print_markdown(worst):
    print("| bound | limit | largest | of the limit |\n|---|---|---|---|")
    for what, (limit, seen, unit) in sorted(worst.items()):
        print(f"| {what} | {shown(limit, unit)} | {shown(seen, unit)} | {seen / limit:.2f} |")


if __name__ == "__main__":
    sys.exit(main())
