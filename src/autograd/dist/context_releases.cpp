// How contexts end at the workers that have them: by what requests say anyway, and by messages where none comes in time.

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/rpc/call.hpp>
#include <ferry/rpc/named.hpp>

#include "../../rpc/worker/worker_core.hpp"
#include "dist_pass.hpp"
#include "dist_worker.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr int release_attempts = 20;
// Long beside the calls of a loop that makes one context after the other, short for memory that nothing uses.
constexpr std::chrono::milliseconds release_pause{5};
// How long a worker that leaves waits for workers that have yet to hear what it owes them.
constexpr std::chrono::seconds last_releases_limit{2};

}  // namespace

// One message that is under way, or is sent again.
struct dist_worker::release_under_way {
  explicit release_under_way(std::shared_ptr<dist_worker> by) : sender(std::move(by)) {}
  release_under_way(const release_under_way&) = delete;
  release_under_way& operator=(const release_under_way&) = delete;
  ~release_under_way() {
    const std::lock_guard lock(sender->mutex_);
    if (--sender->releases_under_way_ == 0) sender->all_told_.notify_all();
  }
  const std::shared_ptr<dist_worker> sender;
};

// ---------------------------------------------------------------- what this worker knows

bool dist_worker::is_over(std::uint64_t context) const {
  const auto next = over_.upper_bound(context);
  return next != over_.begin() && std::prev(next)->second.contains(context);
}

std::uint64_t dist_worker::first_context() const { return ids_of(known_info().id()) | first_number_; }

std::uint64_t dist_worker::oldest_kept() const {
  const auto first = contexts_.lower_bound(ids_of(known_info().id()));
  const bool own = first != contexts_.end() && sender_of(first->first) == info_.id();
  return own ? first->first : ids_of(info_.id()) | next_context_;
}

void dist_worker::end_context(const std::shared_ptr<dist_context>& which) noexcept {
  release_message what;
  {
    const std::lock_guard lock(mutex_);
    contexts_.erase(which->id().value);
    what = {which->id().value, first_context(), oldest_kept()};
  }
  const bool ends_pass = which->running_pass() != nullptr;
  const std::vector<worker_id> whom = which->release();
  ends_pass ? tell_release(whom, what) : owe_release(whom, what);
}

// A maker has one incarnation at a time, and messages of a former one may still come: of more, which it cannot have, the oldest is
// forgotten, and with it that its contexts are over.
dist_worker::over& dist_worker::over_of(std::uint64_t first) {
  const std::uint64_t maker = ids_of(sender_of(first));
  const std::uint64_t next_maker = ids_of({sender_of(first).value + 1});
  const auto begin = over_.lower_bound(maker);
  const auto end = over_.lower_bound(next_maker);
  if (static_cast<std::size_t>(std::distance(begin, end)) >= most_incarnations && !over_.contains(first)) {
    const auto oldest =
        std::min_element(begin, end, [](const auto& a, const auto& b) { return a.second.told < b.second.told; });
    over_.erase(oldest);
  }
  over& its = over_[first];
  its.told = ++releases_;
  return its;
}

void dist_worker::check_over(std::uint64_t context, const contexts_over& told) {
  const worker_id maker = sender_of(context);
  if (sender_of(told.first) != maker || sender_of(told.oldest_kept) != maker ||
      told.first > std::min(context, told.oldest_kept)) {
    throw_error(errc::malformed, fmt::format("a message of context {} names contexts that its maker cannot have made",
                                             to_string(dist_autograd::context_id{context})));
  }
}

std::vector<std::shared_ptr<dist_context>> dist_worker::take_over(const release_message& told) {
  const worker_id maker = sender_of(told.first);
  std::vector<std::shared_ptr<dist_context>> ended;
  const std::lock_guard lock(mutex_);
  if (closed_ || maker == known_info().id() || gone_.contains(maker)) return ended;
  over& its = over_of(told.first);
  const auto of_maker = [&](const auto& entry) { return sender_of(entry.first) == maker; };
  ended.reserve(static_cast<std::size_t>(
      std::distance(contexts_.lower_bound(told.first),
                    std::find_if_not(contexts_.lower_bound(told.first), contexts_.end(), of_maker))));
  if (told.context >= std::max(its.below, told.oldest_kept)) its.others.insert(told.context);
  its.below = std::max(its.below, told.oldest_kept);  // nothing is thrown from here on
  its.others.erase(its.others.begin(), its.others.lower_bound(its.below));
  if (its.others.size() > most_over) its.others.erase(its.others.begin());
  for (auto each = contexts_.lower_bound(told.first); each != contexts_.end() && sender_of(each->first) == maker;) {
    if (!its.contains(each->first)) {
      ++each;
      continue;
    }
    ended.push_back(std::move(each->second));
    each = contexts_.erase(each);
  }
  return ended;
}

