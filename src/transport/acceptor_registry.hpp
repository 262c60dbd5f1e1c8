#pragma once

// The workers of this process that accept connections: finds the one that a hello means.

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

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

  struct greeting {
    hello_reply reply;
    transport_options options;  ///< the worker's
    std::uint64_t worker = 0;   ///< for deliver(): a worker may be replaced by another of its name
  };
  /// Lets the worker that is meant decide. Throws errc::unknown_worker if there is none, or what the worker throws.
  greeting greet(const hello& from);
  /// Gives an accepted connection to the worker that greeted; false if it has gone since.
  bool deliver(std::shared_ptr<connection> accepted, const hello& from, std::uint64_t worker) noexcept;

 private:
  struct entry {
    std::shared_ptr<connection_acceptor> acceptor;
    transport_options options;
    std::uint64_t serial = 0;
    int running = 0;
  };
  class call_scope;

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<entry>> entries_;
  std::uint64_t last_serial_ = 0;
};

}  // namespace ferry::inline v0::detail
