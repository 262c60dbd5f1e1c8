#include <ferry/profiler/group_recording.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <thread>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/profiler/process_scope.hpp>
#include <ferry/wire/limits.hpp>

#include "profile_archive.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

constexpr std::size_t most_asking_threads = 32;

struct recorded_worker {
  observed_worker who;
  observed_clock clock;
  std::optional<profiler::profile> found;
  std::string why;  // not
};

// Each of them, on several threads at once; an error is the reason why one is missing.
void for_each_worker(std::vector<recorded_worker>& all, const std::function<void(recorded_worker&)>& what) {
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i != std::min(most_asking_threads, all.size()); ++i) {
    threads.emplace_back([&] {
      for (std::size_t at = next++; at < all.size(); at = next++) {
        recorded_worker& each = all[at];
        if (!each.why.empty()) continue;
        try {
          what(each);
        } catch (const std::exception& e) {
          each.why = e.what();
        }
      }
    });
  }
}

}  // namespace
}  // namespace detail

namespace profiler {

group_recording record_group(group_observer& group, std::chrono::nanoseconds length, const options& how) {
  using detail::recorded_worker;
  const std::string argument = fmt::format("{} {} {} {}", how.shapes ? 1 : 0, how.memory ? 1 : 0,
                                           how.device_times ? 1 : 0, how.events_per_thread);
  std::vector<recorded_worker> all;
  for (observed_worker& each : group.workers()) {
    recorded_worker& one = all.emplace_back();
    one.why = each.lost.empty() ? std::string() : "lost: " + each.lost;
    one.who = std::move(each);
  }
  // A process is recorded as a whole.
  std::vector<std::uint64_t> processes(all.size(), 0);
  detail::for_each_worker(all, [&](recorded_worker& each) {
    processes[static_cast<std::size_t>(&each - all.data())] = group.snapshot(each.who, false).process_mark;
  });
  std::set<std::uint64_t> known;
  std::vector<recorded_worker> chosen;
  for (std::size_t i = 0; i != all.size(); ++i) {
    if (!all[i].why.empty() || processes[i] == 0 || known.insert(processes[i]).second)
      chosen.push_back(std::move(all[i]));
  }
  detail::for_each_worker(chosen, [&](recorded_worker& each) {
    each.clock = group.clock_of(each.who);
    (void)group.ask(each.who, "begin recording", argument);
  });
  std::this_thread::sleep_for(length);
  detail::for_each_worker(chosen, [&](recorded_worker& each) {
    const std::string bytes = group.ask(each.who, "end recording");
    profile found = detail::decode_profile(std::as_bytes(std::span(bytes)), wire_limits{});
    if (found.node != each.who.who.id().value) {
      throw_error(errc::malformed, fmt::format("it has sent the profile of worker {}", found.node));
    }
    each.found = std::move(found);
  });

  group_recording result;
  std::vector<profile> profiles;
  std::vector<clock_offset> clocks;
  const recorded_worker* first = nullptr;
  for (recorded_worker& each : chosen) {
    if (!each.found) {
      result.missing.emplace_back(each.who.who, each.why);
      continue;
    }
    if (!first) {
      first = &each;
    } else {
      clocks.push_back({.node = each.found->node,
                        .offset_ns = (each.clock.offset - first->clock.offset).count(),
                        .uncertainty_ns = (each.clock.uncertainty + first->clock.uncertainty).count(),
                        .calls = 0});
    }
    profiles.push_back(std::move(*each.found));
  }
  if (first) result.merged = merged_group(std::move(profiles), clocks);
  return result;
}

}  // namespace profiler
}  // namespace ferry::inline v0
