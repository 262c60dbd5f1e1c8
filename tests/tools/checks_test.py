"""The structure checks, each on trees that are right and on trees that must fail."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent.parent.parent / "tools"
COMPILER = os.environ.get("CXX", "c++")


class Tree(unittest.TestCase):
    """A tree of files in a temporary folder, and a tool that is run on it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, **files):
        for name, text in files.items():
            self.put(name, text)

    def put(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def tool(self, name, *arguments):
        return subprocess.run(
            [sys.executable, str(TOOLS / name), "--root", str(self.root), *arguments],
            capture_output=True, text=True, timeout=120, check=False,
        )


class Operations(Tree):
    DESCRIPTOR = "struct %s : base {\n  struct parameters {};\n private:\n  friend struct ferry::operation_access;\n};\n"

    def check(self, status, expected):
        result = self.tool("check_operations.py")
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        self.assertIn(expected, result.stdout)

    def test_operations_that_are_listed_pass(self):
        self.put("include/ferry/ops/sum.hpp", self.DESCRIPTOR % "sum" + self.DESCRIPTOR % "mean")
        self.put("include/ferry/ops/ops.hpp", "using operations = operation_list<op::sum,\n op::mean>;\n")
        self.check(0, "2 descriptors, 0 problems")

    def test_one_that_is_not_listed_is_named(self):
        self.put("include/ferry/ops/sum.hpp", self.DESCRIPTOR % "sum" + self.DESCRIPTOR % "mean")
        self.put("include/ferry/ops/ops.hpp", "using operations = operation_list<op::sum>;\n")
        self.check(1, "include/ferry/ops/sum.hpp: the operation mean is in no operation_list")

    def test_a_tree_without_operations_is_an_error(self):
        self.put("include/ferry/ops/ops.hpp", "")
        self.check(1, "no operation below")


class Floors(Tree):
    def check(self, status, *expected):
        result = self.tool("check_floors.py")
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        for text in expected:
            self.assertIn(text, result.stdout)
        return result.stdout

    def test_a_right_tree_passes(self):
        self.put("include/ferry/base/error.hpp", "#include <string>\n")
        self.put("include/ferry/tensor/tensor.hpp", "#include <ferry/base/error.hpp>\n#include <ferry/tensor/shape.hpp>\n")
        self.put("include/ferry/tensor/shape.hpp", "#pragma once\n")
        self.put("include/ferry/ferry.hpp", "#include <ferry/tensor/tensor.hpp>\n")
        self.put("src/tensor/tensor.cpp", "#include <ferry/tensor/tensor.hpp>\n")
        self.check(0, "0 problems")

    def test_a_lower_floor_that_includes_a_higher_one_is_named_with_both_files(self):
        self.put("include/ferry/base/error.hpp", "\n#include <ferry/rpc/worker.hpp>\n")
        self.put("include/ferry/rpc/worker.hpp", "")
        self.check(1, "include/ferry/base/error.hpp:2 includes include/ferry/rpc/worker.hpp: floor 'rpc' comes after floor 'base'")

    def test_sources_obey_too_and_relative_includes_are_seen(self):
        self.put("src/wire/codec.cpp", '#include "../transport/tcp.hpp"\n')
        self.put("src/transport/tcp.hpp", "")
        self.check(1, "src/wire/codec.cpp:1 includes src/transport/tcp.hpp")

    def test_siblings_do_not_include_each_other(self):
        self.put("include/ferry/nn/linear.hpp", "#include <ferry/optim/sgd.hpp>\n")
        self.put("include/ferry/optim/sgd.hpp", "")
        self.check(1, "floor 'optim' stands beside floor 'nn'")

    def test_a_floor_does_not_include_an_umbrella(self):
        self.put("include/ferry/rpc/worker.hpp", "#include <ferry/ferry.hpp>\n")
        self.put("include/ferry/ferry.hpp", "")
        self.check(1, "a floor must not include an umbrella header")

    def test_the_umbrella_ends_with_its_floor(self):
        self.put("include/ferry/ferry.hpp", "#include <ferry/autograd/engine.hpp>\n")
        self.put("include/ferry/autograd/engine.hpp", "")
        self.check(1, "ferry.hpp ends with floor 'group', 'autograd' is above it")

    def test_a_circle_is_found(self):
        self.put("include/ferry/wire/a.hpp", "#include <ferry/wire/b.hpp>\n")
        self.put("include/ferry/wire/b.hpp", "#include <ferry/wire/c.hpp>\n")
        self.put("include/ferry/wire/c.hpp", "#include <ferry/wire/a.hpp>\n")
        self.check(1, "circle: include/ferry/wire/a.hpp -> include/ferry/wire/b.hpp -> include/ferry/wire/c.hpp -> include/ferry/wire/a.hpp")

    def test_an_unknown_folder_is_a_problem(self):
        self.put("src/misc/things.cpp", "")
        self.check(1, "'misc' is not a floor")

    def test_includes_in_comments_do_not_count(self):
        self.put("include/ferry/base/error.hpp", "// #include <ferry/rpc/worker.hpp>\n/*\n#include <ferry/rpc/worker.hpp>\n*/\n")
        self.put("include/ferry/rpc/worker.hpp", "")
        self.check(0)

    def test_an_empty_tree_is_a_problem(self):
        self.check(1, "no source file")

    def test_a_room_does_not_include_one_that_comes_after_it(self):
        self.put("src/rpc/futures/task.cpp", '#include "../calls/call_report.hpp"\n')
        self.put("src/rpc/calls/call_report.hpp", '#include "../methods/method_table.hpp"\n')
        self.put("src/rpc/methods/method_table.hpp", "")
        problems = self.check(1, "src/rpc/futures/task.cpp:1 includes src/rpc/calls/call_report.hpp: room 'calls' comes after room 'futures'")
        self.assertIn("floors: 3 files, 1 problems", problems)

    def test_sources_may_include_the_class_that_their_room_is_part_of_and_headers_may_not(self):
        self.put("src/rpc/worker/worker_core.hpp", "")
        self.put("src/rpc/methods/plugin.cpp", '#include "../worker/worker_core.hpp"\n')
        self.check(0)
        self.put("src/rpc/calls/call_report.hpp", '#include "../worker/worker_core.hpp"\n')
        self.check(1, "src/rpc/calls/call_report.hpp:1 includes src/rpc/worker/worker_core.hpp")

    def test_an_unknown_room_is_a_problem(self):
        self.put("src/rpc/misc/things.cpp", "")
        self.check(1, "'misc' is not a room of floor 'rpc'")

    def test_the_core_of_calls_does_not_name_what_attaches_to_it(self):
        self.put("src/rpc/calls/call.cpp", "int a;  // errc::reference_deleted is the name of an error\n")
        self.check(0)
        self.put("src/rpc/calls/call.cpp", "int a;\nclass reference_table;\n")
        self.check(1, "src/rpc/calls/call.cpp:2 mentions reference_table")

    def test_private_headers_are_named_relative_to_the_file(self):
        self.put("src/rpc/worker/worker_core.hpp", "")
        self.put("src/rpc/worker/worker.cpp", '#include "rpc/worker/worker_core.hpp"\n')
        self.check(1, "src/rpc/worker/worker.cpp:1 includes \"rpc/worker/worker_core.hpp\", which is not there")


class OneFile(Tree):
    def check(self, status, *expected):
        result = self.tool("check_one_file.py", "--cxx", COMPILER)
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        for text in expected:
            self.assertIn(text, result.stdout)

    def setUp(self):
        super().setUp()
        self.put("include/ferry/base/name.hpp", "#pragma once\nnamespace ferry { int name(); }\n")
        self.put("src/ferry.cpp", '#include "base/name.cpp"\n#include "base/other.cpp"\n')
        self.put("src/base/name.cpp", "#include <ferry/base/name.hpp>\nint ferry::name() { return 1; }\n")
        self.put("src/base/other.cpp", "")

    def test_a_right_tree_passes(self):
        self.check(0, "2 compilations, 0 problems")

    def test_a_source_that_is_not_listed_or_listed_twice_is_a_problem(self):
        self.put("src/base/forgotten.cpp", "")
        self.check(1, "src/base/forgotten.cpp is listed in none of src/*.cpp")
        self.put("src/ferry.cpp", '#include "base/forgotten.cpp"\n#include "base/gone.cpp"\n#include "base/name.cpp"\n'
                 '#include "base/other.cpp"\n#include "base/other.cpp"\n')
        self.check(1, "lists base/gone.cpp, which does not exist", "src/base/other.cpp is listed twice")

    def test_an_unnamed_namespace_directly_in_ferry_is_a_problem(self):
        inner = "namespace {\nint hidden() { return 1; }\n}  // namespace\n"
        use = "int used() { return hidden(); }\n"
        self.put("src/base/other.cpp", f"namespace ferry {{\n{inner}{use}}}  // namespace ferry\n")
        self.check(1, "src/base/other.cpp:2: an unnamed namespace outside of ferry::detail")
        self.put("src/base/other.cpp", f"namespace ferry::detail {{\n{inner}{use}}}  // namespace ferry::detail\n")
        self.check(0)

    def test_names_that_clash_are_a_problem(self):
        for name in ("name", "other"):
            self.put(f"src/base/{name}.cpp", "namespace ferry::detail {\nnamespace {\n[[maybe_unused]] int twice() { return 2; }\n"
                     "}  // namespace\n}  // namespace ferry::detail\n")
        self.check(1, "src/ferry.cpp after all public headers", "redefinition")


class Headers(Tree):
    def check(self, status, *expected):
        result = self.tool("check_headers.py", "--cxx", COMPILER, "--flag=-isystem", f"--flag={self.root}/system")
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        for text in expected:
            self.assertIn(text, result.stdout)

    def setUp(self):
        super().setUp()
        self.put("system/asio.hpp", "#include <asio/buffer.hpp>\n")
        self.put("system/asio/buffer.hpp", "")
        self.put("system/cuda_runtime.h", "")

    def test_headers_that_stand_alone_pass(self):
        self.put("include/ferry/base/a.hpp", "#pragma once\n#include <string>\ninline std::string a() { return {}; }\n")
        self.check(0, "1 checked, 0 problems")

    def test_a_header_that_leans_on_another_include_fails(self):
        self.put("include/ferry/base/a.hpp", "#pragma once\ninline std::string a() { return {}; }\n")
        self.check(1, "include/ferry/base/a.hpp does not compile alone")

    def test_a_header_without_a_guard_fails(self):
        self.put("include/ferry/base/a.hpp", "struct a {};\n")
        self.check(1, "include/ferry/base/a.hpp does not compile alone")

    def test_a_warning_fails(self):
        self.put("include/ferry/base/a.hpp", "#pragma once\ninline int a(int unused) { return 0; }\n")
        self.check(1, "include/ferry/base/a.hpp does not compile alone")

    def test_reaching_asio_is_found_through_other_headers(self):
        self.put("include/ferry/base/a.hpp", "#pragma once\n#include <ferry/base/b.hpp>\n")
        self.put("include/ferry/base/b.hpp", "#pragma once\n#include <asio/buffer.hpp>\n")
        self.check(1, "include/ferry/base/a.hpp reaches a header of Asio", "include/ferry/base/b.hpp reaches a header of Asio")

    def test_reaching_cuda_is_found(self):
        self.put("include/ferry/device/a.hpp", "#pragma once\n#include <cuda_runtime.h>\n")
        self.check(1, "include/ferry/device/a.hpp reaches a header of CUDA")

    def test_a_cuda_header_of_ferry_itself_is_none(self):
        self.put("include/ferry/device/cuda.hpp", "#pragma once\n")
        self.put("include/ferry/device/a.hpp", "#pragma once\n#include <ferry/device/cuda.hpp>\n")
        self.check(0)

    def test_adapters_may_meet_other_libraries(self):
        self.put("include/ferry/adapters/asio.hpp", "#pragma once\n#include <asio.hpp>\n")
        self.check(0)

    def test_no_header_at_all_is_a_problem(self):
        self.check(1, "no header")


class Conformance(Tree):
    TABLE = "# Conformance\n\n| row | behaviour | state | test |\n|---|---|---|---|\n{}\n"

    def check(self, status, *expected):
        result = self.tool("conformance.py")
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        for text in expected:
            self.assertIn(text, result.stdout)

    def test_open_rows_without_tests_pass(self):
        self.put("docs/conformance.md", self.TABLE.format("| 1 | a thing | open | |"))
        self.put("tests/a.cpp", "")
        self.check(0, "0 of 1 rows")

    def test_a_done_row_without_its_test_fails(self):
        self.put("docs/conformance.md", self.TABLE.format("| 1 | a thing | done | `tests/a.cpp`: the thing |"))
        self.put("tests/a.cpp", 'TEST_CASE("[row 11] the thing") {}\n')
        self.check(1, "row 1 should read: | 1 | a thing | open | |", "row 11, which the table does not list")

    def test_writing_makes_the_table_right(self):
        self.put("docs/conformance.md", self.TABLE.format("| 1 | a thing | open | |\n| 2 | b | open | |\n| 3 | c | open | |"))
        self.put("tests/a.cpp", 'TEST_CASE("[row 1] the " "thing") {}\nTEST_CASE_FIXTURE(world, "[rows 2, 3] | both") {}\n')
        self.check(1, "row 1 should read: | 1 | a thing | done | `tests/a.cpp`: the thing |")
        self.assertEqual(self.tool("conformance.py", "--write").returncode, 0)
        self.check(0, "3 of 3 rows")

    def test_a_tag_outside_a_test_name_does_not_count(self):
        self.put("docs/conformance.md", self.TABLE.format("| 1 | a thing | open | |"))
        self.put("tests/a.cpp", '// [row 1]\nstd::string text = "[row 1]";\n')
        self.check(0)


class Summary(unittest.TestCase):
    def summary(self, *tests, status=0):
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "testlog.json")
            entries = [{"name": f"test{i}", "duration": 1.0, "stderr": "", **test} for i, test in enumerate(tests)]
            log.write_text("\n".join(json.dumps(entry) for entry in entries), encoding="utf-8")
            result = subprocess.run(
                [sys.executable, str(TOOLS / "test_summary.py"), "--status", str(status), str(log)],
                capture_output=True, text=True, timeout=60, check=False,
            )
        self.printed = result.stdout
        return result.stdout.splitlines()[-1], result.returncode

    DOCTEST = "[doctest] test cases: {:>3} | {:>3} passed | {} failed | 0 skipped\n"

    def test_cases_of_doctest_and_unittest_and_other_programs_add_up(self):
        tests = [
            {"result": "OK", "stdout": self.DOCTEST.format(5, 5, 0)},
            {"result": "OK", "stdout": "", "stderr": "Ran 7 tests in 1.0s\n\nOK (skipped=2)\n"},
            {"result": "OK", "stdout": "anything"},
        ]
        self.assertEqual(self.summary(*tests), ("11 passed, 0 failed", 0))

    def test_failed_cases_count(self):
        tests = [
            {"result": "FAIL", "stdout": self.DOCTEST.format(5, 3, 2)},
            {"result": "FAIL", "stdout": "", "stderr": "Ran 7 tests in 1.0s\n\nFAILED (failures=1, errors=2)\n"},
        ]
        self.assertEqual(self.summary(*tests, status=2), ("7 passed, 5 failed", 1))

    def test_a_crash_after_good_cases_is_a_failure(self):
        self.assertEqual(self.summary({"result": "FAIL", "stdout": self.DOCTEST.format(5, 5, 0)}, status=1), ("5 passed, 1 failed", 1))
        self.assertEqual(self.summary({"result": "TIMEOUT", "stdout": ""}, status=1), ("0 passed, 1 failed", 1))

    def test_the_end_of_what_a_failed_program_printed_is_shown(self):
        self.summary({"result": "FAIL", "stdout": "early\n" * 40 + "the reason\n", "stderr": "ferry[12] warning: provoked\n"},
                     {"result": "OK", "stdout": "all is well\n"}, status=1)
        self.assertIn("---- the end of what test0 printed", self.printed)
        self.assertIn("    the reason\n", self.printed)
        for other in ("provoked", "all is well"):
            self.assertNotIn(other, self.printed)
        self.assertEqual(self.printed.count("early"), 29)

    def test_a_failure_of_meson_itself_is_a_failure(self):
        self.assertEqual(self.summary({"result": "OK", "stdout": ""}, status=1), ("1 passed, 1 failed", 1))

    def test_no_test_at_all_is_a_failure(self):
        self.assertEqual(self.summary(), ("0 passed, 1 failed", 1))

    def test_a_skipped_program_counts_for_nothing_but_is_no_failure(self):
        self.assertEqual(self.summary({"result": "SKIP", "stdout": "no GPU"}, {"result": "OK", "stdout": ""}), ("1 passed, 0 failed", 0))


