// What happened last: the ring, the JSON that is made of it, and when it is written.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "temporary_directory.hpp"
#include "tests/rpc/worker/process_group.hpp"
#include "watchdog.hpp"

#include "rpc/diagnostics/flight_record.hpp"
#include "rpc/diagnostics/flight_recorder.hpp"
#include "rpc/diagnostics/json_text.hpp"

namespace flight_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry::worker_id;
using ferry::detail::flight_event;
using ferry::detail::flight_recorder;
using ferry::detail::flight_time;
using ferry_test::captured_log;
using ferry_test::cluster;
using ferry_test::gate;
using ferry_test::temporary_directory;
using rpc_test::process_group;

gate hold;
int plus_one(int value) { return value + 1; }
void fail() { throw std::runtime_error("no"); }
void wait_at_gate() { hold.pass(); }
ferry::task<int> in_two_steps(int value) { co_return value; }
void say_running_and_wait() {
  ferry_test::tell_parent("running");
  (void)ferry_test::ask_parent();
  ferry_test::tell_parent("went on");
}

// Its only handler thread is busy until it is told to stop. SIGUSR1 makes it write what it knows.
const ferry_test::role asked("worker that is asked by signal", [](const std::vector<std::string>& arguments) {
  ferry::record_on_signal(SIGUSR1, arguments.at(1));
  ferry::worker self = ferry::init_rpc(
      {.name = "asked", .rank = 0, .world_size = 1, .init_method = arguments.at(0), .num_worker_threads = 1});
  const auto stuck = self.rpc_async<wait_at_gate>("asked");
  hold.await_arrivals(1);
  ferry_test::tell_parent("ready");
  // The thread sanitizer runs signal handlers late, except in calls like this one.
  pollfd input{STDIN_FILENO, POLLIN, 0};
  while (::poll(&input, 1, -1) != 1) {
  }
  hold.open();
  stuck.get();
  self.shutdown();
  return 0;
});

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string content(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Whether it is JSON: RFC 8259, without a look at what it means.
class json_reader {
 public:
  explicit json_reader(const std::string& text) : at_(text.data()), end_(text.data() + text.size()) {}
  bool whole() {
    if (!value()) return false;
    space();
    return at_ == end_;
  }

 private:
  void space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n')) ++at_;
  }
  bool take(char c) {
    space();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  bool word(std::string_view text) {
    if (static_cast<std::size_t>(end_ - at_) < text.size() || std::string_view(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  bool text() {
    if (!take('"')) return false;
    while (at_ != end_ && *at_ != '"') {
      if (static_cast<unsigned char>(*at_) < 0x20) return false;
      if (*at_++ != '\\') continue;
      if (at_ == end_) return false;
      const char escape = *at_++;
      if (escape == 'u') {
        for (int i = 0; i != 4; ++i) {
          if (at_ == end_ || std::isxdigit(static_cast<unsigned char>(*at_++)) == 0) return false;
        }
      } else if (!contains("\"\\/bfnrt", std::string(1, escape))) {
        return false;
      }
    }
    return take('"');
  }
  bool number() {
    const char* const begin = at_;
    if (at_ != end_ && *at_ == '-') ++at_;
    while (at_ != end_ && *at_ >= '0' && *at_ <= '9') ++at_;
    return at_ != begin;
  }
  bool value() {
    space();
    if (at_ == end_) return false;
    if (*at_ == '{') return several('{', '}', true);
    if (*at_ == '[') return several('[', ']', false);
    if (*at_ == '"') return text();
    return word("true") || word("false") || word("null") || number();
  }
  bool several(char open, char close, bool named) {
    take(open);
    if (take(close)) return true;
    do {
      if (named && (!text() || !take(':'))) return false;
      if (!value()) return false;
    } while (take(','));
    return take(close);
  }
  const char* at_;
  const char* end_;
};
bool is_json(const std::string& text) { return json_reader(text).whole(); }

// The events of a record, one line each, in their order.
std::vector<std::string> events_of(const std::string& record) {
  std::vector<std::string> result;
  std::istringstream in(record);
  for (std::string line; std::getline(in, line);) {
    if (contains(line, "\"event\": ")) result.push_back(line);
  }
  return result;
}
std::ptrdiff_t count(const std::vector<std::string>& lines, const std::string& event, const std::string& part = "") {
  return std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
    return contains(line, "\"event\": \"" + event + "\"") && contains(line, part);
  });
}
// Where it is; events.size() if nowhere.
std::size_t place(const std::vector<std::string>& lines, const std::string& event, const std::string& part) {
  const auto found = std::find_if(lines.begin(), lines.end(), [&](const std::string& line) {
    return contains(line, "\"event\": \"" + event + "\"") && contains(line, part);
  });
  return static_cast<std::size_t>(found - lines.begin());
}

std::vector<std::string> files_in(const std::string& directory) {
  std::vector<std::string> result;
  for (const auto& each : std::filesystem::directory_iterator(directory)) result.push_back(each.path().filename());
  return result;
}

}  // namespace

TEST_CASE("the ring keeps the last events, in order of time, with all that was said of them") {
  flight_recorder ring(5);
  CHECK(ring.on());
  CHECK(ring.capacity() == 8);
  const auto start = ferry::clock::now();
  for (std::uint64_t i = 0; i != 20; ++i) {
    const flight_time at = i % 2 == 0 ? flight_time::now() : flight_time(ferry::clock::now());
    ring.add(flight_event::call_replied, at, worker_id{static_cast<int>(i)}, i << 40U, ~i, i * 10, errc::peer_lost);
  }
  ring.add(flight_event::connection_lost, flight_time::now(), worker_id{-1}, 0, 0, 0, {}, "because");
  const auto all = ring.entries();
  REQUIRE(all.size() == 8);
  CHECK(ring.count() == 21);
  for (std::size_t i = 0; i != 7; ++i) {
    const std::uint64_t number = 13 + i;
    CAPTURE(number);
    CHECK(all[i].number == number);
    CHECK(all[i].what == flight_event::call_replied);
    CHECK(all[i].peer.value == static_cast<int>(number));
    CHECK(all[i].call == number << 40U);
    CHECK(all[i].method == ~number);
    CHECK(all[i].bytes == number * 10);
    CHECK(all[i].code == errc::peer_lost);
    CHECK(all[i].text.empty());
    CHECK(all[i].steady_ns <= all[i + 1].steady_ns);
  }
  CHECK(all[7].text == "because");
  CHECK(all[7].peer.value == -1);
  const auto in_ns = [](ferry::clock::time_point at) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
  };
  // The processor's counter and the clock are read one after the other.
  CHECK(all[0].steady_ns >= in_ns(start) - 1'000'000);
  CHECK(all[7].steady_ns <= in_ns(ferry::clock::now()) + 1'000'000);
}

