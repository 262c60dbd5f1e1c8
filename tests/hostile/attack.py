#!/usr/bin/env python3
"""A hostile peer, written from docs/protocol.md, attacks a worker: CONTRIBUTING.md says how to run it.

    attack.py VICTIM [--seconds N] [--seed N] [--only TEXT]

Runs every attack against a fresh victim, once with a secret and once without, then sends mutations of valid messages for
the rest of the time. After each attack the victim must live, answer the calls of an honest member, and have taken no more
memory, descriptors and threads than it may. Prints what was measured of each bound.
"""

import argparse
import random
import sys
import time
import traceback

import world as the_world
from world import ATTACKS, MIB, World

import answers  # noqa: F401  (each registers its attacks)
import floods  # noqa: F401
import frames  # noqa: F401
import handshakes  # noqa: F401
import mutations
import payloads  # noqa: F401
import references  # noqa: F401
import stores  # noqa: F401

MOST_THREADS = 80  # handlers that run and that wait (victim.cpp), reactor, monitor, control and store threads


def run(world, name, allowance, attack):
    before = world.peak.begin()
    attack(world)
    waited = world.must_serve()
    world.must(waited < the_world.LONGEST_HONEST_CALL * max(1, world.memory_factor / 2),
               f"an honest call took {waited:.2f} s after the attack")
    grown = world.peak.memory - before
    world.must(grown <= allowance * world.memory_factor,
               f"the victim took {grown / MIB:.0f} MiB, allowed are {allowance * world.memory_factor / MIB:.0f}")
    world.must(world.peak.descriptors < the_world.MOST_DESCRIPTORS, f"{world.peak.descriptors} descriptors")
    world.must(world.peak.threads <= MOST_THREADS, f"{world.peak.threads} threads")
    return grown


def one_pass(options, secret, seed, mutating):
    """All attacks, then mutations for so many seconds; returns the victim's world."""
    world = World(options.victim, secret, seed, options.patience, options.memory_factor)
    where = "start"
    try:
        for name, allowance, attack in ATTACKS:
            if options.only and options.only not in name:
                continue
            where = name
            began = time.monotonic()
            grown = run(world, name, allowance, attack)
            if options.verbose:
                print(f"  {time.monotonic() - began:6.2f} s {grown / MIB:6.1f} MiB  {name}", flush=True)
        if not options.only or options.only in "mutations":
            where = "mutations"
            run(world, where, 96 * MIB, lambda world: mutations.attack_for(world, mutating))
        where = "end"
        world.end()
        return world
    except BaseException as error:
        print(f"\nFAILED: {where} (seed {seed}, {'with' if secret else 'without'} a secret): {error}", flush=True)
        if not isinstance(error, the_world.Violation):
            traceback.print_exc()
        print(f"the victim's log: {world.log_path}\n{world.log()[-4000:]}", flush=True)
        world.process.kill()
        print("Ran 1 test in 0s\n\nFAILED (failures=1)", flush=True)
        raise SystemExit(1) from error


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("victim", help="the program built from tests/hostile/victim.cpp")
    parser.add_argument("--seconds", type=float, default=0, help="go on with further seeds for that long (one pass)")
    parser.add_argument("--seed", type=int, help="of the first pass (random)")
    parser.add_argument("--only", help="run only attacks whose names contain this")
    parser.add_argument("--mutations", type=float, default=3, help="seconds of them in a pass over a victim (3)")
    parser.add_argument("--patience", type=float, default=4, help="seconds that an answer may take (4)")
    parser.add_argument("--memory-factor", type=float, default=1, help="a sanitizer takes that much more memory (1)")
    parser.add_argument("--no-secret", action="store_true", help="only without a secret, as in a build without libcrypto")
    parser.add_argument("--verbose", action="store_true", help="print each attack")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    began = time.monotonic()
    print(f"seed {seed}", flush=True)
    worst, passes, tests = {}, 0, 0
    while passes == 0 or time.monotonic() - began < options.seconds:
        for secret in [None] if options.no_secret else [b"a secret of the tests", None]:
            world = one_pass(options, secret, seed, options.mutations)
            for what, limit, seen, unit in world.bounds:
                if what not in worst or seen > worst[what][1]:
                    worst[what] = (limit, seen, unit)
        passes += 1
        tests += sum(not options.only or options.only in name for name, _, _ in ATTACKS)
        print(f"pass {passes}: seed {seed}, {len(ATTACKS)} attacks, {time.monotonic() - began:.0f} s", flush=True)
        seed += 1
    print(f"\n{'bound':58} {'limit':>10} {'largest':>10}")
    for what, (limit, seen, unit) in sorted(worst.items()):
        print(f"{what:58} {limit:10.4g} {seen:10.4g} {unit}")
    print(f"\nRan {tests} tests in {time.monotonic() - began:.1f}s\n\nOK")


if __name__ == "__main__":
    sys.exit(main())
