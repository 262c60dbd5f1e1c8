#include "late_calls.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ferry/base/log.hpp>
#include <ferry/rpc/detail/incoming_call.hpp>

#include "../worker/worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {

// Many calls may end one after the other, and each look visits all that are served.
constexpr std::chrono::milliseconds between_looks{20};

}  // namespace

struct late_calls::look_item : work {
  std::weak_ptr<worker_core> worker;
};

void late_calls::watch(deadline until) noexcept {
  // In one order with look(): it sees the call, or this sees that the timer is not set.
  if (until.is_never() || next_.load() <= until.at()) return;
  const std::lock_guard lock(mutex_);
  if (closed_ || next_.load() <= until.at()) return;
  try {
    set_timer(until.at());
  } catch (const std::exception& problem) {
    log(log_level::error,
        std::string("a call whose handler returned a future ends only when its caller cancels it: ") + problem.what());
  }
}

void late_calls::set_timer(clock::time_point at) {
  auto fresh = std::make_unique<look_item>();
  fresh->worker = worker_.weak_from_this();
  fresh->run = [](work* self) noexcept {
    const std::unique_ptr<look_item> fired(static_cast<look_item*>(self));
    if (const auto worker = fired->worker.lock()) worker->late_calls().look(fired.get());
  };
  reactor& loop = *worker_.agent_unchecked().reactor();
  const timer_id timer = loop.start_timer(deadline(at), fresh.get());
  look_item* const before = std::exchange(item_, fresh.release());
  if (before && loop.cancel_timer(timer_)) delete before;
  timer_ = timer;
  next_.store(at);
}

void late_calls::look(const work* fired) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (fired != item_) return;  // replaced while it was on its way to a thread
    item_ = nullptr;
    next_.store(clock::time_point::max());
  }
  const auto now = clock::now();
  auto next = clock::time_point::max();
  std::vector<incoming_call*> expired;
  try {
    worker_.agent_unchecked().inspection().visit_requests([&](const worker_info&, std::uint64_t, stoppable& running) {
      auto& call = static_cast<incoming_call&>(running);  // channels carry no others
      const deadline until = static_cast<const call_context&>(call).deadline();
      if (until.is_never() || !call.answers_later()) return;
      if (until.at() > now) {
        next = std::min(next, until.at());
        return;
      }
      expired.push_back(&call);
      call.add_reference();
    });
  } catch (const std::exception&) {  // no memory for all of them: the next look has the others
    next = now;
  }
  for (incoming_call* call : expired) {
    call->request_stop();
    call->drop_reference();
  }
  if (next != clock::time_point::max()) watch(deadline(std::max(next, clock::now() + between_looks)));
}

void late_calls::close() noexcept {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  look_item* const before = std::exchange(item_, nullptr);
  if (before && worker_.agent_unchecked().reactor()->cancel_timer(timer_)) delete before;
}

}  // namespace ferry::inline v0::detail
