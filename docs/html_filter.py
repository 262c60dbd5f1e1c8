#!/usr/bin/env python3
"""Turns a Markdown page into what Doxygen understands: links to sections of other pages, as GitHub writes them
(other.md#section), and links to the sources of an example, which the page then shows at its end.

usage: html_filter.py PAGE.md   (the result goes to standard output; called by Doxygen)
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
# A link, whose text may have code in it, or code, which stays as it is.
LINK_OR_CODE = re.compile(r"\[((?:[^\]`]|`[^`]*`)*)\]\(([^)\s]+)\)|`[^`]*`")


def section_id(page, title, taken):
    """The name of a section: that of its page, which keeps it apart from sections of other pages, and GitHub's."""
    slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()).replace(" ", "-")
    count = taken[slug] = taken.get(slug, -1) + 1
    return page_id(page) + "-" + slug + (f"-{count}" if count else "")


def page_id(page):
    return re.sub(r"\W", "_", os.path.relpath(os.path.realpath(page), ROOT)[: -len(".md")])


def main():
    page = sys.argv[1]
    folder = os.path.dirname(page)
    taken = {}
    shown = []

    def link(match):
        text, target = match.groups()
        if target is None:
            return match.group(0)
        path, _, place = target.partition("#")
        if re.match(r"[a-z]+:", target):
            return match.group(0)
        if place and (not path or path.endswith(".md")):
            return f"[{text}](@ref {page_id(os.path.join(folder, path) if path else page)}-{place})"
        source = os.path.relpath(os.path.realpath(os.path.join(folder, path)), os.path.join(ROOT, "examples"))
        if path.endswith((".cpp", ".hpp")):
            if source.startswith(".."):
                return text
            if source not in shown:
                shown.append(source)
            return f"[{text}](@ref {page_id(page)}-{re.sub(chr(92) + 'W', '_', source)})"
        return match.group(0)

    fence = None
    with open(page, encoding="utf-8") as file:
        for line in file.read().split("\n"):
            mark = re.match(r"\s*(```+|~~~+)", line)
            if mark and fence is None:
                fence = mark.group(1)
            elif mark and line.strip() == fence:
                fence = None
            elif fence is None:
                line = LINK_OR_CODE.sub(link, line)
                heading = re.match(r"(##+) (.*\S)\s*$", line)
                if heading:
                    line += f" {{#{section_id(page, heading.group(2), taken)}}}"
            print(line)
    for source in shown:
        print(f"\n## {source} {{#{page_id(page)}-{re.sub(chr(92) + 'W', '_', source)}}}\n\n\\include {source}")


if __name__ == "__main__":
    main()
