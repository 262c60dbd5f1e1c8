#include "tcp_replies.hpp"

#include <utility>

#include <fmt/format.h>

#include "../codec.hpp"
#include "tcp_protocol.hpp"

namespace ferry::inline v0::detail::store_wire {
namespace {

template <class Integer>
Integer read_number(std::string_view body) {
  field_reader fields(body);
  const auto value = fields.get<Integer>();
  fields.expect_end();
  return value;
}

}  // namespace

refused_request read_error(std::string_view body) {
  field_reader fields(body);
  auto code = static_cast<errc>(fields.get<std::uint16_t>());
  if (errc_name(code) == "unknown") code = errc::store_failed;  // defined by a later version
  return {code, std::string(fields.take(fields.left()))};
}

missing_keys read_missing(std::string_view body) {
  field_reader fields(body);
  missing_keys result;
  result.count = fields.get<std::uint32_t>();
  const auto named = fields.get<std::uint32_t>();
  if (named > max_missing_named || named > result.count) {
    throw_error(errc::protocol_error,
                fmt::format("the store's server names {} of {} missing keys", named, result.count));
  }
  for (std::uint32_t i = 0; i < named; ++i) result.names.emplace_back(fields.get_string());
  fields.expect_end();
  return result;
}

void read_values(std::string_view body, std::size_t wanted, std::vector<std::string>& found) {
  field_reader fields(body);
  std::size_t count = 0;
  for (; fields.left() != 0; ++count) {
    if (count == wanted) throw_error(errc::protocol_error, "the store's server answered a get with too many values");
    found.emplace_back(fields.get_string());
  }
  if (count == 0) throw_error(errc::protocol_error, "the store's server answered a get with no value");
}

std::string read_value(std::string_view body) {
  field_reader fields(body);
  std::string value(fields.get_string());
  fields.expect_end();
  return value;
}

std::int64_t read_sum(std::string_view body) { return read_number<std::int64_t>(body); }
bool read_erased(std::string_view body) { return read_number<std::uint8_t>(body) != 0; }
std::size_t read_count(std::string_view body) { return static_cast<std::size_t>(read_number<std::uint64_t>(body)); }

store_change read_change(std::string_view body) {
  field_reader fields(body);
  store_change state;
  state.version = fields.get<std::uint64_t>();
  if (fields.get<std::uint8_t>() != 0) state.value = std::string(fields.take(fields.left()));
  fields.expect_end();
  return state;
}

bool read_page(std::string_view body, std::string_view prefix, std::vector<store_entry>& found) {
  field_reader fields(body);
  const bool more = fields.get<std::uint8_t>() != 0;
  // Without entries the client would repeat the same request forever.
  if (more && fields.left() == 0) throw_error(errc::protocol_error, "the store's server listed a page without keys");
  while (fields.left() != 0) {
    std::string key(fields.get_string());
    if (!found.empty() && key <= found.back().key) {
      throw_error(errc::protocol_error, "the store's server listed keys out of order");
    }
    if (!key.starts_with(prefix)) {
      throw_error(errc::protocol_error, "the store's server listed keys with another prefix");
    }
    found.push_back({std::move(key), std::string(fields.get_string())});
  }
  return more;
}

}  // namespace ferry::inline v0::detail::store_wire
