"""Several ferry-runs as one job, each as if on its own machine; FERRY_RUN is its path."""

import os
import signal
import socket
import subprocess
import sys
import time
import unittest

from ferry_run_test import FERRY_RUN, TIMEOUT, clean_environment, wait_for_end
from ports import free_port

PLACE = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $NODE_RANK/$GROUP_WORLD_SIZE $GROUP_RANK $MASTER_ADDR $MASTER_PORT"
FOREVER = "echo $$; exec tail -f /dev/null"


def connect_when_served(port):
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise


class Node(subprocess.Popen):
    """A ferry-run with its own output."""

    def __init__(self, *arguments, environment=None):
        super().__init__(
            [FERRY_RUN, *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment or clean_environment(),
        )

    def finish(self):
        """(status, lines of standard output, standard error)"""
        output, errors = self.communicate(timeout=TIMEOUT)
        return self.returncode, sorted(output.splitlines()), errors


class Job:
    """Nodes whose rendezvous is a port of this machine; ended with the test."""

    def __init__(self, test, count, host="127.0.0.1"):
        self.test = test
        self.count = count
        self.port = free_port()
        self.place = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self.nodes = []

    def start(self, rank, script, *options, workers=1, nnodes=None):
        numbered = [] if rank is None else ["--node-rank", rank]
        node = Node("-n", workers, "--nnodes", nnodes or self.count, "--rdzv", self.place, *numbered, *options, "--", "sh", "-c", script)
        self.nodes.append(node)
        self.test.addCleanup(self.end, node)
        return node

    @staticmethod
    def end(node):
        if node.poll() is None:
            node.kill()
            node.wait(TIMEOUT)
        node.stdout.close()
        node.stderr.close()

    def finish(self):
        return [node.finish() for node in self.nodes]


class Ranks(unittest.TestCase):
    def check_places(self, results, counts, host, port=None):
        first = 0
        ports = set()
        for node, ((status, lines, errors), count) in enumerate(zip(results, counts)):
            self.assertEqual((status, errors), (0, ""))
            ports |= {line.split()[-1] for line in lines}
            found = ports.copy().pop()
            self.assertEqual(lines, [
                f"[{first + local}] {first + local}/{sum(counts)} {local}/{count} {node}/{len(counts)} {node} {host} {found}"
                for local in range(count)
            ])
            first += count
        self.assertEqual(len(ports), 1)
        if port:
            self.assertEqual(ports, {str(port)})

    def test_each_node_has_its_own_number_of_workers(self):
        for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
            with self.subTest(order=order):
                job = Job(self, 3)
                counts = [2, 1, 3]
                nodes = {rank: job.start(rank, PLACE, workers=counts[rank]) for rank in order}
                self.check_places([nodes[rank].finish() for rank in range(3)], counts, "127.0.0.1")

    def test_nodes_are_numbered_in_order_of_arrival(self):
        job = Job(self, 3, "localhost")
        for workers in (1, 2, 3):
            job.start(None, PLACE, workers=workers)
        results = sorted(job.finish(), key=lambda result: int(result[1][0].split()[3].split("/")[0]))
        self.check_places(results, [len(lines) for _, lines, _ in results], "localhost")

    def test_ipv6(self):
        if not os.path.exists("/proc/net/if_inet6"):
            self.skipTest("this machine has no IPv6")
        job = Job(self, 2, "::1")
        job.start(0, PLACE)
        job.start(1, PLACE)
        self.check_places(job.finish(), [1, 1], "::1")

    def test_address_and_port_of_node_0_count(self):
        job = Job(self, 2)
        port = free_port()
        job.start(0, PLACE, "--addr", "node-zero", "--port", port)
        job.start(1, PLACE, "--addr", "other", "--port", 1)
        self.check_places(job.finish(), [1, 1], "node-zero", port)

    def test_option_names_of_torchrun(self):
        port = free_port()
        names = ["--master_addr", "127.0.0.1", "--master_port", port]
        given = clean_environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        for where, environment in ((names, None), ([], given), (["--rdzv_endpoint", f"127.0.0.1:{port}"], None)):
            with self.subTest(where=where):
                nodes = [
                    Node("--nnodes=2", f"--node_rank={rank}", "--nproc_per_node=1", *where, "sh", "-c", PLACE, environment=environment)
                    for rank in range(2)
                ]
                self.check_places([node.finish() for node in nodes], [1, 1], "127.0.0.1")

    def test_a_node_may_retry_after_a_timeout(self):
        job = Job(self, 3)
        zero = job.start(0, PLACE, "--rdzv-timeout", TIMEOUT)
        early = job.start(1, PLACE, "--rdzv-timeout", "0.2")
        status, _, errors = early.finish()
        self.assertEqual(status, 125)
        self.assertRegex(errors, r"no ferry-run of node 0|only 2 of 3 nodes came to 127.0.0.1:\d+ within 0.2 s")
        one = job.start(1, PLACE)
        two = job.start(2, PLACE)
        self.check_places([zero.finish(), one.finish(), two.finish()], [1, 1, 1], "127.0.0.1")


class Endings(unittest.TestCase):
    def test_a_worker_that_fails_ends_the_workers_of_all_nodes(self):
        for failing in (0, 1, 2):
            with self.subTest(failing=failing):
                job = Job(self, 3)
                script = f'if [ $NODE_RANK.$LOCAL_RANK = {failing}.1 ]; then exit 42; fi; exec tail -f /dev/null'
                for rank in range(3):
                    job.start(rank, script, workers=2)
                for status, _, errors in job.finish():
                    self.assertEqual(status, 42)
                    self.assertRegex(
                        errors,
                        rf"ferry-run: worker {2 * failing + 1} on node {failing} \({socket.gethostname()}, process \d+\) exited with status 42",
                    )

    def test_a_failure_counts_for_nodes_whose_workers_have_succeeded(self):
        job = Job(self, 2)
        gate = os.path.join(os.environ.get("MESON_BUILD_ROOT", "/tmp"), f"ferry-run-nodes-{os.getpid()}")
        os.mkfifo(gate)
        self.addCleanup(os.unlink, gate)
        zero = job.start(0, "echo done")
        one = job.start(1, f"echo ready; read -r line < {gate}; kill -SEGV $$")
        self.assertEqual(zero.stdout.readline(), "[0] done\n")
        self.assertEqual(one.stdout.readline(), "[1] ready\n")
        with open(gate, "w", encoding="utf-8") as opened:
            opened.write("go\n")
        for status, _, errors in job.finish():
            self.assertEqual(status, 128 + signal.SIGSEGV)
            self.assertRegex(errors, r"worker 1 on node 1 \(.*\) was ended by signal 11")

    def test_success_is_success_everywhere(self):
        job = Job(self, 4)
        for rank in range(4):
            job.start(rank, "exit 0", workers=3)
        self.assertEqual(job.finish(), [(0, [], "")] * 4)

    def test_a_program_that_one_node_lacks(self):
        job = Job(self, 2)
        zero = job.start(0, FOREVER)
        one = Node("-n", 1, "--nnodes", 2, "--node-rank", 1, "--rdzv", job.place, "no-such-program-anywhere")
        status, _, errors = one.finish()
        self.assertEqual(status, 127)
        self.assertIn("cannot run 'no-such-program-anywhere' on node 1", errors)
        status, _, errors = zero.finish()
        self.assertEqual(status, 127)
        self.assertIn("cannot run 'no-such-program-anywhere' on node 1", errors)

    def test_a_killed_ferry_run_is_detected_by_the_others(self):
        for killed in (0, 1):
            with self.subTest(killed=killed):
                job = Job(self, 3)
                nodes = [job.start(rank, FOREVER, workers=2) for rank in range(3)]
                workers = [int(node.stdout.readline().split()[1]) for node in nodes for _ in range(2)]
                nodes[killed].kill()
                for rank, node in enumerate(nodes):
                    status, _, errors = node.finish()
                    if rank == killed:
                        continue
                    self.assertEqual(status, 125)
                    self.assertRegex(errors, rf"lost node {killed}.*ferry-run.*has ended.*ending the 2 workers of this node")
                for worker in workers:
                    self.assertTrue(wait_for_end(worker))

    def test_a_signal_that_ends_the_workers_of_one_node_ends_the_job(self):
        for asked in (0, 1):
            with self.subTest(asked=asked):
                job = Job(self, 2)
                nodes = [job.start(rank, FOREVER) for rank in range(2)]
                for node in nodes:
                    node.stdout.readline()
                nodes[asked].terminate()
                for status, _, _ in job.finish():
                    self.assertEqual(status, 128 + signal.SIGTERM)

    def test_a_signal_while_the_own_workers_are_done_already(self):
        job = Job(self, 2)
        zero = job.start(0, FOREVER)
        one = job.start(1, "echo $$")
        zero.stdout.readline()
        self.assertTrue(wait_for_end(int(one.stdout.readline().split()[1])))
        one.terminate()
        self.assertEqual(one.finish()[0], 128 + signal.SIGTERM)
        status, _, errors = zero.finish()
        self.assertEqual(status, 128 + signal.SIGTERM)
        self.assertIn("node 1", errors)


class Rendezvous(unittest.TestCase):
    def fail_all(self, job, status, pattern):
        for found, _, errors in job.finish():
            self.assertEqual(found, status)
            self.assertRegex(errors, pattern)

    def test_a_missing_node(self):
        job = Job(self, 4)
        job.start(2, "true")  # first, so that it has arrived in time
        job.start(0, "true", "--rdzv-timeout", "8")
        self.fail_all(job, 125, rf"only 2 of 4 nodes came to {job.place} within 8 s; missing: node 1, 3")

    def test_no_rendezvous_server(self):
        job = Job(self, 2)
        job.start(1, "true", "--rdzv-timeout", "0.3")
        self.fail_all(job, 125, rf"no ferry-run of node 0 at {job.place} within 0.3 s: Connection refused")

    def test_an_address_of_no_node(self):
        job = Job(self, 2, "192.0.2.77")
        job.start(0, "true", "--rdzv-timeout", "0.3")
        self.fail_all(job, 125, r"this one is node 0, but 192.0.2.77 is not an address of this machine")

    def test_an_unknown_host_name(self):
        job = Job(self, 2, "no-such-host.invalid")
        job.start(None, "true", "--rdzv-timeout", "0.3")
        self.fail_all(job, 125, r"no ferry-run of node 0 at no-such-host.invalid:\d+ within 0.3 s: .*becomes node 0")

    def test_nodes_of_one_rank(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                job = Job(self, 4)
                if rank != 0:
                    job.start(0, "true")
                job.start(rank, "true")
                job.start(rank, "true")
                self.fail_all(job, 2, f"two nodes have --node-rank {rank}: ")

    def test_nodes_of_other_numbers(self):
        job = Job(self, 3)
        zero = job.start(0, "true")
        other = job.start(1, "true", nnodes=2)
        for node in (zero, other):
            status, _, errors = node.finish()
            self.assertEqual(status, 2)
            self.assertRegex(errors, r"have inconsistent options: \S+ has --nnodes 3, \S+ has --nnodes 2")

    def test_numbers_for_some_nodes_only(self):
        job = Job(self, 3)
        job.start(0, "true")
        job.start(None, "true")
        self.fail_all(job, 2, "only .* has --node-rank; give it on all nodes or on none")

    def test_unrelated_connections_are_ignored(self):
        job = Job(self, 2)
        zero = job.start(0, FOREVER, "--rdzv-id", "mine")
        refused = job.start(1, "true", "--rdzv-id", "yours")
        status, _, errors = refused.finish()
        self.assertEqual(status, 2)
        self.assertIn("refuses this node: this is job 'mine', not 'yours' (--rdzv-id)", errors)
        silent = connect_when_served(job.port)
        self.addCleanup(silent.close)
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 70000, b"x" * 5000, b"hello ferry-run/1 nodes=x\n", b"hello ferry-run/2 \n", b"done\n"):
            with socket.create_connection(("127.0.0.1", job.port), timeout=TIMEOUT) as unrelated:
                try:
                    unrelated.sendall(garbage)
                    while unrelated.recv(4096):
                        pass
                except ConnectionError:
                    pass
        one = job.start(1, FOREVER, "--rdzv-id", "mine")
        zero.stdout.readline()
        one.stdout.readline()
        late = job.start(1, "true", "--rdzv-id", "mine")
        status, _, errors = late.finish()
        self.assertEqual(status, 2)
        self.assertIn("the job has started with all its 2 nodes", errors)
        self.assertIsNone(zero.poll())
        self.assertIsNone(one.poll())

    def test_the_listener_is_not_ferry_run(self):
        job = Job(self, 2)
        with socket.create_server(("127.0.0.1", job.port)) as server:
            node = job.start(1, "true")
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"220 mail.example ESMTP\r\n")
                status, _, errors = node.finish()
        self.assertEqual(status, 125)
        self.assertRegex(errors, r"the listener at .* does not answer like the ferry-run of node 0")

    def test_a_signal_to_node_0_while_nodes_wait_ends_them_at_once(self):
        job = Job(self, 4)
        zero = job.start(0, "true", "--rdzv-timeout", 3600)
        one = job.start(1, "true", "--rdzv-timeout", 3600)
        # Node 3 is simulated here; it is notified when the others have arrived.
        with connect_when_served(job.port) as three:
            three.sendall(b"hello ferry-run/1 nodes=4 rank=3 workers=1 id= host=played\n")
            told = three.makefile()
            self.assertIn("waiting came=3\n", iter(told.readline, ""))
            zero.terminate()
            self.assertEqual(zero.finish()[0], -signal.SIGTERM)
            self.assertEqual(told.readline(), "")
            told.close()
        status, _, errors = one.finish()
        self.assertEqual(status, 125)
        # Node 0 may have ended before it sent this one the message for node 3.
        self.assertRegex(errors, "lost node 0: (its ferry-run at .* has ended|the listener at .* without an answer)")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
