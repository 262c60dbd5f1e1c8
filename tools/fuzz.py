#!/usr/bin/env python3
"""Runs the fuzzers that `./dev fuzz` has built, and keeps the corpus of tests/fuzz small.

Without TARGET: every target, SECONDS each, one after the other (--quick: one per processor at once). A target fails when libFuzzer reports a finding; the input
then lies in BUILD/fuzz/<target>/findings. The last line is 'N passed, N failed'. Exit status 0 only if nothing failed.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
HASH = re.compile(r"^[0-9a-f]{40}$")  # names that libFuzzer gives; others say what they are and are kept

# No input makes ferry take more than a few MiB under the limits that the targets set: more is a finding.
LIMITS = ["-rss_limit_mb=1024", "-malloc_limit_mb=64", "-timeout=20"]
# Bytes of the longest input; the default of libFuzzer is 4096.
LONGEST = {"frame_reader": 8192}
KEPT_LONGEST = 512  # of an input that goes into the corpus


def fuzzer(build, target):
    return build / "tests" / "fuzz" / f"fuzz_{target}"


def environment():
    """Every finding ends the process, with the place where it happened."""
    result = dict(os.environ)
    result["ASAN_OPTIONS"] = "abort_on_error=0:detect_stack_use_after_return=1:allocator_may_return_null=0"
    result["UBSAN_OPTIONS"] = "halt_on_error=1:print_stacktrace=1"
    result["FERRY_LOG"] = "off"
    return result


def number(pattern, text):
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def fuzz(build, target, seconds, seeds):
    """True if nothing was found."""
    place = build / "fuzz" / target
    for folder in ("corpus", "findings"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    (CORPUS / target).mkdir(parents=True, exist_ok=True)
    command = [str(fuzzer(build, target)), f"-max_total_time={seconds}", f"-max_len={LONGEST.get(target, 4096)}",
               f"-artifact_prefix={place}/findings/", "-print_final_stats=1", "-reload=0", *LIMITS,
               str(place / "corpus"), str(CORPUS / target), str(seeds / target)]
    log = place / "log"
    with log.open("wb") as out:
        try:
            status = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                    env=environment(), timeout=seconds + 120, check=False).returncode
        except subprocess.TimeoutExpired:
            status = -1
    text = log.read_text(errors="replace")
    executions = number(r"stat::number_of_executed_units:\s*(\d+)", text) or number(r"^#(\d+)", text)
    speed, edges, features = (number(word + r": (\d+)", text) for word in ("exec/s", "cov", "ft"))
    told = [f"  {target:<20} {executions:>10} executions, {speed:>6}/s, {edges:>5} edges, {features:>6} features: "
            f"{'nothing found' if status == 0 else 'FINDING'}"]
    if status != 0:
        lines = text.splitlines()
        begin = re.compile(r"ERROR: |runtime error|fuzz target:")
        first = next((i for i, line in enumerate(lines) if begin.search(line)), 0)
        told += ["    " + line for line in lines[first:first + 40]]
        told += [f"    everything: {log}", f"    inputs: {place / 'findings'}"]
    print("\n".join(told), flush=True)  # in one piece, beside other targets
    return status == 0


def merge(build, target, seeds):
    """Makes the smallest corpus that reaches what everything known reaches beside the seeds."""
    kept = CORPUS / target
    kept.mkdir(parents=True, exist_ok=True)
    named = [path for path in kept.iterdir() if not HASH.match(path.name)]
    with tempfile.TemporaryDirectory() as scratch:
        small = pathlib.Path(scratch) / "small"
        shutil.copytree(seeds / target, small)
        for path in named:
            shutil.copy(path, small)
        before = set(small.iterdir())
        sources = [kept, build / "fuzz" / target / "corpus"]
        subprocess.run([str(fuzzer(build, target)), "-merge=1", f"-max_len={KEPT_LONGEST}", *LIMITS, str(small),
                        *(str(folder) for folder in sources if folder.is_dir())],
                       env=environment(), check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        for path in kept.iterdir():
            if HASH.match(path.name):
                path.unlink()
        for path in set(small.iterdir()) - before:
            shutil.copy(path, kept)
    files = list(kept.iterdir())
    print(f"  {target:<20} {len(files):>5} files, {sum(path.stat().st_size for path in files):>8} bytes", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="every target for 5 seconds, one per processor at once")
    parser.add_argument("--merge", action="store_true", help="take what was found into tests/fuzz/corpus, minimised")
    parser.add_argument("words", nargs="*", metavar="TARGET|SECONDS", help="targets (all), seconds for each (60)")
    options = parser.parse_args()
    build = options.build.resolve()

    known = sorted(path.name[len("fuzz_"):] for path in (build / "tests" / "fuzz").glob("fuzz_*") if path.is_file())
    seconds = 5 if options.quick else 60
    targets = []
    for word in options.words:
        if word.isdigit():
            seconds = int(word)
        elif word in known:
            targets.append(word)
        else:
            parser.error(f"'{word}' is neither a target ({', '.join(known)}) nor a number of seconds")
    targets = targets or known

    seeds = build / "fuzz" / "seeds"
    shutil.rmtree(seeds, ignore_errors=True)
    subprocess.run([str(build / "tests" / "fuzz" / "replay"), "--seeds", str(seeds)], check=True, env=environment())
    if options.merge:
        for target in targets:
            merge(build, target, seeds)
        return 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0)) if options.quick else 1) as pool:
        fine = list(pool.map(lambda target: fuzz(build, target, seconds, seeds), targets))
    failed = [target for target, well in zip(targets, fine) if not well]
    if failed:
        print(f"findings in: {', '.join(failed)}. To look at one: {build}/tests/fuzz/fuzz_<target> <input>")
    print(f"{len(targets) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
