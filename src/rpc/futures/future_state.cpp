#include <ferry/rpc/detail/future_state.hpp>

#include <cassert>
#include <cstdint>
#include <optional>

#include <ferry/base/detail/futex.hpp>
#include <ferry/base/log.hpp>
#include <ferry/base/traced_range.hpp>

#include "../../transport/reactor/held_output.hpp"
#include "../../transport/reactor/io_threads.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr range_description future_wait{"future::wait", range_kind::wait};

// Marks a list that takes no more continuations. Only its address is used.
work closed_marker;

// Continuations without an executor run on the completing thread. In a long chain each would complete the next one and
// nest without bound, so beyond a certain depth they are queued behind the running ones.
constexpr unsigned max_inline_depth = 16;
struct inline_queue {
  unsigned depth = 0;
  work* head = nullptr;
  work* tail = nullptr;
};
thread_local constinit inline_queue queued;

void run_queued(inline_queue& queue) noexcept {
  while (work* item = queue.head) {
    queue.head = item->next;
    if (!queue.head) queue.tail = nullptr;
    item->run(item);
  }
}

void run_inline(work* item) noexcept {
  inline_queue& queue = queued;
  if (queue.depth == max_inline_depth) {
    item->next = nullptr;
    (queue.tail ? queue.tail->next : queue.head) = item;
    queue.tail = item;
    return;
  }
  ++queue.depth;
  item->run(item);
  if (queue.depth == 1) run_queued(queue);
  --queue.depth;
}

void enter(work* item) noexcept {
  auto* self = static_cast<continuation*>(item);
  // invoke() may free the node; keep its context alive for what runs after it.
  captured_context where = std::move(self->where);
  const context_scope scope(where.context.get(), std::move(where.values));
  self->invoke(self);
}

}  // namespace

void dispatch(continuation* item) noexcept {
  item->run = enter;
  if (item->where.context && item->where.context->executor()) {
    // The item may run and release the executor before post() has returned.
    const std::shared_ptr<executor> threads = item->where.context->executor();
    threads->post(item);
    return;
  }
  run_inline(item);
}

future_state_base::~future_state_base() {
  assert(continuations_.load(std::memory_order_relaxed) == nullptr ||
         continuations_.load(std::memory_order_relaxed) == &closed_marker);
}

bool future_state_base::help_wait(deadline) { return false; }

bool future_state_base::claim() noexcept {
  std::uint32_t status = status_.load(std::memory_order_relaxed);
  while ((status & phase_mask) == pending_phase) {
    if (status_.compare_exchange_weak(status, (status & ~phase_mask) | claimed_phase, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void future_state_base::publish(std::uint32_t status) noexcept {
  const std::uint32_t before = status_.exchange(status, std::memory_order_acq_rel);
  if ((before & waiting_bit) != 0) futex_wake_all(status_);
  work* newest = continuations_.exchange(&closed_marker, std::memory_order_acq_rel);
  work* oldest = nullptr;
  while (newest) {
    work* next = newest->next;
    newest->next = oldest;
    oldest = newest;
    newest = next;
  }
  while (oldest) {
    work* next = oldest->next;
    dispatch(static_cast<continuation*>(oldest));
    oldest = next;
  }
}

void future_state_base::publish_error(std::exception_ptr error, std::uint32_t extra_bits) noexcept {
  error_ = std::move(error);
  publish(error_phase | extra_bits);
}

bool future_state_base::try_set_error(std::exception_ptr error) noexcept {
  if (!claim()) return false;
  if (!error) error = make_error(errc::invalid_argument, "a future was completed with an empty std::exception_ptr");
  publish_error(std::move(error));
  return true;
}

void future_state_base::complete_cancelled(std::exception_ptr error) noexcept {
  if (!claim()) return;
  if (!error) error = make_error(errc::call_cancelled, "cancelled through future::cancel()");
  publish_error(std::move(error), cancelled_bit);
}

bool future_state_base::absorb_completion() noexcept {
  if (!cancelled()) return false;
  return (status_.fetch_or(absorbed_bit, std::memory_order_acq_rel) & absorbed_bit) == 0;
}

void future_state_base::let_streams_wait_in_order() const {
  if (!failed()) return order_->let_current_streams_wait();
  try {
    order_->let_current_streams_wait();
  } catch (const std::exception& problem) {  // the error of the future has priority
    log(log_level::warning, std::string("streams do not wait for what a call that failed has read: ") + problem.what());
  }
}

void future_state_base::mark_taken() {
  if ((status_.fetch_or(taken_bit, std::memory_order_acq_rel) & taken_bit) != 0) check_not_taken();
}

void future_state_base::check_not_taken() const {
  if ((status_.load(std::memory_order_acquire) & taken_bit) == 0) return;
  throw_error(errc::no_state,
              "the value of this future cannot be copied and was already moved out by an earlier get(); get it once");
}

bool future_state_base::try_attach(continuation* item) noexcept {
  work* head = continuations_.load(std::memory_order_acquire);
  do {
    if (head == &closed_marker) return false;
    item->next = head;
  } while (!continuations_.compare_exchange_weak(head, item, std::memory_order_release, std::memory_order_acquire));
  return true;
}

bool future_state_base::wait_slow(deadline until) {
  check_not_forked();  // no thread completes it here, and connections that would be read belong to the parent process
  run_queued(queued);  // the awaited item may be queued on this thread
  held_output::release();
  if (ready()) return true;
  std::optional<traced_range> waiting;
  if (ranges_watched() && !until.expired()) waiting.emplace(future_wait);
  help_wait(until);
  if (ready()) return true;
  if (until.expired()) return false;
  const blocking_scope blocking;
  for (;;) {
    const std::uint32_t status = status_.fetch_or(waiting_bit, std::memory_order_acq_rel) | waiting_bit;
    if ((status & complete_bit) != 0) return true;
    if (!futex_wait(status_, status, until)) return ready();
  }
}

}  // namespace ferry::inline v0::detail
