#include <utility>

#include "faulty_agent.hpp"

namespace ferry::inline v0::detail {

// Owned by the timer once it fires.
struct fault_engine::timer_work : work {
  std::weak_ptr<fault_engine> engine;
  std::uint64_t number = 0;
};

void fault_engine::throw_closed() const {
  throw_error(errc::shutting_down, to_string(inner_.self()) + " has been shut down");
}

std::uint64_t fault_engine::hold(deadline at, std::function<void()> then, const std::string& peer, int behind) {
  auto item = std::make_unique<timer_work>();
  item->engine = weak_from_this();
  item->run = [](work* self) noexcept {
    const std::unique_ptr<timer_work> owned(static_cast<timer_work*>(self));
    if (const auto engine = owned->engine.lock()) engine->release(owned->number);
  };
  std::lock_guard lock(mutex_);
  if (closed_) throw_closed();
  const std::uint64_t number = item->number = next_++;
  held& entry = held_[number];
  entry.then = std::move(then);
  entry.peer = peer;
  entry.behind = behind;
  try {
    entry.timer = inner_.reactor()->start_timer(at, item.get());
  } catch (...) {
    held_.erase(number);
    throw;
  }
  entry.item = item.release();
  return number;
}

void fault_engine::hold(const fault_rule& rule, const std::string& peer, std::function<void()> then) {
  const bool reorders = rule.action == fault_action::reorder;
  hold(deadline(clock::now() + rule.delay), std::move(then), peer, reorders ? rule.behind : 0);
}

void fault_engine::unhold(std::uint64_t number) noexcept {
  held dropped;
  std::lock_guard lock(mutex_);
  const auto found = held_.find(number);
  if (found == held_.end()) return;
  dropped = std::move(found->second);
  held_.erase(found);
  if (inner_.reactor()->cancel_timer(dropped.timer)) delete static_cast<timer_work*>(dropped.item);
}

void fault_engine::release(std::uint64_t number) noexcept {
  held entry;
  {
    std::lock_guard lock(mutex_);
    const auto found = held_.find(number);
    if (closed_ || found == held_.end()) return;
    entry = std::move(found->second);
    held_.erase(found);
    if (inner_.reactor()->cancel_timer(entry.timer)) delete static_cast<timer_work*>(entry.item);
    ++running_;
    ++releasing_;
  }
  entry.then();
  {
    std::lock_guard lock(mutex_);
    --releasing_;
  }
  inner_.activity_changed();  // it may no longer be busy, and is not closed yet
  std::lock_guard lock(mutex_);
  if (--running_ == 0) idle_.notify_all();
}

void fault_engine::passed(const std::string& peer) {
  std::vector<std::uint64_t> next;
  {
    std::lock_guard lock(mutex_);
    for (auto& [number, entry] : held_) {
      if (entry.behind != 0 && entry.peer == peer && --entry.behind == 0) next.push_back(number);
    }
  }
  for (const std::uint64_t number : next) release(number);
}

void fault_engine::enlist(const std::shared_ptr<faulty_call>& call) {
  std::lock_guard lock(mutex_);
  if (closed_) throw_closed();
  calls_.emplace(call.get(), call);
}

void fault_engine::delist(faulty_call& call) noexcept {
  std::shared_ptr<faulty_call> dropped;
  std::lock_guard lock(mutex_);
  const auto found = calls_.find(&call);
  if (found == calls_.end()) return;
  dropped = std::move(found->second);
  calls_.erase(found);
}

std::vector<open_call> fault_engine::open_calls(const std::vector<open_call>& inside) const {
  std::vector<std::shared_ptr<faulty_call>> calls;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [pointer, call] : calls_) calls.push_back(call);
  }
  std::vector<open_call> result;
  for (const auto& call : calls) result.push_back(call->describe(inside));
  return result;
}

bool fault_engine::busy() const noexcept {
  std::lock_guard lock(mutex_);
  return !held_.empty() || releasing_ != 0;
}

void fault_engine::on_cut(const std::string& peer) noexcept {
  std::vector<std::shared_ptr<faulty_call>> lost;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    for (const auto& [pointer, call] : calls_) {
      if (call->peer() == peer) lost.push_back(call);
    }
    ++running_;
  }
  for (const auto& call : lost) {
    call->fail(errc::peer_lost, call_phase::waiting_for_reply, "a fault injector cut the peer off");
  }
  std::lock_guard lock(mutex_);
  if (--running_ == 0) idle_.notify_all();
}

void fault_engine::stop() noexcept {
  std::map<std::uint64_t, held> dropped;
  std::unique_lock lock(mutex_);
  closed_ = true;
  dropped.swap(held_);
  for (auto& [number, entry] : dropped) {
    if (inner_.reactor()->cancel_timer(entry.timer)) delete static_cast<timer_work*>(entry.item);
  }
  idle_.wait(lock, [&] { return running_ == 0; });
}

void fault_engine::end_all_calls() noexcept {
  std::map<faulty_call*, std::shared_ptr<faulty_call>> calls;
  {
    std::lock_guard lock(mutex_);
    calls = calls_;
  }
  for (const auto& [pointer, call] : calls) {
    call->fail(errc::shutting_down, call_phase::connecting, "this worker was shut down");
  }
}

}  // namespace ferry::inline v0::detail
