#include "base/printable.hpp"

#include <doctest/doctest.h>

using ferry::detail::printable;
using ferry::detail::printable_lines;

TEST_CASE("what could move the cursor of a terminal is shown as one character") {
  CHECK(printable("worker0") == "worker0");
  CHECK(printable("a\x1b[2Jb\x7f\t\n") == "a?[2Jb???");
  CHECK(printable(std::string_view("nul\0", 4)) == "nul?");
  CHECK(printable("\xc2\x9b[2J \xc2\x80 \xc2") == "?[2J ? \xc2");  // C1, and half a character
  CHECK(printable("gr\xc3\xb6\xc3\x9f") == "gr\xc3\xb6\xc3\x9f");  // 9f is a part of another character here
  CHECK(printable("").empty());
}

TEST_CASE("a text of several lines keeps its newlines") {
  CHECK(printable_lines("one\ntw\ro\n") == "one\ntw?o\n");
  CHECK(printable_lines("\n\n") == "\n\n");
  CHECK(printable_lines("no end \x1b") == "no end ?");
  CHECK(printable_lines("").empty());
}
