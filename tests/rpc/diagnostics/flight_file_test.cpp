// The flight recorder in a file: what a worker that was killed leaves behind, and who reads it.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ferry/rpc/detail/method_entry.hpp>
#include <ferry/rpc/worker_snapshot.hpp>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "processes.hpp"
#include "temporary_directory.hpp"
#include "watchdog.hpp"

#include "rpc/diagnostics/flight_calls.hpp"
#include "rpc/diagnostics/flight_file.hpp"
#include "rpc/diagnostics/flight_layout.hpp"
#include "rpc/diagnostics/flight_recorder.hpp"

namespace flight_file_test {

using namespace std::chrono_literals;
using ferry::call_phase;
using ferry::errc;
using ferry::served_phase;
using ferry::worker_id;
using ferry::worker_info;
using ferry::worker_snapshot;
using ferry::detail::decode_flight_file;
using ferry::detail::flight_entry;
using ferry::detail::flight_event;
using ferry::detail::flight_header;
using ferry::detail::flight_owner;
using ferry::detail::flight_recorder;
using ferry::detail::flight_time;
using ferry_test::captured_log;
using ferry_test::child_process;
using ferry_test::cluster;
using ferry_test::gate;
using ferry_test::temporary_directory;

gate hold;
int add_one(int value) { return value + 1; }
void wait_for_the_test() { hold.pass(); }
// Runs at worker1 until it is killed: its caller does not answer.
void call_back_and_wait() { ferry::rpc_sync<wait_for_the_test>("worker0"); }

const ferry_test::role killed("worker that is killed", [](const std::vector<std::string>& arguments) {
  ferry::worker self = ferry::init_rpc({.name = "worker1",
                                        .rank = 1,
                                        .world_size = 2,
                                        .init_method = arguments.at(0),
                                        .num_worker_threads = 1,
                                        .lease = 100s});
  self.shutdown();
  return 0;
});

// Its recorder wants more than there is on the disk that arguments[0] becomes.
const ferry_test::role without_room("recorder on a full disk", [](const std::vector<std::string>& arguments) {
  const std::string user = "0 " + std::to_string(::geteuid()) + " 1";
  const std::string group = "0 " + std::to_string(::getegid()) + " 1";
  const bool apart = ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
  std::ofstream("/proc/self/uid_map") << user;
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/gid_map") << group;
  if (!apart || ::mount("none", arguments.at(0).c_str(), "tmpfs", 0, "size=65536") != 0) {
    ferry_test::tell_parent("not permitted");
    return 0;
  }
  const captured_log log;
  flight_recorder ring(1024, {.directory = arguments.at(0), .worker = "full"});
  for (std::uint64_t i = 0; i != 5000; ++i) ring.add(flight_event::call_started, flight_time::now(), {}, i, 1, 2);
  const bool works = ring.on() && ring.file().empty() && ring.entries().size() == 1024 &&
                     std::filesystem::is_empty(arguments.at(0)) &&
                     log.has("no flight file in", "No space left on device");
  ferry_test::tell_parent(works ? "works" : "does not work");
  return 0;
});

namespace {

std::vector<std::byte> bytes_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}
void write_file(const std::string& path, const std::vector<std::byte>& bytes, std::size_t size) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(size));
}

flight_header header_of(const std::vector<std::byte>& bytes) {
  flight_header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  return header;
}
void set_header(std::vector<std::byte>& bytes, flight_header header) {
  header.check = ferry::fingerprint({reinterpret_cast<const char*>(&header), offsetof(flight_header, check)});
  std::memcpy(bytes.data(), &header, sizeof header);
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> result;
  for (const auto& each : std::filesystem::directory_iterator(directory)) result.push_back(each.path().filename());
  std::sort(result.begin(), result.end());
  return result;
}

std::string directory_of(const temporary_directory& one) {
  return std::filesystem::path(one.file("x")).parent_path().string();
}
std::string file_name(const std::string& worker, const std::string& more = "") {
  return "ferry-" + worker + "-" + std::to_string(::getpid()) + more + ".flight";
}

std::int64_t steady_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(ferry::clock::now().time_since_epoch()).count();
}

struct moments {
  std::int64_t before = 0;
  std::int64_t after = 0;
};
template <class Function>
moments moments_around(const Function& function) {
  moments result;
  result.before = steady_now();
  function();
  result.after = steady_now();
  return result;
}
// But for what a thread that is preempted while it calibrates the counter may be off.
bool is_between(const moments& limits, std::int64_t steady_ns) {
  constexpr std::int64_t tolerance = 1'000'000;
  return steady_ns >= limits.before - tolerance && steady_ns <= limits.after + tolerance;
}

