#pragma once

// The workers of this process that accept connections: finds the target of a hello.

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
  /// After it returns no call of the acceptor runs (except one that this thread itself is in) or begins. False if
  /// unknown.
  bool remove(const std::string& group, const std::string& name) noexcept;
  [[nodiscard]] bool empty() const;

  /// What the workers here demand of a peer that addresses (group, target), before anything else it says is trusted.
  struct demands {
    bool known = false;                ///< such a worker exists
    bool open = false;                 ///< it demands no proof
    std::vector<std::string> secrets;  ///< the peer must prove one of these
  };
  /// For an unknown worker, the secrets of all other workers: only a peer that proves one of them may be told that it
  /// is unknown.
  [[nodiscard]] demands demanded(const std::string& group, const std::string& target) const;

  /// Whether one of the workers expects peers from this IP address.
  [[nodiscard]] bool expects(const std::string& host) noexcept;

  struct admission {
    hello_reply reply;
    transport_options options;   ///< the worker's
    std::uint64_t worker = 0;    ///< for deliver(): a worker may be replaced by another of the same name
    std::shared_ptr<void> slot;  ///< one of the worker's connection slots; keep it while the connection is open
  };
  /// Lets the target worker decide on a peer that has proved `secret` (empty: none). Throws errc::unknown_worker if
  /// there is no such worker, errc::authentication_failed if its secret differs, errc::resource_exhausted if its
  /// connections have reached their limit (only for a `needs_slot` peer), or what the worker throws.
  admission admit(const hello& from, const std::string& secret, bool needs_slot = true);
  /// Gives an accepted connection to the worker that admitted it; false if it has been removed since.
  bool deliver(std::shared_ptr<connection> accepted, const hello& from, std::uint64_t worker) noexcept;

 private:
  struct entry {
    std::shared_ptr<connection_acceptor> acceptor;
    transport_options options;
    std::uint64_t serial = 0;
    int running = 0;
    std::shared_ptr<std::atomic<std::size_t>> slots = std::make_shared<std::atomic<std::size_t>>(0);
  };
  class call_scope;

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<entry>> entries_;
  std::uint64_t last_serial_ = 0;
};

}  // namespace ferry::inline v0::detail
