#!/usr/bin/env python3
"""Checks that every link between the pages of a folder of HTML leads to a file, and to a place in it, that is there.

usage: check_links.py FOLDER
"""
import os
import re
import sys
import urllib.parse

LINK = re.compile(r'<(?:a|link|area)\s[^>]*?\bhref="([^"]*)"|<(?:img|script)\s[^>]*?\bsrc="([^"]*)"')
ANCHOR = re.compile(r'\b(?:id|name)="([^"]*)"')
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def main():
    if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]):
        print(__doc__.strip().splitlines()[-1])
        return 2
    folder = sys.argv[1]
    anchors = {}
    links = []
    for directory, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(directory, name)
            if not name.endswith(".html"):
                continue
            with open(path, encoding="utf-8") as file:
                text = file.read()
            anchors[os.path.normpath(path)] = set(ANCHOR.findall(text))
            # Links in comments and scripts are no links of the page.
            text = re.sub(r"<!--.*?-->|(<script\b[^>]*>).*?</script>", r"\1", text, flags=re.DOTALL)
            links += [(path, href or src) for href, src in LINK.findall(text)]
    broken = set()
    for page, link in links:
        if ELSEWHERE.match(link) or link.startswith("javascript"):
            continue
        target, _, place = urllib.parse.unquote(link.replace("&amp;", "&")).partition("#")
        target = target.partition("?")[0]
        path = os.path.normpath(os.path.join(os.path.dirname(page), target)) if target else os.path.normpath(page)
        if not os.path.exists(path):
            broken.add(f"{page}: no file for the link to {link}")
        elif place and path in anchors and place not in anchors[path]:
            broken.add(f"{page}: no such place for the link to {link}")
    for line in sorted(broken):
        print(line)
    print(f"{len(anchors)} pages, {len(links)} links, {len(broken)} broken")
    return 1 if broken or not anchors else 0


if __name__ == "__main__":
    sys.exit(main())
