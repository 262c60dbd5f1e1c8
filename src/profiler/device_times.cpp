#include "device_times.hpp"

#include <algorithm>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/log.hpp>
#include <ferry/base/work.hpp>
#include <ferry/rpc/call.hpp>
#include <ferry/rpc/named.hpp>

#include "../rpc/worker/worker_core.hpp"
#include "profile_batch.hpp"
#include "recording.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t most_kept_intervals = std::size_t{1} << 16U;
constexpr std::size_t most_tokens_of_call = std::size_t{1} << 14U;

// Between two rounds of questions.
constexpr std::chrono::microseconds first_device_pause{50};
constexpr std::chrono::microseconds longest_device_pause{2000};
constexpr std::chrono::milliseconds shortest_call{1};  // the last one, when the time is nearly over

struct kept_intervals {
  std::mutex mutex;
  std::deque<std::shared_ptr<device_interval>> all;
  // The token of the first: from a number of the process's own, so that another one that has taken its place knows none of them.
  std::uint64_t first = (std::uint64_t{std::random_device{}()} << 24U) + 1;
};
kept_intervals& intervals_of_process() {
  static auto* instance = new kept_intervals;  // handlers may run while the process exits
  return *instance;
}

const bool times_told_by_all = [] {
  add_library_methods({usable_method<named<"ferry/device_times", tell_device_times>>().id});
  return true;
}();

// The calls of this thread belong to no recording while it lives.
class unrecorded {
 public:
  unrecorded() : scope_(current_recording, recording_in_force(closed(), 0, -1)) {}

 private:
  static ref_ptr<recording> closed() {
    ref_ptr<recording> made = recording::make({.brief = true, .hides = true});
    (void)made->finish();
    return made;
  }
  context_value_scope scope_;
};

/// What one profile waits for.
class device_questions {
 public:
  device_questions(profiler::profile& of, std::vector<awaited_time> awaited) : awaited_(std::move(awaited)) {
    for (profiler::event& each : of.events) events_.emplace(each.number, &each);
  }
  [[nodiscard]] bool answered() const noexcept { return awaited_.empty(); }

  void ask_here() {
    std::erase_if(awaited_,
                  [this](const awaited_time& each) { return each.here && enter(each, each.here->length_ns()); });
  }

  void forget_others() {
    std::erase_if(awaited_, [](const awaited_time& each) { return !each.here; });
  }

  void ask_others(const std::shared_ptr<worker_core>& through, clock::time_point until) {
    std::map<std::int32_t, std::vector<std::uint64_t>> tokens;
    for (const awaited_time& each : awaited_) {
      if (std::vector<std::uint64_t>& of = tokens[each.node]; !each.here && of.size() != most_tokens_of_call)
        of.push_back(each.token);
    }
    std::erase_if(tokens, [](const auto& each) { return each.second.empty(); });
    std::map<std::int32_t, future<std::vector<std::int64_t>>> calls;
    for (const auto& [node, of] : tokens) {
      try {
        if (node == through->agent().self().id().value) {
          take_answers(node, of, tell_device_times(of));
        } else {
          constexpr auto method =
              resolve<named<"ferry/device_times", tell_device_times>, std::vector<std::uint64_t>>::function;
          const auto left = std::max<std::chrono::nanoseconds>(until - clock::now(), shortest_call);
          calls.emplace(node, call_async<method>(through, {worker_id{node}, {.timeout = left}}, of));
        }
      } catch (const std::exception& problem) {
        give_up(node, problem);
      }
    }
    for (auto& [node, call] : calls) {
      try {
        take_answers(node, tokens.at(node), call.get());
      } catch (const std::exception& problem) {
        give_up(node, problem);
      }
    }
  }

 private:
  // Whether there is nothing more to ask.
  bool enter(const awaited_time& each, std::int64_t time_ns) {
    if (time_ns == device_time_pending) return false;
    if (time_ns >= 0 && time_ns <= longest_profile_time)
      events_.at(each.event)->device_time = std::chrono::nanoseconds(time_ns);
    return true;
  }

  void take_answers(std::int32_t node, const std::vector<std::uint64_t>& tokens,
                    const std::vector<std::int64_t>& times) {
    std::size_t next = 0;  // they are in the order of the questions
    std::erase_if(awaited_, [&](const awaited_time& each) {
      if (each.here || each.node != node || next == tokens.size()) return false;
      const std::size_t place = next++;
      return place >= times.size() || enter(each, times[place]);
    });
  }

  void give_up(std::int32_t node, const std::exception& why) {
    log(log_level::debug, fmt::format("worker {} does not tell the times of its devices: {}", node, why.what()));
    std::erase_if(awaited_, [&](const awaited_time& each) { return !each.here && each.node == node; });
  }

  std::unordered_map<std::uint64_t, profiler::event*> events_;  // by number
  std::vector<awaited_time> awaited_;
};

}  // namespace

std::uint64_t keep_for_asking(std::shared_ptr<device_interval> which) {
  kept_intervals& kept = intervals_of_process();
  std::shared_ptr<device_interval> gone;  // destroyed without the lock
  const std::lock_guard lock(kept.mutex);
  kept.all.push_back(std::move(which));
  if (kept.all.size() > most_kept_intervals) {
    gone = std::move(kept.all.front());
    kept.all.pop_front();
    ++kept.first;
  }
  return kept.first + kept.all.size() - 1;
}

std::vector<std::int64_t> tell_device_times(const std::vector<std::uint64_t>& tokens) {
  std::vector<std::int64_t> times;
  times.reserve(tokens.size());
  kept_intervals& kept = intervals_of_process();
  for (const std::uint64_t each : tokens) {
    std::shared_ptr<device_interval> which;
    {
      const std::lock_guard lock(kept.mutex);
      const std::uint64_t place = each - kept.first;
      if (place < kept.all.size()) which = kept.all[static_cast<std::size_t>(place)];
    }
    times.push_back(which ? which->length_ns() : device_time_unknown);
  }
  return times;
}

void await_device_times(profiler::profile& of, std::vector<awaited_time> awaited,
                        const std::weak_ptr<worker_core>& through, std::chrono::nanoseconds limit) {
  device_questions left(of, std::move(awaited));
  if (left.answered()) return;
  const unrecorded scope;
  const auto began = clock::now();
  const auto until = limit < clock::time_point::max() - began ? began + limit : clock::time_point::max();
  std::chrono::nanoseconds pause = first_device_pause;
  for (;;) {
    left.ask_here();
    const std::shared_ptr<worker_core> asks = through.lock();
    if (!asks || asks->is_shut_down()) left.forget_others();
    if (asks && clock::now() < until) left.ask_others(asks, until);
    if (left.answered()) return;
    const auto now = clock::now();
    if (now >= until) return;
    const blocking_scope blocking;  // perhaps in a handler
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause, until - now));
    pause = std::min<std::chrono::nanoseconds>(2 * pause, longest_device_pause);
  }
}

}  // namespace ferry::inline v0::detail
