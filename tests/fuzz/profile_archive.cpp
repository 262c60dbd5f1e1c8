// A profile as bytes, as tools get it from each worker of a group, and what they make of it. Input: the bytes.

#include <chrono>
#include <cstdint>
#include <string_view>

#include <ferry/profiler/html_page.hpp>
#include <ferry/profiler/process_scope.hpp>
#include <ferry/profiler/report.hpp>

#include "profiler/profile_archive.hpp"
#include "targets.hpp"

namespace fuzz {
namespace profile_archive_target {
namespace {

using ferry::range_kind;
using ferry::detail::decode_profile;
using ferry::detail::encode_profile;
using ferry::profiler::profile;

void report(const profile& of) {
  (void)ferry::profiler::table(of);
  (void)ferry::profiler::html_page(of, {.largest_uncertainty = std::chrono::nanoseconds::max()});
  (void)ferry::profiler::chrome_trace(of, {.largest_uncertainty = std::chrono::nanoseconds::max()});
}

void run(bytes input) {
  accepted([&] {
    const profile found = decode_profile(input, {});
    const ferry::byte_buffer again = encode_profile(found);
    const ferry::byte_buffer twice = encode_profile(decode_profile(again.bytes(), {}));
    require(same(again.bytes(), twice.bytes()), "a profile that was read and written stays as it is");
    profile other = found;
    other.node = found.node == 1 ? 2 : 1;
    const profile both = ferry::profiler::merged_group(
        {found, other}, {{.node = other.node, .offset_ns = -1000, .uncertainty_ns = 10, .calls = 1}});
    require(both.events.size() <= 2 * found.events.size(), "merging makes no events");
    report(both);
  });
}

void seeds(const seed_sink& sink) {
  profile made;
  made.node = 0;
  sink("nothing", encode_profile(made).bytes());
  made.workers = {"first", "second"};
  made.clocks.push_back({.node = 1, .offset_ns = 40, .uncertainty_ns = 7, .calls = 2});
  const auto add = [&](std::string_view name, range_kind kind, std::uint64_t number, std::uint64_t parent) {
    ferry::profiler::event& event = made.events.emplace_back();
    event.name = name;
    event.kind = kind;
    event.node = kind == range_kind::call ? 0 : 1;
    event.peer = 1 - event.node;
    event.number = number;
    event.parent = parent;
    event.call = parent == 0 ? 7 : 0;
    event.began_ns = 2000;
    event.ended_ns = 3000;
  };
  add("call", range_kind::call, 1, 0);
  add("f", range_kind::handler, 2, 0);
  add("call#remote_op: f", range_kind::handler, 3, 1);
  made.events.back().remote = true;
  add("add", range_kind::operation, 4, 3);
  made.events.back().device = ferry::device{ferry::device_kind::cuda, 1};
  made.events.back().device_time = std::chrono::nanoseconds(12);
  sink("linked", encode_profile(made).bytes());
}

}  // namespace
}  // namespace profile_archive_target

const target profile_archive{"profile_archive", &profile_archive_target::run, &profile_archive_target::seeds};

}  // namespace fuzz
