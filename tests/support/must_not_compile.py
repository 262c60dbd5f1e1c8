#!/usr/bin/env python3
"""Checks that code is refused by the compiler, in the expected words.

The source file has cases of the form

    #if CASE == 3  // expect: ferry: a raw pointer cannot travel
    ...
    #endif

With CASE=0 the file must compile. With each other CASE it must not, and the compiler's output must contain the words.
What the file includes is compiled once, before the cases.

usage: must_not_compile.py SOURCE BUILD_ROOT LIKE COMPILER [ARGUMENT...]
LIKE is a source file of the build; SOURCE is compiled with its include paths and definitions.
"""
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

from compile_flags import compile_flags


def run(command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def precompile(includes, command, place):
    """The arguments that make the compiler begin with what the includes come to; none if it cannot do that."""
    header = os.path.join(place, "includes.hpp")
    with open(header, "w", encoding="utf-8") as file:
        file.write("\n".join(includes) + "\n")
    is_clang = "clang" in run([*command, "--version"]).stdout
    compiled = header + (".pch" if is_clang else ".gch")
    if run([*command, "-x", "c++-header", header, "-o", compiled]).returncode != 0:
        return []  # CASE 0 tells why
    return ["-include-pch", compiled] if is_clang else ["-include", header]


def compile_case(source, command, number):
    return run([*command, "-fsyntax-only", f"-DCASE={number}", source])


def check(source, command, cases):
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda case: compile_case(source, command, case[0]), [(0, ""), *cases])
        result = next(results)
        if result.returncode != 0:
            print(f"CASE 0 must compile:\n{result.stdout}")
            failed += 1
        for (number, words), result in zip(cases, results):
            text = " ".join(result.stdout.split())
            if result.returncode == 0:
                print(f"CASE {number} compiles; expected: {words}")
            elif words not in text:
                print(f"CASE {number}: '{words}' is not in:\n{result.stdout[:4000]}")
            else:
                continue
            failed += 1
    print(f"{len(cases) + 1 - failed} passed, {failed} failed")
    return 1 if failed else 0


def main():
    source, build_root, like = sys.argv[1:4]
    command = sys.argv[4:] + compile_flags(build_root, like)
    with open(source, encoding="utf-8") as file:
        text = file.read()
    cases = re.findall(r"^#if CASE == (\d+)\s*//\s*expect: (.+?)\s*$", text, re.MULTILINE)
    if not cases:
        print(f"{source}: no line '#if CASE == N  // expect: words'")
        return 1
    with tempfile.TemporaryDirectory() as place:
        command += precompile(re.findall(r"^#include .*$", text, re.MULTILINE), command, place)
        return check(source, command, cases)


if __name__ == "__main__":
    sys.exit(main())
