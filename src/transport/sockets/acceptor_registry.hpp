#pragma once

// The workers of this process that accept connections: finds the one that a hello means.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ferry/transport/transport.hpp>

namespace ferry::inline v0::detail {

/// Thread-safe.
class acceptor_registry {
 public:
  /// Throws errc::duplicate_name if the group has such a worker in this process already.
  void add(const std::string& group, const std::string& name, std::shared_ptr<connection_acceptor> acceptor,
           const transport_options& options);
  /// Afterwards no call of the acceptor runs (except one that this thread itself is in) or begins. False if unknown.
  bool remove(const std::string& group, const std::string& name) noexcept;
  [[nodiscard]] bool empty() const;

  /// What the workers here want of a peer that means (group, target), before anything else of it is believed.
  struct demands {
    bool known = false;                ///< there is such a worker
    bool open = false;                 ///< it wants no proof
    std::vector<std::string> secrets;  ///< the peer must prove one of these
  };
  /// Of a worker that is not here, those of all others: a peer that belongs to one of them may be told so, no other.
  [[nodiscard]] demands demanded(const std::string& group, const std::string& target) const;

  struct greeting {
    hello_reply reply;
    transport_options options;   ///< the worker's
    std::uint64_t worker = 0;    ///< for deliver(): a worker may be replaced by another of its name
    std::shared_ptr<void> seat;  ///< among the connections of the worker; to be kept as long as the connection is open
  };
  /// Lets the worker that is meant decide on a peer that has proved `secret` (empty: nothing). Throws errc::unknown_worker if
  /// there is none, errc::authentication_failed if its secret is another one, errc::resource_exhausted if it has as many
  /// connections as it takes (only of a `seated` peer), or what the worker throws.
  greeting greet(const hello& from, const std::string& secret, bool seated = true);
  /// Gives an accepted connection to the worker that greeted; false if it has gone since.
  bool deliver(std::shared_ptr<connection> accepted, const hello& from, std::uint64_t worker) noexcept;

 private:
  struct entry {
    std::shared_ptr<connection_acceptor> acceptor;
    transport_options options;
    std::uint64_t serial = 0;
    int running = 0;
    std::shared_ptr<std::atomic<std::size_t>> seats = std::make_shared<std::atomic<std::size_t>>(0);
  };
  class call_scope;

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<entry>> entries_;
  std::uint64_t last_serial_ = 0;
};

}  // namespace ferry::inline v0::detail
