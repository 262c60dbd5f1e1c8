#!/usr/bin/env python3
"""Runs one binary of the suite for GPUs: run_suite.py [--left-out FILE] [--without TEXT] [--tool memcheck] BINARY
run_suite.py --check FILE BINARY...: only sees that each test case that FILE names is in one of the binaries.

What FILE names is left out, with its reason, as are test cases whose names contain a TEXT. Fails when no test case ran. With a
tool, the binary runs under compute-sanitizer; exit status 77 (left out) where that is not installed."""

import argparse
import os
import re
import shutil
import subprocess
import sys


def entries(path):
    """(name, reason) of each line 'name | reason' of the file."""
    for line in open(path, encoding="utf-8"):
        line = line.strip()
        if line and not line.startswith("#"):
            name, _, reason = line.rpartition(" | ")
            if not name:
                raise SystemExit(f"{path}: no reason is given: {line}")
            yield name, reason


def cases(binary):
    listed = subprocess.run([binary, "--list-test-cases", "--no-intro", "--no-version"], capture_output=True, text=True,
                            check=True)
    return [line for line in listed.stdout.splitlines() if line and not line.startswith(("[doctest]", "==="))]


def pattern(name):
    """A filter of doctest that this name fits: commas separate filters there."""
    return name.replace(",", "?")


def sanitizer():
    folders = [os.environ.get("CUDA_PATH", ""), os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    found = shutil.which("compute-sanitizer")
    for folder in folders:
        if not found and folder:
            found = shutil.which(os.path.join(folder, "bin", "compute-sanitizer")) or shutil.which(
                os.path.join(folder, "compute-sanitizer", "compute-sanitizer"))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--left-out")
    parser.add_argument("--without", action="append", default=[])
    parser.add_argument("--tool")
    parser.add_argument("--check")
    parser.add_argument("binary")
    parser.add_argument("more", nargs="*")
    options = parser.parse_args()

    if options.check:
        known = [name for binary in [options.binary, *options.more] for name in cases(binary)]
        gone = [name for name, _ in entries(options.check) if name not in known]
        for name in gone:
            print(f"{options.check}: there is no test case '{name}'")
        return 1 if gone else 0
    known = cases(options.binary)
    out = []
    if options.left_out:
        for name, reason in entries(options.left_out):
            if name in known:
                out.append(name)
                print(f"left out: {name}: {reason}")
    for text in options.without:
        for name in known:
            if text in name and name not in out:
                out.append(name)
                print(f"left out: {name}: not with these settings")
    command = [options.binary]
    if options.tool:
        program = sanitizer()
        if not program:
            print("left out: compute-sanitizer is not installed (it comes with the CUDA Toolkit)")
            return 77
        command = [program, "--tool", options.tool, "--track-stream-ordered-races", "all", "--target-processes", "all",
                   "--require-cuda-init", "no", "--error-exitcode", "99", options.binary]
        if options.tool != "memcheck":
            command.remove("--track-stream-ordered-races")
            command.remove("all")
    if out:
        command.append("--test-case-exclude=" + ",".join(pattern(name) for name in out))
    sys.stdout.flush()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace")
    ran = 0
    for line in process.stdout:
        sys.stdout.write(line)
        found = re.search(r"test cases:\s*(\d+)", line)
        if found:
            ran = int(found.group(1))
    status = process.wait()
    print(f"{os.path.basename(options.binary)}: {ran} test cases ran, {len(out)} left out")
    if status == 0 and ran == 0:
        print("no test case ran")
        return 1
    return 1 if status == 77 else status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
