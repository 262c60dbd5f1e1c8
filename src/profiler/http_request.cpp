#include "http_request.hpp"

#include <algorithm>

namespace ferry::inline v0::detail {
namespace {

bool is_token(std::string_view text) noexcept {
  constexpr std::string_view more = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || more.find(c) != more.npos;
  });
}

bool is_target(std::string_view text) noexcept {
  return text.starts_with('/') && std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

// Bytes above ASCII are allowed, and ignored.
bool is_value(std::string_view text) noexcept {
  return std::all_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte >= 0x20 && byte != 0x7f) || c == '\t';
  });
}

// `wanted` is in lower case.
bool is_header(std::string_view name, std::string_view wanted) noexcept {
  return std::equal(name.begin(), name.end(), wanted.begin(), wanted.end(),
                    [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; });
}

// "localhost:9464", "[::1]", with blanks around it.
std::string_view host_of_value(std::string_view value) noexcept {
  while (value.starts_with(' ') || value.starts_with('\t')) value.remove_prefix(1);
  while (value.ends_with(' ') || value.ends_with('\t')) value.remove_suffix(1);
  const std::size_t bracket = value.starts_with('[') ? value.find(']') : value.npos;
  return bracket != value.npos ? value.substr(0, bracket + 1) : value.substr(0, value.find(':'));
}

// "GET /metrics HTTP/1.1"
bool read_request_line(std::string_view line, http_request& found, bool& needs_host) noexcept {
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == line.npos || first == last) return false;
  const std::string_view version = line.substr(last + 1);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return false;
  needs_host = version == "HTTP/1.1";
  found.method = line.substr(0, first);
  found.path = target.substr(0, target.find('?'));
  return is_token(found.method) && is_target(target);
}

}  // namespace

bool http_request::names_loopback() const noexcept {
  constexpr std::string_view local = "localhost";
  const bool is_number = host.starts_with('[') || host.find_first_not_of("0123456789.") == host.npos;
  return is_number || is_header(host, local) || is_header(host, "localhost.");
}

http_request::progress http_request::read(std::string_view bytes, http_request& found) noexcept {
  const std::size_t size = bytes.size();
  bool first = true;
  bool needs_host = false;
  std::size_t hosts = 0;
  found = {};
  for (;;) {
    const std::size_t end = bytes.find('\n');
    if (end == bytes.npos) return size >= most_bytes ? progress::bad : progress::incomplete;
    if (end == 0 || bytes[end - 1] != '\r') return progress::bad;
    const std::string_view line = bytes.substr(0, end - 1);
    bytes.remove_prefix(end + 1);
    if (first) {
      if (!read_request_line(line, found, needs_host)) return progress::bad;
      first = false;
      continue;
    }
    if (line.empty()) {
      const bool is_too_long = size - bytes.size() > most_bytes;
      return is_too_long || hosts > 1 || (needs_host && hosts == 0) ? progress::bad : progress::complete;
    }
    const std::size_t colon = line.find(':');
    if (colon == line.npos || !is_token(line.substr(0, colon)) || !is_value(line.substr(colon + 1)))
      return progress::bad;
    const std::string_view name = line.substr(0, colon);
    if (is_header(name, "host")) {
      ++hosts;
      found.host = host_of_value(line.substr(colon + 1));
    }
    if (is_header(name, "accept") && line.find("text/html", colon) != line.npos) found.accepts_html = true;
  }
}

}  // namespace ferry::inline v0::detail
