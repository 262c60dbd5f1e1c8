#pragma once

// The context values of the calling thread.

#include <utility>

#include <ferry/rpc/context_values.hpp>

namespace ferry::inline v0::detail {

struct thread_values {
  /// Puts `values` in force and returns the former ones.
  static context_values exchange(context_values values) noexcept {
    return context_values(ref_ptr<const value_map>::adopt(std::exchange(own, std::move(values.map_).detach())));
  }
  [[nodiscard]] static context_values get() noexcept { return context_values(ref_ptr<const value_map>::share(own)); }
  [[nodiscard]] static bool in_force(const context_values& values) noexcept { return own == values.map_.get(); }

  /// Owned: a thread has one reference. Null unless a scope gave it values, so that nothing is left at its end.
  static thread_local constinit const value_map* own;
};

/// Restores the values at its end, whatever was put in force meanwhile.
class values_restorer {
 public:
  values_restorer() noexcept : former_(thread_values::get()) {}
  values_restorer(const values_restorer&) = delete;
  values_restorer& operator=(const values_restorer&) = delete;
  ~values_restorer() { thread_values::exchange(std::move(former_)); }

 private:
  context_values former_;
};

}  // namespace ferry::inline v0::detail
