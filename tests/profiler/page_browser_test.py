#!/usr/bin/env python3
"""Renders the page of an example in a real browser, where there is one: page_browser_test.py RENDER_PAGE FERRY_RUN PROGRAM."""

import pathlib
import struct
import subprocess
import sys
import tempfile
import zlib

RENDER_PAGE, FERRY_RUN, PROGRAM = sys.argv[1:]
NO_BROWSER = 77  # meson: skipped


def lines_of(png):
    """The rows of a picture, without their filters being undone: rows of one colour are all zeros but for the first pixel."""
    data, at, width, height = b"", 8, 0, 0
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        if kind == b"IHDR":
            width, height = struct.unpack(">II", png[at + 8:at + 16])
        if kind == b"IDAT":
            data += png[at + 8:at + 8 + length]
        at += 12 + length
    raw = zlib.decompress(data)
    row = len(raw) // height
    return width, height, [raw[i * row:(i + 1) * row] for i in range(height)]


with tempfile.TemporaryDirectory() as folder:
    page, picture = pathlib.Path(folder, "profile.html"), pathlib.Path(folder, "profile.png")
    subprocess.run([FERRY_RUN, "-n", "3", PROGRAM, str(pathlib.Path(folder, "trace.json")), str(page)], stdin=subprocess.DEVNULL,
                   timeout=60, check=True, stdout=subprocess.DEVNULL)
    shown = subprocess.run([sys.executable, RENDER_PAGE, str(page), "-o", str(picture), "--size", "1200,900"], timeout=150, check=False,
                           capture_output=True, text=True)
    if shown.returncode != 0:
        print(shown.stderr)
        sys.exit(shown.returncode)
    width, height, rows = lines_of(picture.read_bytes())
    if (width, height) != (1200, 900):
        sys.exit(f"the picture is {width} x {height}")
    # Text, bars and arrows all over it.
    drawn = sum(1 for row in rows if len(set(row[1:])) > 4)
    if drawn < height // 4:
        sys.exit(f"of {height} rows of the picture {drawn} have anything in them")
    # A page whose script has not run to its end is told from this one.
    broken = pathlib.Path(folder, "broken.html")
    broken.write_text(page.read_text(encoding="utf-8").replace("<script>//<![CDATA[", "<script>//<![CDATA[\nthrow new Error('no');"),
                      encoding="utf-8")
    refused = subprocess.run([sys.executable, RENDER_PAGE, str(broken)], timeout=150, check=False, capture_output=True, text=True)
    if refused.returncode != 1 or "render_page: " not in refused.stderr:
        sys.exit(f"a page with a broken script was shown: {refused.returncode}, {refused.stderr}")
print("shown")
