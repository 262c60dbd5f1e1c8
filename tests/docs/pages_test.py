#!/usr/bin/env python3
"""Runs the program that was made of a page of the documentation: pages_test.py FERRY_RUN PROGRAM."""

import subprocess
import sys
import unittest


class Page(unittest.TestCase):
    def run_program(self, workers, *arguments):
        result = subprocess.run(
            [FERRY_RUN, "-n", str(workers), PROGRAM, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
        )
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_the_statements_run_on_a_group_of_four(self):
        self.run_program(4)

    def test_each_whole_program_runs(self):
        programs = subprocess.run([PROGRAM, "--list"], capture_output=True, text=True, check=True).stdout.split()
        for program in programs:
            with self.subTest(program):
                self.run_program(2, program)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop()
    FERRY_RUN = sys.argv.pop()
    unittest.main()
