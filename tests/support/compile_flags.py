#!/usr/bin/env python3
"""The include paths and definitions with which the build compiles a source file, for tests that compile code themselves.

usage: compile_flags.py BUILD_ROOT SOURCE    prints them on one line
"""
import json
import os
import shlex
import sys


def compile_flags(build_root, source):
    with open(os.path.join(build_root, "compile_commands.json"), encoding="utf-8") as file:
        commands = json.load(file)
    for entry in commands:
        directory = entry["directory"]
        if os.path.realpath(os.path.join(directory, entry["file"])) != os.path.realpath(source):
            continue
        flags = []
        words = iter(shlex.split(entry["command"]))
        for word in words:
            if word == "-isystem":
                flags += [word, os.path.join(directory, next(words))]
            elif word.startswith("-I"):
                flags.append("-I" + os.path.join(directory, word[2:]))
            elif word.startswith("-isystem"):
                flags.append("-isystem" + os.path.join(directory, word[8:]))
            elif word.startswith(("-D", "-std=")):
                flags.append(word)
        return flags
    raise SystemExit(f"{source} is not compiled in {build_root}")


if __name__ == "__main__":
    print(shlex.join(compile_flags(sys.argv[1], sys.argv[2])))
