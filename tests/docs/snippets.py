#!/usr/bin/env python3
"""Makes one program of the C++ on a Markdown page, so that it is compiled and run: snippets.py PAGE OUTPUT.

A block that begins with ```cpp is declarations, in order, each able to use those before it; one that begins with
```cpp statements is the body of a function with a `ferry::worker& self`, which worker 0 of a group runs. Includes go to the
top. Each main() gets another name and no result; the argument `program_N` runs it alone, `--list` tells their names.
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
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/ferry.hpp>
"""
MAIN = """
int main(int count, char** arguments) {
  const std::string_view which = count > 1 ? arguments[1] : "";
PROGRAMS  if (!which.empty()) {
    std::cerr << "no program '" << which << "' on this page\\n";
    return 2;
  }
  ferry::worker self = ferry::init_rpc();
  if (self.id().value == 0) {
STATEMENTS  }
  self.shutdown();
}
"""
BLOCK = re.compile(r"^```cpp( statements)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def translate(page):
    text = page.read_text(encoding="utf-8")
    includes, parts, programs, statements = [], [], [], []
    for number, block in enumerate(BLOCK.finditer(text)):
        body = block.group(2)
        includes += re.findall(r"^#include .*$", body, re.MULTILINE)
        body = re.sub(r"^#include .*$", "", body, flags=re.MULTILINE)
        if re.search(r"\bint main\(\)", body):
            body = re.sub(r"\bint main\(\)", f"void program_{number}()", body)
            programs.append(f"program_{number}")
        line = text.count("\n", 0, block.start(2)) + 1
        place = f'#line {line} "{page.name}"\n'
        if block.group(1):
            statements.append(f"statements_{number}")
            parts.append(f"void statements_{number}([[maybe_unused]] ferry::worker& self) {{\n{place}{body}}}\n")
        else:
            parts.append(place + body)
    if not parts:
        raise SystemExit(f"{page}: no ```cpp block")
    choices = [f'  if (which == "{name}") return {name}(), 0;\n' for name in programs]
    choices.append('  if (which == "--list") return std::cout << "' + "".join(f"{name}\\n" for name in programs) + '", 0;\n')
    main = MAIN.replace("PROGRAMS", "".join(choices))
    main = main.replace("STATEMENTS", "".join(f"    {name}(self);\n" for name in statements))
    place = '#line 1 "the end of the page"\n'
    return HEADERS + "".join(f"{line}\n" for line in dict.fromkeys(includes)) + "\n".join(parts) + place + main


if __name__ == "__main__":
    pathlib.Path(sys.argv[2]).write_text(translate(pathlib.Path(sys.argv[1])), encoding="utf-8")
