#include "init_method.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

namespace ferry::inline v0::detail {

init_method_parts parse_init_method(const std::string& text, std::string_view known) {
  const auto end_of_scheme = text.find("://");
  if (end_of_scheme == std::string::npos || end_of_scheme == 0) {
    throw_error(errc::bad_init_method,
                fmt::format("init method '{}' does not start with a scheme; known are {}", text, known));
  }
  init_method_parts parts;
  parts.scheme = text.substr(0, end_of_scheme);
  std::string_view rest = std::string_view(text).substr(end_of_scheme + 3);
  const auto question = rest.find('?');
  parts.location = rest.substr(0, question);
  if (question == std::string_view::npos) return parts;
  rest.remove_prefix(question + 1);
  while (!rest.empty()) {
    const std::string_view field = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), field.size() + 1));
    const auto equals = field.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      throw_error(errc::bad_init_method,
                  fmt::format("'{}' in the query of init method '{}' is not name=value", field, text));
    }
    if (!parts.query.emplace(field.substr(0, equals), field.substr(equals + 1)).second) {
      throw_error(errc::bad_init_method,
                  fmt::format("'{}' occurs twice in the query of init method '{}'", field.substr(0, equals), text));
    }
  }
  return parts;
}

host_port parse_host_port(std::string_view location, std::string_view init_method) {
  const auto fail = [&](std::string_view what) {
    throw_error(errc::bad_init_method,
                fmt::format("{} in init method '{}': it has the form tcp://host:port", what, init_method));
  };
  if (location.ends_with('/')) location.remove_suffix(1);
  host_port parts;
  std::string_view port;
  if (location.starts_with('[')) {
    const auto closing = location.find(']');
    if (closing == std::string_view::npos) fail("a closing bracket is missing");
    parts.host = location.substr(1, closing - 1);
    port = location.substr(closing + 1);
    if (!port.empty() && !port.starts_with(':')) fail("something other than a port follows the bracket");
  } else {
    const auto colon = location.find(':');
    parts.host = location.substr(0, colon);
    port = colon == std::string_view::npos ? std::string_view() : location.substr(colon);
    if (port.find(':', 1) != std::string_view::npos) fail("an IPv6 address without brackets, or a second port,");
  }
  if (parts.host.empty()) fail("host missing");
  if (port.size() < 2) fail("port number missing");
  port.remove_prefix(1);
  const auto number = parse_number(port);
  if (!number) fail(fmt::format("the port '{}', which is not a number of 16 bits,", port));
  if (*number < 0 || *number > 65535) fail(fmt::format("the port {}, which does not fit 16 bits,", *number));
  parts.port = static_cast<std::uint16_t>(*number);
  return parts;
}

}  // namespace ferry::inline v0::detail