void fill(flight_recorder& ring) {
  ring.add_peer(worker_id{1}, "other");
  ring.add(flight_event::connection_opened, flight_time::now(), worker_id{1}, 0, 0, 0, {}, "unix:@somewhere");
  for (std::uint64_t i = 1; i != 20; ++i) {
    const flight_time at = i % 2 == 0 ? flight_time::now() : flight_time(ferry::clock::now());
    ring.add(flight_event::call_started, at, worker_id{1}, i << 40U, 77, i * 10);
    ring.add(flight_event::call_replied, flight_time::now(), worker_id{1}, i << 40U, 77, i * 10, errc::peer_lost);
  }
  ring.add(flight_event::connection_lost, flight_time::now(), worker_id{1}, 0, 0, 0, {}, "because");
}

bool has_event(const worker_snapshot& of, const std::string& event, const std::string& method,
               const std::string& text = "") {
  return std::any_of(of.events.begin(), of.events.end(), [&](const ferry::recorded_event& each) {
    return each.event == event && each.method.find(method) != std::string::npos &&
           each.text.find(text) != std::string::npos;
  });
}

// Events as they would be recorded, a microsecond apart.
class story {
 public:
  story& add(flight_event what, int peer, std::uint64_t call, std::uint64_t method = 5, std::string text = {}) {
    flight_entry entry;
    entry.number = events.size();
    entry.steady_ns = static_cast<std::int64_t>(1000 * (entry.number + 1));
    entry.what = what;
    entry.peer = worker_id{peer};
    entry.call = call;
    entry.method = method;
    entry.text = std::move(text);
    events.push_back(std::move(entry));
    return *this;
  }
  [[nodiscard]] ferry::detail::flight_setting setting(bool complete, std::int64_t places = 0) const {
    return {.self = worker_id{0},
            .complete = complete,
            .places = places,
            .now_ns = events.back().steady_ns,
            .peer = [](worker_id id) { return worker_info("worker" + std::to_string(id.value), id); },
            .method = [](std::uint64_t id) { return "method" + std::to_string(id); }};
  }
  [[nodiscard]] auto pending(bool complete = true) const {
    return ferry::detail::open_calls_of(events, setting(complete));
  }
  [[nodiscard]] auto served(std::int64_t places = 0) const {
    return ferry::detail::open_requests_of(events, setting(true, places));
  }
  std::vector<flight_entry> events;
};

}  // namespace

TEST_CASE("a flight file says what its recorder says, and vanishes with it") {
  const temporary_directory directory;
  std::string path;
  {
    flight_recorder ring(30, {.directory = directory_of(directory),
                              .worker = "some:worker",
                              .id = worker_id{3},
                              .incarnation = {0xabcdef},
                              .places = 4});
    path = ring.file();
    CHECK(path == directory.file(file_name("some:worker")));
    struct stat about {};
    REQUIRE(::stat(path.c_str(), &about) == 0);
    CHECK((about.st_mode & 0777U) == 0600U);
    CHECK(about.st_blocks * 512 >= about.st_size);
    {
      const worker_snapshot none = ferry::read_flight_file(path);
      CHECK(none.events.empty());
      CHECK(none.events_so_far == 0);
    }
    fill(ring);
    const worker_snapshot read = ferry::read_flight_file(path);
    CHECK(read.reason == "post mortem");
    CHECK(read.worker == worker_info("some:worker", 3));
    CHECK(read.incarnation == ferry::incarnation_id{0xabcdef});
    CHECK(read.process == ::getpid());
    CHECK(read.events_so_far == 40);
    const auto entries = ring.entries();
    REQUIRE(entries.size() == 32);
    REQUIRE(read.events.size() == 32);
    for (std::size_t i = 0; i != entries.size(); ++i) {
      CAPTURE(i);
      const auto in_memory = std::find_if(entries.begin(), entries.end(),
                                          [&](const auto& each) { return each.number == read.events[i].number; });
      REQUIRE(in_memory != entries.end());
      CHECK(read.events[i].event == to_string(in_memory->what));
      CHECK(read.events[i].peer == in_memory->peer);
      CHECK(read.events[i].call == in_memory->call);
      CHECK(read.events[i].method == (in_memory->method == 0 ? "" : "method 000000000000004d"));
      CHECK(read.events[i].bytes == in_memory->bytes);
      CHECK(read.events[i].code == in_memory->code);
      CHECK(read.events[i].text == in_memory->text);
      CHECK(std::abs(read.events[i].steady_ns - in_memory->steady_ns) < 1'000'000);
      if (i != 0) CHECK(read.events[i - 1].steady_ns <= read.events[i].steady_ns);
    }
    CHECK(has_event(read, "connection_lost", "", "because"));
    CHECK(read.steady_ns == read.events.back().steady_ns);
    CHECK(std::chrono::abs(read.time - std::chrono::system_clock::now()) < 60s);
    CHECK(read.pending_calls.empty());
    // What was recorded stays when the file is removed, and the recorder goes on.
    ring.remove_file();
    CHECK_FALSE(std::filesystem::exists(path));
    CHECK(ring.file().empty());
    ring.add(flight_event::call_started, flight_time::now(), {}, 1, 2, 3);
    CHECK(ring.entries().size() == 32);
  }
  CHECK(names_in(directory_of(directory)).empty());
  {
    const flight_recorder ring(30, {.directory = directory_of(directory), .worker = "w"});
    CHECK(names_in(directory_of(directory)).size() == 1);
  }
  CHECK(names_in(directory_of(directory)).empty());
  {
    flight_recorder ring(30, {.directory = directory_of(directory), .worker = "w"});
    fill(ring);
    ring.keep_file();
  }
  CHECK(ferry::read_flight_file(directory.file(file_name("w"))).events_so_far == 40);
}

