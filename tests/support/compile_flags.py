#!/usr/bin/env python3
"""The include paths and definitions with which the build compiles a source file, for tests that compile code themselves.

usage: compile_flags.py BUILD_ROOT SOURCE    prints them on one line
"""
import json
import os
import re
import shlex
import sys


def compiled_files(path):
    """The real paths of what is compiled as this file: itself, or those that Meson has put into one."""
    if not re.search(r"-unity\d+\.cpp$", path):
        return [os.path.realpath(path)]
    with open(path, encoding="utf-8") as file:
        return [os.path.realpath(name) for name in re.findall(r'^#include *["<](.+)[">]$', file.read(), re.MULTILINE)]


def compile_flags(build_root, source):
    with open(os.path.join(build_root, "compile_commands.json"), encoding="utf-8") as file:
        commands = json.load(file)
    for entry in commands:
        directory = entry["directory"]
        if os.path.realpath(source) not in compiled_files(os.path.join(directory, entry["file"])):
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
