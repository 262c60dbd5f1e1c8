#!/usr/bin/env python3
"""Checks that kernels of different instruction sets share no function: shared_symbols_test.py ARCHIVE...

The linker takes one copy of an inline function that several objects have, perhaps one that uses instructions the CPU lacks. So each
name that an object defines for the linker has to be that of its own instruction set.
"""

import pathlib
import re
import subprocess
import sys
import unittest

# A pointer to the function of the C++ library for exceptions: data that is the same in every object.
HARMLESS = {"DW.ref.__gxx_personality_v0"}


class SharedSymbols(unittest.TestCase):
    def test_each_object_defines_names_of_its_own(self):
        for archive in ARCHIVES:
            name = re.fullmatch(r"libcpu_kernels_(\w+)\.a", archive.name).group(1)
            lines = subprocess.run(["nm", "--defined-only", archive], capture_output=True, text=True, check=True).stdout.splitlines()
            found = [line.split() for line in lines if len(line.split()) == 3]
            # Small letters are local names, but for those of weak objects and unique ones.
            names = {words[2] for words in found if words[1].isupper() or words[1] in "uvw"}
            # As they are mangled: after their length.
            own = [f"{len(each)}{each}" for each in (f"ferry_eigen_{name}", f"cpu_kernels_{name}")]
            with self.subTest(name):
                self.assertTrue(any(f"cpu_kernels_{name}" in each for each in names), "nm printed no table")
                self.assertEqual([each for each in sorted(names - HARMLESS) if not any(mark in each for mark in own)], [])


if __name__ == "__main__":
    ARCHIVES = [pathlib.Path(each) for each in sys.argv[1:]]
    unittest.main(argv=sys.argv[:1])
