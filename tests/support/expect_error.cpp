#include "expect_error.hpp"

#include <string>

#include <doctest/doctest.h>

void expect_error(ferry::errc kind, std::string_view text, checked_action action) {
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

void expect_timeout(std::string_view text, checked_action action) {
  for (int attempts = 0; attempts != 20; ++attempts) {
    try {
      action();
    } catch (const ferry::error& failure) {
      if (timed_out(failure, never_sent)) continue;
      return expect_error(ferry::errc::rpc_timeout, text, [] { throw; });
    }
    FAIL_CHECK("nothing was thrown; expected: " << std::string(text));
    return;
  }
  FAIL_CHECK("none of 20 calls was sent before its timeout was over");
}
