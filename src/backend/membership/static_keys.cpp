#include "static_keys.hpp"

#include <fmt/format.h>

#include <ferry/base/error.hpp>

#include "../../base/parse_number.hpp"

namespace ferry::inline v0::detail {
namespace {

// Removes a text, after its length and a space, from the front of `from`.
std::string_view take_text(std::string_view& from) {
  const std::size_t space = from.find(' ');
  const auto length = stored_number(from.substr(0, space), "the length of a record");
  if (space == std::string_view::npos || length > from.size() - space - 1)
    throw_error(errc::malformed, "the store's records of workers are cut off");
  const std::string_view text = from.substr(space + 1, length);
  from.remove_prefix(space + 1 + length);
  return text;
}

}  // namespace

std::string rank_key(std::string_view prefix, int rank) { return fmt::format("{}{}", prefix, rank); }

std::vector<std::string> split_text(const std::string& text, char separator) {
  std::vector<std::string> result;
  std::size_t at = 0;
  for (;;) {
    const std::size_t end = text.find(separator, at);
    result.push_back(text.substr(at, end - at));
    if (end == std::string::npos) return result;
    at = end + 1;
  }
}

std::uint64_t stored_number(std::string_view text, std::string_view what) {
  const auto value = parse_number<std::uint64_t>(text);
  if (!value) {
    throw_error(errc::malformed,
                fmt::format("the store holds '{}' as {}; is another program using these keys?", text, what));
  }
  return *value;
}

void append_records(std::vector<worker_record>& records, std::string_view together) {
  while (!together.empty()) {
    records.push_back(worker_record::decode(take_text(together), static_cast<int>(records.size())));
  }
}

}  // namespace ferry::inline v0::detail
