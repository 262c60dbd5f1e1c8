#!/usr/bin/env python3
"""Checks that each operation on tensors is in a list.

A struct that befriends operation_access is the descriptor of an operation, and so is one of namespace op that derives from a ..._descriptor. The tests of slots, and whatever else is derived from all
operations, iterate an operation_list: one that is in none would escape them.
Exit status: 0 if all is well, 1 with the problems on stdout otherwise.
"""

import argparse
import pathlib
import re
import sys

DESCRIPTOR = "friend struct ferry::operation_access;"
DERIVED = re.compile(r"^struct (\w+) : detail::\w+_descriptor\b", re.MULTILINE)
STRUCT = re.compile(r"^struct (\w+)\b[^;]*\{", re.MULTILINE)
LIST = re.compile(r"operation_list<([^<>]*)>")
COMMENT = re.compile(r"//[^\n]*")


def check(root):
    """The problems, and the number of descriptors."""
    descriptors, listed = {}, []
    for top in (root / "include", root / "src"):
        for path in sorted(path for path in top.rglob("*") if path.suffix in (".hpp", ".cpp")):
            text = COMMENT.sub("", path.read_text(encoding="utf-8"))
            descriptors |= {name: path.relative_to(root).as_posix() for name in DERIVED.findall(text)}
            for part in text.split(DESCRIPTOR)[:-1]:
                names = STRUCT.findall(part)
                name = names[-1] if names else "?"
                if not name.endswith("_descriptor"):  # the base of several
                    descriptors[name] = path.relative_to(root).as_posix()
            for names in LIST.findall(text):
                listed += [name.strip().split("::")[-1] for name in names.split(",")]
    problems = [f"{path}: the operation {name} is in no operation_list" for name, path in descriptors.items() if name not in listed]
    problems += [f"the operation {name} is listed twice" for name in sorted({name for name in listed if listed.count(name) > 1})]
    return problems, len(descriptors)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent)
    options = parser.parse_args()
    problems, count = check(options.root)
    for problem in problems:
        print(problem)
    if count == 0:
        print(f"no operation below {options.root}")
    print(f"operations: {count} descriptors, {len(problems)} problems")
    return 1 if problems or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
