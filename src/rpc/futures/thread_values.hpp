#pragma once

// The call context, the context values and the coroutine of the calling thread.

#include <coroutine>
#include <utility>

#include <ferry/rpc/context_values.hpp>

namespace ferry::inline v0 {

class call_context;

namespace detail {

/// Together, so that entering and leaving a scope finds all of it by one access to thread-local memory.
struct thread_state {
  call_context* context;    // of the innermost context_scope; null: none
  const value_map* values;  // owned: a thread has one reference. Null unless a scope gave it values, so that nothing is
                            // left at its end
  void* coroutine;          // that run_coroutine() resumes; null: none
  std::coroutine_handle<> next;  // that it resumes next
};
extern thread_local constinit thread_state current_thread;
/// For functions that need it before and after they run other code: compilers would look it up again.
[[nodiscard, gnu::noinline]] thread_state& find_current_thread() noexcept;

struct thread_values {
  /// Puts `values` in force on the thread and returns the former ones.
  static context_values exchange(thread_state& thread, context_values values) noexcept {
    return context_values(
        ref_ptr<const value_map>::adopt(std::exchange(thread.values, std::move(values.map_).detach())));
  }
  [[nodiscard]] static context_values get(const thread_state& thread) noexcept {
    return context_values(ref_ptr<const value_map>::share(thread.values));
  }
  [[nodiscard]] static bool in_force(const thread_state& thread, const context_values& values) noexcept {
    return thread.values == values.map_.get();
  }
};

/// Restores the values of the calling thread at its end, whatever was put in force meanwhile.
class values_restorer {
 public:
  explicit values_restorer(thread_state& thread) noexcept : thread_(thread), former_(thread_values::get(thread)) {}
  values_restorer(const values_restorer&) = delete;
  values_restorer& operator=(const values_restorer&) = delete;
  ~values_restorer() { thread_values::exchange(thread_, std::move(former_)); }

 private:
  thread_state& thread_;
  context_values former_;
};

}  // namespace detail
}  // namespace ferry::inline v0
