#!/usr/bin/env python3
"""Checks that code is refused by the compiler, in the expected words.

The source file has cases of the form

    #if CASE == 3  // expect: ferry: a raw pointer cannot travel
    ...
    #endif

With CASE=0 the file must compile. With each other CASE it must not, and the compiler's output must contain the words.
What the file includes is compiled once, before the cases. Then all cases are compiled at once; those that are not
refused there, in their words and by an error that leads to their lines, are compiled alone.

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

CASE = re.compile(r"^#if CASE == (\d+)\s*//\s*expect: (.+?)\s*$", re.MULTILINE)


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


def together(text):
    """The text with every case in force, on the same lines, and the case of each line of one."""
    lines, owners, case, depth = [], {}, 0, 0
    for number, line in enumerate(text.split("\n"), 1):
        begin = CASE.match(line)
        if begin:
            case, depth = int(begin[1]), 0
            line = "#if 1"
        elif line.startswith("#if"):
            depth += 1
        elif line.startswith("#endif"):
            depth -= 1
        owners[number] = case
        if depth < 0:
            case, depth = 0, 0
        lines.append(line)
    return "\n".join(lines), owners


def errors_of(output, name, owners):
    """What the compiler says of each case: the errors whose text or trace of instantiations names one of its lines."""
    reports, report, complete = [], [], False
    for line in output.split("\n"):
        context = re.match(r"In file included from |\S+: In |\S+:   +required ", line) or re.search(r": At global scope:", line)
        error = re.match(r"\S+:\d+:\d+: (fatal )?error: ", line)
        if (context or error) and complete:
            reports.append(report)
            report, complete = [], False
        report.append(line)
        complete = complete or bool(error)
    reports.append(report)
    found = {}
    for report in reports:
        for number in re.findall(re.escape(name) + r":(\d+)", "\n".join(report)):
            case = owners[int(number)]
            if case != 0:
                found[case] = found.get(case, "") + " " + plain(report)
    return found


def plain(lines):
    return " ".join(" ".join(lines).split())


def check(text, command, cases, place):
    def compile_text(name, content, *arguments):
        path = os.path.join(place, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
        return run([*command, "-fsyntax-only", *arguments, path])

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        content, owners = together(text)
        unlimited = "-ferror-limit=0" if "-include-pch" in command else "-fmax-errors=0"
        all_at_once = pool.submit(compile_text, "all_cases.cpp", content, "-DCASE=0", unlimited)
        without_case = compile_text("cases.cpp", text, "-DCASE=0")
        if without_case.returncode != 0:
            print(f"CASE 0 must compile:\n{without_case.stdout}\n0 passed, 1 failed")
            return 1
        refused = errors_of(all_at_once.result().stdout, "all_cases.cpp", owners)
        rest = [(number, words) for number, words in cases if words not in refused.get(number, "")]
        failed = 0
        for (number, words), result in zip(rest, pool.map(lambda case: run(
                [*command, "-fsyntax-only", f"-DCASE={case[0]}", os.path.join(place, "cases.cpp")]), rest)):
            if result.returncode == 0:
                print(f"CASE {number} compiles; expected: {words}")
            elif words not in plain(result.stdout.split("\n")):
                print(f"CASE {number}: '{words}' is not in:\n{result.stdout[:4000]}")
            else:
                continue
            failed += 1
    print(f"compiled alone: {len(rest)} of {len(cases)} cases")
    print(f"{len(cases) + 1 - failed} passed, {failed} failed")
    return 1 if failed else 0


def main():
    source, build_root, like = sys.argv[1:4]
    command = sys.argv[4:] + compile_flags(build_root, like)
    with open(source, encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r"^(#if CASE == )\\\n *(.*)\n", r"\1\2\n\n", text, flags=re.MULTILINE)  # what is broken over two lines
    cases = [(int(number), words) for number, words in CASE.findall(text)]
    if not cases or len(cases) != len(re.findall("^#if CASE", text, re.MULTILINE)):
        print(f"{source}: a case begins '#if CASE == N  // expect: words'")
        return 1
    with tempfile.TemporaryDirectory() as place:
        command += precompile(re.findall(r"^#include .*$", text, re.MULTILINE), command, place)
        return check(text, command, cases, place)


if __name__ == "__main__":
    sys.exit(main())
