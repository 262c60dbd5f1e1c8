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

/// Of a call that a busy machine took longer to get to than its whole timeout.
constexpr std::string_view never_sent = "over before it was sent";

inline bool timed_out(const ferry::error& failure, std::string_view text) {
  return failure.kind() == ferry::errc::rpc_timeout &&
         std::string_view(failure.what()).find(text) != std::string_view::npos;
}

/// What `start` returns, a future; or nothing, if it was too late and threw errc::rpc_timeout, whose text contains `why`.
template <class Start>
auto if_in_time(Start&& start, std::string_view why = never_sent) -> std::optional<decltype(start())> {
  try {
    return start();
  } catch (const ferry::error& failure) {
    if (!timed_out(failure, why)) throw;
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
      if (timed_out(failure, never_sent)) continue;
      return expect_error(ferry::errc::rpc_timeout, text, [] { throw; });
    }
    FAIL_CHECK("nothing was thrown; expected: " << std::string(text));
    return;
  }
  FAIL_CHECK("none of 20 calls was sent before its timeout was over");
}
