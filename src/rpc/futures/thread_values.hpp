#pragma once

// The call context and the context values of the calling thread.

#include <utility>

#include <ferry/rpc/context_values.hpp>

namespace ferry::inline v0 {

class call_context;

namespace detail {

/// Together, so that entering and leaving a scope finds both by one access to thread-local memory.
struct thread_state {
  call_context* context;    // of the innermost context_scope; null: none
  const value_map* values;  // owned: a thread has one reference. Null unless a scope gave it values, so that nothing is
                            // left at its end
};
extern thread_local constinit thread_state current_thread;

struct thread_values {
  /// Puts `values` in force and returns the former ones.
  static context_values exchange(context_values values) noexcept {
    return context_values(
        ref_ptr<const value_map>::adopt(std::exchange(current_thread.values, std::move(values.map_).detach())));
  }
  [[nodiscard]] static context_values get() noexcept {
    return context_values(ref_ptr<const value_map>::share(current_thread.values));
  }
  [[nodiscard]] static bool in_force(const context_values& values) noexcept {
    return current_thread.values == values.map_.get();
  }
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

}  // namespace detail
}  // namespace ferry::inline v0
