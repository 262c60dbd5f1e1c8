#!/usr/bin/env python3
"""kernels_ptx_test.py SOURCE NVCC FLAG...: what the compiler makes of kernels for a GPU."""

import re
import subprocess
import sys
import unittest

SOURCE, COMMAND = sys.argv[1], sys.argv[2:]
del sys.argv[1:]


def kernels():
    """Instructions of each kernel, by the mangled name."""
    text = subprocess.run([*COMMAND, "--ptx", SOURCE, "-o", "-"], capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r"\.entry (\w+)\(.*?\)(.*?)^}", text, re.DOTALL | re.MULTILINE))


class Kernels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.all = kernels()

    def of(self, name):
        found = [body for mangled, body in self.all.items() if str(len(name)) + name in mangled]
        self.assertTrue(found, f"no kernel {name} among {list(self.all)}")
        return "\n".join(found)

    def test_sums_and_products_are_not_fused_where_equality_with_the_cpu_is_promised(self):
        for name in ("combine_kernel", "combine_packs_kernel", "update_kernel"):
            self.assertNotRegex(self.of(name), r"\bfma\.", name)
        self.assertRegex(self.of("gemm_kernel"), r"\bfma\.rn\.f32")

    def test_indices_of_walks_have_32_bits(self):
        for name in ("copy_kernel", "combine_kernel", "combine_packs_kernel", "update_kernel"):
            self.assertNotRegex(self.of(name), r"\b(div|rem)\.[su]64", name)
            self.assertRegex(self.of(name), r"\bdiv\.u32", name)

    def test_contiguous_memory_is_moved_16_bytes_at_a_time(self):
        wide = r"(\.global)?(\.[a-z]+)*\.(v4\.(b32|u32|f32)|v2\.(b64|u64|f64))"
        self.assertRegex(self.of("combine_packs_kernel"), r"\bld" + wide)
        self.assertRegex(self.of("combine_packs_kernel"), r"\bst" + wide)
        copies = [body for mangled, body in self.all.items() if "aligned_sixteen_bytes" in mangled]
        self.assertEqual(len(copies), 1)
        self.assertRegex(copies[0], r"\bld" + wide)
        self.assertRegex(copies[0], r"\bst" + wide)


if __name__ == "__main__":
    unittest.main()