class Links(Tree):
    PAGE = '<html><body><a id="here"></a><a href="#here">a</a><a href="sub/other.html#there">b</a>{}</body></html>'

    def check(self, status, expected, more=""):
        self.put("index.html", self.PAGE.format(more))
        self.put("sub/other.html", '<h1 id="there">c</h1><a href="../index.html">d</a><a href="https://example.org/x">e</a>')
        result = subprocess.run([sys.executable, str(TOOLS / "check_links.py"), str(self.root)],
                                capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        self.assertIn(expected, result.stdout)

    def test_links_that_lead_somewhere(self):
        self.check(0, "2 pages, 4 links, 0 broken")
        self.check(0, "2 pages, 4 links, 0 broken", '<!-- <a href="gone.html"> --><script>x = "<a href=gone>"</script>')

    def test_a_missing_file_place_or_picture_is_said(self):
        self.check(1, "index.html: no file for the link to gone.html", '<a class="x" href="gone.html">f</a>')
        self.check(1, "index.html: no such place for the link to sub/other.html#gone", '<a href="sub/other.html#gone">f</a>')
        self.check(1, "index.html: no file for the link to gone.png", '<img src="gone.png"/>')


class HtmlFilter(unittest.TestCase):
    """What Doxygen gets of a page."""

    def filtered(self, page):
        tool = TOOLS.parent / "docs" / "html_filter.py"
        run = subprocess.run([sys.executable, str(tool), str(TOOLS.parent / page)], capture_output=True, text=True, timeout=60,
                             check=True)
        return run.stdout

    def test_sections_have_names_that_links_from_other_pages_reach(self):
        self.assertIn("## The test kit {#docs_backends-the-test-kit}", self.filtered("docs/backends.md"))
        self.assertIn("[test kit](@ref docs_backends-the-test-kit)", self.filtered("docs/packaging.md"))

    def test_the_sources_of_an_example_stand_on_its_page(self):
        text = self.filtered("examples/01_hello/README.md")
        self.assertIn("\\include 01_hello/main.cpp", text)
        self.assertNotIn("(main.cpp)", text)

    def test_code_stays_as_it_is(self):
        page = TOOLS.parent / "docs" / "calls.md"
        blocks = page.read_text(encoding="utf-8").split("```")[1::2]
        self.assertEqual(self.filtered("docs/calls.md").split("```")[1::2], blocks)

    def test_code_beside_a_link_whose_text_is_code(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "page.md"
            page.write_text("[`a`](b.md#c), `d` and `[e](f.md#g)`\n", encoding="utf-8")
            self.assertRegex(self.filtered(page).rstrip(), r"^\[`a`\]\(@ref \w+_b-c\), `d` and `\[e\]\(f\.md#g\)`$")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
