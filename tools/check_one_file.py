#!/usr/bin/env python3
"""Checks that each library compiles as one file, and that it stays possible.

Without a compiler (always): the files directly in src/, one for each library, list every source below src/ once, but
for those of COMPILED_APART in tools/house.py; an unnamed namespace in src/ lies inside a namespace `detail`, never directly in `ferry`, where
its names would hide those of other files or be hidden by them.
With --cxx: each of these files compiles without a warning, after all public headers and before them.
With --alone: each source compiles alone, too.
Exit status: 0 if all is well, 1 with the problems on stdout otherwise.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

from house import COMPILED_APART, ONE_FILE_FLAGS

FLAGS = ["-std=c++20", "-pthread", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
LISTED = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
OPENED = re.compile(r"^(?:inline )?namespace\s*([\w:\s]*?)\s*\{\s*$")
CLOSED = re.compile(r"^\}\s*//\s*namespace")


def one_files(root):
    """The sources directly in src/, each of which is a library as one file; and those that it lists."""
    return {path.name: LISTED.findall(path.read_text(encoding="utf-8")) for path in sorted((root / "src").glob("*.cpp"))}


def check_list(root):
    """Problems of the lists of sources."""
    problems, listed = [], [name for names in one_files(root).values() for name in names]
    there = {path.relative_to(root / "src").as_posix() for path in (root / "src").rglob("*.cpp")}
    there -= {*one_files(root), *COMPILED_APART}
    problems += [f"src/{name} is listed in none of src/*.cpp" for name in sorted(there - set(listed))]
    for one, names in one_files(root).items():
        problems += [f"src/{one} lists {name}, which does not exist" for name in sorted(set(names) - there)]
    problems += [f"src/{name} is listed twice in src/*.cpp" for name in sorted({name for name in listed if listed.count(name) > 1})]
    return problems


def check_unnamed(root):
    """Unnamed namespaces that lie directly in ferry, or outside of it."""
    problems = []
    for path in sorted(path for path in (root / "src").rglob("*") if path.suffix in (".cpp", ".hpp", ".cu")):
        stack = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            opened = OPENED.match(line)
            if opened:
                name = opened.group(1)
                if not name and not any("detail" in outer.split("::") for outer in stack):
                    problems.append(f"{path.relative_to(root)}:{number}: an unnamed namespace outside of ferry::detail")
                stack.append(name)
            elif CLOSED.match(line) and stack:
                stack.pop()
    return problems


def compile_text(root, compiler, flags, name, text):
    """The problem of a file with this text, as a list."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "one_file.cpp")
        source.write_text(text, encoding="utf-8")
        command = [*compiler, *FLAGS, *flags, "-I", str(root / "include"), str(source)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode == 0:
        return []
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    return [f"{name} ({' '.join(compiler)}):\n    " + "\n    ".join(lines[:12])]


def texts(root, alone):
    """(name, text, further flags) of each file to compile."""
    public = sorted((root / "include").rglob("*.hpp"))
    headers = "".join(f"#include <{path.relative_to(root / 'include').as_posix()}>\n" for path in public
                      if "adapters" not in path.parts)
    # <ferry/tensor/format.hpp> brings fmt, which src/ferry.cpp compiles in.
    settings = "#define FMT_HEADER_ONLY\n"
    for one, names in one_files(root).items():
        further = ONE_FILE_FLAGS.get(one, list)()
        if further is None:
            print(f"src/{one} left out: the library that it needs is not installed")
            continue
        one_file = f'#include "{root / "src" / one}"\n'
        yield f"src/{one} after all public headers", settings + headers + one_file, further
        yield f"src/{one} before all public headers", one_file + headers, further
        if alone:
            for name in names:
                yield f"src/{name} alone", settings + f'#include "{root / "src" / name}"\n', further


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent)
    parser.add_argument("--cxx", action="append", default=[], help="a compiler, with arguments (repeatable)")
    parser.add_argument("--flag", action="append", default=[], help="a further compiler flag (repeatable)")
    parser.add_argument("--alone", action="store_true", help="compile each source alone, too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    options = parser.parse_args()
    root = options.root.resolve()
    problems = check_list(root) + check_unnamed(root)
    work = []
    for words in options.cxx:
        # ccache does not help a compiler that only checks the syntax.
        compiler = [word for word in shlex.split(words) if pathlib.Path(word).name != "ccache"]
        work += [(root, compiler, [*options.flag, *further], name, text) for name, text, further in texts(root, options.alone)]
    with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
        for found in pool.map(lambda each: compile_text(*each), work):
            problems += found
    for problem in problems:
        print(problem)
    print(f"one file: {len(work)} compilations, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
