#!/usr/bin/env python3
"""What building ferry costs, as multiples of compiling one small program.

The unit is the time to compile the README's program (-O2 -g, headers only, no ferry library): it scales with the machine and
the compiler, so the multiples compare between machines with equally many processors.

  build_cost.py --program CXX       compiles the program three times and prints the fastest time
  build_cost.py --measure           builds the library, the demo and the tests from nothing, without a compiler cache, and prints
                                    the multiples (about 12 minutes on two processors)
  build_cost.py --stages DIR --seconds N
                                    the multiples of the stages whose results .ci/run left in DIR, and of N seconds for all
"""

import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The most that each may cost on two processors, in units of the program, or in seconds. Compiling scales with the program; tests
# partly wait for leases and timeouts, which take the same time on every machine, so a fast one is over the multiple and within the
# seconds.
LIMITS = {"library": (25, 75), "./dev demo": (50, 150), "./dev test": (160, 480), ".ci/run": (480, 1500)}


def compile_program(compiler):
    """Seconds to compile the program of the README: the fastest of three runs."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    program = re.search(r"```cpp\n(.*?)```", text, re.DOTALL).group(1)
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "program.cpp")
        source.write_text(program, encoding="utf-8")
        command = [*shlex.split(compiler), "-std=c++20", "-O2", "-g", "-I", str(ROOT / "include"), "-c", str(source),
                   "-o", os.devnull]
        times = []
        for _ in range(3):
            begin = time.monotonic()
            subprocess.run(command, check=True)
            times.append(time.monotonic() - begin)
    return min(times)


def report(unit, costs, remark=""):
    print(f"compiling the README's program: {unit:.2f} s ({os.cpu_count()} processors{remark})")
    print(f"{'':<12} {'seconds':>8} {'limit':>6} {'multiple':>9} {'limit':>6}")
    for name, seconds in costs.items():
        multiple = seconds / unit
        most_units, most_seconds = LIMITS[name]
        verdict = "" if multiple <= most_units or seconds <= most_seconds else "  over both limits"
        print(f"{name:<12} {seconds:8.0f} {most_seconds:6} {multiple:9.0f} {most_units:6}{verdict}")


def dev(build, *words):
    """Seconds that ./dev takes; its output is shown when it fails."""
    environment = {**os.environ, "CCACHE_DISABLE": "1"}
    begin = time.monotonic()
    run = subprocess.run([ROOT / "dev", "--no-install", "--build", build, *words], stdin=subprocess.DEVNULL, env=environment,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"./dev {' '.join(words)} ended with {run.returncode}:\n{run.stdout[-4000:]}")
    return time.monotonic() - begin


def measure(compiler):
    unit = compile_program(compiler)
    costs = {}
    for name, words in {"library": ["build", "library"], "./dev demo": ["demo"], "./dev test": ["test"]}.items():
        with tempfile.TemporaryDirectory(prefix="build-cost-") as folder:
            costs[name] = dev(pathlib.Path(folder, "build"), *words)
            print(f"{name}: {costs[name]:.0f} s", flush=True)
    report(unit, costs, ", no compiler cache")


def of_stages(folder, seconds):
    """What the stages of .ci/run took: the demo comes after the library, and the tests after both."""
    def result(name):
        place = folder / (re.sub(r"[^A-Za-z0-9]", "-", name) + ".result")
        return float(place.read_text().split()[2]) if place.exists() else float("nan")

    log = folder / "a-program.log"
    found = re.search(r"^program: ([\d.]+) s$", log.read_text() if log.exists() else "", re.MULTILINE)
    if not found:
        print("what building costs is not known: the program was not compiled")
        return
    library = result("library g++")
    demo = library + result("demo")
    test = demo + result("build g++") + result("tests g++")
    cache = ", no compiler cache" if os.environ.get("CCACHE_DISABLE") else ", with what the compiler cache had"
    report(float(found.group(1)), {"library": library, "./dev demo": demo, "./dev test": test, ".ci/run": seconds}, cache)
    print("./dev test: its tests ran beside the compiler of the next stage")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", metavar="CXX")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--cxx", default=os.environ.get("CXX", "g++"))
    parser.add_argument("--stages", type=pathlib.Path)
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args()
    if options.program:
        print(f"program: {compile_program(options.program):.2f} s")
    elif options.measure:
        measure(options.cxx)
    elif options.stages and options.seconds is not None:
        of_stages(options.stages, options.seconds)
    else:
        parser.error("name --program, --measure, or --stages and --seconds")


if __name__ == "__main__":
    main()
