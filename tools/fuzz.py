#!/usr/bin/env python3
"""Runs the fuzzers that `./dev fuzz` has built, and keeps the corpus of tests/fuzz small.

Without TARGET: every target, SECONDS each, one after the other (--quick: one per processor at once). A target fails when libFuzzer reports a finding; the input
then lies in BUILD/fuzz/<target>/findings. The last line is 'N passed, N failed'. Exit status 0 only if nothing failed.

The corpus of a target is one archive, tests/fuzz/corpus/<target>.tar, which --add, --list and --extract change and read.
"""

import argparse
import concurrent.futures
import io
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
TARGETS = ROOT / "tests" / "fuzz" / "targets.hpp"
HASH = re.compile(r"[0-9a-f]{40}")  # names that libFuzzer gives; others say what they are and are kept
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")  # of an input; tests/fuzz/tar.cpp takes no other

# No input makes ferry take more than a few MiB under the limits that the targets set: more is a finding.
LIMITS = ["-rss_limit_mb=1024", "-malloc_limit_mb=64", "-timeout=20"]
# Bytes of the longest input; the default of libFuzzer is 4096.
LONGEST = {"frame_reader": 8192, "http_request": 8448}
KEPT_LONGEST = 512  # of an input that goes into the corpus

HEADER = struct.Struct("100s8s8s8s12s12s8s1s100s8s247s")  # of a file in an archive
END = bytes(1024)


class Refused(Exception):
    """What cannot be done, and why."""


def packed(inputs):
    """The archive of {name: content}, which tests/fuzz/tar.cpp reads: ustar, sorted, without times and owners.

    The same inputs are the same bytes. tarfile would fill the fields for devices as its version of Python likes.
    """
    archive = bytearray()
    for name, content in sorted(inputs.items()):
        if not NAME.fullmatch(name):
            raise Refused(f"an input cannot have the name '{name}'")
        header = HEADER.pack(name.encode(), b"0000644", b"0000000", b"0000000", b"%011o" % len(content), b"%011o" % 0,
                             b" " * 8, b"0", b"", b"ustar\00000", b"")
        archive += header[:148] + b"%06o\0 " % sum(header) + header[156:]
        archive += content + bytes(-len(content) % 512)
    return bytes(archive + END)


def unpacked(archive):
    """{name: content} of an archive. tarfile takes a damaged header for the end, so the result is packed again."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            inputs = {each.name: tar.extractfile(each).read() for each in tar if each.isreg()}
        whole = packed(inputs) == archive
    except (tarfile.TarError, Refused) as problem:
        raise Refused(f"no archive of inputs, or a damaged one: {problem}") from problem
    if not whole:
        raise Refused("the archive is damaged, or was not written by tools/fuzz.py")
    return inputs


def archive_of(target):
    return CORPUS / f"{target}.tar"


def read_corpus(target):
    """{name: content}; empty while there is no archive."""
    path = archive_of(target)
    if not path.exists():
        return {}
    try:
        return unpacked(path.read_bytes())
    except Refused as problem:
        raise Refused(f"{path}: {problem}") from problem


def write_corpus(target, inputs):
    """Replaces the archive as a whole, or not at all."""
    if not inputs:
        raise Refused(f"{target}: an archive without inputs; tests/fuzz/replay refuses such a one")
    path = archive_of(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_bytes(packed(inputs))
    new.replace(path)


def add(target, name, path):
    """Takes an input into the corpus under a name that says what it is."""
    if not NAME.fullmatch(name) or HASH.fullmatch(name):
        raise Refused(f"'{name}' is no name for an input: it says what the input is, as 'ipv6-with-null' does, in at most "
                      "100 letters, digits, '-', '_' and '.'")
    inputs = read_corpus(target)
    content = pathlib.Path(path).read_bytes()
    if name in inputs:
        raise Refused(f"{target} has an input '{name}' already")
    for other in [other for other, its in inputs.items() if its == content]:
        if not HASH.fullmatch(other):
            raise Refused(f"{target} has that input already: '{other}'")
        del inputs[other]  # a hash, until now
    inputs[name] = content
    write_corpus(target, inputs)
    print(f"  {target}: {len(inputs)} inputs, with '{name}' of {len(content)} bytes")


def show(target):
    for name, content in sorted(read_corpus(target).items()):
        print(f"{len(content):>8} {name}")


def extract(target, folder):
    """Writes every input to FOLDER/<name>."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in read_corpus(target).items():
        (folder / name).write_bytes(content)


