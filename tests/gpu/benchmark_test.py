#!/usr/bin/env python3
"""benchmark_test.py BENCHMARK: the benchmark of tensors on GPUs runs on the double, and where there is no GPU it says so and fails."""

import os
import subprocess
import sys
import unittest

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../benchmarks/peers/torch_rpc_cuda.py")
PROGRAM = sys.argv.pop()


def run(devices, *arguments):
    environment = dict(os.environ, FERRY_FAKE_CUDA_DEVICES=str(devices))
    return subprocess.run([PROGRAM, *arguments], env=environment, capture_output=True, text=True, timeout=100)


class Benchmark(unittest.TestCase):
    def test_on_the_double(self):
        ran = run(1, "--quick", "--repeats", "1", "--json")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        for name in ("stream/4KiB", "bandwidth/inproc/1MiB", "bandwidth/shm/1MiB", "bandwidth/unix/1MiB", "reply/inproc/in-order"):
            self.assertIn(f'"cuda/{name}"', ran.stdout)

    def test_without_a_gpu(self):
        ran = run(0)
        self.assertEqual(ran.returncode, 1)
        self.assertIn("no GPU", ran.stderr)

    def test_the_peer_says_what_it_lacks(self):
        ran = subprocess.run([sys.executable, PEER], env=dict(os.environ, CUDA_VISIBLE_DEVICES=""), capture_output=True, text=True)
        self.assertEqual(ran.returncode, 1)
        self.assertRegex(ran.stderr, "torch_rpc_cuda: (torch is not installed|no GPU)")


if __name__ == "__main__":
    unittest.main()
