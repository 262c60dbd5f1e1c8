#pragma once

// The observers of a worker: accepted connections that only ask.

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include <ferry/transport/transport.hpp>

#include "../own_worker.hpp"

namespace ferry::inline v0::detail {

class observer_link;

/// Thread-safe. Lives as long as own_worker::keep_alive() keeps it, which its links hold.
class observer_links {
 public:
  explicit observer_links(const own_worker& own) noexcept : own_(own) {}
  observer_links(const observer_links&) = delete;
  observer_links& operator=(const observer_links&) = delete;

  /// Throws errc::resource_exhausted if rpc_options::max_observers are connected.
  void check_room() const;
  /// Takes the connection of an observer whose hello was welcome.
  void accept(std::shared_ptr<connection> opened) noexcept;
  /// Closes all connections, and waits for their end. No question reaches the worker's handler any more.
  void close(const std::exception_ptr& reason) noexcept;

 private:
  friend class observer_link;
  void remove(const observer_link& which) noexcept;
  void check_room_locked() const;

  const own_worker& own_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable ended_;
  bool closed_ = false;
  std::vector<std::shared_ptr<observer_link>> links_;
};

}  // namespace ferry::inline v0::detail