TEST_CASE("what lies at the name of a flight file stays, and is not followed") {
  const temporary_directory directory;
  write_file(directory.file(file_name("w")), std::vector<std::byte>(3), 3);
  std::filesystem::create_symlink(directory.file("target"), directory.file(file_name("w", ".2")));
  const flight_recorder ring(1, {.directory = directory_of(directory), .worker = "w"});
  CHECK(ring.file() == directory.file(file_name("w", ".3")));
  CHECK(std::filesystem::file_size(directory.file(file_name("w"))) == 3);
  CHECK_FALSE(std::filesystem::exists(directory.file("target")));
}

TEST_CASE("the times of a flight file are right on another machine, too") {
  const temporary_directory directory;
  flight_recorder ring(64, {.directory = directory_of(directory), .worker = "w"});
  const moments begin = moments_around([&] { ring.add(flight_event::call_started, flight_time::now(), {}, 1, 2, 3); });
  // The rate of the counter is measured over a time that must pass.
  while (steady_now() < begin.after + 200'000'000) std::this_thread::yield();
  const moments end =
      moments_around([&] { ring.add(flight_event::connection_lost, flight_time::now(), {}, 1, 2, 3, {}, "a text"); });
  ring.add(flight_event::call_failed, flight_time(ferry::clock::now()), {}, 1, 2, 3);
  std::vector<std::byte> bytes = bytes_of_file(ring.file());
  flight_header header = header_of(bytes);
  header.boot[3] = header.boot[3] == 'x' ? 'y' : 'x';
  set_header(bytes, header);
  const worker_snapshot read = decode_flight_file(bytes);
  REQUIRE(read.events.size() == 3);
  CHECK(is_between(begin, read.events[0].steady_ns));
  CHECK(is_between(end, read.events[1].steady_ns));
  CHECK(read.events[2].event == "call_failed");
  CHECK(std::chrono::abs(read.time - std::chrono::system_clock::now()) < 60s);
}

TEST_CASE("the times of a flight file are right where a clock has stood still since then") {
  const temporary_directory directory;
  flight_recorder ring(64, {.directory = directory_of(directory), .worker = "w"});
  const moments begin = moments_around([&] { ring.add(flight_event::call_started, flight_time::now(), {}, 1, 2, 3); });
  while (steady_now() < begin.after + 200'000'000) std::this_thread::yield();
  ring.add(flight_event::connection_lost, flight_time::now(), {}, 1, 2, 3, {}, "a text");
  std::vector<std::byte> bytes = bytes_of_file(ring.file());
  // The steady clock seems to have gone on by half its time without the counter.
  const std::int64_t moved = begin.before / 2;
  for (std::size_t i = 0; i != ferry::detail::flight_calibration_count; ++i) {
    std::byte* const at =
        bytes.data() + ferry::detail::flight_calibrations_at + i * ferry::detail::flight_calibration_stride;
    ferry::detail::flight_calibration words{};
    std::memcpy(&words, at, sizeof words);
    if (words[0] == 0) continue;
    words[1] -= static_cast<std::uint64_t>(moved);
    const std::uint64_t check = ferry::detail::flight_check(words);
    std::memcpy(at, &words, sizeof words);
    std::memcpy(at + sizeof words, &check, sizeof check);
  }
  const worker_snapshot read = decode_flight_file(bytes);
  REQUIRE(read.events.size() == 2);
  const bool by_counter = (flight_time::now().raw() & 1U) != 0;
  CHECK(is_between(begin, read.events[0].steady_ns + (by_counter ? moved : 0)));
}

