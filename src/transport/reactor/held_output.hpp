#pragma once

// What the current thread holds back: see connection::send_with_next().

#include <memory>

#include <ferry/transport/reactor.hpp>

namespace ferry::inline v0::detail {

/// The connection on which this thread holds a message back, to write it together with its next one. At most one: its
/// thread releases it before it sends elsewhere, waits in ferry, ends an item of work, or ends. The monitor writes it in
/// any case at its next tick. All functions are about the calling thread.
class held_output {
 public:
  held_output() = delete;
  /// Call with no lock held.
  static void keep(const std::shared_ptr<deferred_io>& output) noexcept;
  /// That output has been written, or will be by the caller.
  static void forget(const deferred_io& output) noexcept {
    if (held_ == &output) held_ = nullptr;
  }
  /// Writes it. Call with no lock held.
  static void release() noexcept {
    if (held_) write();
  }
  /// The same, unless it is that one.
  static void release_other(const deferred_io& output) noexcept {
    if (held_ && held_ != &output) write();
  }

 private:
  struct keeper;
  static void write() noexcept;

  static thread_local constinit const deferred_io* held_;  // its address only
  static thread_local constinit bool ended_;               // the keeper of the thread
};

}  // namespace ferry::inline v0::detail
