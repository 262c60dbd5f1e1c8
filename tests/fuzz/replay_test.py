"""What the replay program takes for an archive, and what it refuses. The archives are made by tarfile, not by tools/fuzz.py."""

import io
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest

REPLAY = os.environ["FUZZ_REPLAY"]
TARGET = "frame_header"  # few seeds, small inputs
INPUTS = {"nothing": b"", "one": b"1", "one-block": b"2" * 512, "more-than-a-block": b"3" * 513}


def archive(inputs, kind=tarfile.USTAR_FORMAT, **fields):
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=kind) as tar:
        for name, content in inputs.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for field, value in fields.items():
                setattr(member, field, value)
            tar.addfile(member, io.BytesIO(content))
    return written.getvalue()


def summed(header):
    """The header with the checksum that belongs to it."""
    sum_of = sum(header[:148] + b" " * 8 + header[156:])
    return header[:148] + b"%06o\0 " % sum_of + header[156:]


class Replay(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / f"{TARGET}.tar"

    def replay(self, *paths):
        return subprocess.run([REPLAY, TARGET, *map(str, paths)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=60, check=False)

    def taken(self, inputs, *paths):
        run = self.replay(*paths)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stdout, rf"^{TARGET}: [1-9]\d* seeds, {inputs} inputs\n$")

    def refused(self, content, message):
        self.path.write_bytes(content)
        run = self.replay(self.path)
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertRegex(run.stderr, rf"^replay: at {self.path}: .*{message}")

    def test_archives_folders_and_single_inputs(self):
        self.path.write_bytes(archive(INPUTS))
        single = self.path.with_name("input")
        single.write_bytes(b"1")
        self.taken(0)
        self.taken(4, self.path)
        self.taken(4, self.path.parent)
        self.taken(1, single)
        self.taken(6, self.path, single, single)

    def test_what_is_missing_or_empty_is_a_failure(self):
        self.refused(archive({}), "there is no input in this archive")
        self.refused(b"", "at byte 0: it ends before its end mark")
        self.path.unlink()
        for path in (self.path, self.path.parent, self.path.with_name("input")):
            run = self.replay(path)
            self.assertEqual(run.returncode, 1)
            self.assertIn("cannot read", run.stderr)

    def test_an_archive_that_was_cut_short_is_refused_wherever_that_is(self):
        # Four headers, contents of 0, 1, 1 and 2 blocks, and two blocks of the end mark.
        whole = archive(INPUTS)[:10 * 512]
        self.path.write_bytes(whole)
        self.taken(4, self.path)
        for length in sorted({*range(0, len(whole), 256), 1, 511, 513, 1025, 1537, len(whole) - 1}):
            self.refused(whole[:length], r"at byte \d+: (it ends|half of its end mark|\S+ has \d+ bytes)")

    def test_a_header_of_which_a_byte_was_changed_is_refused(self):
        whole = archive(INPUTS)
        for at in (0, 5, 99, 100, 124, 134, 147, 148, 153, 156, 157, 257, 263, 264, 329, 345, 511):
            self.refused(whole[:512 + at] + bytes([whole[512 + at] ^ 1]) + whole[512 + at + 1:],
                         "at byte 512: (the checksum of a header is wrong|no octal number)")

    def test_no_memory_is_taken_for_a_size_that_is_not_there(self):
        whole = archive(INPUTS)
        for size in (b"77777777777\0", b"777777777777", b"00000040000\0"):
            self.refused(summed(whole[:124] + size + whole[136:512]) + whole[512:], r"nothing has \d+ bytes, of which some")
        for size in (b"\x80" + bytes(10) + b"\1", b"-0000000001\0", b"0000000000x\0", bytes(12), b" " * 12):
            self.refused(summed(whole[:124] + size + whole[136:512]) + whole[512:], "at byte 0: no octal number")

    def test_bytes_between_and_after_the_inputs_are_refused(self):
        whole = archive(INPUTS)
        self.refused(whole[:1200] + b"x" + whole[1201:], "there is something between one and the next")
        self.refused(whole[:-1] + b"x", "there is something after its end mark")

    def test_other_archives_are_refused(self):
        self.refused(archive(INPUTS, tarfile.GNU_FORMAT), "this is not ustar")
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE):
            self.refused(archive({"a": b""}, type=kind), "this is no file")
        for name in ("../up", "a/b", ".hidden", "-option", "a b", "x" * 60 + "/" + "y" * 60):
            self.refused(archive({name: b""}), "an input cannot have this name")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