TEST_CASE("methods that are registered later have names in flight files") {
  const temporary_directory directory;
  flight_recorder ring(8, {.directory = directory_of(directory), .worker = "w"});
  const ferry::detail::method_entry late(
      {.public_name = "registered later", .signature = [] { return std::string("void()"); }});
  ring.add(flight_event::call_started, flight_time::now(), worker_id{4}, 1, late.id, 3);
  ring.add_peer(worker_id{4}, "four");
  ring.add_peer(worker_id{4}, "next:four");
  ring.add_peer(worker_id{4}, "next:four");
  const worker_snapshot read = ferry::read_flight_file(ring.file());
  CHECK(has_event(read, "call_started", "registered later"));
  REQUIRE(read.pending_calls.size() == 1);
  CHECK(read.pending_calls[0].method == "registered later");
  CHECK(read.pending_calls[0].peer == worker_info("next:four", 4));
  CHECK(read.pending_calls[0].phase == call_phase::connecting);
  // More than there is room for.
  for (int i = 5; i != 5000; ++i)
    ring.add_peer(worker_id{i}, "a-name-of-a-worker-that-is-rather-long-" + std::to_string(i));
  CHECK(ferry::read_flight_file(ring.file()).pending_calls[0].peer == worker_info("next:four", 4));
  // An id that is used again does not keep the name of the worker before.
  ring.add_peer(worker_id{4}, "another-four-with-a-name-that-has-no-place");
  const worker_snapshot full = ferry::read_flight_file(ring.file());
  REQUIRE(full.pending_calls.size() == 1);
  CHECK(full.pending_calls[0].peer == worker_info("unknown", 4));
  CHECK(full.pending_calls[0].method == "registered later");
}

