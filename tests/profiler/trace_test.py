#!/usr/bin/env python3
"""Runs an example that writes a trace and a page. Checks the trace against the format of Chrome's traces, and that the page is
well-formed, loads nothing and shows what the trace has: trace_test.py FERRY_RUN PROGRAM. With --group TEST_PROFILER, checks the trace
that its test of real processes writes; with --example FERRY_RUN WORKERS PROGRAM ARGUMENT..., that of an example."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

# What each phase must have, by the description of the format ("Trace Event Format", sections on complete, async, flow and metadata
# events), and what else it may have.
REQUIRED = {
    "X": {"name": str, "cat": str, "ph": str, "ts": float, "dur": float, "pid": int, "tid": int, "args": dict},
    "b": {"name": str, "cat": str, "ph": str, "ts": float, "id": int, "pid": int, "tid": int, "args": dict},
    "e": {"name": str, "cat": str, "ph": str, "ts": float, "id": int, "pid": int, "tid": int},
    "s": {"name": str, "cat": str, "ph": str, "ts": float, "id": int, "pid": int, "tid": int},
    "f": {"name": str, "cat": str, "ph": str, "ts": float, "id": int, "pid": int, "tid": int, "bp": str},
    "M": {"name": str, "ph": str, "pid": int, "tid": int, "args": dict},
}
TYPES = {"integer": int, "string": str}


class Format:
    """What holds for every trace."""

    def of_phase(self, phase):
        return [event for event in self.events if event["ph"] == phase]

    def test_each_event_has_what_the_format_wants_and_nothing_else(self):
        for event in self.events:
            fields = REQUIRED[event["ph"]]
            self.assertEqual(set(event), set(fields), event)
            for name, kind in fields.items():
                self.assertIsInstance(event[name], kind, event)

    def test_each_key_is_declared_once_and_used_with_its_type(self):
        keys = self.trace["otherData"]["keys"]
        declared = {key["name"]: TYPES[key["type"]] for key in keys}
        self.assertEqual(len(declared), len(keys))
        for event in self.of_phase("X") + self.of_phase("b"):
            for name, value in event["args"].items():
                self.assertIsInstance(value, declared[name], event)

    def test_slices_of_a_track_nest(self):
        tracks = {}
        for event in self.of_phase("X"):
            self.assertGreaterEqual(event["dur"], 0)
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
        self.assertTrue(tracks)
        for track in tracks.values():
            around = []
            for event in sorted(track, key=lambda each: (each["ts"], -each["dur"])):
                end = event["ts"] + event["dur"]
                while around and around[-1] <= event["ts"] + 0.0015:
                    around.pop()
                if around:
                    self.assertLessEqual(end, around[-1] + 0.0015, event)
                around.append(end)

    def test_arrows_have_both_ends(self):
        starts = {event["id"]: event for event in self.of_phase("s")}
        ends = {event["id"]: event for event in self.of_phase("f")}
        self.assertTrue(starts)
        self.assertEqual(set(starts), set(ends))
        self.assertTrue(any(starts[each]["pid"] != ends[each]["pid"] for each in starts))
        # Viewers tie each end to the slice of the thread that it lies in.
        slices = {}
        for event in self.of_phase("X"):
            slices.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        for event in list(starts.values()) + list(ends.values()):
            around = slices[(event["pid"], event["tid"])]
            self.assertTrue(any(begin - 0.0015 <= event["ts"] <= end + 0.0015 for begin, end in around), event)


class GroupTrace(Format, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "trace.json")
            result = subprocess.run([PROGRAM, "--test-case=real processes that record themselves*"], stdin=subprocess.DEVNULL, text=True,
                                    env={**os.environ, "FERRY_TEST_TRACE": str(path)}, timeout=100, stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, check=False)
            if result.returncode != 0:
                raise AssertionError(result.stdout)
            cls.trace = json.loads(path.read_text(encoding="utf-8"))
        cls.events = cls.trace["traceEvents"]

    def test_arrows_lead_between_all_workers(self):
        starts = {event["id"]: event["pid"] for event in self.of_phase("s")}
        pairs = {(starts[event["id"]], event["pid"]) for event in self.of_phase("f")}
        self.assertLessEqual({(0, 1), (0, 2), (1, 2), (2, 1)}, pairs)


class ExampleTrace(Format, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "trace.json")
            run, workers, *program = EXAMPLE
            result = subprocess.run([run, "-n", workers, *program, str(path)], stdin=subprocess.DEVNULL, text=True, timeout=100,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            if result.returncode != 0:
                raise AssertionError(result.stdout)
            cls.trace = json.loads(path.read_text(encoding="utf-8"))
        cls.events = cls.trace["traceEvents"]

    def test_calls_and_what_callees_did_are_in_it(self):
        calls = [event for event in self.events if event["ph"] in "Xb" and event["cat"] == "call"]
        handlers = [event for event in self.events if event["ph"] in "Xb" and event["cat"] == "handler"]
        self.assertGreater(len(calls), 20)
        self.assertGreater(len({event["pid"] for event in handlers} | {event["pid"] for event in calls}), 1)
        self.assertGreater(len(handlers), 20)
        if "autograd" in EXAMPLE[2]:
            names = " ".join(event["name"] for event in self.events)
            for each in ("dist_autograd::backward", "dist_autograd::send", "matmul"):
                self.assertIn(each, names)


class Trace(Format, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "trace.json")
            page = pathlib.Path(folder, "profile.html")
            result = subprocess.run([FERRY_RUN, "-n", "3", PROGRAM, str(path), str(page)], stdin=subprocess.DEVNULL, text=True, timeout=60,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            if result.returncode != 0:
                raise AssertionError(result.stdout)
            cls.output = result.stdout
            cls.trace = json.loads(path.read_text(encoding="utf-8"))
            cls.page_text = page.read_text(encoding="utf-8")
        cls.page = xml.etree.ElementTree.fromstring(cls.page_text)
        cls.events = cls.trace["traceEvents"]

    def test_call_event_and_remote_operators_are_in_it(self):
        """[row 176] a trace contains the call event and the operations of the callee"""
        calls = [event for event in self.events if event["ph"] in "Xb" and event["cat"] == "call"]
        self.assertTrue(any(event["name"].startswith("rpc_sync#") and event["name"].endswith("(worker0 -> worker1)") and
                            event["pid"] == 0 for event in calls))
        operations = {(event["name"].rpartition(": ")[2], event["pid"]) for event in self.of_phase("X") if event["cat"] == "operation"
                      and "#remote_op: " in event["name"]}
        self.assertIn(("matmul", 1), operations)
        self.assertIn(("tanh", 1), operations)
        shapes = [event["args"].get("shapes") for event in self.of_phase("X") if event["name"].endswith("#remote_op: matmul")]
        self.assertIn("[[8, 64], [64, 64]]", shapes)

    def test_workers_and_clocks_are_named(self):
        names = {event["args"]["name"] for event in self.of_phase("M") if event["name"] == "process_name"}
        self.assertEqual(names & {"worker0", "worker1"}, {"worker0", "worker1"})
        clocks = {clock["worker"]: clock for clock in self.trace["otherData"]["clocks"]}
        self.assertGreaterEqual(clocks[1]["uncertainty_ns"], 0)

    def test_the_page_loads_nothing(self):
        for element in self.page.iter():
            for name, value in element.attrib.items():
                self.assertNotIn(name.rpartition("}")[2], ("src", "href", "data", "action"), element.tag)
                self.assertNotIn("url(", value)
        self.assertNotIn("@import", self.page_text)
        self.assertNotIn("url(", self.page_text)

    def test_the_page_shows_the_events_of_the_trace(self):
        svg = "{http://www.w3.org/2000/svg}"
        timeline = next(each for each in self.page.iter() if each.get("id") == "timeline")
        bars = [each for each in timeline.iter(svg + "g") if each.get("class", "").startswith("bar")]
        shown = [event for event in self.of_phase("X") + self.of_phase("b") if event["cat"] != "mark"]
        self.assertEqual(len(bars), len(shown))
        titles = [bar.find(svg + "title").text.splitlines()[0] for bar in bars]
        self.assertEqual(sorted(titles), sorted(event["name"] for event in shown))
        for bar in bars:
            left, width = (float(bar.find(svg + "rect").get(name).rstrip("%")) for name in ("x", "width"))
            self.assertGreaterEqual(left, 0)
            self.assertLessEqual(left + width, 100.001)
        arrows = [each for each in timeline.iter(svg + "line") if each.get("class") == "arrow"]
        self.assertEqual(len(arrows), len(self.of_phase("s")))
        labels = {each.text.partition(",")[0] for each in timeline.iter(svg + "text") if each.get("class") == "label"}
        self.assertEqual(labels, {"worker0", "worker1", "worker2"})

    def test_the_table_is_printed(self):
        self.assertIn("worker0", self.output)
        self.assertIn("(longest)", self.output)


if __name__ == "__main__":
    if sys.argv[1] == "--example":
        EXAMPLE = sys.argv[2:]
        unittest.main(argv=sys.argv[:1], defaultTest="ExampleTrace")
    PROGRAM = sys.argv.pop()
    FERRY_RUN = sys.argv.pop()
    unittest.main(defaultTest="GroupTrace" if FERRY_RUN == "--group" else "Trace")
