"""Drives the real ferry-top on real groups with a fault in them; FERRY_TOP and PLANTED are the paths of both programs."""

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from ports import free_port

FERRY_TOP = os.environ["FERRY_TOP"]
PLANTED = os.environ["PLANTED"]
WITH_AUTHENTICATION = os.environ.get("FERRY_WITH_AUTHENTICATION") == "1"
TIMEOUT = 120  # seconds; an event that has not happened by then counts as missing

NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "FERRY_SECRET", "FERRY_SECRET_FILE")
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in NAMES}


def top(*arguments, **more):
    return subprocess.run([FERRY_TOP, *arguments], capture_output=True, text=True, timeout=TIMEOUT, check=False,
                          env={**ENVIRONMENT, **more})


class Group:
    """Three processes of the planted program, until the end of a with statement."""

    def __init__(self, scenario, **environment):
        self.meeting = f"tcp://127.0.0.1:{free_port()}"
        self.environment = environment
        self.members = [
            subprocess.Popen([PLANTED, scenario, self.meeting, str(rank), "3"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             text=True, env={**ENVIRONMENT, **environment})
            for rank in range(3)
        ]

    def __enter__(self):
        line = self.members[0].stdout.readline().strip()
        if line != "planted":
            raise AssertionError(f"the group did not start: {line!r}")
        return self

    def __exit__(self, *exception):
        self.members[0].stdin.close()
        for each in self.members:
            try:
                each.wait(TIMEOUT if exception[0] is None else 1)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
            each.stdout.close()
            if not each.stdin.closed:
                each.stdin.close()

    def dump(self, *more):
        result = top("dump", self.meeting, "--older-than", "100ms", "--timeout", "20s", *more, **self.environment)
        if result.returncode != 0:
            raise AssertionError(result.stderr)
        return json.loads(result.stdout), result.stderr

    def dump_with(self, kind, workers=None):
        """Dumps until a finding of that kind, about these workers, is there."""
        until = time.monotonic() + TIMEOUT
        while True:
            records, text = self.dump()
            for finding in records["findings"]:
                if finding["kind"] == kind and workers in (None, sorted(finding["workers"])):
                    return records, finding, text
            if time.monotonic() > until:
                raise AssertionError(f"no finding of kind {kind}: {records['findings']}")


class FerryTop(unittest.TestCase):
    def test_a_healthy_group(self):
        with Group("nothing") as group:
            records, text = group.dump()
            self.assertEqual([each["worker"]["name"] for each in records["workers"]], ["worker0", "worker1", "worker2"])
            self.assertEqual(records["missing"], [])
            # How long handlers take is the machine's business.
            findings = [each for each in records["findings"] if each["kind"] != "slow_worker"]
            self.assertEqual(findings, [])
            self.assertIn(" in the median, " if records["findings"] else "Nothing conspicuous", text)
            self.assertTrue(records["group"].startswith("static 3, "))
            for each in records["workers"]:
                self.assertEqual(each["ferry_flight_record"], 1)
                self.assertEqual(each["process"], group.members[each["worker"]["id"]].pid)
            # One machine, one clock: the times of all are those of the observer, within what it says.
            for clock in records["clocks"]:
                self.assertLessEqual(abs(clock["offset_ns"]), clock["uncertainty_ns"])
            events = [event for each in records["workers"] for event in each["events"]]
            self.assertTrue(any(event["event"] == "request_answered" for event in events))

    def test_rates_and_routes(self):
        with Group("nothing") as group:
            result = top("--once", "--json", "--interval", "100ms", group.meeting)
            self.assertEqual(result.returncode, 0, result.stderr)
            summary = json.loads(result.stdout)
            self.assertEqual(summary["ferry_top"], 1)
            first = summary["workers"][0]
            self.assertEqual(first["state"], "ok")
            self.assertEqual(first["process"], group.members[0].pid)
            self.assertEqual(first["calls"], 30)
            self.assertEqual(first["calls_per_s"], 0)
            self.assertEqual(first["pending"], 0)
            self.assertIn("worker1", [route["peer"] for route in first["routes"] if route["transport"]])
            table = top("--once", "-i", "100ms", group.meeting)
            self.assertEqual(table.returncode, 0, table.stderr)
            lines = table.stdout.splitlines()
            self.assertTrue(lines[2].startswith("worker "), lines)
            self.assertTrue(lines[3].startswith("worker0 "), lines)
            self.assertIn(str(group.members[2].pid), lines[5])

    def test_a_deadlock_is_found_and_named(self):
        with Group("deadlock") as group:
            records, cycle, text = group.dump_with("cycle", ["worker1", "worker2"])
            self.assertIn("take_own", cycle["text"])
            self.assertIn(cycle["text"], text)
            oldest = next(each for each in records["findings"] if each["kind"] == "oldest_call")
            self.assertIn("take_both", oldest["text"])
            table = top("--once", "-i", "100ms", "--older-than", "100ms", group.meeting)
            self.assertIn("These workers wait for each other", table.stdout)
            self.assertIn("calls that wait for 0.1 s or longer: 4", table.stdout)

    def test_a_member_that_does_not_call_a_collective_is_named(self):
        with Group("reduce") as group:
            records, found, text = group.dump_with("collective", ["worker2"])
            self.assertIn("all_reduce(sum) of f32 [3], collective 0 of group 'planted' waits at worker", found["text"])
            self.assertIn("worker2 has not called it; worker2 waits in no call and no collective", found["text"])
            self.assertIn(found["text"], text)
            own = [each["pending_collectives"] for each in records["workers"]]
            self.assertEqual([len(each) for each in own], [1, 1, 0])
            self.assertEqual(records["workers"][0]["groups"][0]["members"], ["worker0", "worker1", "worker2"])
            self.assertIsNone(own[0][0]["time_left_ns"])
            self.assertEqual([each["groups"][0]["begun"] for each in records["workers"]], [1, 1, 0])
            table = top("--once", "-i", "100ms", "--older-than", "100ms", group.meeting)
            self.assertIn("collective 0 of group 'planted'  at 2 of 3; not called by worker2", table.stdout)
            summary = json.loads(top("--once", "--json", "-i", "100ms", "--older-than", "100ms", group.meeting).stdout)
            self.assertEqual([each["missing"] for each in summary["collectives"]], [["worker2"]])

    def test_a_member_that_does_not_come_to_a_barrier_is_named(self):
        with Group("barrier") as group:
            _, found, _ = group.dump_with("collective", ["worker2"])
            self.assertIn("barrier of worker0, worker1, worker2 waits at worker0, worker1 for", found["text"])
            self.assertIn("worker2 waits in no call", found["text"])
            _, oldest, _ = group.dump_with("oldest_call", ["worker2"])
            self.assertIn("in barrier of worker0, worker1, worker2, which worker2 has not called", oldest["text"])

    def test_collectives_that_wait_for_each_other_are_found(self):
        with Group("groups") as group:
            _, cycle, _ = group.dump_with("cycle", ["worker1", "worker2"])
            self.assertIn("collective 0 of group 'planted'", cycle["text"])
            self.assertIn("collective 0 of group 'other'", cycle["text"])
            self.assertIn("if each waits for its collective or call before it calls what is missing", cycle["text"])

    def test_a_handler_that_runs_beside_a_collective_is_no_circle(self):
        with Group("beside") as group:
            records, found, _ = group.dump_with("collective", ["worker2"])
            self.assertIn("the oldest call of worker2 is 'planted::compute_for_ever' to worker0", found["text"])
            self.assertNotIn("cycle", [each["kind"] for each in records["findings"]])

    def test_barriers_of_some_that_wait_for_each_other(self):
        with Group("subsets") as group:
            _, cycle, _ = group.dump_with("cycle", ["worker1", "worker2"])
            self.assertIn("worker1 for worker2 (barrier of worker1, worker2 for ", cycle["text"])
            self.assertIn("worker2 for worker1 (all_reduce(sum) of f32 [3], collective 0 of group 'of two' for ", cycle["text"])

    def test_a_handler_that_waits_in_a_collective(self):
        with Group("inside") as group:
            _, oldest, _ = group.dump_with("oldest_call", ["worker2"])
            self.assertIn("reduce_here", oldest["text"])
            self.assertIn("collective 0 of group 'planted', which worker2 has not called", oldest["text"])

    def test_a_slow_worker_is_found_and_named(self):
        with Group("slow") as group:
            _, slow, _ = group.dump_with("slow_worker", ["worker2"])
            self.assertIn("work_here", slow["text"])

    def test_a_worker_that_serves_what_takes_long_is_not_called_slow(self):
        with Group("hetero") as group:
            records, _ = group.dump()
            self.assertNotIn("work_slowly", str(records["findings"]))

    def test_handlers_that_call_back_are_no_deadlock(self):
        with Group("nested") as group:
            records, oldest, _ = group.dump_with("oldest_call", ["worker2"])
            self.assertIn("ask_worker0", oldest["text"].partition(";")[0])
            self.assertIn("compute_for_ever", oldest["text"])
            self.assertNotIn("circle", oldest["text"])
            self.assertNotIn("cycle", [each["kind"] for each in records["findings"]])

    def test_a_handler_that_does_not_end_is_found_through_others(self):
        with Group("stuck") as group:
            group.dump_with("bottleneck", ["worker2"])
            _, oldest, _ = group.dump_with("oldest_call", ["worker2"])
            self.assertIn("compute_for_ever", oldest["text"])

    def test_a_killed_worker_is_named(self):
        with Group("nothing") as group:
            group.members[1].kill()
            group.members[1].wait()
            records, _, _ = group.dump_with("lost", ["worker1"])
            self.assertEqual([each["worker"]["name"] for each in records["missing"]], ["worker1"])
            self.assertEqual([each["worker"]["name"] for each in records["workers"]], ["worker0", "worker2"])
            summary = json.loads(top("--once", "--json", "-i", "100ms", group.meeting).stdout)
            self.assertEqual([each["state"] for each in summary["workers"]], ["ok", "lost", "ok"])
            for each in (0, 2):
                group.members[each].kill()

    def test_recording_is_switched_on_in_a_running_group(self):
        with Group("busy") as group, tempfile.TemporaryDirectory() as directory:
            trace = os.path.join(directory, "trace.json")
            result = top("record", "200ms", "-o", trace, group.meeting)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("one round", result.stdout)
            self.assertIn("planted::work", result.stdout)
            with open(trace, encoding="utf-8") as file:
                events = json.load(file)["traceEvents"]
            names = [each["args"]["name"] for each in events if each.get("name") == "process_name"]
            self.assertEqual(sorted(name.split()[0] for name in names), ["worker0", "worker1", "worker2"])
            # Handlers at every worker, with arrows from the calls of worker0.
            handlers = {each["pid"] for each in events if each["ph"] == "X" and each["name"].endswith("planted::work")}
            self.assertEqual(len(handlers), 3)
            self.assertTrue(any(each["ph"] == "s" for each in events))
            # And off again: a second recording has its own.
            page = os.path.join(directory, "page.html")
            result = top("record", "100ms", "-o", page, group.meeting)
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(page, encoding="utf-8") as file:
                self.assertIn("<svg", file.read())
            # A worker that cannot be recorded is named, the others are recorded.
            group.members[2].send_signal(signal.SIGSTOP)
            result = top("record", "100ms", "--timeout", "1s", group.meeting)
            group.members[2].send_signal(signal.SIGCONT)
            self.assertEqual(result.returncode, 1)
            self.assertIn("name=worker2) was not recorded", result.stderr)
            self.assertIn(" us in all", result.stdout)

    def test_what_a_killed_worker_did_last(self):
        with tempfile.TemporaryDirectory() as directory, Group("stuck", FERRY_FLIGHT_DIRECTORY=directory) as group:
            group.dump_with("bottleneck")  # the calls are under way
            group.members[2].kill()
            group.members[2].wait()
            path = os.path.join(directory, f"ferry-worker2-{group.members[2].pid}.flight")
            result = top("--post-mortem", path)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"worker_info(id=2, name=worker2), process {group.members[2].pid}: its last event", result.stdout)
            self.assertIn("of 'planted::compute_for_ever' by worker_info(id=1, name=worker1): running", result.stdout)
            self.assertIn("request_received", result.stdout)
            self.assertIn(", deadline not known, ", result.stdout)
            records = json.loads(top("--post-mortem", "--json", path).stdout)
            self.assertEqual([each["reason"] for each in records["workers"]], ["post mortem"])
            self.assertEqual(len(records["workers"][0]["served_calls"]), 3)
            # Of an earlier run, under the same name.
            shutil.copy(path, os.path.join(directory, "ferry-worker2-1.flight"))
            self.assertEqual(top("--post-mortem", "--json", directory).returncode, 0)
            os.unlink(os.path.join(directory, "ferry-worker2-1.flight"))
            # All of a directory, a damaged one among them.
            with open(os.path.join(directory, "a.flight"), "wb") as file:
                file.write(b"nothing of the kind")
            result = top("--post-mortem", directory)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"ferry-top: {os.path.join(directory, 'a.flight')}: ", result.stdout)
            self.assertEqual(result.stdout.count(": its last event was at"), 3)
            for each in (0, 1):
                group.members[each].kill()

    def test_files_that_are_no_flight_files(self):
        with tempfile.TemporaryDirectory() as directory:
            for path, part in ((directory, "no flight file in"), (os.path.join(directory, "none"), "cannot be read"),
                               ("/dev/null", "no flight file")):
                result = top("--post-mortem", path)
                self.assertEqual(result.returncode, 1, path)
                self.assertIn(part, result.stdout + result.stderr)
                self.assertTrue((result.stdout + result.stderr).startswith("ferry-top: "))

    def test_a_stopped_worker_is_named(self):
        with Group("nothing") as group:
            group.members[2].send_signal(signal.SIGSTOP)
            result = top("dump", "--timeout", "4s", group.meeting)
            group.members[2].send_signal(signal.SIGCONT)
            self.assertEqual(result.returncode, 0, result.stderr)
            findings = json.loads(result.stdout)["findings"]
            self.assertIn(("not_answering", ["worker2"]), [(each["kind"], each["workers"]) for each in findings])

    def test_the_table_is_refreshed_on_a_terminal(self):
        with Group("nothing") as group:
            ours, theirs = pty.openpty()
            with subprocess.Popen([FERRY_TOP, "-i", "50ms", group.meeting], stdout=theirs, env=ENVIRONMENT) as running:
                os.close(theirs)
                seen = b""
                while seen.count(b"\033[H\033[2J") < 3:
                    self.assertTrue(select.select([ours], [], [], TIMEOUT)[0])
                    seen += os.read(ours, 65536)
                running.send_signal(signal.SIGINT)
                self.assertEqual(running.wait(TIMEOUT), -signal.SIGINT)
            os.close(ours)
            self.assertIn(b"worker2", seen)

    @unittest.skipUnless(WITH_AUTHENTICATION, "built without authentication")
    def test_the_secret(self):
        with Group("nothing", FERRY_SECRET="of this group") as group:
            self.assertEqual(len(group.dump()[0]["workers"]), 3)
            for environment in ({}, {"FERRY_SECRET": "another one"}):
                result = top("dump", group.meeting, **environment)
                self.assertEqual(result.returncode, 1)
                self.assertIn("authentication_failed", result.stderr)
            with tempfile.NamedTemporaryFile("w") as file:
                file.write("of this group\n")
                file.flush()
                result = top("--once", "-i", "100ms", "--secret-file", file.name, group.meeting)
                self.assertEqual(result.returncode, 0, result.stderr)

    def test_files(self):
        with Group("nothing") as group, tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "dump.json")
            result = top("dump", "-o", path, group.meeting)
            self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)
            with open(path, encoding="utf-8") as file:
                self.assertEqual(len(json.load(file)["workers"]), 3)
            for unwritable in (os.path.join(directory, "none", "dump.json"), "/dev/full"):
                result = top("dump", "-o", unwritable, group.meeting)
                self.assertEqual(result.returncode, 1)
                self.assertIn(unwritable, result.stderr)

    def test_wrong_command_lines(self):
        for arguments, part in (
            (["--nothing"], "no option --nothing"),
            (["somewhere"], "neither a command"),
            (["--interval"], "needs a value"),
            (["--interval", "soon"], "takes a time"),
            (["--interval", "1ms"], "at least 50ms"),
            (["--timeout", "0"], "must not be 0"),
            (["--json"], "needs --once"),
            (["--once=1"], "takes no value"),
            (["-o", "x"], "is for 'ferry-top dump'"),
            (["record"], "record needs a time"),
            (["record", "tcp://a:1"], "takes a time"),
            (["record", "1s", "--json"], "are for the table"),
            (["--post-mortem"], "needs a file"),
            (["--post-mortem", "x", "--once"], "no --once"),
            (["tcp://a:1", "tcp://b:1"], "too much"),
        ):
            result = top(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn(part, result.stderr)
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("\n")
            file.flush()
            self.assertIn("is empty", top("--secret-file", file.name, "tcp://127.0.0.1:1").stderr)
        self.assertEqual(top("--help").returncode, 0)
        self.assertRegex(top("--version").stdout, r"^ferry-top \d+\.\d+")

    def test_no_group(self):
        result = top("--timeout", "200ms", f"tcp://127.0.0.1:{free_port()}")
        self.assertEqual(result.returncode, 1)
        self.assertIn("store_unreachable", result.stderr)
        self.assertIn("--post-mortem", result.stderr)
        result = top()
        self.assertEqual(result.returncode, 2)
        self.assertIn("ferry-top tcp://HOST:PORT", result.stderr)
        self.assertIn("MASTER_ADDR", result.stderr)
        for malformed in ("foo://x", "tcp://127.0.0.1", "tcp://:29500"):
            self.assertEqual(top("--once", malformed).returncode, 2, malformed)
        result = top(MASTER_ADDR="127.0.0.1", MASTER_PORT="five")
        self.assertEqual(result.returncode, 1)
        self.assertIn("MASTER_PORT", result.stderr)
        self.assertIn("five", result.stderr)


if __name__ == "__main__":
    unittest.main()