TEST_CASE("a ring of no events is off; texts of old events may be gone, their events are not") {
  flight_recorder off(0);
  CHECK_FALSE(off.on());
  off.add(flight_event::call_started, flight_time::now(), {}, 1, 2, 3);
  off.add(flight_event::call_started, flight_time::now(), {}, 1, 2, 3, {}, "text");
  CHECK(off.entries().empty());

  flight_recorder ring(1024);
  for (int i = 0; i != 1000; ++i) {
    ring.add(flight_event::call_failed, flight_time::now(), {}, 1, 2, 3, {}, std::to_string(i));
  }
  const auto all = ring.entries();
  REQUIRE(all.size() == 1000);
  CHECK(all.front().text.empty());
  CHECK(all.back().text == "999");
  ring.add(flight_event::call_failed, flight_time::now(), {}, 1, 2, 3, {}, std::string(10000, 'x'));
  CHECK(ring.entries().back().text.size() <= 1000);
}

TEST_CASE("threads that write to the ring and read it at once see whole events only") {
  flight_recorder ring(16);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint64_t own = 1; own != 4; ++own) {
    threads.emplace_back([&, own] {
      for (std::uint64_t i = 0; i != 20'000; ++i) {
        ring.add(flight_event::call_started, flight_time::now(), worker_id{static_cast<int>(own)}, own * i, own + i,
                 own ^ i);
      }
      stop = true;
    });
  }
  threads.emplace_back([&] {
    while (!stop.load()) {
      for (const auto& each : ring.entries()) {
        const auto own = static_cast<std::uint64_t>(each.peer.value);
        const std::uint64_t i = each.method - own;
        if (each.call != own * i || each.bytes != (own ^ i)) ++wrong;
      }
    }
  });
  for (auto& each : threads) each.join();
  CHECK(wrong.load() == 0);
  CHECK(ring.entries().size() > 10);
}

