#!/usr/bin/env python3
"""summary.py TESTLOG.json: what of the suite for GPUs ran. Fails when no test did."""

import json
import re
import sys


def main():
    ran = 0
    with open(sys.argv[1], encoding="utf-8") as log:
        for line in log:
            test = json.loads(line)
            name = test["name"].split(" / ")[-1]
            text = test.get("stdout", "")
            cases = re.findall(r"^\S+: (\d+ test cases ran, \d+ left out)$", text, re.MULTILINE)
            print(f"{name}: {test['result']}, {test['duration']:.0f} s" + (f", {cases[-1]}" if cases else ""))
            for left_out in re.findall(r"^left out: .*$", text, re.MULTILINE):
                print(f"    {left_out}")
            if name == "probe":
                print("".join(f"    {each}\n" for each in text.splitlines()), end="")
            elif test["result"] not in ("SKIP", "IGNORED"):
                ran += 1
    if not ran:
        print("no test of the suite for GPUs ran")
    return 0 if ran else 1


if __name__ == "__main__":
    sys.exit(main())
