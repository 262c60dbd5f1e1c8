// The record of a profile in a reply: events of a callee, and times of its devices. Input: its content.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include <ferry/profiler/html_page.hpp>
#include <ferry/profiler/report.hpp>

#include "profiler/profile_batch.hpp"
#include "profiler/recording.hpp"
#include "targets.hpp"

namespace fuzz {
namespace profile_record_target {
namespace {

using ferry::range_kind;
using ferry::detail::decode_profile_batch;
using ferry::detail::encode_profile_batch;
using ferry::detail::profile_batch;
using ferry::detail::told_device_time;

constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();
constexpr ferry::range_description a_call{"rpc_sync#f(a -> b)", range_kind::call};

void check(const profile_batch& batch) {
  require(!batch.brief || (batch.events.size() == 1 && batch.events[0].kind == range_kind::handler),
          "a brief answer tells of a handler");
  std::size_t least = 0;
  for (const told_device_time& each : batch.device_times) {
    require(each.event >= least && each.event < batch.events.size(),
            "times of devices are in the order of their events");
    require(batch.events[each.event].kind == range_kind::operation, "they are those of operations");
    require(each.on.index >= 0, "a device has a number");
    require(each.time_ns >= ferry::detail::device_time_unknown && each.time_ns <= ferry::detail::longest_profile_time,
            "a time is one, or says that it is none");
    least = each.event + 1;
  }
}

// What a session makes of it.
void merge(bytes content) {
  const auto to = ferry::detail::recording::make({.wishes = {.device_times = true}, .events_per_thread = 1, .node = 0});
  to->add_reply(to->begin(), a_call, 0, 1, 1, content);
  std::vector<ferry::detail::awaited_time> awaited;
  const ferry::profiler::profile found = to->finish(&awaited);
  for (const auto& each : awaited) {
    const ferry::profiler::event* of = found.find(each.event);
    require(of && of->device && !of->device_time, "a time that is awaited is that of an event that has none yet");
  }
  // Reports take whatever a peer says.
  (void)ferry::profiler::table(found);
  (void)ferry::profiler::html_page(found, {.largest_uncertainty = std::chrono::nanoseconds::max()});
  (void)ferry::profiler::chrome_trace(found, {.largest_uncertainty = std::chrono::nanoseconds::max()});
}

void run(bytes input) {
  const std::uint64_t told = ferry::detail::events_in_batch(input);
  accepted([&] {
    const profile_batch batch = decode_profile_batch(input);
    require(told >= batch.events.size(), "the number of events is known without reading them");
    check(batch);
    const ferry::byte_buffer again = encode_profile_batch(batch, no_limit);
    const ferry::byte_buffer twice = encode_profile_batch(decode_profile_batch(again.bytes()), no_limit);
    require(same(again.bytes(), twice.bytes()), "a record that was read and written stays as it is");
    const ferry::byte_buffer half = encode_profile_batch(batch, again.size() / 2);
    check(decode_profile_batch(half.bytes()));
    merge(input);
  });
}

void seeds(const seed_sink& sink) {
  const auto add = [&](std::string_view name, const profile_batch& batch) {
    sink(name, encode_profile_batch(batch, no_limit).bytes());
  };
  profile_batch batch;
  batch.node = 1;
  batch.received_ns = 1000;
  batch.answered_ns = 9000;
  add("nothing", batch);
  const auto event = [&](std::string_view name, range_kind kind, std::uint64_t number, std::uint64_t parent) {
    ferry::profiler::event& made = batch.events.emplace_back();
    made.name = name;
    made.kind = kind;
    made.node = 1;
    made.number = number;
    made.parent = parent;
    made.began_ns = 2000;
    made.ended_ns = 3000;
  };
  event("f", range_kind::handler, 1, 0);
  event("add", range_kind::operation, 2, 1);
  event("mul", range_kind::operation, 3, 1);
  batch.events[0].failed = true;
  batch.events[0].error = "why";
  batch.events[1].shapes = "[[2, 3]]";
  batch.events[1].bytes = 24;
  add("events", batch);
  batch.device_times = {{1, {ferry::device_kind::cuda, 1}, 500, 0},
                        {2, {ferry::device_kind::cuda, 0}, ferry::detail::device_time_pending, 7}};
  add("times-of-devices", batch);
  batch.device_times.erase(batch.device_times.begin());
  batch.device_times[0].time_ns = ferry::detail::device_time_unknown;
  batch.lost = ~std::uint64_t{0};
  add("one-without-time", batch);
  const auto brief = [&](std::string_view name, std::int64_t received_ns) {
    const auto content = ferry::detail::encode_brief_answer(
        {.received_ns = received_ns, .queued_ns = 20, .ran_ns = 300, .answered_ns = 4000, .thread = 77});
    sink(name, content);
  };
  brief("brief", 1000);
  brief("brief-long-ago", -ferry::detail::longest_profile_time);
}

}  // namespace
}  // namespace profile_record_target

const target profile_record{"profile_record", &profile_record_target::run, &profile_record_target::seeds};

}  // namespace fuzz
