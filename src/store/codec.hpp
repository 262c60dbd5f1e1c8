#pragma once

// Little-endian fields and length-prefixed strings of the store's wire and file formats.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <ferry/base/detail/little_endian.hpp>
#include <ferry/base/error.hpp>

namespace ferry::inline v0::detail {

template <class Integer>
void put(std::string& out, Integer value) {
  std::array<std::byte, sizeof(value)> field;
  store_le(field.data(), value);
  out.append(reinterpret_cast<const char*>(field.data()), field.size());
}
inline void put_string(std::string& out, std::string_view text) {
  put(out, static_cast<std::uint32_t>(text.size()));
  out += text;
}

/// Reads fields from bytes that it does not own. Throws errc::malformed when the bytes end too early.
class field_reader {
 public:
  explicit field_reader(std::string_view bytes) noexcept : left_(bytes) {}

  template <class Integer>
  Integer get() {
    return load_le<Integer>(reinterpret_cast<const std::byte*>(take(sizeof(Integer)).data()));
  }
  std::string_view get_string() { return take(get<std::uint32_t>()); }
  std::string_view take(std::size_t count) {
    if (count > left_.size()) {
      throw_error(errc::malformed, fmt::format("a field of {} bytes where {} are left", count, left_.size()));
    }
    const std::string_view field = left_.substr(0, count);
    left_.remove_prefix(count);
    return field;
  }
  [[nodiscard]] std::size_t left() const noexcept { return left_.size(); }
  void expect_end() const {
    if (!left_.empty()) throw_error(errc::malformed, fmt::format("{} bytes too many", left_.size()));
  }

 private:
  std::string_view left_;
};

}  // namespace ferry::inline v0::detail