void dist_worker::on_release(const release_message& told) {
  check_over(told.context, {told.first, told.oldest_kept});
  for (const auto& each : take_over(told))
    tell_release(each->release(), {each->id().value, told.first, told.oldest_kept});
}

// ---------------------------------------------------------------- the same, with requests

void dist_worker::note_over(autograd_record& record) const {
  const worker_id maker = sender_of(record.context);
  const std::lock_guard lock(mutex_);
  if (maker == known_info().id()) {
    record.over = {first_context(), oldest_kept()};
    return;
  }
  auto its = over_.upper_bound(record.context);
  if (its == over_.begin()) return;
  --its;
  if (sender_of(its->first) == maker && its->second.below != 0) record.over = {its->first, its->second.below};
}

void dist_worker::on_over(const contexts_over& told) noexcept {
  if (told.first == told.oldest_kept) return;  // none
  auto problem = caught([&] {
    {
      const std::lock_guard lock(mutex_);
      const auto known = over_.find(told.first);
      if (known != over_.end() && known->second.below >= told.oldest_kept) return;
    }
    // A context of that number was never made here, or is over like the others.
    std::vector<std::shared_ptr<dist_context>> over = take_over({told.first, told.first, told.oldest_kept});
    const auto ends_pass = [](const auto& each) { return each->running_pass() != nullptr; };
    if (std::any_of(over.begin(), over.end(), ends_pass)) {  // that runs users' continuations: on a handler thread
      struct end_of_passes final : work {
        std::shared_ptr<dist_worker> of;
        std::vector<std::shared_ptr<dist_context>> over;
        contexts_over told;
        std::shared_ptr<release_under_way> counted;
      };
      auto item = std::make_unique<end_of_passes>();
      item->of = shared_from_this();
      item->over = std::move(over);
      item->told = told;
      {
        const std::lock_guard lock(mutex_);
        item->counted = count_release();
      }
      item->run = [](work* self) noexcept {
        const std::unique_ptr<end_of_passes> own(static_cast<end_of_passes*>(self));
        for (const auto& each : own->over)
          own->of->tell_release(each->release(), {each->id().value, own->told.first, own->told.oldest_kept});
      };
      return core()->post(item.release());
    }
    for (const auto& each : over) owe_release(each->release(), {each->id().value, told.first, told.oldest_kept});
  });
  if (problem) log(log_level::info, "contexts that are over stay for now: " + describe_exception(problem));
}

// ---------------------------------------------------------------- messages where no request comes

void dist_worker::heard_there(worker_id whom, const contexts_over& told) noexcept {
  const std::lock_guard lock(mutex_);
  const auto owed = owed_.find(whom);
  if (owed == owed_.end()) return;
  std::erase_if(owed->second, [&](const owed_release& each) { return told.contains(each.what.context); });
}

void dist_worker::owe_release(const std::vector<worker_id>& whom, const release_message& what) noexcept {
  const worker_id maker = sender_of(what.context);
  bool starts = false;
  auto problem = caught([&] {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    for (const worker_id each : whom) {
      if (each == known_info().id() || each == maker) continue;
      owed_[each].push_back({what, release_tick_});
      starts = starts || !std::exchange(release_ticks_, true);
    }
  });
  if (problem) return tell_release(whom, what);  // some of them twice
  if (starts) start_release_timer();
}

void dist_worker::start_release_timer() noexcept {
  auto problem = caught([&] {
    const auto due = [weakly = weak_from_this()] {
      const auto own = weakly.lock();
      if (!own) return;
      struct round final : work {
        std::shared_ptr<dist_worker> of;
      };
      const auto problem = caught([&] {
        auto item = std::make_unique<round>();
        item->of = own;
        item->run = [](work* self) noexcept {
          std::unique_ptr<round>(static_cast<round*>(self))->of->tell_owed(false);
        };
        own->core()->post(item.release());
      });
      if (problem) own->stop_release_timer();  // the next one that is owed starts it again
    };
    release_timer_.start(core()->agent().reactor(), deadline::after(release_pause), due);
  });
  if (problem) tell_owed(true);
}

// Those that were owed before the last round, or all. Goes on as long as some are left.
void dist_worker::tell_owed(bool all) noexcept {
  struct message {
    worker_id whom;
    release_message what;
    std::shared_ptr<release_under_way> counted;  // from when it is owed no more
  };
  std::vector<message> due;  // outlives the lock
  bool goes_on = false;
  auto problem = caught([&] {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    due.reserve(std::accumulate(owed_.begin(), owed_.end(), std::size_t{0},
                                [](std::size_t sum, const auto& owed) { return sum + owed.second.size(); }));
    for (auto& [whom, owed] : owed_) {
      const auto late = [&](const owed_release& each) { return all || each.since < release_tick_; };
      std::map<std::uint64_t, std::uint64_t> below;  // by incarnation of the maker: one message says it of all of these
      for (const owed_release& each : owed) {
        if (late(each)) below[each.what.first] = std::max(below[each.what.first], each.what.oldest_kept);
      }
      std::set<std::uint64_t> said;
      for (const owed_release& each : owed) {
        if (!late(each)) continue;
        release_message what = each.what;
        what.oldest_kept = below[what.first];
        if (what.context < what.oldest_kept && !said.insert(what.first).second) continue;
        due.push_back({whom, what, count_release()});
      }
      std::erase_if(owed, late);
      goes_on = goes_on || !owed.empty();
    }
    ++release_tick_;
    release_ticks_ = goes_on;
  });
  for (message& each : due) send_release(each.whom, each.what, release_attempts, std::move(each.counted));
  if (problem) {
    log(log_level::info, "workers do not hear that contexts are over: " + describe_exception(problem));
    stop_release_timer();
  }
  if (goes_on) start_release_timer();
}

