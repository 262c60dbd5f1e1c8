"""Two network namespaces with their own addresses act as two machines.

FERRY_RUN names ferry-run, NEIGHBOURS a program whose workers call each other. Needs root and iproute2; skipped with the reason
where namespaces cannot be made.
"""

import os
import re
import shutil
import subprocess
import sys
import unittest

FERRY_RUN = os.environ["FERRY_RUN"]
NEIGHBOURS = os.environ["NEIGHBOURS"]
TIMEOUT = 60
# Machines that can reach each other need a secret, or permission.
ADMISSION = {"FERRY_SECRET": "of this test"} if os.environ.get("FERRY_WITH_AUTHENTICATION") == "1" else {"FERRY_ALLOW_UNAUTHENTICATED": "1"}
NAMES = [f"ferry-{os.getpid()}-{number}" for number in range(2)]
LINKS = [f"fv{os.getpid() % 100000}a", f"fv{os.getpid() % 100000}b"]
ADDRESSES = [["10.213.7.1", "10.213.7.2"], ["fd00:f:e::1", "fd00:f:e::2"]]


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=TIMEOUT, check=False)


def make_namespaces():
    """The reason for failure, or None."""
    if not shutil.which("ip"):
        return "there is no 'ip': install iproute2"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    steps = [["netns", "add", name] for name in NAMES]
    steps.append(["link", "add", LINKS[0], "netns", NAMES[0], "type", "veth", "peer", "name", LINKS[1], "netns", NAMES[1]])
    for number, (name, link) in enumerate(zip(NAMES, LINKS)):
        steps += [
            ["-n", name, "address", "add", ADDRESSES[0][number] + "/24", "dev", link],
            ["-n", name, "link", "set", "lo", "up"],
            ["-n", name, "link", "set", link, "up"],
        ]
    for step in steps:
        result = ip(*step)
        if result.returncode != 0:
            return f"'ip {' '.join(step)}' failed: {result.stderr.strip()}"
    for number, (name, link) in enumerate(zip(NAMES, LINKS)):  # without IPv6 in the kernel the IPv6 test is skipped
        ip("-n", name, "address", "add", ADDRESSES[1][number] + "/64", "dev", link, "nodad")
    return None


def delete_namespaces():
    for name in NAMES:
        if os.path.exists(f"/run/netns/{name}"):
            ip("netns", "delete", name)


class Machine(subprocess.Popen):
    """A program in one of the namespaces."""

    def __init__(self, number, *command):
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        super().__init__(
            ["ip", "netns", "exec", NAMES[number], *map(str, command)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**{key: value for key, value in os.environ.items() if key not in names}, "FERRY_LOG": "info", **ADMISSION},
        )

    def finish(self):
        try:
            output, errors = self.communicate(timeout=TIMEOUT)
        finally:
            self.kill()
            self.wait(TIMEOUT)
            self.stdout.close()
            self.stderr.close()
        return self.returncode, output, errors


class TwoMachines(unittest.TestCase):
    def setUp(self):
        self.addCleanup(delete_namespaces)
        reason = make_namespaces()
        if reason:
            self.skipTest(reason)

    def check_workers(self, results, addresses, places):
        """places: the machine of each worker, by rank."""
        everything = "".join(errors for _, _, errors in results)
        for status, _, errors in results:
            self.assertEqual(status, 0, errors)
        calls = sorted(re.findall(r"worker\d called worker\d", "".join(output for _, output, _ in results)))
        count = len(places)
        self.assertEqual(calls, [f"worker{a} called worker{b}" for a in range(count) for b in range(count) if a != b])
        for rank, machine in enumerate(places):
            listening = re.search(rf"\(id={rank}, name=worker{rank}\) listens on (.*)", everything)
            self.assertIsNotNone(listening, everything)
            own = re.findall(r"tcp://\[?([0-9a-f.:]+?)\]?:\d+(?:,|$)", listening.group(1))
            self.assertEqual(own, [addresses[machine]], listening.group(0))

    def test_a_job_of_two_ferry_runs(self):
        for numbered in (True, False):
            with self.subTest(numbered=numbered):
                machines = [
                    Machine(number, FERRY_RUN, "-n", 2 - number, "--nnodes", 2, "--rdzv", f"{ADDRESSES[0][0]}:29400",
                            *(["--node-rank", number] if numbered else []), NEIGHBOURS)
                    for number in (1, 0)
                ]
                self.check_workers([machine.finish() for machine in machines], ADDRESSES[0], [0, 0, 1])

    def test_workers_with_explicit_arguments(self):
        for family, addresses in enumerate(ADDRESSES):
            if family == 1 and addresses[0] not in ip("-n", NAMES[0], "address").stdout:
                self.skipTest("no IPv6 in the namespaces")
            with self.subTest(addresses=addresses):
                host = addresses[0] if family == 0 else f"[{addresses[0]}]"
                machines = [Machine(number, NEIGHBOURS, f"tcp://{host}:29401", number, 2) for number in (1, 0)]
                self.check_workers([machine.finish() for machine in machines], addresses, [0, 1])

    def test_a_failure_on_one_machine_ends_the_other(self):
        script = 'if [ $RANK = 1 ]; then exit 9; fi; exec tail -f /dev/null'
        machines = [
            Machine(number, FERRY_RUN, "-n", 1, "--nnodes", 2, "--rdzv", f"{ADDRESSES[0][0]}:29402", "sh", "-c", script)
            for number in (0, 1)
        ]
        for status, _, errors in [machine.finish() for machine in machines]:
            self.assertEqual(status, 9)
            self.assertIn("exited with status 9", errors)

    def test_a_machine_that_vanishes(self):
        script = "echo here; exec tail -f /dev/null"
        machines = [
            Machine(number, FERRY_RUN, "-n", 1, "--nnodes", 2, "--rdzv", f"{ADDRESSES[0][0]}:29403", "sh", "-c", script)
            for number in (0, 1)
        ]
        for machine in machines:
            machine.stdout.readline()
        ip("-n", NAMES[1], "link", "set", LINKS[1], "down")  # the connection ends without any packet
        for number, machine in enumerate(machines):
            status, _, errors = machine.finish()
            self.assertEqual(status, 125)
            self.assertIn(f"lost node {1 - number}", errors)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
