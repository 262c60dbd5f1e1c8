#!/usr/bin/env python3
"""Checks docs/conformance.md against the tests.

A row is shown by the test cases whose name carries `[row N]` (or `[rows N, M]`) in tests/, and by cases of
must_not_compile.cpp files below a comment that begins so. The columns 'state' and 'test'
of the table must say what is found there: `done` with the test, or `open` without one. --write brings them up to date.
Exit status: 0 if the table is right, 1 with the differences on stdout otherwise.
"""

import argparse
import pathlib
import re
import sys

TEST_NAME = re.compile(
    r'\b(?:TEST_CASE|TEST_CASE_TEMPLATE|TEST_CASE_TEMPLATE_DEFINE|TEST_CASE_FIXTURE|SUBCASE)\s*\(\s*'
    r'(?:[A-Za-z_:]+\s*,\s*)?((?:"(?:[^"\\]|\\.)*"\s*)+)'
)
PYTHON_NAME = re.compile(r'^\s*"""((?:[^"\\]|\\.)*\[rows? .*?)"""', re.MULTILINE)
REFUSAL_NAME = re.compile(r"^// (\[rows? .*)$", re.MULTILINE)  # in must_not_compile.cpp, above a case
TAG = re.compile(r"\[rows? ([0-9][0-9 ,and]*)\]")
ROW = re.compile(r"^\| *(\d+) *\|(.*)\|\s*$")


def tagged_tests(root):
    """{row: [(file, test name), ...]}"""
    found = {}
    for path in sorted((root / "tests").rglob("*")):
        if path.suffix not in (".cpp", ".hpp", ".py"):
            continue
        text = path.read_text(encoding="utf-8")
        refusals = path.name == "must_not_compile.cpp"
        pattern = REFUSAL_NAME if refusals else PYTHON_NAME if path.suffix == ".py" else TEST_NAME
        for name in pattern.findall(text):
            if pattern is TEST_NAME:
                name = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', name))
            for rows in TAG.findall(name):
                for row in re.findall(r"\d+", rows):
                    found.setdefault(int(row), []).append((path.relative_to(root).as_posix(), TAG.sub("", name).strip()))
    return found


def cell(tests):
    """The text of the column 'test'."""
    text = "; ".join(f"`{path}`: {name}" for path, name in tests)
    return text.replace("|", "\\|")


def expected_line(number, behaviour, tests):
    if tests:
        return f"| {number} | {behaviour} | done | {cell(tests)} |"
    return f"| {number} | {behaviour} | open | |"


def split_cells(text):
    return [part.strip() for part in re.split(r"(?<!\\)\|", text)]


def check(root, write):
    """The list of problems and the number of rows that are done and listed."""
    table = root / "docs" / "conformance.md"
    tests = tagged_tests(root)
    problems, lines, listed, done = [], [], set(), 0
    for line in table.read_text(encoding="utf-8").splitlines():
        match = ROW.match(line)
        if match:
            number, behaviour = int(match.group(1)), split_cells(match.group(2))[0]
            if number in listed:
                problems.append(f"row {number} is listed twice")
            listed.add(number)
            done += number in tests
            wanted = expected_line(number, behaviour, tests.get(number, []))
            if split_cells(line) != split_cells(wanted) and not write:
                problems.append(f"row {number} should read: {wanted}")
            line = wanted
        lines.append(line)
    for number in sorted(set(tests) - listed):
        path, name = tests[number][0]
        problems.append(f"{path}: the test '{name}' shows row {number}, which the table does not list")
    if write:
        table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return problems, done, len(listed)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent)
    parser.add_argument("--write", action="store_true", help="bring the table up to date")
    options = parser.parse_args()
    problems, done, listed = check(options.root.resolve(), options.write)
    for problem in problems:
        print(problem)
    if problems and not options.write:
        print("bring the table up to date with: tools/conformance.py --write")
    print(f"conformance: {done} of {listed} rows shown by tests, {len(problems)} problems")
    return 1 if problems or not listed else 0


if __name__ == "__main__":
    sys.exit(main())
