#!/usr/bin/env python3
"""Checks that code is refused by the compiler, in the expected words.

The source file has cases of the form

    #if CASE == 3  // expect: ferry: a raw pointer cannot travel
    ...
    #endif

With CASE=0 the file must compile. With each other CASE it must not, and the compiler's output must contain the words.

usage: must_not_compile.py SOURCE BUILD_ROOT LIKE COMPILER [ARGUMENT...]
LIKE is a source file of the build; SOURCE is compiled with its include paths and definitions.
"""
import re
import subprocess
import sys

from compile_flags import compile_flags


def compile_case(source, command, number):
    return subprocess.run(
        [*command, "-fsyntax-only", f"-DCASE={number}", source],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def main():
    source, build_root, like = sys.argv[1:4]
    command = sys.argv[4:] + compile_flags(build_root, like)
    with open(source, encoding="utf-8") as file:
        cases = re.findall(r"^#if CASE == (\d+)\s*//\s*expect: (.+?)\s*$", file.read(), re.MULTILINE)
    if not cases:
        print(f"{source}: no line '#if CASE == N  // expect: words'")
        return 1
    failed = 0
    result = compile_case(source, command, 0)
    if result.returncode != 0:
        print(f"CASE 0 must compile:\n{result.stdout}")
        failed += 1
    for number, words in cases:
        result = compile_case(source, command, number)
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


if __name__ == "__main__":
    sys.exit(main())
