#!/usr/bin/env python3
"""Checks which names the shared library shows: exports_test.py LIBRARY."""

import re
import subprocess
import sys
import unittest

OWN = re.compile(r"_Z(T[ISVTHWC]|T[hv].*|GV|Z|GVZ)?N[KRO]*5ferry")


class Exports(unittest.TestCase):
    def test_the_library_shows_its_own_names_only(self):
        lines = subprocess.run(
            ["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        names = [line.split()[-1].split("@")[0] for line in lines]
        self.assertTrue(any("get_worker_info" in name for name in names), "nm printed nothing of the interface")
        self.assertEqual([name for name in names if not OWN.match(name)], [])


if __name__ == "__main__":
    LIBRARY = sys.argv.pop(1)
    unittest.main()
