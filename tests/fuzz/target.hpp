#pragma once

// What a fuzz target is. Each one decodes its input the way the library does, and checks more than that nothing breaks:
// what was accepted must encode to the same again, and what was refused must have been refused with a ferry::error.
//
// A target is run by libFuzzer (entry.cpp, with clang) and, over the inputs of corpus/, by every compiler (replay.cpp).

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/base/error.hpp>
#include <ferry/wire/limits.hpp>

namespace fuzz {

using bytes = std::span<const std::byte>;
/// Takes an input that a target should start from.
using seed_sink = std::function<void(std::string_view name, bytes content)>;

struct target {
  std::string_view name;
  void (*run)(bytes input);
  void (*seeds)(const seed_sink& sink);
};

/// Says what does not hold and aborts: that is a finding.
[[noreturn]] void fail(std::string_view what);
inline void require(bool holds, std::string_view what) {
  if (!holds) fail(what);
}

/// Fails unless `thrown` has a number that ferry knows.
void check_error(const ferry::error& thrown);

/// Whether `decode()` returned; false if it refused with a ferry::error. Whatever else it throws is a finding.
template <class Decode>
bool accepted(Decode&& decode) {
  try {
    decode();
    return true;
  } catch (const ferry::error& refused) {
    check_error(refused);
    return false;
  }
}

/// Small enough that a decoder which takes memory unchecked exceeds the fuzzer's own limits.
inline constexpr ferry::wire_limits limits{.max_message_bytes = std::uint64_t{1} << 20,
                                           .max_decoded_bytes = std::uint64_t{4} << 20,
                                           .max_expansion = 1024,
                                           .max_tensors = 64,
                                           .max_rank = 8,
                                           .max_depth = 64,
                                           .max_extension_bytes = 4096,
                                           .max_extensions = 16};

/// Takes an input apart; at its end there are zeroes.
class source {
 public:
  explicit source(bytes input) noexcept : left_(input) {}
  [[nodiscard]] bool empty() const noexcept { return left_.empty(); }
  [[nodiscard]] bytes rest() const noexcept { return left_; }
  template <class Integer>
  Integer number() noexcept {
    std::uint64_t value = 0;
    const bytes field = take(sizeof(Integer));
    for (std::size_t i = 0; i < field.size(); ++i) value |= std::to_integer<std::uint64_t>(field[i]) << (8 * i);
    return static_cast<Integer>(value);
  }
  /// At most `count` bytes.
  bytes take(std::size_t count) noexcept {
    const bytes result = left_.first(count < left_.size() ? count : left_.size());
    left_ = left_.subspan(result.size());
    return result;
  }

 private:
  bytes left_;
};

inline bool same(bytes a, bytes b) noexcept {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}
inline std::string_view text_of(bytes input) noexcept {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}
inline bytes bytes_of(std::string_view text) noexcept { return std::as_bytes(std::span(text)); }

/// Builds seeds.
class seed {
 public:
  template <class Integer>
  seed& number(Integer value) {
    for (std::size_t i = 0; i < sizeof(value); ++i) {
      content_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
    return *this;
  }
  seed& add(bytes more) {
    content_.insert(content_.end(), more.begin(), more.end());
    return *this;
  }
  seed& add(std::string_view text) { return add(bytes_of(text)); }
  operator bytes() const noexcept { return content_; }  // NOLINT(google-explicit-constructor): it is one

 private:
  std::vector<std::byte> content_;
};

}  // namespace fuzz
