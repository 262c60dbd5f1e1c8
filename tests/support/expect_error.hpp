#pragma once

#include <ostream>  // for what doctest prints of an errc
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include <ferry/base/error.hpp>

/// Runs `action` and checks that it throws a ferry::error of that kind whose text contains `text`.
template <class Action>
void expect_error(ferry::errc kind, std::string_view text, Action&& action) {
  try {
    action();
  } catch (const ferry::error& error) {
    const std::string what = error.what();
    CHECK_MESSAGE(error.kind() == kind, what);
    CHECK_MESSAGE(what.find(text) != std::string::npos, "'", std::string(text), "' is not in '", what, "'");
    return;
  }
  FAIL_CHECK("nothing was thrown; expected: " << std::string(text));
}