void dist_worker::stop_release_timer() noexcept {
  const std::lock_guard lock(mutex_);
  release_ticks_ = false;
}

void dist_worker::tell_release(const std::vector<worker_id>& whom, const release_message& what) noexcept {
  const worker_id maker = sender_of(what.context);
  for (const worker_id each : whom) {
    if (each == id() || each == maker) continue;
    send_release(each, what, release_attempts);
  }
}

std::shared_ptr<dist_worker::release_under_way> dist_worker::count_release() {
  auto counted = std::make_shared<release_under_way>(shared_from_this());
  ++releases_under_way_;
  return counted;
}

// In the background. The answer tells whether it was received.
void dist_worker::send_release(worker_id whom, const release_message& what, int attempts_left,
                               std::shared_ptr<release_under_way> counted) noexcept {
  const auto failed = [whom, what](const std::exception_ptr& error) {
    log(log_level::info, fmt::format("worker {} does not hear that context {} is over: {}", whom.value,
                                     to_string(dist_autograd::context_id{what.context}), describe_exception(error)));
  };
  auto problem = caught([&] {
    std::shared_ptr<worker_core> worker;
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      worker = core_.shared_from_this();
      if (!counted) counted = count_release();
    }
    // Not bound by the handler that ends the context or passes its end on, which may be over.
    const context_ptr background(new call_context(worker));
    const context_scope outside(background);
    const future<void> call =
        call_unhurried<named<"ferry/autograd/release", serve_release>>(std::move(worker), whom, what);
    const auto again = [counted, whom, what, attempts_left, failed](const future<void>& answer) {
      try {
        std::rethrow_exception(answer.error());
      } catch (const peer_lost&) {
        return;  // with all that it had
      } catch (const error& e) {
        const errc code = e.kind();
        const bool in_vain = code == errc::unknown_worker || code == errc::not_initialized || code == errc::fenced ||
                             code == errc::shutting_down || code == errc::unknown_method;
        if (!in_vain && attempts_left > 1) return counted->sender->send_release(whom, what, attempts_left - 1, counted);
      } catch (...) {  // NOLINT(bugprone-empty-catch): reported below
      }
      failed(answer.error());
    };
    // No thread is woken up to hear that all is well.
    add_inline_callback(call, [again, background](const future<void>& answer) {
      if (!answer.failed()) return;
      const context_scope there(background);
      answer.add_done_callback(again);
    });
  });
  if (!problem) return;
  // Not sent at all, as a fault injector does.
  if (attempts_left > 1) {
    try {
      std::rethrow_exception(problem);
    } catch (const error& e) {
      const errc code = e.kind();
      if (code == errc::injected_failure || code == errc::connection_lost)
        return send_release(whom, what, attempts_left - 1, std::move(counted));
    } catch (...) {  // NOLINT(bugprone-empty-catch): reported below
    }
  }
  failed(problem);
}

// ---------------------------------------------------------------- leaving

// A worker that leaves a group in which others stay tells them what it owes them: its own contexts end with it, those of others do not.
std::uint64_t dist_worker::loose_ends() const noexcept {
  const std::lock_guard lock(mutex_);
  std::uint64_t sum = releases_under_way_;
  for (const auto& [whom, owed] : owed_) sum += owed.size();
  return sum;
}

void dist_worker::on_group_quiet(deadline until, bool alone) noexcept {
  deadline limit = deadline::after(last_releases_limit);
  if (!until.is_never()) limit = std::min(limit, deadline::after(until.remaining() / 2));
  const blocking_scope blocking;
  {
    const std::lock_guard lock(mutex_);
    if (stop_waiting_ || limit.expired()) return;
  }
  tell_owed(true);
  if (!alone) return;  // the group waits for calls that are under way
  std::unique_lock lock(mutex_);
  (void)all_told_.wait_until(lock, limit.at(), [&] { return releases_under_way_ == 0 || stop_waiting_; });
}

void dist_worker::stop_waiting(bool entirely) noexcept {
  if (!entirely) return;
  const std::lock_guard lock(mutex_);
  stop_waiting_ = true;
  all_told_.notify_all();
}

}  // namespace ferry::inline v0::detail
