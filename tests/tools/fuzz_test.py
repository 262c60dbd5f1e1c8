"""The archives of the fuzz corpus: what tools/fuzz.py makes of them, and those of the tree."""

import contextlib
import hashlib
import io
import os
import pathlib
import re
import stat
import subprocess
import sys
import tarfile
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))
import fuzz  # noqa: E402

INPUTS = {"two-bytes": b"ab", "nothing": b"", "one-block": b"c" * 512, "1" * 40: b"d" * 513, "0" * 40: bytes(700)}


def members(archive):
    """What tarfile, which wrote none of it, finds in an archive."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        return [(each, tar.extractfile(each).read()) for each in tar]


class Archives(unittest.TestCase):
    def test_any_reader_of_tar_finds_the_inputs_and_nothing_of_where_they_were_written(self):
        found = members(fuzz.packed(INPUTS))
        self.assertEqual([(each.name, content) for each, content in found], sorted(INPUTS.items()))
        for each, _ in found:
            self.assertEqual((each.mtime, each.uid, each.gid, each.uname, each.gname, each.mode), (0, 0, 0, "", "", 0o644))

    def test_the_same_inputs_are_the_same_bytes(self):
        self.assertEqual(fuzz.packed(INPUTS), fuzz.packed(dict(reversed(INPUTS.items()))))
        digest = hashlib.sha256(fuzz.packed(INPUTS)).hexdigest()
        self.assertEqual(digest, "c2946c5f49afc132eee30f040cf8898ddaa94c65605043585c152ac85c266d78")

    def test_what_was_packed_is_unpacked(self):
        for inputs in (INPUTS, {}):
            self.assertEqual(fuzz.unpacked(fuzz.packed(inputs)), inputs)

    def test_an_archive_that_was_cut_short_is_refused(self):
        whole = fuzz.packed(INPUTS)
        for length in sorted({*range(0, len(whole), 128), *range(1, len(whole), 512), len(whole) - 1}):
            with self.subTest(length), self.assertRaises(fuzz.Refused):
                fuzz.unpacked(whole[:length])

    def test_a_header_or_a_padding_that_was_changed_is_refused(self):
        whole = fuzz.packed(INPUTS)
        content = {at for each, its in members(whole) for at in range(each.offset_data, each.offset_data + len(its))}
        for at in range(0, len(whole), 7):
            if at not in content:
                with self.subTest(at), self.assertRaises(fuzz.Refused):
                    fuzz.unpacked(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])

    def test_names_that_lead_out_of_a_folder_are_neither_written_nor_read(self):
        with self.assertRaises(fuzz.Refused):
            fuzz.packed({"x" * 101: b""})
        for name in ("", ".", "..", "../up", "a/b", "/root", ".hidden", "-option", "a b"):
            with self.subTest(name), self.assertRaises(fuzz.Refused):
                fuzz.packed({name: b""})
            with mock.patch.object(fuzz, "NAME", re.compile(".*")):
                written = fuzz.packed({name: b""})
            with self.subTest(name), self.assertRaises(fuzz.Refused):
                fuzz.unpacked(written)


class Corpus(unittest.TestCase):
    """A corpus in a temporary folder."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        patch = mock.patch.object(fuzz, "CORPUS", self.root / "corpus")
        patch.start()
        self.addCleanup(patch.stop)

    def file(self, content):
        path = self.root / "input"
        path.write_bytes(content)
        return path

    def quietly(self, function, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            function(*arguments)
        return out.getvalue()

    def refused(self, message, function, *arguments):
        with self.assertRaisesRegex(fuzz.Refused, message):
            self.quietly(function, *arguments)


class Changes(Corpus):
    def test_an_input_is_added_listed_and_extracted(self):
        self.quietly(fuzz.add, "address", "cut-short", self.file(b"tcp"))
        self.quietly(fuzz.add, "address", "empty", self.file(b""))
        self.assertEqual(self.quietly(fuzz.show, "address").split(), ["3", "cut-short", "0", "empty"])
        fuzz.extract("address", self.root / "there")
        self.assertEqual({path.name: path.read_bytes() for path in (self.root / "there").iterdir()},
                         {"cut-short": b"tcp", "empty": b""})
        self.assertEqual([path.name for path in (self.root / "corpus").iterdir()], ["address.tar"])

    def test_an_input_has_one_name_which_says_what_it_is(self):
        fuzz.write_corpus("address", {"a" * 40: b"x", "b" * 40: b"y"})
        self.quietly(fuzz.add, "address", "letter-x", self.file(b"x"))
        self.assertEqual(fuzz.read_corpus("address"), {"letter-x": b"x", "b" * 40: b"y"})
        self.refused("has that input already: 'letter-x'", fuzz.add, "address", "another-x", self.file(b"x"))
        self.refused("has an input 'letter-x' already", fuzz.add, "address", "letter-x", self.file(b"z"))
        for name in ("c" * 40, "a/b", ""):
            self.refused("is no name for an input", fuzz.add, "address", name, self.file(b"z"))
        self.assertEqual(fuzz.read_corpus("address"), {"letter-x": b"x", "b" * 40: b"y"})

    def test_a_damaged_archive_is_named_and_left_as_it_is(self):
        fuzz.write_corpus("address", INPUTS)
        path = fuzz.archive_of("address")
        path.write_bytes(path.read_bytes()[:1536])
        self.refused(re.escape(str(path)), fuzz.add, "address", "one-more", self.file(b"z"))
        self.refused(re.escape(str(path)), fuzz.extract, "address", self.root / "there")
        self.assertEqual(path.stat().st_size, 1536)

    def test_an_archive_without_inputs_is_not_written(self):
        self.refused("without inputs", fuzz.write_corpus, "address", {})
        self.assertFalse(fuzz.archive_of("address").exists())


class Fuzzers(Corpus):
    """A program in the place of a fuzzer, which does with its folders what libFuzzer does."""

    def fuzzer(self, program):
        self.build = self.root / "build"
        path = fuzz.fuzzer(self.build)
        path.parent.mkdir(parents=True)
        path.write_text(f"#!{sys.executable}\nimport os, pathlib, sys\n"
                        "assert os.environ['FERRY_FUZZ_TARGET'] == 'address'\n"
                        "folders = [pathlib.Path(word) for word in sys.argv[1:] if word[0] != '-']\n" + program)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        seeds = self.root / "seeds"
        (seeds / "address").mkdir(parents=True)
        (seeds / "address" / "seed").write_bytes(b"seed")
        return seeds

    # Takes what is longer than one byte, and nothing twice.
    MERGE = ("import hashlib\n"
             "assert '-merge=1' in sys.argv\n"
             "there = {path.read_bytes() for path in folders[0].iterdir()}\n"
             "for path in (path for folder in folders[1:] for path in folder.iterdir()):\n"
             "    content = path.read_bytes()\n"
             "    if len(content) > 1 and content not in there:\n"
             "        (folders[0] / hashlib.sha1(content).hexdigest()).write_bytes(content)\n")

    def test_a_merge_keeps_what_has_a_name_and_replaces_the_rest(self):
        seeds = self.fuzzer(self.MERGE)
        name = {content: hashlib.sha1(content).hexdigest() for content in (b"1", b"22", b"333", b"seed")}
        fuzz.write_corpus("address", {"short": b"0", name[b"1"]: b"1", name[b"22"]: b"22", name[b"seed"]: b"seed"})
        found = self.build / "fuzz" / "address" / "corpus"
        found.mkdir(parents=True)
        (found / name[b"333"]).write_bytes(b"333")
        told = self.quietly(fuzz.merge, self.build, "address", seeds)
        self.assertRegex(told, "address +3 inputs, +6 bytes\n")
        self.assertEqual(fuzz.read_corpus("address"), {"short": b"0", name[b"22"]: b"22", name[b"333"]: b"333"})

    def test_a_merge_that_finds_nothing_or_fails_leaves_the_archive(self):
        seeds = self.fuzzer(self.MERGE)
        fuzz.write_corpus("address", {"1" * 40: b"1"})
        self.assertIn("stays as it was", self.quietly(fuzz.merge, self.build, "address", seeds))
        self.assertEqual(fuzz.read_corpus("address"), {"1" * 40: b"1"})
        fuzz.fuzzer(self.build).write_text("#!/bin/sh\nexit 1\n")
        with self.assertRaises(subprocess.CalledProcessError):
            fuzz.merge(self.build, "address", seeds)
        self.assertEqual(fuzz.read_corpus("address"), {"1" * 40: b"1"})

    def test_a_fuzzer_starts_from_the_archive(self):
        seeds = self.fuzzer("sys.exit(0 if {path.name for path in folders[1].iterdir()} == {'short'} else 77)\n")
        fuzz.write_corpus("address", {"short": b"0"})
        left = self.build / "fuzz" / "address" / "kept" / "of-an-earlier-run"
        left.parent.mkdir(parents=True)
        left.write_bytes(b"")
        fine = []
        told = self.quietly(lambda: fine.append(fuzz.fuzz(self.build, "address", 1, seeds)))
        self.assertEqual(fine, [True], told)


class Tree(unittest.TestCase):
    """The corpus as it is in the tree."""

    def test_each_target_has_an_archive_and_each_archive_a_target(self):
        declared = re.findall(r"^extern const target (\w+);", fuzz.TARGETS.read_text(encoding="utf-8"), re.MULTILINE)
        self.assertGreater(len(declared), 10)
        self.assertEqual(sorted(path.stem for path in fuzz.CORPUS.glob("*.tar")), sorted(declared))

    def test_each_archive_has_inputs_and_each_hash_is_that_of_its_input(self):
        for path in sorted(fuzz.CORPUS.glob("*.tar")):
            inputs = fuzz.read_corpus(path.stem)
            self.assertTrue(inputs, path)
            for name, content in inputs.items():
                if fuzz.HASH.fullmatch(name):
                    self.assertEqual(hashlib.sha1(content).hexdigest(), name, path)


class Dev(unittest.TestCase):
    def dev(self, *arguments):
        run = subprocess.run([str(ROOT / "dev"), "fuzz", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                             timeout=60, check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        return run.returncode, run.stdout, run.stderr

    def test_the_archives_need_no_fuzzers(self):
        status, out, error = self.dev("--list", "address")
        self.assertEqual(status, 0, error)
        self.assertRegex(out, r"(?m)^ +9 ipv6-with-null$")

    def test_what_cannot_be_is_refused_with_the_reason(self):
        for arguments, words in [(["--list", "addres"], "'addres' is no target; the targets: address, archive, "),
                                 (["--list", "address", "60"], "what is '60' for?"),
                                 (["--add", "address", "a/b", "/dev/null"], "fuzz: 'a/b' is no name for an input"),
                                 (["--add", "address", "gone", "/gone"], "fuzz: [Errno 2] No such file")]:
            status, _, error = self.dev(*arguments)
            self.assertNotEqual(status, 0)
            self.assertIn(words, error)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
