#pragma once

// The transports of a worker: where it listens, and how it reaches others.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/backend/backend.hpp>
#include <ferry/transport/transport.hpp>

#include "../own_worker.hpp"
#include "connect_attempt.hpp"
#include "peers.hpp"

namespace ferry::inline v0::detail {

/// Thread-safe, but for listen() and stop_listening().
class endpoints {
 public:
  /// Opens the transports that the options choose. Throws errc::no_route if none is usable on this machine, and
  /// errc::invalid_argument if the options name one that is not among `built`.
  endpoints(own_worker& own, const std::vector<transport_factory>& built);
  endpoints(const endpoints&) = delete;
  endpoints& operator=(const endpoints&) = delete;

  /// Listens with every transport that can. `local_address`: of this machine as the store sees it. Throws errc::no_route
  /// if none can, and what reports that the configuration is not possible.
  void listen(const std::string& local_address, const std::shared_ptr<connection_acceptor>& acceptor);
  void stop_listening() noexcept;
  /// Where this worker listens, best first.
  [[nodiscard]] const std::vector<std::string>& advertised() const noexcept { return advertised_; }

  /// To a worker at its addresses, best first; the attempt has yet to be started.
  [[nodiscard]] std::shared_ptr<connect_attempt> attempt_to_reach(const worker_record& to, std::uint64_t features,
                                                                  std::chrono::nanoseconds limit_each,
                                                                  std::function<bool()> wanted,
                                                                  std::function<void(connect_outcome)> done) const;
  /// Whether that greeting, with this worker's incarnation, is one that it sent to itself.
  [[nodiscard]] bool greeted_itself(const hello& from) const noexcept { return from.joined == own_mark_; }

  /// The transports that would be better than `used` to reach these addresses, and why each was not used.
  [[nodiscard]] std::vector<rejected_route> better_than(std::string_view used,
                                                        const std::vector<std::string>& addresses,
                                                        const std::vector<rejected_route>& failed) const;

 private:
  [[nodiscard]] hello greeting(const worker_record& target, std::uint64_t features) const;

  struct open_transport {
    std::string name;
    std::shared_ptr<ferry::transport> transport;
    bool listening = false;
  };

  own_worker& own_;
  const std::uint64_t own_mark_ = incarnation_id::random().value;  // in greetings to itself, which others cannot send
  std::vector<open_transport> transports_;
  std::vector<rejected_route> unusable_;  // the requested ones that cannot be used
  std::vector<std::string> advertised_;
};

}  // namespace ferry::inline v0::detail
