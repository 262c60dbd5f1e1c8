#pragma once

// A communicator of NCCL's that is made, used and given up by several threads.

#include <mutex>
#include <string>
#include <utility>

#include "nccl_library.hpp"

namespace ferry::inline v0::detail {

/// Does not block but for abort(). Thread-safe. NCCL may refer to it until abort() has returned: keep it as long.
class owned_communicator {
 public:
  explicit owned_communicator(const nccl_functions& library) noexcept : library_(library) {}
  ~owned_communicator() { abort(); }
  owned_communicator(const owned_communicator&) = delete;
  owned_communicator& operator=(const owned_communicator&) = delete;

  /// Begins to make it, on the current device; in_progress() says when it is made. Returns why it cannot be, else nothing. Call once.
  [[nodiscard]] std::string make(int members, const nccl_unique_id& id, int rank) noexcept;
  /// Whether what was begun last is still in progress; with an error in `text`, which is else left alone.
  [[nodiscard]] bool in_progress(std::string& text) noexcept;
  /// Calls start(communicator), which returns a result of NCCL's. Returns why that has not begun, else nothing.
  template <class Start>
  [[nodiscard]] std::string begin(const Start& start) {
    const std::lock_guard lock(mutex_);
    if (!usable_) return "it was given up";
    const int result = start(usable_);
    return is_begun(result) ? std::string() : text_of(result);
  }
  /// Ends what it has under way on the device. May take its time.
  void abort() noexcept;

  [[nodiscard]] static bool is_begun(int result) noexcept {
    return result == nccl_success || result == nccl_in_progress;
  }

 private:
  [[nodiscard]] std::string text_of(int result) const;

  const nccl_functions& library_;
  nccl_communicator* made_ = nullptr;  // NCCL writes and reads it while it makes the communicator
  std::mutex mutex_;                   // held around functions of NCCL but abort; guards the next two
  nccl_communicator* usable_ = nullptr;
  bool aborted_ = false;
};

}  // namespace ferry::inline v0::detail
