#!/usr/bin/env python3
"""Runs the example 14_digits: what it prints and draws, and what it says of files that it cannot use.

usage: digits_test.py PROGRAM DIGITS.csv
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

PROGRAM, DIGITS = sys.argv[1:3]


def run(*arguments, out=subprocess.PIPE):
    done = subprocess.run([PROGRAM, *map(str, arguments)], stdout=out, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


class Digits(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def refuse(self, text, *arguments, status=1):
        code, _, errors = run(*arguments)
        self.assertEqual(code, status, errors)
        self.assertIn(text, errors)

    def refuse_data(self, text, data):
        (self.path / "data.csv").write_text(data)
        self.refuse(text, self.path / "data.csv")

    def test_it_learns_and_draws(self):
        picture = self.path / "loss.svg"
        code, out, errors = run(DIGITS, picture)
        self.assertEqual((code, errors), (0, ""))
        lines = re.findall(r"^epoch +(\d+)  loss (\d\.\d+)  accuracy +([\d.]+) %  +\d+ ms$", out, re.MULTILINE)
        self.assertEqual([int(number) for number, _, _ in lines], list(range(1, 21)))
        self.assertGreaterEqual(float(lines[-1][2]), 95)
        drawn = xml.parse(picture).getroot()
        space = "{http://www.w3.org/2000/svg}"
        self.assertEqual(len(drawn.find(space + "polyline").get("points").split()), 20)
        labels = [each.text for each in drawn.iter(space + "text")]
        self.assertIn("epoch", labels)
        self.assertIn("loss (cross entropy)", labels)

    def test_the_seed_fixes_all(self):
        def numbers():
            return re.sub(r" +\d+ ms", "", run(DIGITS)[1])

        self.assertEqual(numbers(), numbers())

    def test_data_that_is_missing_or_bad(self):
        lines = pathlib.Path(DIGITS).read_text().splitlines()
        self.refuse("none.csv': cannot open it: No such file or directory", self.path / "none.csv")
        self.refuse("cannot read it", self.path)
        self.refuse_data("less than 5 digits", "")
        for bad in ("17" + lines[0][1:], lines[0] + ",1", lines[0][:-2], "", "a" + lines[0], lines[0] + "x"):
            self.refuse_data("line 3 is not 64 numbers", "\n".join([lines[0], lines[1], bad, lines[2]]))

    def test_pictures_that_cannot_be_written(self):
        self.refuse("No such file or directory", DIGITS, self.path / "none" / "loss.svg")
        self.refuse("cannot write '/dev/full': No space left on device", DIGITS, "/dev/full")

    def test_a_full_disk_under_the_output(self):
        with open("/dev/full", "w") as full:
            code, _, errors = run(DIGITS, out=full)
        self.assertEqual(code, 1)
        self.assertIn("cannot write the output", errors)

    def test_usage(self):
        self.refuse("usage: 14_digits DIGITS.csv [LOSS.svg]", status=2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