TEST_CASE("text of any kind becomes JSON that can be read") {
  using ferry::detail::json_text;
  CHECK(json_text("") == R"("")");
  CHECK(json_text("plain") == R"("plain")");
  CHECK(json_text("a\"b\\c/d") == R"("a\"b\\c/d")");
  CHECK(json_text("line\nbreak\ttab\x01\x7f") == R"("line\nbreak\u0009tab\u0001\u007f")");
  CHECK(json_text(std::string_view("null\0byte", 9)) == R"("null\u0000byte")");
  CHECK(json_text("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x9a\xa2") == "\"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x9a\xa2\"");
  // Bytes that begin nothing, sequences that end early, overlong forms, surrogates, beyond the last character.
  CHECK(json_text("\x80") == R"("\ufffd")");
  CHECK(json_text("\xff"
                  "a") == R"("\ufffda")");
  CHECK(json_text("\xe2\x82") == R"("\ufffd\ufffd")");
  CHECK(json_text("\xc0\xaf") == R"("\ufffd\ufffd")");
  CHECK(json_text("\xed\xa0\x80") == R"("\ufffd\ufffd\ufffd")");
  CHECK(json_text("\xf4\x90\x80\x80") == R"("\ufffd\ufffd\ufffd\ufffd")");
  CHECK(json_text("\xe0\x80\x80") == R"("\ufffd\ufffd\ufffd")");
  std::string every;
  for (int i = 0; i != 256; ++i) every += static_cast<char>(i);
  CHECK(is_json(json_text(every)));
  CHECK_FALSE(is_json("\"\n\""));
  CHECK_FALSE(is_json("{\"a\" 1}"));
}

