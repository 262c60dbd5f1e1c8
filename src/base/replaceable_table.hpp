#pragma once

#include <atomic>

namespace ferry::inline v0::detail {

/// A table of functions that is linked in, or replaced by a fake in tests. Reading is thread-safe and lock-free.
template <class Table, const Table* (*Linked)() noexcept>
class replaceable_table {
 public:
  /// Call it before any other use of ferry; cannot be undone. Null: there is no table.
  void replace(const Table* table) noexcept {
    replacement_.store(table, std::memory_order_relaxed);
    replaced_.store(true, std::memory_order_release);
  }
  /// Null if there is none.
  [[nodiscard]] const Table* in_use() const noexcept {
    return replaced_.load(std::memory_order_acquire) ? replacement_.load(std::memory_order_relaxed) : Linked();
  }

 private:
  std::atomic<bool> replaced_{false};
  std::atomic<const Table*> replacement_{nullptr};
};

}  // namespace ferry::inline v0::detail
