#pragma once

// Parsing of init methods.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "../../base/parse_number.hpp"

namespace ferry::inline v0::detail {

struct init_method_parts {
  std::string scheme;
  std::string location;
  std::map<std::string, std::string> query;
};
/// Throws errc::bad_init_method; `known` lists the schemes for the error text.
init_method_parts parse_init_method(const std::string& text, std::string_view known);

struct host_port {
  std::string host;
  std::uint16_t port;
};
/// "host:port", "[v6]:port". Throws errc::bad_init_method with `init_method` in its text.
host_port parse_host_port(std::string_view location, std::string_view init_method);

}  // namespace ferry::inline v0::detail