TEST_CASE("a child process writes no names into the flight file of its parent") {
  const temporary_directory directory;
  flight_recorder ring(8, {.directory = directory_of(directory), .worker = "w", .id = worker_id{0}});
  const pid_t child = ::fork();
  if (child == 0) {
    {
      const ferry::detail::method_entry late({.public_name = "registered by the child process, as of a plug-in",
                                              .signature = [] { return std::string("void()"); }});
      ring.set_identity(worker_id{3}, {});
      ring.add_peer(worker_id{4}, "peer-of-the-child-process");
    }
    ::_exit(0);
  }
  REQUIRE(child > 0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  const ferry::detail::method_entry late(
      {.public_name = "registered by the parent", .signature = [] { return std::string("void()"); }});
  ring.add(flight_event::call_started, flight_time::now(), worker_id{4}, 1, late.id, 3);
  ring.add_peer(worker_id{4}, "four");
  const worker_snapshot read = ferry::read_flight_file(ring.file());
  CHECK(has_event(read, "call_started", "registered by the parent"));
  CHECK(read.worker.id() == worker_id{0});
  REQUIRE(read.pending_calls.size() == 1);
  CHECK(read.pending_calls[0].peer == worker_info("four", 4));
  const std::vector<std::byte> bytes = bytes_of_file(ring.file());
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  CHECK(text.find("as of a plug-in") == std::string_view::npos);
  CHECK(text.find("peer-of-the-child-process") == std::string_view::npos);
}

TEST_CASE("calls that have not ended are told from the events") {
  using enum flight_event;
  story one;
  one.add(call_replied, 1, 10)  // its start came later
      .add(call_started, 1, 10)
      .add(call_started, 2, 11)
      .add(connection_opened, 2, 0, 0)  // after the call: it waits for its turn
      .add(call_started, 2, 12)         // open, and handed over
      .add(call_started, 3, 13)         // no connection
      .add(call_started, 2, 14)
      .add(call_timed_out, 2, 14)
      .add(call_started, 2, 14)  // the id again
      .add(call_started, 2, 15)
      .add(call_cancelled, 2, 15)
      .add(call_started, 2, 16)
      .add(call_failed, 2, 16)
      .add(call_started, 0, 17);  // to itself
  one.events[1].steady_ns = 500;  // made before the reply
  const auto calls = one.pending();
  REQUIRE(calls.size() == 5);
  CHECK(calls[0].id == 11);
  CHECK(calls[0].phase == call_phase::queued);
  CHECK(calls[0].age == 11us);
  CHECK(calls[0].peer == worker_info("worker2", 2));
  CHECK(calls[0].method == "method5");
  CHECK(calls[0].until.is_never());
  CHECK(calls[1].id == 12);
  CHECK(calls[1].phase == call_phase::waiting_for_reply);
  CHECK(calls[2].id == 13);
  CHECK(calls[2].phase == call_phase::connecting);
  CHECK(calls[3].id == 14);
  CHECK(calls[4].id == 17);
  CHECK(calls[4].phase == call_phase::waiting_for_reply);
  // If the ring has lost events, one of them may have been the connection's.
  CHECK(one.pending(false)[2].phase == call_phase::waiting_for_reply);
  one.add(call_sent, 2, 11);
  CHECK(one.pending()[0].phase == call_phase::waiting_for_reply);
}

TEST_CASE("requests that were not answered are told from the events") {
  using enum flight_event;
  story one;
  one.add(request_answered, 1, 9)  // received before the ring begins
      .add(request_received, 1, 10)
      .add(request_received, 1, 11)
      .add(request_received, 2, 10)
      .add(request_answered, 1, 10)
      .add(handler_begun, 2, 10)
      .add(request_received, 1, 12)
      .add(handler_returned, 1, 11)
      .add(request_received, 2, 0, 7)
      .add(request_received, 2, 0, 7)
      .add(request_done, 2, 0, 7)
      .add(request_received, 1, 13)
      .add(request_failed, 1, 13);
  auto calls = one.served(2);
  REQUIRE(calls.size() == 4);
  CHECK(calls[0].id == 11);
  CHECK(calls[0].phase == served_phase::later);
  CHECK(calls[0].caller == worker_info("worker1", 1));
  CHECK_FALSE(calls[0].one_way);
  CHECK(calls[1].id == 10);
  CHECK(calls[1].caller == worker_info("worker2", 2));
  CHECK(calls[1].phase == served_phase::running);
  CHECK(calls[2].id == 12);
  CHECK(calls[2].phase == served_phase::queued);
  CHECK_FALSE(calls[2].unwanted);
  CHECK(calls[3].one_way);
  CHECK(calls[3].method == "method7");
  CHECK(calls[3].age == 3us);
  // Of how many places is not known.
  CHECK(one.served()[2].phase == served_phase::running);
  one.add(member, 1, 0, 0, "lost: killed");
  CHECK(one.served()[2].unwanted);
  CHECK_FALSE(one.served()[3].unwanted);
}

TEST_CASE("one-way requests are told from the events in order, however many of a method there are") {
  using enum flight_event;
  story one;
  constexpr std::size_t many = 100'000;
  for (std::size_t i = 0; i != many; ++i) one.add(request_received, 1, 0);  // the first one runs, the others wait
  CHECK(one.served(1).size() == many);
  for (std::size_t i = 0; i != many - 2; ++i) one.add(request_done, 1, 0).add(handler_begun, 1, 0);
  const auto calls = one.served(1);
  REQUIRE(calls.size() == 2);
  CHECK(calls[0].age == std::chrono::microseconds(one.events.size() - (many - 1)));
  CHECK(calls[0].phase == served_phase::running);
  CHECK(calls[1].phase == served_phase::queued);
  one.add(handler_returned, 1, 0).add(handler_begun, 1, 0);
  CHECK(one.served(1)[0].phase == served_phase::later);
  CHECK(one.served(1)[1].phase == served_phase::running);
}

TEST_CASE("a worker that is killed leaves a file that says what it did last") {
  const temporary_directory directory;
  const ferry_test::watchdog watchdog("a worker that is killed");
  const std::string meeting = "file://" + directory.file("store");
  const std::string files = directory.file("flights");
  std::filesystem::create_directory(files);
  hold.reset();
  child_process child(
      {.role = "worker that is killed", .arguments = {meeting}, .environment = {{"FERRY_FLIGHT_DIRECTORY", files}}});
  ferry::worker self =
      ferry::init_rpc({.name = "worker0", .rank = 0, .world_size = 2, .init_method = meeting, .lease = 100s});
  const auto process = child.pid();
  const std::string path = files + "/ferry-worker1-" + std::to_string(process) + ".flight";
  for (int i = 0; i != 3; ++i) CHECK(self.rpc_sync<add_one>("worker1", i) == i + 1);
  const auto lost = self.rpc_async<call_back_and_wait>("worker1");
  hold.await_arrivals(1);
  CHECK(ferry::read_flight_file(path).served_calls.size() == 1);
  child.kill(SIGKILL);
  CHECK(child.wait() == 128 + SIGKILL);
  expect_error(errc::peer_lost, "worker1", [&] { lost.get(); });
  hold.open();
  self.shutdown(false);

  const worker_snapshot read = ferry::read_flight_file(path);
  CHECK(read.worker == worker_info("worker1", 1));
  CHECK(read.process == process);
  CHECK(read.incarnation != ferry::incarnation_id{});
  CHECK(has_event(read, "request_received", "flight_file_test::add_one"));
  CHECK(has_event(read, "request_answered", "flight_file_test::add_one"));
  CHECK(has_event(read, "connection_accepted", ""));
  CHECK(std::any_of(read.events.begin(), read.events.end(), [](const auto& each) { return !each.text.empty(); }));
  REQUIRE(read.served_calls.size() == 1);
  CHECK(read.served_calls[0].method.find("call_back_and_wait") != std::string::npos);
  CHECK(read.served_calls[0].caller == worker_info("worker0", 0));
  CHECK(read.served_calls[0].phase == served_phase::running);
  REQUIRE(read.pending_calls.size() == 1);
  CHECK(read.pending_calls[0].method.find("wait_for_the_test") != std::string::npos);
  CHECK(read.pending_calls[0].peer == worker_info("worker0", 0));
  CHECK(read.pending_calls[0].phase == call_phase::waiting_for_reply);
  const std::string json = to_json(read);
  CHECK(json.find(R"("reason": "post mortem", "worker": {"id": 1, "name": "worker1"})") != std::string::npos);
  CHECK(json.find(R"("phase": "waiting for the reply")") != std::string::npos);
  CHECK(std::chrono::abs(read.time - std::chrono::system_clock::now()) < 600s);
}

TEST_CASE("workers that end in order leave no flight file") {
  const temporary_directory directory;
  cluster group(2, {.configure = [&](ferry::worker_config& config) {
                  config.flight_directory = directory_of(directory) + "/.";
                }});
  const auto ours = [&] {
    auto all = names_in(directory_of(directory));
    std::erase_if(all, [](const std::string& each) { return !each.ends_with(".flight"); });
    return all;
  };
  CHECK(group[0].rpc_sync<add_one>("worker1", 1) == 2);
  CHECK(ours() == std::vector<std::string>{file_name("worker0"), file_name("worker1")});
  const worker_snapshot meanwhile = ferry::read_flight_file(directory.file(file_name("worker1")));
  CHECK(meanwhile.worker == group[1].info());
  CHECK(has_event(meanwhile, "request_received", "add_one"));
  group.shutdown();
  CHECK(ours().empty());
  CHECK(group[0].flight_record().find("add_one") != std::string::npos);
}

TEST_CASE("the flight file of a worker whose shutdown failed stays") {
  const temporary_directory directory;
  const captured_log log;
  cluster group(
      2, {.configure = [&](ferry::worker_config& config) { config.flight_directory = directory_of(directory); }});
  expect_error(errc::shutdown_timeout, "worker1", [&] { group[0].shutdown(true, 100ms); });
  group[1].shutdown(false);
  CHECK(ferry::read_flight_file(directory.file(file_name("worker0"))).worker == worker_info("worker0", 0));
  CHECK_FALSE(std::filesystem::exists(directory.file(file_name("worker1"))));
}

TEST_CASE("a child process does not remove the flight file of its parent") {
  const temporary_directory directory;
  flight_recorder ring(8, {.directory = directory_of(directory), .worker = "w"});
  const pid_t child = ::fork();
  if (child == 0) {
    ring.remove_file();
    ::_exit(0);
  }
  REQUIRE(child > 0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK(std::filesystem::exists(ring.file()));
}

TEST_CASE("a worker that does not start leaves no flight file; one without events has none") {
  const temporary_directory directory;
  const captured_log log;
  ferry::worker_config alone{.rank = 0,
                             .world_size = 2,
                             .init_method = "file://" + directory.file("store"),
                             .flight_directory = directory.file("flights"),
                             .init_timeout = 300ms};
  std::filesystem::create_directory(alone.flight_directory);
  CHECK_THROWS_AS((void)ferry::init_rpc(alone), ferry::error);
  CHECK(names_in(alone.flight_directory).empty());
  cluster group(1, {.configure = [&](ferry::worker_config& config) {
                  config.flight_directory = alone.flight_directory;
                  config.flight_events = 0;
                }});
  CHECK(group[0].rpc_sync<add_one>("worker0", 1) == 2);
  CHECK(names_in(alone.flight_directory).empty());
}

TEST_CASE("where there can be no flight file the events are in memory, and a warning says why") {
  const temporary_directory directory;
  write_file(directory.file("a-file"), {}, 0);
  for (const std::string& where : {directory.file("missing"), directory.file("a-file"), std::string("/proc")}) {
    CAPTURE(where);
    const captured_log log;
    cluster group(1, {.configure = [&](ferry::worker_config& config) { config.flight_directory = where; }});
    CHECK(log.has("worker0: no flight file in " + where, "in its memory only"));
    CHECK(log.level_of("no flight file") == ferry::log_level::warning);
    CHECK(group[0].rpc_sync<add_one>("worker0", 1) == 2);
    CHECK(group[0].flight_record().find("add_one") != std::string::npos);
  }
}

TEST_CASE("a limit on the size of files is no end of the process") {
  const temporary_directory directory;
  const captured_log log;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit small = before;
  small.rlim_cur = 65536;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  flight_recorder ring(1024, {.directory = directory_of(directory), .worker = "w"});  // SIGXFSZ is not ignored
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(log.has("worker w: no flight file in", "File too large"));
  CHECK(ring.on());
  CHECK(ring.file().empty());
  CHECK(names_in(directory_of(directory)).empty());
  for (std::uint64_t i = 0; i != 5000; ++i) ring.add(flight_event::call_started, flight_time::now(), {}, i, 1, 2);
  CHECK(ring.entries().size() == 1024);
}

TEST_CASE("a full disk is no end of the process") {
  const temporary_directory directory;
  child_process child({.role = "recorder on a full disk", .arguments = {directory_of(directory)}});
  const std::string result = child.read_line();
  CHECK(child.wait() == 0);
  if (result == "not permitted") {
    MESSAGE("left out: this user may not mount file systems, not even in a name space of its own");
    return;
  }
  CHECK(result == "works");
}

TEST_CASE("a flight file that is read while threads write to it has whole events only") {
  const temporary_directory directory;
  flight_recorder ring(16, {.directory = directory_of(directory), .worker = "w"});
  std::atomic<int> writing{3};
  std::vector<std::thread> threads;
  for (std::uint64_t own = 1; own != 4; ++own) {
    threads.emplace_back([&, own] {
      for (std::uint64_t i = 0; i != 5'000; ++i) {
        ring.add(flight_event::call_started, flight_time::now(), worker_id{static_cast<int>(own)}, own * i, own + i,
                 own ^ i, {}, i % 16 == 0 ? std::string_view("123456789").substr(0, own) : std::string_view());
        if (i % 64 == 0) ring.add_peer(worker_id{static_cast<int>(i)}, "peer");
      }
      --writing;
    });
  }
  int wrong = 0;
  do {
    for (const auto& each : ferry::read_flight_file(ring.file()).events) {
      const auto own = static_cast<std::uint64_t>(each.peer.value);
      const std::uint64_t i = each.bytes ^ own;
      if (each.call != own * i || (!each.text.empty() && each.text.size() != own)) ++wrong;
    }
  } while (writing.load() != 0);
  for (auto& each : threads) each.join();
  CHECK(wrong == 0);
  // Of the last ones, some may have been written into one place at the same time.
  ring.add(flight_event::call_started, flight_time::now(), worker_id{1}, 1, 1, 1);
  const worker_snapshot read = ferry::read_flight_file(ring.file());
  CHECK(read.events_so_far == 15'001);
  CHECK(read.events.size() > 10);
}

TEST_CASE("damaged flight files are refused, or read in part") {
  const temporary_directory directory;
  flight_recorder ring(64, {.directory = directory_of(directory), .worker = "w", .id = worker_id{0}});
  fill(ring);
  const std::vector<std::byte> whole = bytes_of_file(ring.file());
  const std::string damaged = directory.file("damaged");
  REQUIRE(decode_flight_file(whole).events.size() == 40);

  const auto refused = [&](errc kind, std::string_view why, const std::vector<std::byte>& bytes) {
    expect_error(kind, why, [&] { (void)decode_flight_file(bytes); });
  };
  for (std::size_t size = 0; size < whole.size(); size += ferry::detail::flight_page) {
    for (const std::size_t cut : {size, size + 1, size + ferry::detail::flight_page - 1}) {
      CAPTURE(cut);
      refused(errc::malformed, "cut short", {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(cut)});
    }
  }
  for (const std::size_t cut : {std::size_t{0}, std::size_t{100}, whole.size() / 2, whole.size() - 1}) {
    CAPTURE(cut);
    write_file(damaged, whole, cut);
    expect_error(errc::malformed, damaged + ": the flight file is cut short",
                 [&] { (void)ferry::read_flight_file(damaged); });
  }
  auto changed = whole;
  changed.emplace_back();
  refused(errc::malformed, "instead of", changed);
  const auto with_header = [&](auto change) {
    auto bytes = whole;
    flight_header header = header_of(bytes);
    change(header);
    set_header(bytes, header);
    return bytes;
  };
  refused(errc::version_mismatch, "version 2 of the format; this program reads version 1",
          with_header([](flight_header& header) { header.version = 2; }));
  refused(errc::malformed, "does not begin with", with_header([](flight_header& header) { header.magic[7] = 'X'; }));
  refused(errc::malformed, "was being made", with_header([](flight_header& header) { header.magic = {}; }));
  refused(errc::malformed, "the worker's name has no end",
          with_header([](flight_header& header) { header.worker.fill('w'); }));
  refused(errc::malformed, "pattern", with_header([](flight_header& header) { header.worker[0] = ' '; }));
  refused(errc::malformed, "the boot id has no end", with_header([](flight_header& header) { header.boot.fill('w'); }));
  for (std::uint64_t flight_header::*const field :
       {&flight_header::file_bytes, &flight_header::ring_at, &flight_header::events, &flight_header::texts_at,
        &flight_header::texts, &flight_header::names_at, &flight_header::names_bytes}) {
    for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 24U,
                                      std::uint64_t{1} << 63U, ~std::uint64_t{0}, ~std::uint64_t{0} - 4095}) {
      if (field == &flight_header::events && value == 1) continue;  // as large as the ring is, in pages
      refused(errc::malformed, "contradict", with_header([&](flight_header& header) { header.*field = value; }));
    }
  }
  changed = whole;
  std::fill_n(changed.begin() + ferry::detail::flight_calibrations_at, 192, std::byte{0});
  refused(errc::malformed, "what time it was", changed);
  expect_error(errc::system_failure, "No such file", [&] { (void)ferry::read_flight_file(directory.file("missing")); });
  expect_error(errc::malformed, "no regular file", [&] { (void)ferry::read_flight_file(directory_of(directory)); });
  expect_error(errc::malformed, "no regular file", [&] { (void)ferry::read_flight_file("/dev/zero"); });

  // Single bits: of the header each is noticed; of an event it costs that event.
  changed = whole;
  const auto with_bit = [&](std::size_t at, unsigned bit, auto look) {
    changed[at] ^= std::byte{1} << bit;
    look();
    changed[at] ^= std::byte{1} << bit;
  };
  for (std::size_t at = 0; at != sizeof(flight_header); ++at) {
    CAPTURE(at);
    with_bit(at, at % 8, [&] { CHECK_THROWS_AS((void)decode_flight_file(changed), ferry::error); });
  }
  const flight_header header = header_of(whole);
  for (std::size_t at = 0; at != 40 * ferry::detail::flight_event_bytes; ++at) {
    CAPTURE(at);
    with_bit(header.ring_at + at, at % 8, [&] { CHECK(decode_flight_file(changed).events.size() == 39); });
  }
  const std::size_t text_at = header.texts_at + 2 * sizeof(ferry::detail::flight_text);
  for (std::size_t at = 0; at != 23; ++at) {  // number, length, check, "because"
    CAPTURE(at);
    with_bit(text_at + at, at % 8,
             [&] { CHECK_FALSE(has_event(decode_flight_file(changed), "connection_lost", "", "because")); });
  }
  std::mt19937 random(7);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same ones each time
  for (int round = 0; round != 300; ++round) {
    CAPTURE(round);
    changed = whole;
    for (int i = 0; i != 20; ++i) {
      const std::size_t from = i % 10 == 0 ? ferry::detail::flight_identity_at : header.names_at;
      const std::size_t range = i % 10 == 0 ? 512 : 16384;
      changed[from + random() % range] ^= std::byte{static_cast<unsigned char>(random())};
    }
    try {
      const std::string json = to_json(decode_flight_file(changed));
      CHECK(json.find("connection_lost") != std::string::npos);
    } catch (const ferry::error& e) {
      CHECK(e.kind() == errc::malformed);
    }
  }
}

}  // namespace flight_file_test
