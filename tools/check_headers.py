#!/usr/bin/env python3
"""Compiles every public header alone, and checks what it reaches.

A public header must compile as the first and only include of a source file, without a warning, and must not reach a
header of Asio or CUDA (headers of include/ferry/adapters/ may: an adapter exists to meet another library; one whose
library is not here is left out).
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


WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
FLAGS = ["-std=c++20", "-DCEREAL_THREAD_SAFE=1", "-pthread", "-fsyntax-only"]
FORBIDDEN = [
    (re.compile(r"/asio(\.hpp$|/)"), "Asio"),
    (re.compile(r"/(cuda(_runtime|_runtime_api|_fp16|_bf16|_fp8)?\.h|cublas\w*\.h|nccl\.h)$"), "CUDA"),
]
# What pkg-config calls the libraries of the adapters that need more than the standard include path.
ADAPTER_PACKAGES = {"eigen.hpp": "eigen3"}


def adapter_flags(header):
    """The flags of an adapter's library, or None if it is not here."""
    package = ADAPTER_PACKAGES.get(header.name)
    if package is None or "adapters" not in header.parts:
        return []
    try:
        run = subprocess.run(["pkg-config", "--cflags-only-I", package], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return shlex.split(run.stdout.replace("-I", "-isystem "))


def headers(root):
    # Clang 16 does not take libtorch's own headers as C++20: ./dev libtorch compiles what includes them.
    return sorted(path for path in (root / "include").rglob("*.hpp") if "adapters/libtorch" not in path.as_posix())


def reached(dependency_text):
    """The files named in a make rule."""
    text = dependency_text.replace("\\\n", " ")
    return [word.replace("\\ ", " ") for word in re.split(r"(?<!\\)\s+", text.split(":", 1)[1].strip()) if word]


def check_one(root, header, compiler, flags):
    """The problems of one header."""
    name = header.relative_to(root / "include").as_posix()
    library = adapter_flags(header)
    if library is None:
        print(f"include/{name} left out: {ADAPTER_PACKAGES[header.name]} is not installed")
        return []
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "alone.cpp")
        source.write_text(f"#include <{name}>\n#include <{name}>\n", encoding="utf-8")
        rule = pathlib.Path(folder, "alone.d")
        command = [*compiler, *FLAGS, *WARNINGS, *flags, *library, "-I", str(root / "include")]
        command += ["-MD", "-MF", str(rule), str(source)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        problems = []
        if run.returncode != 0:
            lines = [line for line in run.stderr.splitlines() if line.strip()]
            problems.append(f"include/{name} does not compile alone:\n    " + "\n    ".join(lines[:12]))
        if rule.exists() and "adapters" not in header.parts:
            for path in reached(rule.read_text(encoding="utf-8")):
                for pattern, library in FORBIDDEN:
                    if pattern.search(path):
                        problems.append(f"include/{name} reaches a header of {library}: {path}")
                        break
                else:
                    continue
                break
        elif run.returncode == 0 and not rule.exists():
            problems.append(f"include/{name}: the compiler did not say what it reaches")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent)
    parser.add_argument("--cxx", default=os.environ.get("CXX", "c++"), help="the compiler, with arguments")
    parser.add_argument("--flag", action="append", default=[], help="a further compiler flag (repeatable)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    options = parser.parse_args()
    root = options.root.resolve()
    # ccache does not help a compiler that only checks the syntax.
    compiler = [word for word in shlex.split(options.cxx) if pathlib.Path(word).name != "ccache"]
    found = headers(root)
    problems = []
    with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
        for result in pool.map(lambda header: check_one(root, header, compiler, options.flag), found):
            problems.extend(result)
    for problem in problems:
        print(problem)
    if not found:
        print(f"no header below {root / 'include'}")
    print(f"headers ({' '.join(compiler)}): {len(found)} checked, {len(problems)} problems")
    return 1 if problems or not found else 0


if __name__ == "__main__":
    sys.exit(main())
