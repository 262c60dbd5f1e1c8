#!/usr/bin/env python3
"""Checks the pages of the examples against their programs."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/README.md"))


def squeezed(text):
    return re.sub(r"\s+", " ", text).strip()


class ExamplePages(unittest.TestCase):
    def test_excerpts_in_the_examples_pages_are_in_their_programs(self):
        for example in EXAMPLES:
            program = squeezed(" ".join(path.read_text(encoding="utf-8") for path in sorted(example.glob("*.?pp"))))
            page = (example / "README.md").read_text(encoding="utf-8")
            blocks = re.findall(r"^```cpp\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
            self.assertTrue(blocks, f"{example.name}/README.md shows no code")
            for block in blocks:
                self.assertIn(squeezed(block), program, f"{example.name}/README.md shows other code than its program")

    def test_every_example_is_listed(self):
        listing = (ROOT / "examples/README.md").read_text(encoding="utf-8")
        build = (ROOT / "examples/meson.build").read_text(encoding="utf-8")
        self.assertTrue(EXAMPLES)
        for example in EXAMPLES:
            self.assertIn(f"({example.name}/README.md)", listing)
            self.assertIn(f"'{example.name}'", build)


if __name__ == "__main__":
    unittest.main()