def fuzzer(build):
    return build / "tests" / "fuzz" / "fuzz"


def declared_targets():
    return re.findall(r"^extern const target (\w+);", TARGETS.read_text(encoding="utf-8"), re.MULTILINE)


def environment(target=""):
    """Every finding ends the process, with the place where it happened."""
    result = dict(os.environ)
    result["FERRY_FUZZ_TARGET"] = target
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
    kept = place / "kept"  # the archive's inputs, which libFuzzer reads and leaves as they are
    shutil.rmtree(kept, ignore_errors=True)
    extract(target, kept)
    command = [str(fuzzer(build)), f"-max_total_time={seconds}", f"-max_len={LONGEST.get(target, 4096)}",
               f"-artifact_prefix={place}/findings/", "-print_final_stats=1", "-reload=0", *LIMITS,
               str(place / "corpus"), str(kept), str(seeds / target)]
    log = place / "log"
    with log.open("wb") as out:
        try:
            status = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                    env=environment(target), timeout=seconds + 120, check=False).returncode
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
    named = {name: content for name, content in read_corpus(target).items() if not HASH.fullmatch(name)}
    with tempfile.TemporaryDirectory() as scratch:
        small, kept = pathlib.Path(scratch) / "small", pathlib.Path(scratch) / "kept"
        shutil.copytree(seeds / target, small)
        for name, content in named.items():
            (small / name).write_bytes(content)
        extract(target, kept)
        before = set(small.iterdir())
        sources = [kept, build / "fuzz" / target / "corpus"]
        subprocess.run([str(fuzzer(build)), "-merge=1", f"-max_len={KEPT_LONGEST}", *LIMITS, str(small),
                        *(str(folder) for folder in sources if folder.is_dir())],
                       env=environment(target), check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        inputs = {**named, **{path.name: path.read_bytes() for path in set(small.iterdir()) - before}}
    if inputs:
        write_corpus(target, inputs)
    note = "" if inputs else ", the seeds reach everything: the archive stays as it was"
    print(f"  {target:<20} {len(inputs):>5} inputs, {sum(map(len, inputs.values())):>8} bytes{note}", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, help=argparse.SUPPRESS)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--quick", action="store_true", help="every target for 5 seconds, one per processor at once")
    what.add_argument("--merge", action="store_true", help="take what was found into tests/fuzz/corpus, minimised")
    what.add_argument("--add", nargs=3, metavar=("TARGET", "NAME", "FILE"),
                      help="take the input FILE into the corpus, under a name that says what it is")
    what.add_argument("--list", nargs=1, metavar="TARGET", help="the names of the inputs in the corpus, and their bytes")
    what.add_argument("--extract", nargs=2, metavar=("TARGET", "FOLDER"), help="write the inputs to FOLDER/<name>")
    parser.add_argument("words", nargs="*", metavar="TARGET|SECONDS", help="targets (all), seconds for each (60)")
    options = parser.parse_args()

    # What has to do with the archives alone needs no fuzzers.
    for verb, words in ((add, options.add), (show, options.list), (extract, options.extract)):
        if words:
            declared = declared_targets()
            if words[0] not in declared:
                parser.error(f"'{words[0]}' is no target; the targets: {', '.join(declared)}")
            if options.words:
                parser.error(f"what is '{options.words[0]}' for?")
            verb(*words)
            return 0
    if not options.build:
        parser.error("the fuzzers' build directory is wanted: --build")
    build = options.build.resolve()

    known = sorted(declared_targets())
    if not fuzzer(build).is_file():
        parser.error(f"{build} has no fuzzers; ./dev fuzz builds them")
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
        print(f"findings in: {', '.join(failed)}. To look at one: FERRY_FUZZ_TARGET=<target> {build}/tests/fuzz/fuzz <input>")
    print(f"{len(targets) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Refused, OSError) as problem:
        sys.exit(f"fuzz: {problem}")
