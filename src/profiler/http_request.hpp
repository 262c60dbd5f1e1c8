#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ferry::inline v0::detail {

/// The head of an HTTP request, as far as metrics_server needs it. Views of the bytes that were read.
struct http_request {
  static constexpr std::size_t most_bytes = 8192;

  enum class progress : std::uint8_t {
    incomplete,  ///< what is there may be the beginning of one
    complete,
    bad,
  };
  std::string_view method = {};
  std::string_view path = {};  ///< without a query
  bool accepts_html = false;   ///< as browsers say
  std::string_view host = {};  ///< without a port; empty: HTTP/1.0 names none

  /// Whether the host is this machine under a name that no other machine has: "localhost" or an IP address. Another name may be that of
  /// a site whose page runs in a browser here, and which lets its name lead to loopback.
  [[nodiscard]] bool names_loopback() const noexcept;

  /// Reads what has arrived so far, without the body. Strict: lines end with CR LF, names are tokens, HTTP/1.1 names its host.
  static progress read(std::string_view bytes, http_request& found) noexcept;
};

}  // namespace ferry::inline v0::detail
