// Profiles as they travel, clocks, traces and tables.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/base/error.hpp>
#include <ferry/ferry.hpp>
#include <ferry/profiler.hpp>

#include "event_of.hpp"
#include "expect_error.hpp"
#include "profiler/processor_clock.hpp"
#include "profiler/profile_batch.hpp"
#include "profiler/recording.hpp"

namespace report_test {

namespace profiler = ferry::profiler;
namespace detail = ferry::detail;
using ferry::errc;
using ferry::range_kind;
using profiler::event;
using profiler::profile;
using profiler_test::event_of;

constexpr ferry::range_description the_call{"rpc_sync#f(a -> b)", range_kind::call};

detail::profile_batch small_batch() {
  detail::profile_batch batch;
  batch.node = 3;
  batch.received_ns = 1000;
  batch.answered_ns = 5000;
  batch.lost = 2;
  batch.events.push_back(event_of("f", range_kind::handler, 3, 1, 0, 1500, 4000));
  batch.events.push_back(event_of("add", range_kind::operation, 3, 2, 1, 2000, 3000));
  batch.events[0].failed = true;
  batch.events[0].error = "why \"not\"";
  batch.events[1].shapes = "[[2]]";
  batch.events[1].bytes = 16;
  batch.events[1].began_thread = 99;
  return batch;
}

// Of one operation whose time is known, one that the device has yet to tell, and one that it will not.
detail::profile_batch timed_batch() {
  detail::profile_batch batch = small_batch();
  for (std::uint64_t number = 3; number != 5; ++number)
    batch.events.push_back(event_of("mul", range_kind::operation, 3, number, 1, 2000, 3000));
  constexpr auto cuda = ferry::device_kind::cuda;
  batch.device_times = {{1, {cuda, 1}, 1500, 0},
                        {2, {cuda, 2}, detail::device_time_pending, 77},
                        {3, {cuda, 1}, detail::device_time_unknown, 0}};
  return batch;
}

// A profile of two workers: worker 0 calls worker 1, which computes.
profile two_workers() {
  profile made;
  made.node = 0;
  made.began_ns = 0;
  made.ended_ns = 10'000'000;
  made.workers = {"first", "second"};
  made.events.push_back(event_of("call", range_kind::call, 0, 1, 0, 1'000'000, 9'000'000));
  made.events.push_back(event_of("call#remote_op: f", range_kind::handler, 1, 2, 1, 3'000'000, 8'000'000));
  made.events.back().queued_ns = 500'000;
  made.events.back().remote = true;
  made.events.back().uncertainty_ns = 40'000;
  made.clocks.push_back({1, 0, 40'000, 1});
  return made;
}

TEST_CASE("a record of a profile is read as it was written") {
  const detail::profile_batch batch = small_batch();
  const ferry::byte_buffer content = detail::encode_profile_batch(batch, 1U << 20U);
  const detail::profile_batch read = detail::decode_profile_batch(content.bytes());
  CHECK(read.node == 3);
  CHECK(read.received_ns == 1000);
  CHECK(read.answered_ns == 5000);
  CHECK(read.lost == 2);
  REQUIRE(read.events.size() == 2);
  CHECK(read.events[0].kind == range_kind::handler);
  CHECK(read.events[0].failed);
  CHECK(read.events[0].error == "why \"not\"");
  CHECK(read.events[1].name == "add");
  CHECK(read.events[1].parent == 1);
  CHECK(read.events[1].ended_ns == 3000);
  CHECK(read.events[1].shapes == "[[2]]");
  CHECK(read.events[1].bytes == 16);
  CHECK(read.events[1].thread == 13);
  CHECK(read.events[1].began_thread == 99);
  CHECK(read.events[0].thread_of_begin() == 13);
}

TEST_CASE("a record of a profile has the numbers of collectives, and of nothing else") {
  detail::profile_batch batch = small_batch();
  batch.events[1].kind = range_kind::collective;
  batch.events[1].call = 77;
  const ferry::byte_buffer content = detail::encode_profile_batch(batch, 1U << 20U);
  const detail::profile_batch read = detail::decode_profile_batch(content.bytes());
  CHECK(read.events[1].kind == range_kind::collective);
  CHECK(read.events[1].call == 77);
  std::vector<std::byte> damaged(content.bytes().begin(), content.bytes().end());
  const std::size_t second = damaged.size() - 14 * 8 - std::string_view("add[[2]]").size();
  damaged[second] = static_cast<std::byte>(static_cast<unsigned>(range_kind::operation) << 1U);
  expect_error(errc::malformed, "has the number of a collective", [&] { (void)detail::decode_profile_batch(damaged); });
}

TEST_CASE("a brief answer tells of a handler without its name, and is refused with times that cannot be") {
  const detail::brief_answer answer{
      .received_ns = 1'000'000, .queued_ns = 20, .ran_ns = 300, .answered_ns = 4000, .thread = 77};
  const auto content = detail::encode_brief_answer(answer);
  CHECK(detail::events_in_batch(content) == 1);
  const detail::profile_batch read = detail::decode_profile_batch(content);
  CHECK(read.brief);
  CHECK(read.received_ns == 1'000'000);
  CHECK(read.answered_ns == 1'004'320);
  CHECK(read.lost == 0);
  REQUIRE(read.events.size() == 1);
  const event& handler = read.events.front();
  CHECK(handler.kind == range_kind::handler);
  CHECK(handler.name.empty());
  CHECK(handler.thread == 77);
  CHECK(handler.queued_ns == 20);
  CHECK(handler.began_ns == 1'000'020);
  CHECK(handler.ended_ns == 1'000'320);
  CHECK_FALSE(handler.failed);

  detail::brief_answer far = answer;
  for (const std::int64_t sign : {1, -1}) {
    far.received_ns = sign * detail::longest_profile_time;
    const auto damaged = detail::encode_brief_answer(far);
    CHECK_FALSE(detail::decode_brief_answer(damaged).has_value());
    expect_error(errc::malformed, "out of all bounds", [&] { (void)detail::decode_profile_batch(damaged); });
  }
  CHECK_FALSE(detail::decode_brief_answer(std::span(content).first(23)).has_value());
}

TEST_CASE("what came with brief answers is the same as with long ones, and is lost with its call") {
  const auto to = detail::recording::make({.events_per_thread = 2, .node = 0});
  const ferry::range_description& call = to->name_call("f", detail::profiled_mode::sync, 0, "first", 3, "second");
  const detail::brief_answer answer{
      .received_ns = 1'000'000, .queued_ns = 20, .ran_ns = 300, .answered_ns = 4000, .thread = 77};
  const auto add = [&](bool answered) {
    detail::recorded_event one{.what = &call, .number = to->begin(), .began = 0, .ended = 10'000};
    one.peer = 3;
    one.answered = answered;
    one.answer = answer;
    to->add(std::move(one));
  };
  for (const bool answered : {true, false, true}) add(answered);
  // One that is kept with other records.
  to->add_reply(to->begin(), call, 0, 10'000, 3, detail::encode_brief_answer(answer));
  to->give_up();
  const profile found = to->finish();
  CHECK(found.lost == 2);
  CHECK(found.unfinished == 0);
  CHECK(found.count("rpc_sync#f(first -> second)") == 2);
  CHECK(found.count("rpc_sync#f(first -> second)#remote_op: f") == 2);
  CHECK(found.clocks.size() == 1);
  for (const event& each : found.events) {
    if (!each.remote) continue;
    CHECK(each.node == 3);
    CHECK(each.thread == 77);
    CHECK(each.queued_ns == 20);
    CHECK(each.duration_ns() == 300);
  }
}

TEST_CASE("a record of a profile that is cut off or damaged is an error") {
  const ferry::byte_buffer content = detail::encode_profile_batch(small_batch(), 1U << 20U);
  for (std::size_t size = 0; size != content.size(); ++size) {
    if (size == detail::bytes_of_brief_answer) continue;  // has a length of its own
    CAPTURE(size);
    expect_error(errc::truncated, "a record of a profile",
                 [&] { (void)detail::decode_profile_batch(content.bytes().first(size)); });
  }
  std::vector<std::byte> longer(content.bytes().begin(), content.bytes().end());
  longer.push_back(std::byte{});
  expect_error(errc::malformed, "goes on", [&] { (void)detail::decode_profile_batch(longer); });
  expect_error(errc::malformed, "not one number", [&] { (void)detail::decode_profile_wishes(longer); });
  std::vector<std::byte> kind(content.bytes().begin(), content.bytes().end());
  kind[40] = std::byte{0xff};
  expect_error(errc::malformed, "has kind", [&] { (void)detail::decode_profile_batch(kind); });
  const auto refused = [](std::string_view why, const auto& damage) {
    detail::profile_batch batch = small_batch();
    damage(batch);
    const ferry::byte_buffer bytes = detail::encode_profile_batch(batch, 1U << 20U);
    expect_error(errc::malformed, why, [&] { (void)detail::decode_profile_batch(bytes.bytes()); });
  };
  refused("names worker 32768", [](detail::profile_batch& batch) { batch.events[0].node = 32768; });
  refused("names worker -2", [](detail::profile_batch& batch) { batch.node = -2; });
  refused("has time", [](detail::profile_batch& batch) { batch.events[1].ended_ns = std::int64_t{1} << 61U; });
  refused("has time", [](detail::profile_batch& batch) { batch.answered_ns = -(std::int64_t{1} << 61U); });
  refused("has number 0", [](detail::profile_batch& batch) { batch.events[1].number = 0; });
  refused("parent 2", [](detail::profile_batch& batch) { batch.events[1].parent = 2; });
  refused("ends 1 ns before it begins", [](detail::profile_batch& batch) { batch.events[1].ended_ns = 1999; });
  refused("a time in a queue of -1 ns", [](detail::profile_batch& batch) { batch.events[0].queued_ns = -1; });
  refused("an uncertainty of -5 ns", [](detail::profile_batch& batch) { batch.events[0].uncertainty_ns = -5; });
  refused("has made -2 bytes", [](detail::profile_batch& batch) { batch.events[1].bytes = -2; });
  refused("answered before it came", [](detail::profile_batch& batch) { batch.answered_ns = 999; });
}

TEST_CASE("times of devices are read as they were written, behind the events") {
  const detail::profile_batch batch = timed_batch();
  const ferry::byte_buffer content = detail::encode_profile_batch(batch, 1U << 20U);
  const detail::profile_batch read = detail::decode_profile_batch(content.bytes());
  REQUIRE(read.device_times.size() == 3);
  for (std::size_t i = 0; i != 3; ++i) {
    CHECK(read.device_times[i].event == i + 1);
    CHECK(read.device_times[i].on == batch.device_times[i].on);
    CHECK(read.device_times[i].time_ns == batch.device_times[i].time_ns);
    CHECK(read.device_times[i].token == batch.device_times[i].token);
  }
  detail::profile_batch plain = timed_batch();
  plain.device_times.clear();
  const std::size_t shorter = detail::encode_profile_batch(plain, 1U << 20U).size();
  CHECK(content.size() == shorter + 8 * (1 + 3 * 4));  // a record without them is as it was before there were any
  for (std::size_t size = shorter + 8; size != content.size(); ++size) {
    CAPTURE(size);
    expect_error(errc::truncated, "too short for them",
                 [&] { (void)detail::decode_profile_batch(content.bytes().first(size)); });
  }
  for (std::size_t size = shorter + 1; size != shorter + 8; ++size)
    expect_error(errc::malformed, "goes on", [&] { (void)detail::decode_profile_batch(content.bytes().first(size)); });
  std::vector<std::byte> longer(content.bytes().begin(), content.bytes().end());
  longer.push_back(std::byte{});
  expect_error(errc::malformed, "goes on behind its times", [&] { (void)detail::decode_profile_batch(longer); });
  for (const unsigned bits : {0U, 1U, 2U, 4U, 7U}) {
    const auto wishes = detail::decode_profile_wishes(detail::encode_profile_wishes(
        {.shapes = (bits & 1U) != 0, .memory = (bits & 2U) != 0, .device_times = (bits & 4U) != 0}));
    CHECK(wishes.shapes == ((bits & 1U) != 0));
    CHECK(wishes.memory == ((bits & 2U) != 0));
    CHECK(wishes.device_times == ((bits & 4U) != 0));
  }
}

TEST_CASE("times of devices that cannot be are refused") {
  const auto refused = [](std::string_view why, const auto& damage) {
    detail::profile_batch batch = timed_batch();
    damage(batch.device_times);
    // As a peer would write it that does not look.
    std::vector<std::byte> bytes;
    const auto put = [&](std::uint64_t value) {
      for (unsigned i = 0; i != 8; ++i) bytes.push_back(static_cast<std::byte>(value >> (8 * i)));
    };
    detail::profile_batch plain = batch;
    plain.device_times.clear();
    const ferry::byte_buffer events = detail::encode_profile_batch(plain, 1U << 20U);
    bytes.assign(events.bytes().begin(), events.bytes().end());
    put(batch.device_times.size());
    for (const detail::told_device_time& each : batch.device_times) {
      put(each.event);
      put(static_cast<std::uint64_t>(each.on.kind) << 32U | static_cast<std::uint32_t>(each.on.index));
      put(static_cast<std::uint64_t>(each.time_ns));
      put(each.token);
    }
    expect_error(errc::malformed, why, [&] { (void)detail::decode_profile_batch(bytes); });
  };
  using times = std::vector<detail::told_device_time>;
  refused("for -3 ns", [](times& all) { all[0].time_ns = -3; });
  refused("for 1152921504606846977 ns", [](times& all) { all[0].time_ns = (std::int64_t{1} << 60U) + 1; });
  // What a float that is no number would be as bits.
  refused("on a device for", [](times& all) { all[0].time_ns = 0x7ff8000000000000; });
  refused("event 4 ", [](times& all) { all[2].event = 4; });
  refused("event 0 ", [](times& all) { all[0].event = 0; });  // a handler
  refused("event 1 ", [](times& all) { all[1].event = 1; });  // twice
  refused("event 1 ", [](times& all) { std::swap(all[0], all[1]); });
  refused("has device", [](times& all) { all[0].on.index = -1; });
  refused("goes on", [](times& all) { all.clear(); });
}

TEST_CASE("a profile that is cut off keeps the times of the events that it keeps") {
  const std::size_t whole = detail::encode_profile_batch(timed_batch(), 1U << 20U).size();
  for (std::size_t limit = 40; limit != whole + 1; ++limit) {
    CAPTURE(limit);
    const ferry::byte_buffer content = detail::encode_profile_batch(timed_batch(), limit);
    REQUIRE(content.size() <= limit);
    const detail::profile_batch read = detail::decode_profile_batch(content.bytes());
    CHECK(read.device_times.size() + 1 == std::max<std::size_t>(1, read.events.size()));
    CHECK(read.lost + read.events.size() == 6);
    CHECK(detail::events_in_batch(content.bytes()) == 6);
  }
}

TEST_CASE("times of devices that were not asked for are left out") {
  for (const bool asked : {false, true}) {
    const auto to = detail::recording::make({.wishes = {.device_times = asked}, .events_per_thread = 4, .node = 0});
    const ferry::range_description& call = to->name_call("f", detail::profiled_mode::sync, 0, "first", 3, "second");
    to->add_reply(to->begin(), call, 0, 1, 3, detail::encode_profile_batch(timed_batch(), 1U << 20U).bytes());
    std::vector<detail::awaited_time> awaited;
    const profile found = to->finish(&awaited);
    const event* add = found.find("rpc_sync#f(first -> second)#remote_op: add");
    REQUIRE(add);
    CHECK(add->device_time.has_value() == asked);
    REQUIRE(awaited.size() == (asked ? 1 : 0));
    if (!asked) continue;
    CHECK(*add->device_time == std::chrono::nanoseconds(1500));
    CHECK(add->device == ferry::device{ferry::device_kind::cuda, 1});
    CHECK(awaited[0].token == 77);
    CHECK(awaited[0].node == 3);
    CHECK(found.find(awaited[0].event)->device == ferry::device{ferry::device_kind::cuda, 2});
  }
}

TEST_CASE("times of devices travel with profiles as values") {
  profile from = two_workers();
  from.events[0].device = ferry::device{ferry::device_kind::cuda, 5};
  from.events[0].device_time = std::chrono::nanoseconds(12);
  from.events.push_back(from.events[0]);
  from.events[2].device_time.reset();
  const profile to = ferry::deserialize<profile>(ferry::serialize(from));
  REQUIRE(to.events.size() == 3);
  for (std::size_t i = 0; i != 3; ++i) {
    CHECK(to.events[i].device == from.events[i].device);
    CHECK(to.events[i].device_time == from.events[i].device_time);
  }
}

TEST_CASE("a profile that is too long for its record loses its last events, and says how many") {
  detail::profile_batch batch = small_batch();
  const std::size_t one = detail::encode_profile_batch(batch, 180).size();
  CHECK(one <= 180);
  const detail::profile_batch read = detail::decode_profile_batch(detail::encode_profile_batch(batch, 180).bytes());
  REQUIRE(read.events.size() == 1);
  CHECK(read.events[0].name == "f");
  CHECK(read.lost == 3);
}

TEST_CASE("how many events a record tells of is known without reading them, and believed within reason") {
  detail::profile_batch batch = small_batch();
  const ferry::byte_buffer content = detail::encode_profile_batch(batch, 1U << 20U);
  CHECK(detail::events_in_batch(content.bytes()) == 4);
  CHECK(detail::events_in_batch(content.bytes().first(39)) == 0);
  batch.lost = ~std::uint64_t{0};
  CHECK(detail::events_in_batch(detail::encode_profile_batch(batch, 1U << 20U).bytes()) < std::uint64_t{1} << 41U);
}

TEST_CASE("events have numbers of their own, also if a peer has given one twice") {
  detail::profile_batch batch = small_batch();
  batch.events.push_back(event_of("mul", range_kind::operation, 3, 2, 1, 3000, 3500));
  const auto to = detail::recording::make({.events_per_thread = 4, .node = 0});
  const ferry::range_description& call = to->name_call("f", detail::profiled_mode::sync, 0, "first", 3, "second");
  to->add_reply(to->begin(), call, 0, 1, 3, detail::encode_profile_batch(batch, 1U << 20U).bytes());
  const profile found = to->finish();
  REQUIRE(found.events.size() == 3);
  for (const event& each : found.events) CHECK(found.find(each.number) == &each);
  profile twice = two_workers();
  twice.events.back().number = 1;
  const profile all = profiler::merged({twice, twice});
  REQUIRE(all.events.size() == 4);
  for (const event& each : all.events) CHECK(all.find(each.number) == &each);
}

TEST_CASE("a session keeps a bounded part of what replies bring, and counts the rest") {
  constexpr std::size_t mebibyte = std::size_t{1} << 20U;
  detail::profile_batch batch = small_batch();
  batch.lost = 0;
  batch.events.resize(1);
  batch.events[0].name = std::string(mebibyte, 'x');
  const ferry::byte_buffer content = detail::encode_profile_batch(batch, 2 * mebibyte);
  const auto to = detail::recording::make({.events_per_thread = 4, .node = 0});
  const ferry::range_description& call = to->name_call("f", detail::profiled_mode::sync, 0, "first", 1, "second");
  for (int i = 0; i != 70; ++i) to->add_reply(to->begin(), call, 0, 1, 1, content.bytes());
  const profile found = to->finish();
  CHECK(found.events.size() == 63);
  CHECK(found.lost == 7);
}

TEST_CASE("a session keeps a bounded number of names") {
  const auto to = detail::recording::make({.events_per_thread = 4, .node = 0});
  for (int i = 0; i != 1 << 16; ++i) (void)to->name_range(std::to_string(i), range_kind::user);
  CHECK(to->name_range("7", range_kind::user).name == "7");
  CHECK(to->name_range("one more", range_kind::user).name.find("too many names") != std::string_view::npos);
  CHECK(to->name_call("f", detail::profiled_mode::sync, 0, "first", 1, "second").kind == range_kind::call);
  (void)to->finish();
}

TEST_CASE("the processor's counter gives the times of the steady clock") {
  const detail::clock_reading first = detail::clock_reading::now();
  const std::int64_t until = first.steady_ns + 20'000'000;
  while (detail::steady_now_ns() < until) {
  }
  const std::int64_t before = detail::steady_now_ns();
  const std::int64_t ticks = detail::ticks_now();
  const std::int64_t after = detail::steady_now_ns();
  constexpr std::int64_t tolerance = 20'000;
  for (const detail::tick_scale& scale : {detail::tick_scale::since(first), detail::tick_scale::recent()}) {
    CHECK(scale.steady_ns(ticks) >= before - tolerance);
    CHECK(scale.steady_ns(ticks) <= after + tolerance);
  }
}

TEST_CASE("events of a worker whose clock goes differently are put where they were, within what is stated") {
  constexpr std::int64_t ahead = 7'000'000'000;
  const auto to = detail::recording::make({.events_per_thread = 10, .node = 0});
  const std::int64_t began = detail::ticks_now();
  const std::int64_t began_ns = detail::steady_now_ns();
  const auto pass = [](std::int64_t ns) {
    const std::int64_t until = detail::steady_now_ns() + ns;
    while (detail::steady_now_ns() < until) {
    }
  };
  pass(1'000'000);
  detail::profile_batch batch = small_batch();
  batch.lost = 0;
  batch.received_ns = detail::steady_now_ns() + ahead;
  batch.events[0].began_ns = batch.received_ns + 10;
  pass(500'000);
  batch.events[0].ended_ns = detail::steady_now_ns() + ahead;
  batch.events[1].began_ns = batch.events[1].ended_ns = batch.events[0].ended_ns;
  batch.answered_ns = detail::steady_now_ns() + ahead;
  pass(3'000'000);  // the way back takes longer
  const std::int64_t ended = detail::ticks_now();
  const std::uint64_t call = to->begin();
  to->add({.what = &the_call, .number = call, .began = began, .ended = ended, .node = 0});
  to->add_reply(call, the_call, began, ended, 3, detail::encode_profile_batch(batch, 1U << 20U).bytes());
  to->add_reply(call, the_call, began, ended, 3, std::vector<std::byte>(5));
  const profile found = to->finish();
  CHECK(found.lost == 1);  // the reply that is damaged
  REQUIRE(found.clocks.size() == 1);
  const profiler::clock_offset& clock = found.clocks.front();
  CHECK(clock.node == 3);
  CHECK(std::abs(clock.offset_ns - ahead) <= clock.uncertainty_ns + 20'000);
  CHECK(clock.uncertainty_ns >= 1'900'000);
  const event* handler = found.find("rpc_sync#f(a -> b)#remote_op: f");
  REQUIRE(handler);
  CHECK(handler->parent == call);
  CHECK(handler->uncertainty_ns == clock.uncertainty_ns);
  CHECK(std::abs(handler->began_ns - (began_ns + 1'000'000)) <= clock.uncertainty_ns + 1'000'000);
  CHECK(handler->began_ns >= found.find(call)->began_ns);
  CHECK(handler->ended_ns <= found.find(call)->ended_ns);
  CHECK(found.find(handler->number + 1)->parent == handler->number);
}

TEST_CASE("a trace is refused if a clock is known less well than it is to be right") {
  profile from = two_workers();
  expect_error(errc::invalid_argument, "the clock of worker 1 is known to 0.040 ms only",
               [&] { (void)profiler::chrome_trace(from, {.largest_uncertainty = std::chrono::microseconds(39)}); });
  CHECK_FALSE(profiler::chrome_trace(from, {.largest_uncertainty = std::chrono::microseconds(40)}).empty());
}

TEST_CASE("a trace has a process for each worker, slices, and arrows from a call to its handler and back") {
  profile from = two_workers();
  from.events.push_back(
      event_of("a \"name\"\n", range_kind::user, 0, 3, 0, 8'000'000, 9'500'000));  // overlaps the call
  const std::string text = profiler::chrome_trace(from);
  const auto has = [&](std::string_view part) { return text.find(part) != std::string::npos; };
  CHECK(has(R"("name":"process_name","pid":0,"tid":0,"args":{"name":"first"})"));
  CHECK(has(R"("name":"process_name","pid":1,"tid":0,"args":{"name":"second"})"));
  CHECK(has(R"({"ph":"X","name":"call","cat":"call","pid":0,"tid":10,"ts":1000.000,"dur":8000.000,)"));
  CHECK(has(R"({"ph":"b","name":"a \"name\"\n","cat":"range","id":3,)"));
  CHECK(has(R"({"ph":"s","name":"request","cat":"flow","id":4,"pid":0,"tid":10,"ts":1000.000})"));
  CHECK(has(R"({"ph":"f","name":"request","cat":"flow","id":4,"pid":1,"tid":11,"ts":3000.000,"bp":"e"})"));
  CHECK(has(R"({"ph":"s","name":"reply","cat":"flow","id":5,"pid":1,"tid":11,"ts":8000.000})"));
  CHECK(has(R"({"worker":1,"offset_ns":0,"uncertainty_ns":40000,"calls":1})"));
}

TEST_CASE("a trace has a track for each device, where the work of operations lies one behind the other") {
  profile from = two_workers();
  const auto add = [&](std::uint64_t number, std::int64_t from_ns, std::int64_t took_ns, int device) {
    from.events.push_back(event_of("add", range_kind::operation, 1, number, 2, from_ns, from_ns + 10'000));
    from.events.back().device = ferry::device{ferry::device_kind::cuda, device};
    if (took_ns >= 0) from.events.back().device_time = std::chrono::nanoseconds(took_ns);
  };
  add(3, 3'100'000, 500'000, 1);
  add(4, 3'200'000, 250'000, 1);  // waits for the one before it
  add(5, 3'300'000, 100'000, 0);
  add(6, 3'400'000, -1, 0);  // not known
  const std::string text = profiler::chrome_trace(from);
  const auto has = [&](std::string_view part) { return text.find(part) != std::string::npos; };
  CHECK(has(R"({"ph":"M","name":"thread_name","pid":1,"tid":1073741824,"args":{"name":"cuda:1"}})"));
  CHECK(has(R"({"ph":"M","name":"thread_name","pid":1,"tid":1073741825,"args":{"name":"cuda:0"}})"));
  CHECK(has(
      R"({"ph":"X","name":"add","cat":"device","pid":1,"tid":1073741824,"ts":3100.000,"dur":500.000,"args":{"number":3,)"));
  CHECK(has(
      R"({"ph":"X","name":"add","cat":"device","pid":1,"tid":1073741824,"ts":3600.000,"dur":250.000,"args":{"number":4,)"));
  CHECK(has(
      R"({"ph":"X","name":"add","cat":"device","pid":1,"tid":1073741825,"ts":3300.000,"dur":100.000,"args":{"number":5,)"));
  CHECK(has(R"("device":"cuda:1","device_ns":250000}})"));
  CHECK(has(R"("device":"cuda:0"}})"));
  const std::string table = profiler::table(from);
  CHECK(table.find("device us") != std::string::npos);
  CHECK(table.find("850.0") != std::string::npos);
  CHECK(table.find("cuda:0, ...") != std::string::npos);
  CHECK(profiler::table(two_workers()).find("device us") == std::string::npos);
}

TEST_CASE("the table says where the time of each worker went") {
  const profile from = two_workers();
  const profiler::summary found = profiler::summarise(from);
  REQUIRE(found.workers.size() == 2);
  CHECK(found.length_ns == 10'000'000);
  CHECK(found.workers[0].compute_ns == 0);
  CHECK(found.workers[0].waiting_ns == 5'500'000);
  CHECK(found.workers[0].communication_ns == 2'500'000);
  CHECK(found.workers[0].idle_ns == 2'000'000);
  CHECK(found.workers[1].compute_ns == 5'000'000);
  CHECK(found.workers[1].queueing_ns == 500'000);
  CHECK(found.workers[1].idle_ns == 5'000'000);
  CHECK(found.straggler == 1);
  const std::string text = profiler::table(from);
  CHECK(text.find("second (longest)") != std::string::npos);
  CHECK(text.find("call#remote_op: f") != std::string::npos);
}

TEST_CASE("the table shows control characters of names as question marks") {
  profile from = two_workers();
  for (profiler::event& each : from.events) each.name += "\x1b[2J\n";
  const std::string text = profiler::table(from);
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(text.find("?[2J?\n") != std::string::npos);
}

TEST_CASE("asynchronous calls count for the time in which nothing else was done") {
  profile from = two_workers();
  from.events.clear();
  const auto ms = [](int count) { return std::int64_t{count} * 1'000'000; };
  from.events.push_back(event_of("pass", range_kind::user, 0, 1, 0, 0, ms(10)));
  from.events.push_back(event_of("own work", range_kind::user, 0, 2, 1, ms(1), ms(5)));
  // Four at once, of 6 ms each: 4 of them during the work. Their handlers take half of that.
  for (std::uint64_t i = 0; i != 4; ++i) {
    from.events.push_back(event_of("rpc_async#f(worker0 -> worker1)", range_kind::call, 0, 10 + i, 1, ms(1), ms(7)));
    from.events.push_back(event_of("f", range_kind::handler, 1, 20 + i, 10 + i, ms(2), ms(5)));
  }
  const profiler::summary found = profiler::summarise(from);
  REQUIRE(found.workers.size() == 2);
  CHECK(found.workers[0].compute_ns == ms(8));
  CHECK(found.workers[0].waiting_ns == ms(1));
  CHECK(found.workers[0].communication_ns == ms(1));
  CHECK(found.workers[1].compute_ns == ms(12));
  // Without the work they are waited for as long as any of them is under way; one that is synchronous, all the time.
  from.events.erase(from.events.begin() + 1);
  CHECK(profiler::summarise(from).workers[0].waiting_ns == ms(3));
  for (profiler::event& each : from.events) {
    if (each.kind == range_kind::call) each.name = "rpc_sync#f(worker0 -> worker1)";
  }
  CHECK(profiler::summarise(from).workers[0].waiting_ns == ms(12));
}

TEST_CASE("what a pass waits for is no work of its worker") {
  profile from = two_workers();
  from.events.clear();
  from.events.push_back(event_of("dist_autograd::backward", range_kind::autograd, 0, 1, 0, 0, 10'000'000));
  from.events.push_back(event_of("dist_autograd::wait", range_kind::wait, 0, 2, 1, 1'000'000, 9'000'000));
  from.events.push_back(event_of("mul", range_kind::operation, 0, 3, 2, 2'000'000, 3'000'000));
  const profiler::summary found = profiler::summarise(from);
  REQUIRE(found.workers.size() == 1);
  CHECK(found.workers[0].compute_ns == 3'000'000);
  CHECK(found.workers[0].waiting_ns == 7'000'000);
}

}  // namespace report_test
