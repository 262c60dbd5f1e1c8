"""The documents must agree with the sources; and ./dev's errors for wrong arguments."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


class Documents(unittest.TestCase):
    def test_every_error_is_described_under_its_number(self):
        declared = set(re.findall(r"^ +(\w+) = (\d{3}),", text("include/ferry/base/error.hpp"), re.MULTILINE))
        described = re.findall(r"^\| (\d{3}) \| `(\w+)` \|", text("docs/errors.md"), re.MULTILINE)
        self.assertGreater(len(declared), 40)
        self.assertEqual(len(described), len(set(described)))
        self.assertEqual({(name, number) for number, name in described}, declared)

    def test_links_between_documents_have_targets(self):
        for folder in (ROOT, ROOT / "docs", ROOT / "examples"):
            for document in sorted(folder.glob("*.md" if folder == ROOT else "**/*.md")):
                for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
                    if "://" not in target:
                        self.assertTrue((document.parent / target).exists(), f"{document.relative_to(ROOT)} links to {target}")

    def test_every_page_is_among_those_that_doxygen_reads(self):
        read = text("docs/Doxyfile.in")
        for page in (ROOT / "docs").glob("*.md"):
            self.assertIn(f"@root@/docs/{page.name} ", read)

    def test_dev_lists_every_benchmark(self):
        known = re.search(r'^bench_names="(.*)"$', text("dev"), re.MULTILINE).group(1).split()
        for source in (ROOT / "benchmarks").glob("*.cpp"):
            self.assertIn(source.stem, known)


class Dev(unittest.TestCase):
    def run_dev(self, *arguments):
        with tempfile.TemporaryDirectory() as elsewhere:
            run = subprocess.run(
                [str(ROOT / "dev"), *arguments],
                cwd=elsewhere, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
            )
        return run.returncode, run.stdout, run.stderr

    def test_help(self):
        status, out, _ = self.run_dev("help")
        self.assertEqual(status, 0)
        for command in ("demo", "test", "format", "lint", "sanitize", "bench NAME", "check"):
            self.assertIn(f"\n  {command}", out)

    def test_unknown_arguments_are_refused_with_the_known_ones(self):
        for arguments, words in [
            (["tset"], "unknown command 'tset'"),
            (["--fast", "test"], "unknown option '--fast'"),
            (["bench", "nothing"], "unknown benchmark 'nothing'; known: latency rate bulk"),
            (["bench"], "name a benchmark: latency rate bulk"),
            (["sanitize", "memory"], "unknown sanitizer 'memory'; known: address"),
        ]:
            with self.subTest(arguments=arguments):
                status, _, err = self.run_dev(*arguments)
                self.assertEqual(status, 1)
                self.assertIn(words, err)

    def test_a_folder_that_is_not_a_build_directory_is_not_touched(self):
        with tempfile.TemporaryDirectory() as folder:
            precious = pathlib.Path(folder, "precious")
            precious.write_text("mine", encoding="utf-8")
            status, _, err = self.run_dev("--build", folder, "build")
            self.assertEqual(status, 1)
            self.assertIn("is not a build directory", err)
            self.assertEqual(precious.read_text(encoding="utf-8"), "mine")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
