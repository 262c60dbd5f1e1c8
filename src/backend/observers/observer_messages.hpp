#pragma once

// What observers and workers say to each other (docs/protocol.md, Observers). An observer is a tool that is no member of
// the group: it asks, one question after the other, and calls nothing.

#include <cstdint>
#include <string>
#include <string_view>

#include <ferry/base/error.hpp>
#include <ferry/wire/limits.hpp>
#include <ferry/wire/message.hpp>

namespace ferry::inline v0::detail {

struct question_text {
  std::string what;
  std::string argument;

  [[nodiscard]] outgoing_message encode(std::uint64_t number) const;
  /// Throws errc::malformed and similar errors.
  static question_text decode(const inbound_message& message, const wire_limits& limits);
};

struct answer_text {
  errc code = {};  ///< errc{}: `bytes` is the answer; else it says why there is none
  std::string bytes;

  [[nodiscard]] outgoing_message encode(std::uint64_t number) const;
  /// Throws errc::malformed and similar errors.
  static answer_text decode(const inbound_message& message, const wire_limits& limits);
};

}  // namespace ferry::inline v0::detail
