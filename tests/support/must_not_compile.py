#!/usr/bin/env python3
"""Checks that code is refused by the compiler, in the expected words.

The source file has cases of the form

    #if CASE == 3  // expect: ferry: a raw pointer cannot travel
    ...
    #endif

With CASE=0 the file must compile. With each other CASE it must not, and the compiler's output must contain the words.
All cases are compiled at once; those that are not refused there, in their words and by an error that leads to their lines,
are compiled alone.

usage: must_not_compile.py SOURCE BUILD_ROOT LIKE
LIKE is a source file of the build; SOURCE is checked as that is compiled, with its precompiled header, but without warnings.
"""
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

from compile_flags import compilation

CASE = re.compile(r"^#if CASE == (\d+)\s*//\s*expect: (.+?)\s*$", re.MULTILINE)


def checker(build_root, like):
    """The directory and the words of a command that checks a file as the build compiles `like`."""
    directory, words = compilation(build_root, like)
    command, rest = [], iter(words)
    for word in rest:
        if word in ("-o", "-MF", "-MQ", "-MT", "-c"):
            next(rest)
        elif word not in ("-MD", "ccache") and not word.startswith(("-W", "-fdiagnostics", "-fcolor-diagnostics")):
            command.append(word)
    return directory, [*command, "-fsyntax-only"]


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


def check(text, directory, command, cases, place):
    def compile_text(name, content, case, *arguments):
        path = os.path.join(place, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
        return subprocess.run([*command, f"-DCASE={case}", *arguments, path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False, cwd=directory)

    version = subprocess.run([command[0], "--version"], stdout=subprocess.PIPE, text=True, check=False).stdout
    unlimited = "-ferror-limit=0" if "clang" in version else "-fmax-errors=0"
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        content, owners = together(text)
        all_at_once = pool.submit(compile_text, "all_cases.cpp", content, 0, unlimited)
        without_case = compile_text("case_0.cpp", text, 0)
        if without_case.returncode != 0:
            print(f"CASE 0 must compile:\n{without_case.stdout}\n0 passed, 1 failed")
            return 1
        refused = errors_of(all_at_once.result().stdout, "all_cases.cpp", owners)
        rest = [(number, words) for number, words in cases if words not in refused.get(number, "")]
        failed = 0
        for (number, words), result in zip(rest, pool.map(lambda case: compile_text(f"case_{case[0]}.cpp", text, case[0]), rest)):
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
    directory, command = checker(build_root, like)
    with open(source, encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r"^(#if CASE == )\\\n *(.*)\n", r"\1\2\n\n", text, flags=re.MULTILINE)  # what is broken over two lines
    cases = [(int(number), words) for number, words in CASE.findall(text)]
    if not cases or len(cases) != len(re.findall("^#if CASE", text, re.MULTILINE)):
        print(f"{source}: a case begins '#if CASE == N  // expect: words'")
        return 1
    with tempfile.TemporaryDirectory() as place:
        return check(text, directory, command, cases, place)


if __name__ == "__main__":
    sys.exit(main())
