#!/usr/bin/env python3
"""Makes one C++ file of the code in a Markdown page, so that the compiler checks it: snippets.py PAGE OUTPUT.

A block that begins with ```cpp is declarations, in order, each able to use those before it; one that begins with
```cpp statements is the body of a function with a `ferry::worker& self`. Includes go to the top; main() gets another name and no result.
Line numbers in messages of the compiler are those of the page.
"""

import pathlib
import re
import sys

HEADERS = """#include <chrono>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>
"""
BLOCK = re.compile(r"^```cpp( statements)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def translate(page):
    text = page.read_text(encoding="utf-8")
    includes, parts = [], []
    for number, block in enumerate(BLOCK.finditer(text)):
        body = block.group(2)
        includes += re.findall(r"^#include .*$", body, re.MULTILINE)
        body = re.sub(r"^#include .*$", "", body, flags=re.MULTILINE)
        body = re.sub(r"\bint main\(\)", f"void program_{number}()", body)
        line = text.count("\n", 0, block.start(2)) + 1
        place = f'#line {line} "{page.name}"\n'
        if block.group(1):
            parts.append(f"void statements_{number}([[maybe_unused]] ferry::worker& self) {{\n{place}{body}}}\n")
        else:
            parts.append(place + body)
    if not parts:
        raise SystemExit(f"{page}: no ```cpp block")
    return HEADERS + "".join(f"{line}\n" for line in dict.fromkeys(includes)) + "\n".join(parts)


if __name__ == "__main__":
    pathlib.Path(sys.argv[2]).write_text(translate(pathlib.Path(sys.argv[1])), encoding="utf-8")
