#!/usr/bin/env python3
"""Renders a page of a profile in a real browser, without a window and without a network: render_page.py PAGE [-o PICTURE.png].

Needs Chromium or Chrome (apt-get install chromium). Checks that the page's script has run to its end, and writes a picture of the
page if asked to; that is how docs/profile_page.png was made. Exit status 0: it is shown; 1: it is not; 77: there is no browser."""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NO_BROWSER = 77
TIME_LIMIT = 60


def find_browser():
    named = os.environ.get("FERRY_BROWSER")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, BROWSERS)), None)


def run_browser(browser, page, *arguments):
    """What the browser prints. Nothing is loaded from elsewhere: no name can be resolved."""
    with tempfile.TemporaryDirectory() as profile:
        result = subprocess.run(
            [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
             "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--v=0", *arguments, pathlib.Path(page).resolve().as_uri()],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIME_LIMIT, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{browser} ended with {result.returncode}: {result.stderr.strip()[-2000:]}")
    problems = [line for line in result.stderr.splitlines() if ":CONSOLE" in line]
    if problems:
        raise RuntimeError("the page reports: " + "; ".join(problems))
    return result.stdout


def document_of(browser, page):
    """The page as the browser has it once the script has run."""
    return run_browser(browser, page, "--dump-dom")


def check(document):
    """The script shows what it controls, last of all what it sets up first: see page_script in src/profiler/html_page.cpp."""
    if 'id="controls"' not in document or 'id="controls" hidden' in document:
        raise RuntimeError("the page's script has not run: the zoom is still hidden")
    if 'id="timeline"' not in document:
        raise RuntimeError("the page has no timeline")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page")
    parser.add_argument("-o", "--output", metavar="PICTURE.png")
    parser.add_argument("--size", default="1400,1500", metavar="WIDTH,HEIGHT", help="of the picture, in pixels (1400,1500)")
    options = parser.parse_args()
    if not os.path.isfile(options.page):
        parser.error(f"there is no file {options.page}")
    browser = find_browser()
    if not browser:
        print("render_page: no browser: apt-get install chromium, or name one in FERRY_BROWSER", file=sys.stderr)
        return NO_BROWSER
    try:
        check(document_of(browser, options.page))
        if options.output:
            run_browser(browser, options.page, f"--screenshot={os.path.abspath(options.output)}", f"--window-size={options.size}")
            if not os.path.isfile(options.output):
                raise RuntimeError(f"{browser} has written no picture")
    except (RuntimeError, subprocess.TimeoutExpired) as problem:
        print(f"render_page: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
