#include "held_output.hpp"

#include <utility>

#include "io_threads.hpp"

namespace ferry::inline v0::detail {

thread_local constinit const deferred_io* held_output::held_ = nullptr;
thread_local constinit bool held_output::ended_ = false;

struct held_output::keeper {
  std::weak_ptr<deferred_io> output;

  static keeper& of_thread() noexcept {
    thread_local keeper own;
    return own;
  }
  ~keeper() {
    release();
    ended_ = true;
  }
};

void held_output::keep(const std::shared_ptr<deferred_io>& output) noexcept {
  if (ended_) return output->flush();  // another object of the thread calls in its destructor
  keeper::of_thread().output = output;
  held_ = output.get();
}

// In a forked child the connection, and what it holds back, are the parent process's.
void held_output::write() noexcept {
  held_ = nullptr;
  if (is_forked_child()) return;
  const auto output = std::exchange(keeper::of_thread().output, {}).lock();
  if (!output) return;
  output->flush();
  output->resume_watching(true);  // another frame may have taken it along, whose sender reads no reply
}

}  // namespace ferry::inline v0::detail
