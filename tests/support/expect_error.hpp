#pragma once

#include <optional>
#include <ostream>  // for what doctest prints of an errc
#include <string_view>
#include <type_traits>

#include <ferry/base/error.hpp>

/// What a check of errors runs: any callable, referred to, so that the check itself is compiled once.
class checked_action {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, checked_action>)
  checked_action(F&& action) noexcept
      : object_(const_cast<void*>(static_cast<const void*>(&action))),
        run_([](void* object) { static_cast<void>((*static_cast<std::remove_reference_t<F>*>(object))()); }) {}
  void operator()() const { run_(object_); }

 private:
  void* object_;
  void (*run_)(void*);
};

/// Runs `action` and checks that it throws a ferry::error of that kind whose text contains `text`.
void expect_error(ferry::errc kind, std::string_view text, checked_action action);

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
void expect_timeout(std::string_view text, checked_action action);
