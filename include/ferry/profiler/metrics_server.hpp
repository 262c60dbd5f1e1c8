#pragma once

// An HTTP endpoint for metrics: what Prometheus, and curl, read.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <ferry/profiler/metrics.hpp>

namespace ferry::inline v0::profiler {

struct metrics_server_options {
  /// "127.0.0.1:9464", "[::1]:9464" or "localhost:9464"; port 0 takes any free one.
  std::string listen = "127.0.0.1:9464";
  /// Allows to listen on an address that other machines may reach. There is neither authentication nor encryption: any program that
  /// reaches the port can read the names of methods and workers, and how much is called.
  bool beyond_loopback = false;
  std::size_t max_connections = 8;
  /// For a request to arrive; again for its answer to be made, and for that to be read.
  std::chrono::milliseconds time_limit{5000};
};

/// Answers GET /metrics while it exists, and further paths with tables for people: "/" leads to them. Browsers get these as HTML, other
/// programs as text. Takes no thread, and no time without requests: the library's control thread reads connections, and the threads
/// that run handlers make the texts.
///
///     const ferry::profiler::metrics recorded(self);
///     const ferry::profiler::metrics_server server(recorded);
///
/// Any other path gets a 404, any other method a 405, what is no request a 400, and without beyond_loopback one for a host other than localhost or an IP address a 421. Connections are closed after one answer. If there
/// are too many, the oldest that has not finished its request gives way.
class metrics_server {
 public:
  /// Throws errc::bad_address for an address that is none, errc::authentication_required for one beyond loopback without permission,
  /// errc::address_in_use, errc::system_failure. The metrics may be destroyed before the server.
  explicit metrics_server(const metrics& of, const metrics_server_options& how = {});
  /// Of a text that the program makes, in the same format: of several workers, or with metrics of its own; without tables. It is called
  /// on threads of the library, by several at once perhaps. If it throws, the answer is a 500.
  explicit metrics_server(std::function<std::string()> text, const metrics_server_options& how = {});
  /// Closes the connections, and waits until no text is being made. Not to be called by the function that makes it.
  ~metrics_server();
  metrics_server(const metrics_server&) = delete;
  metrics_server& operator=(const metrics_server&) = delete;

  /// Where it listens.
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// "http://127.0.0.1:9464/metrics"
  [[nodiscard]] std::string url() const;

 private:
  class state;
  class session;
  void listen();
  static std::function<metrics_snapshot()> reader_of(const metrics& of);
  std::shared_ptr<state> state_;
};

}  // namespace ferry::inline v0::profiler
