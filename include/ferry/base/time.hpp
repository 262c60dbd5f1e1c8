#pragma once

// Timeouts (how long) and deadlines (until when).

#include <chrono>
#include <cstdint>

namespace ferry::inline v0 {

using clock = std::chrono::steady_clock;

struct no_timeout_t {};
/// "Never times out".
inline constexpr no_timeout_t no_timeout{};

/// A time limit: unset (use the default), never, or a duration. Trivially copyable.
/// A duration of zero means never, as in torch RPC; a negative one throws errc::invalid_argument.
class timeout {
 public:
  constexpr timeout() noexcept = default;
  constexpr timeout(no_timeout_t) noexcept : ns_(never_value) {}  // NOLINT(google-explicit-constructor)
  template <class Rep, class Period>
  constexpr timeout(std::chrono::duration<Rep, Period> value)  // NOLINT(google-explicit-constructor)
      : ns_(checked(std::chrono::duration_cast<std::chrono::duration<double, std::nano>>(value).count())) {}

  [[nodiscard]] constexpr bool is_set() const noexcept { return ns_ != unset_value; }
  [[nodiscard]] constexpr bool is_never() const noexcept { return ns_ == never_value; }
  /// The duration; meaningless unless is_set() and not is_never().
  [[nodiscard]] constexpr std::chrono::nanoseconds duration() const noexcept { return std::chrono::nanoseconds(ns_); }
  /// *this if set, else `other`.
  [[nodiscard]] constexpr timeout value_or(timeout other) const noexcept { return is_set() ? *this : other; }
  friend constexpr bool operator==(timeout, timeout) noexcept = default;

 private:
  static constexpr std::int64_t unset_value = -1;
  static constexpr std::int64_t never_value = 0;
  static constexpr double largest = 9.2e18;
  static constexpr std::int64_t checked(double ns) {
    if (!(ns >= 0)) throw_negative(ns / 1e9);
    if (ns >= largest) return never_value;  // 292 years
    const auto whole = static_cast<std::int64_t>(ns);
    return whole == 0 && ns > 0 ? 1 : whole;
  }
  [[noreturn]] static void throw_negative(double seconds);
  std::int64_t ns_ = unset_value;
};

/// A point on the steady clock, or never. Trivially copyable.
class deadline {
 public:
  constexpr deadline() noexcept = default;  ///< never
  constexpr explicit deadline(clock::time_point at) noexcept : at_(at) {}
  /// `now` plus `value`; never if it is unset or never.
  [[nodiscard]] static deadline after(timeout value, clock::time_point now = clock::now()) noexcept {
    if (!value.is_set() || value.is_never()) return {};
    if (value.duration() > clock::time_point::max() - now) return {};
    return deadline(now + value.duration());
  }
  [[nodiscard]] constexpr bool is_never() const noexcept { return at_ == clock::time_point::max(); }
  [[nodiscard]] bool expired() const noexcept { return !is_never() && clock::now() >= at_; }
  [[nodiscard]] constexpr clock::time_point at() const noexcept { return at_; }
  /// Time left at `now`, not below zero; nanoseconds::max() for never.
  [[nodiscard]] std::chrono::nanoseconds remaining(clock::time_point now = clock::now()) const noexcept {
    if (is_never()) return std::chrono::nanoseconds::max();
    return at_ <= now ? std::chrono::nanoseconds(0) : std::chrono::nanoseconds(at_ - now);
  }
  friend constexpr bool operator==(deadline, deadline) noexcept = default;
  friend constexpr auto operator<=>(deadline a, deadline b) noexcept { return a.at_ <=> b.at_; }

 private:
  clock::time_point at_ = clock::time_point::max();
};

namespace detail {

/// Seconds, for texts and reports.
[[nodiscard]] constexpr double in_seconds(std::chrono::nanoseconds value) noexcept {
  return std::chrono::duration<double>(value).count();
}

}  // namespace detail
}  // namespace ferry::inline v0
