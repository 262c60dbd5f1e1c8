#!/usr/bin/env python3
"""Counts the test cases in the log that `meson test` leaves, and ends with the line 'N passed, N failed'.

A doctest or unittest program counts as its cases; any other test counts as one. A program that fails although all its
cases passed (a crash, a leak, a time-out) adds one failure, so that nothing red is ever counted as green.
Exit status: 0 if at least one test ran and none failed, else 1.
"""

import argparse
import json
import pathlib
import re
import sys

DOCTEST = re.compile(r"\[doctest\] test cases:\s*(\d+)\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed")
UNITTEST = re.compile(r"^Ran (\d+) tests? in ", re.MULTILINE)
UNITTEST_BAD = re.compile(r"^(?:FAILED|OK) \((.*)\)", re.MULTILINE)
LOGGED = re.compile(r"\s*(\[\d+\] )?ferry\[\d+\] ")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def cases(entry):
    """(passed, failed, skipped) of one test program."""
    result = entry["result"]
    if result == "SKIP":
        return 0, 0, 1
    good = result in ("OK", "EXPECTEDFAIL")
    text = COLOUR.sub("", (entry.get("stdout") or "") + "\n" + (entry.get("stderr") or ""))
    passed = failed = skipped = 0
    summaries = DOCTEST.findall(text)
    for _, ok, bad in summaries:
        passed, failed = passed + int(ok), failed + int(bad)
    if not summaries:
        for total in UNITTEST.findall(text):
            summaries.append(total)
            counts = dict(part.split("=") for found in UNITTEST_BAD.findall(text) for part in found.split(", "))
            bad = sum(int(counts.get(kind, 0)) for kind in ("failures", "errors", "unexpected successes"))
            skipped = int(counts.get("skipped", 0))
            passed, failed = int(total) - bad - skipped, bad
    if not summaries:
        return (1, 0, 0) if good else (0, 1, 0)
    if not good and failed == 0:
        failed = 1
    return passed, failed, skipped


def end_of_output(entry, lines=30):
    """The last lines that a program printed, without those of the library's log, which tests of failures provoke."""
    for stream in ("stdout", "stderr"):
        text = COLOUR.sub("", entry.get(stream) or "").splitlines()
        shown = [line for line in text if line.strip() and not LOGGED.match(line)]
        for line in shown[-lines:]:
            yield f"    {line[:300]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--status", type=int, default=0, help="the exit status of `meson test`")
    parser.add_argument("log", type=pathlib.Path, help="meson-logs/testlog.json")
    options = parser.parse_args()

    passed = failed = skipped = 0
    bad = []
    lines = options.log.read_text(encoding="utf-8").splitlines() if options.log.exists() else []
    for line in lines:
        entry = json.loads(line)
        counts = cases(entry)
        passed, failed, skipped = passed + counts[0], failed + counts[1], skipped + counts[2]
        note = "" if counts[1] == 0 else f"   {counts[1]} FAILED ({entry['result'].lower()})"
        if counts[1]:
            bad.append(entry)
        if counts[2]:
            note += f"   {counts[2]} skipped"
        print(f"  {entry['name']:<40} {counts[0]:>5} passed  {entry['duration']:>7.1f} s{note}")
    for entry in bad:
        print(f"---- the end of what {entry['name']} printed")
        print("\n".join(end_of_output(entry)))
    if options.status != 0 and failed == 0:
        print(f"meson test ended with status {options.status}")
        failed = 1
    if passed + failed + skipped == 0:
        print("no test was run")
        failed = 1
    if skipped:
        print(f"{skipped} skipped")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
