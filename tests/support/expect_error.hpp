#pragma once

#include <optional>
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

/// Whether a call failed at once since a busy machine had taken longer to get to it than its whole timeout.
inline bool was_never_sent(const ferry::error& failure) {
  return failure.kind() == ferry::errc::rpc_timeout &&
         std::string_view(failure.what()).find("over before it was sent") != std::string_view::npos;
}

/// What `start` returns, a future; or nothing, if its timeout was over before it was sent.
template <class Start>
auto if_sent(Start&& start) -> std::optional<decltype(start())> {
  try {
    return start();
  } catch (const ferry::error& failure) {
    if (!was_never_sent(failure)) throw;
    return std::nullopt;
  }
}

/// As expect_error of errc::rpc_timeout, for calls that are to be sent: another one is made if one was not.
template <class Action>
void expect_timeout(std::string_view text, Action&& action) {
  for (int attempts = 0; attempts != 20; ++attempts) {
    try {
      action();
    } catch (const ferry::error& failure) {
      if (was_never_sent(failure)) continue;
      return expect_error(ferry::errc::rpc_timeout, text, [] { throw; });
    }
    FAIL_CHECK("nothing was thrown; expected: " << std::string(text));
    return;
  }
  FAIL_CHECK("none of 20 calls was sent before its timeout was over");
}
