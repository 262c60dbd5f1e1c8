#pragma once

// What interceptors keep of one call at its caller. Internal.

#include <memory>
#include <utility>

namespace ferry::inline v0 {

class caller_hooks;

namespace detail {

/// In the order of their interceptors. A list through the hooks themselves, so that one more takes no memory. Not thread-safe.
class kept_hooks {
 public:
  kept_hooks() noexcept = default;
  kept_hooks(kept_hooks&& other) noexcept
      : first_(std::exchange(other.first_, nullptr)), last_(std::exchange(other.last_, nullptr)) {}
  kept_hooks& operator=(kept_hooks&&) = delete;
  ~kept_hooks() {
    if (!empty()) clear();
  }

  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
  /// Behind all others.
  void add(std::unique_ptr<caller_hooks> hooks) noexcept;
  void clear() noexcept;

  // Null: there are none, or no more.
  [[nodiscard]] caller_hooks* first() const noexcept { return first_; }
  [[nodiscard]] caller_hooks* last() const noexcept { return last_; }
  [[nodiscard]] static caller_hooks* after(const caller_hooks& one) noexcept;
  [[nodiscard]] static caller_hooks* before(const caller_hooks& one) noexcept;

 private:
  caller_hooks* first_ = nullptr;  // owned, as are those behind it
  caller_hooks* last_ = nullptr;
};

}  // namespace detail
}  // namespace ferry::inline v0