TEST_CASE("a flight record tells the life of calls at both ends") {
  captured_log log;
  cluster group(2);
  CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
  CHECK(group[0].rpc_async<in_two_steps>("worker1", 5).get() == 5);
  CHECK_THROWS_AS(group[0].rpc_async<flight_test::fail>("worker1").get(), std::runtime_error);
  group[0].notify<plus_one>("worker1", 1);
  while (group[1].traffic()[0].served != 4 || !group[1].served_calls().empty()) std::this_thread::yield();
  while (count(events_of(group[1].flight_record()), "handler_returned") == 0) std::this_thread::yield();
  group[0].add_debug_info("me", {{"odd \"name\"", [] { return std::string("line\nbreak"); }}});

  const std::string caller = group[0].flight_record();
  CHECK_MESSAGE(is_json(caller), caller);
  CHECK(contains(caller, R"("ferry_flight_record": 1)"));
  CHECK(contains(caller, R"("reason": "asked for")"));
  CHECK(contains(caller, R"("worker": {"id": 0, "name": "worker0"})"));
  CHECK(contains(caller, R"("process": )" + std::to_string(::getpid())));
  CHECK(contains(caller, R"("odd \"name\"": "line\nbreak")"));
  CHECK(contains(caller, R"("agent.thread_pool_size": ")"));
  auto lines = events_of(caller);
  CHECK(count(lines, "call_started") == 3);
  CHECK(count(lines, "call_replied") == 3);
  CHECK(count(lines, "call_replied", R"("error": "remote_exception")") == 1);
  CHECK(count(lines, "one_way_sent", "plus_one") == 1);
  CHECK(count(lines, "connection_opened", "inproc") == 1);
  CHECK(count(lines, "call_sent") <= 1);  // the first one may have waited for the connection
  const std::string plus_one_name = R"(flight_test::plus_one")";
  CHECK(place(lines, "call_started", plus_one_name) < place(lines, "call_replied", plus_one_name));
  CHECK(place(lines, "call_replied", plus_one_name) < lines.size());

  const std::string callee = group[1].flight_record();
  CHECK_MESSAGE(is_json(callee), callee);
  lines = events_of(callee);
  CHECK(count(lines, "connection_accepted") == 1);
  CHECK(count(lines, "request_received", R"("peer": 0)") == 4);
  CHECK(count(lines, "handler_returned", "in_two_steps") == 1);
  CHECK(count(lines, "request_answered") == 2);
  CHECK(count(lines, "request_failed", R"("error": "remote_exception")") == 1);
  CHECK(count(lines, "request_done", "plus_one") == 1);
  CHECK(place(lines, "request_received", plus_one_name) < place(lines, "request_answered", plus_one_name));

  // The ring is bounded.
  for (int i = 0; i != 2000; ++i) (void)group[0].rpc_sync<plus_one>("worker1", i);
  const std::string later = group[0].flight_record();
  CHECK(events_of(later).size() == 1024);
  CHECK(is_json(later));
  group.shutdown();
  CHECK(count(events_of(group[0].flight_record()), "connection_lost") >= 1);  // after its end, too
}

TEST_CASE("a request that had to wait for a place says when it got one; the others begin when they arrive") {
  hold.reset();
  cluster group(2, {.configure = [](ferry::worker_config& config) { config.num_worker_threads = 1; }});
  const auto first = group[0].rpc_async<wait_at_gate>("worker1");
  hold.await_arrivals(1);
  const auto second = group[0].rpc_async<plus_one>("worker1", 1);
  while (count(events_of(group[1].flight_record()), "request_received") != 2) std::this_thread::yield();
  hold.open();
  CHECK(second.get() == 2);
  first.get();
  const auto lines = events_of(group[1].flight_record());
  CHECK(count(lines, "handler_begun", "plus_one") == 1);
  CHECK(place(lines, "request_answered", "wait_at_gate") < place(lines, "handler_begun", "plus_one"));
  CHECK(place(lines, "handler_begun", "plus_one") < place(lines, "request_answered", "plus_one"));
}

TEST_CASE("timeouts, cancellations, losses and what hangs are in the record") {
  captured_log log;
  hold.reset();
  process_group all(2, {.role = "member", .lease = 100s});
  CHECK(all.self.rpc_sync<plus_one>("worker1", 1) == 2);
  expect_error(errc::rpc_timeout, "while waiting for the reply", [&] {
    all.self.rpc_sync<say_running_and_wait>({"worker1", {.timeout = 4s}});
  });
  // One after the other: each reads the line that is meant for it.
  CHECK(all.child(1).read_line() == "running");
  all.child(1).write_line("");
  CHECK(all.child(1).read_line() == "went on");
  auto given_up = all.self.rpc_async<say_running_and_wait>("worker1");
  CHECK(all.child(1).read_line() == "running");
  given_up.cancel();
  all.child(1).write_line("");
  CHECK(all.child(1).read_line() == "went on");
  auto lost = all.self.rpc_async<say_running_and_wait>("worker1");
  CHECK(all.child(1).read_line() == "running");
  const std::string meanwhile = all.self.flight_record();
  CHECK(contains(meanwhile, R"("phase": "waiting for the reply")"));
  all.child(1).kill(SIGKILL);
  expect_error(errc::peer_lost, "worker1", [&] { lost.get(); });
  while (count(events_of(all.self.flight_record()), "member", "lost: ") == 0) std::this_thread::yield();
  const std::string record = all.self.flight_record();
  CHECK(is_json(record));
  const auto lines = events_of(record);
  CHECK(count(lines, "call_timed_out", R"("error": "rpc_timeout", "text": "waiting for the reply")") == 1);
  CHECK(count(lines, "call_cancelled") == 1);
  CHECK(count(lines, "call_failed", R"("error": "peer_lost")") == 1);
  CHECK(count(lines, "connection_lost", "shm") >= 1);
}

TEST_CASE("with flight_events = 0 nothing is recorded, and the rest of the record is there") {
  cluster group(1, {.configure = [](ferry::worker_config& config) { config.flight_events = 0; }});
  CHECK(group[0].rpc_sync<plus_one>("worker0", 1) == 2);
  const std::string record = group[0].flight_record();
  CHECK(is_json(record));
  CHECK(events_of(record).empty());
  CHECK(contains(record, R"("traffic": [)"));
  expect_error(errc::invalid_argument, "flight_events",
               [] { (void)ferry::worker_config{.flight_events = -1}.options(); });
}

TEST_CASE("a timeout writes the record where it was asked to, and not again at once") {
  captured_log log(ferry::log_level::info);
  hold.reset();
  temporary_directory directory;
  {
    cluster group(2, {.configure = [&](ferry::worker_config& config) {
                    config.record_on_timeout = std::filesystem::path(directory.file("x")).parent_path();
                  }});
    for (int i = 0; i != 3; ++i) {
      expect_error(errc::rpc_timeout, "wait_at_gate", [&] {
        group[0].rpc_sync<wait_at_gate>({"worker1", {.timeout = 200ms}});
      });
      expect_error(errc::rpc_timeout, "wait_at_gate", [&] {
        group[0].rpc_async<wait_at_gate>({"worker1", {.timeout = 200ms}}).get();
      });
    }
    hold.open();
  }
  const std::string name = "ferry-worker0-" + std::to_string(::getpid()) + ".json";
  const std::string where = std::filesystem::path(directory.file("x")).parent_path();
  const auto files = files_in(where);
  CHECK(std::count(files.begin(), files.end(), name) == 1);
  CHECK(std::none_of(files.begin(), files.end(), [](const std::string& each) { return contains(each, ".tmp"); }));
  const std::string record = content(where + "/" + name);
  CHECK(is_json(record));
  CHECK(contains(record, R"("reason": "timeout")"));
  CHECK(contains(record, "wait_at_gate"));
  CHECK(count(events_of(record), "call_timed_out") >= 1);
  CHECK(log.has("flight record: ", name));
}

TEST_CASE("a record that cannot be written is logged and costs nothing else") {
  captured_log log;
  hold.reset();
  temporary_directory directory;
  for (const std::string& path : {directory.file("missing/record.json"), std::string("/dev/full/x")}) {
    CAPTURE(path);
    {
      cluster group(2, {.configure = [&](ferry::worker_config& config) { config.record_on_timeout = path; }});
      expect_error(errc::rpc_timeout, "wait_at_gate", [&] {
        group[0].rpc_sync<wait_at_gate>({"worker1", {.timeout = 200ms}});
      });
      CHECK(group[0].rpc_sync<plus_one>("worker0", 1) == 2);
      hold.open();
    }
    hold.reset();
    CHECK(log.has("a flight record cannot be written to", path));
  }
}

TEST_CASE("a file is replaced in one step, and left as it was when there is no room") {
  temporary_directory directory;
  const std::string file = directory.file("record.json");
  CHECK(ferry::detail::write_record(file, "unused", "first") == file);
  CHECK(ferry::detail::write_record(file, "unused", "second") == file);
  CHECK(content(file) == "second");
  // A limit on the size of files is as good as a full disk: the second half is refused.
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  struct sigaction ignore {};
  struct sigaction handled {};
  ignore.sa_handler = SIG_IGN;
  REQUIRE(::sigaction(SIGXFSZ, &ignore, &handled) == 0);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string problem;
  try {
    (void)ferry::detail::write_record(file, "unused", std::string(100'000, 'x'));
  } catch (const ferry::error& e) {
    problem = e.what();
  }
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  REQUIRE(::sigaction(SIGXFSZ, &handled, nullptr) == 0);
  CHECK_MESSAGE(contains(problem, "cannot be written to " + file), problem);
  CHECK(content(file) == "second");
  CHECK(files_in(std::filesystem::path(file).parent_path()).size() == 1);
}

TEST_CASE("a signal makes a process write the records of its workers, again and again, whatever its threads do") {
  temporary_directory directory;
  const ferry_test::watchdog watchdog("a record asked for by a signal");
  const std::string file = directory.file("record.json");
  ferry_test::child_process child(
      {.role = "worker that is asked by signal", .arguments = {"file://" + directory.file("store"), file}});
  CHECK(child.read_line() == "ready");
  for (int i = 0; i != 3; ++i) {
    CAPTURE(i);
    child.kill(SIGUSR1);
    while (!std::filesystem::exists(file)) std::this_thread::yield();
    const std::string record = content(file);
    CHECK_MESSAGE(is_json(record), record);
    CHECK(contains(record, R"({"ferry_flight_records": 1, "workers": [{"ferry_flight_record": 1)"));
    CHECK(contains(record, "\"reason\": \"signal " + std::to_string(SIGUSR1) + "\""));
    CHECK(contains(record, R"("name": "asked")"));
    CHECK(contains(record, R"("phase": "running")"));
    std::filesystem::remove(file);
  }
  child.write_line("");
  CHECK(child.wait() == 0);
}

TEST_CASE("signals that cannot be had are refused in words") {
  expect_error(errc::invalid_argument, "path", [] { ferry::record_on_signal(SIGUSR2, ""); });
  expect_error(errc::invalid_argument, "1..64", [] { ferry::record_on_signal(0, "x"); });
  expect_error(errc::invalid_argument, "1..64", [] { ferry::record_on_signal(65, "x"); });
  expect_error(errc::invalid_argument, "cannot be caught", [] { ferry::record_on_signal(SIGKILL, "x"); });
  struct sigaction own {};
  struct sigaction before {};
  own.sa_handler = [](int) {};
  REQUIRE(::sigaction(SIGUSR2, &own, &before) == 0);
  expect_error(errc::invalid_argument, "handles signal", [] { ferry::record_on_signal(SIGUSR2, "x"); });
  REQUIRE(::sigaction(SIGUSR2, &before, nullptr) == 0);
}

}  // namespace flight_test
