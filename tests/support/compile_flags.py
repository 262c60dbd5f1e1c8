#!/usr/bin/env python3
"""The arguments with which the build compiles a source file, for tests that compile code themselves.

usage: compile_flags.py BUILD_ROOT SOURCE    prints the include paths and definitions on one line
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


def compilation(build_root, source):
    """The directory and the words of the command that compiles the file."""
    with open(os.path.join(build_root, "compile_commands.json"), encoding="utf-8") as file:
        commands = json.load(file)
    for entry in commands:
        directory = entry["directory"]
        if os.path.realpath(source) in compiled_files(os.path.join(directory, entry["file"])):
            return directory, shlex.split(entry["command"])
    raise SystemExit(f"{source} is not compiled in {build_root}")


def compile_flags(build_root, source):
    directory, command = compilation(build_root, source)
    flags = []
    words = iter(command)
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


if __name__ == "__main__":
    print(shlex.join(compile_flags(sys.argv[1], sys.argv[2])))
