#include "held_output.hpp"

#include <utility>

#include "io_threads.hpp"

namespace ferry::inline v0::detail {

thread_local constinit const deferred_io* held_output::held_ = nullptr;

struct held_output::keeper {
  std::weak_ptr<deferred_io> output;

  static keeper& of_thread() noexcept {
    thread_local keeper own;
    return own;
  }
  ~keeper() { release(); }
};

void held_output::keep(const std::shared_ptr<deferred_io>& output) noexcept {
  keeper::of_thread().output = output;
  held_ = output.get();
}

// In a forked child the connection, and what it holds back, are the parent process's.
void held_output::write() noexcept {
  held_ = nullptr;
  if (is_forked_child()) return;
  if (const auto output = keeper::of_thread().output.lock()) output->flush();
}

}  // namespace ferry::inline v0::detail
