#pragma once

// Parses the bodies of a server's replies. The functions throw errc::malformed or errc::protocol_error for bytes that
// no server sends.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/base/error.hpp>
#include <ferry/store/store.hpp>

namespace ferry::inline v0::detail::store_wire {

/// A request that the server refused. An unknown error number becomes store_failed.
struct refused_request {
  errc code;
  std::string text;
};
refused_request read_error(std::string_view body);

/// The keys that a cancelled get has waited for.
struct missing_keys {
  std::uint32_t count = 0;
  std::vector<std::string> names;  ///< of some of them: at most max_missing_named
};
missing_keys read_missing(std::string_view body);

/// Appends the values of one get reply to `found`: at least one, at most `wanted`.
void read_values(std::string_view body, std::size_t wanted, std::vector<std::string>& found);
/// The value of a get for one key.
std::string read_value(std::string_view body);
std::int64_t read_sum(std::string_view body);
bool read_erased(std::string_view body);
std::size_t read_count(std::string_view body);
store_change read_change(std::string_view body);

/// Appends one page of a list to `found`, whose keys precede those of the page; true if there are more pages.
bool read_page(std::string_view body, std::string_view prefix, std::vector<store_entry>& found);

}  // namespace ferry::inline v0::detail::store_wire
