// Workers in processes of their own: calls, deaths, and a program that was built without some of the methods.

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "noise.hpp"
#include "process_group.hpp"
#include "processes.hpp"
#include "tests/rpc/methods/stranger.hpp"

namespace processes_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::captured_log;
using ferry_test::child_process;
using ferry_test::noise;
using rpc_test::process_group;

int plus_one(int value) { return value + 1; }
int process_id() { return static_cast<int>(::getpid()); }
ferry::tensor scale(const ferry::tensor& t, float by) {
  ferry::tensor result = t.clone();
  for (std::int64_t i = 0; i != result.numel(); ++i) result.data<float>()[i] *= by;
  return result;
}
std::string fail(const std::string& text) { throw std::domain_error(text); }
int through(int next, int value) { return ferry::rpc_sync<plus_one>(next, value); }
int around(int hops) {
  if (hops == 0) return 0;
  const int size = static_cast<int>(ferry::get_worker_infos().size());
  return 1 + ferry::rpc_sync<around>((ferry::get_worker_info().id().value + 1) % size, hops - 1);
}
// Tells when it runs, and waits for the end of the caller's interest.
ferry::task<int> never() {
  auto promise = std::make_shared<ferry::promise<int>>();
  const auto result = promise->get_future();
  const auto token = ferry::this_call().stop_token();
  std::stop_callback callback(token, [promise] { promise->set_value(0); });
  ferry_test::tell_parent("running");
  co_return co_await result;
}
std::atomic<bool> all_open{false};
int plus_one_when_open(int value) {
  all_open.wait(false);
  return value + 1;
}
void open_for_all() {
  all_open = true;
  all_open.notify_all();
}
ferry::task<int> await(ferry::future<int> value) { co_return co_await value; }
void stop_hard() { ::raise(SIGKILL); }

TEST_CASE("processes call each other, nested too, and leave together") {
  for (const char* transport : {"", "tcp"}) {
    CAPTURE(transport);
    process_group all(3, {.transport = transport});
    ferry::worker& self = all.self;
    for (int rank = 0; rank != 3; ++rank) CHECK(self.rpc_sync<plus_one>(rank, rank) == rank + 1);
    CHECK(self.rpc_sync<process_id>("worker1") == all.child(1).pid());
    CHECK(self.rpc_sync<process_id>("worker0") == ::getpid());
    CHECK(self.rpc_sync<through>("worker1", 2, 5) == 6);
    CHECK(self.rpc_sync<through>("worker1", 0, 5) == 6);
    CHECK(self.rpc_sync<around>("worker1", 30) == 30);
    const ferry::tensor t = noise({1000, 1000});
    CHECK(equal(self.rpc_sync<scale>("worker2", t, 1.F), t));
    CHECK(equal(self.rpc_async<scale>("worker1", t.transpose(0, 1), 2.F).get(), scale(t.transpose(0, 1), 2.F)));
    const ferry::tensor large = noise({16, 1024, 1024});  // 64 MiB
    CHECK(equal(self.rpc_sync<scale>("worker1", large, 1.F), large));
    std::vector<ferry::future<int>> calls;
    for (int i = 0; i != 1000; ++i) calls.push_back(self.rpc_async<plus_one>(1 + i % 2, i));
    for (int i = 0; i != 1000; ++i) CHECK(calls[static_cast<std::size_t>(i)].get() == i + 1);
    CHECK_THROWS_WITH_AS((void)self.rpc_sync<fail>("worker1", "line\nbreak"), "line\nbreak", std::domain_error);
    all.leave();
  }
}

TEST_CASE("when a process is killed its calls end at once as lost, and the others go on") {
  captured_log log;
  process_group all(3);
  ferry::worker& self = all.self;
  std::vector<ferry::future<int>> pending;
  for (int i = 0; i != 10; ++i) pending.push_back(self.rpc_async<never>({"worker1", {.timeout = ferry::no_timeout}}));
  std::jthread blocked([&] {
    CHECK_THROWS_AS((void)self.rpc_sync<never>({"worker1", {.timeout = ferry::no_timeout}}), ferry::peer_lost);
  });
  for (int i = 0; i != 11; ++i) CHECK(all.child(1).read_line() == "running");
  all.child(1).kill(SIGKILL);
  for (auto& each : pending)
    expect_error(errc::peer_lost, "worker_info(id=1, name=worker1)", [&] { (void)each.get(); });
  blocked.join();
  CHECK(all.child(1).wait() == 128 + SIGKILL);

  // Later calls to it fail, too, each with an error and none with a timeout.
  for (int i = 0; i != 3; ++i) {
    try {
      (void)self.rpc_sync<plus_one>({"worker1", {.timeout = ferry::no_timeout}}, 1);
      FAIL_CHECK("the dead answered");
    } catch (const ferry::error& e) {
      CHECK(e.kind() != errc::rpc_timeout);
      CHECK(std::string(e.what()).find("worker1") != std::string::npos);
    }
  }
  CHECK(self.rpc_sync<plus_one>("worker2", 1) == 2);
  CHECK(self.rpc_sync<through>("worker2", 0, 1) == 2);

  // The others leave together, without it.
  self.shutdown();
  CHECK(all.child(2).wait() == 0);
  expect_error(errc::not_initialized, "", [&] { (void)self.rpc_sync<plus_one>("worker2", 1); });
}

TEST_CASE("a process that kills itself in a handler: the call is lost") {
  captured_log log;
  process_group all(2);
  CHECK_THROWS_AS(all.self.rpc_sync<stop_hard>({"worker1", {.timeout = ferry::no_timeout}}), ferry::peer_lost);
  CHECK(all.child(1).wait() == 128 + SIGKILL);
  all.self.shutdown(false);
}

TEST_CASE("a process that leaves without the others: calls to it end as errors") {
  captured_log log;
  process_group all(2, {.role = "member that leaves alone"});
  CHECK(all.child(1).read_line() == "joined");
  const auto pending = all.self.rpc_async<never>({"worker1", {.timeout = ferry::no_timeout}});
  CHECK(all.child(1).read_line() == "running");
  all.child(1).write_line("leave");
  CHECK_THROWS_AS((void)pending.get(), ferry::peer_lost);
  CHECK_THROWS_AS((void)all.self.rpc_sync<plus_one>({"worker1", {.timeout = ferry::no_timeout}}, 1), ferry::error);
  CHECK(all.child(1).wait() == 0);
  all.self.shutdown(false);
}

TEST_CASE("a call to a process that does not answer the connection times out while connecting") {
  captured_log log;
  process_group all(2, {.role = "member that leaves alone", .transport = "tcp"});
  CHECK(all.child(1).read_line() == "joined");
  all.child(1).stop();
  expect_timeout("while connecting", [&] { (void)all.self.rpc_sync<plus_one>({"worker1", {.timeout = 300ms}}, 1); });
  expect_timeout("while connecting", [&] {
    (void)all.self.rpc_async<plus_one>({"worker1", {.timeout = 50ms}}, 1).get();
  });
  const auto patient = all.self.rpc_async<plus_one>({"worker1", {.timeout = 100s}}, 1);
  all.child(1).kill(SIGCONT);
  CHECK(patient.get() == 2);
  all.child(1).write_line("leave");
  CHECK(all.child(1).wait() == 0);
  all.self.shutdown(false);
}

TEST_CASE("a forked child that uses the workers of its parent gets an error, and does not hang") {
  ferry_test::cluster here(2);
  CHECK(here[0].rpc_sync<plus_one>("worker1", 1) == 2);
  const ferry::rref<int> kept = here[0].remote<plus_one>("worker1", 1);
  ferry::rref<int> dropped = here[0].remote<plus_one>("worker1", 2);
  CHECK(kept.to_here() + dropped.to_here() == 5);
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    int good = 0;
    const auto refused = [&](auto&& action) {
      try {
        action();
      } catch (const ferry::error& e) {
        if (e.kind() == errc::forked_process) ++good;
      } catch (...) {
        ::_exit(99);
      }
    };
    refused([&] { (void)ferry::rpc_sync<plus_one>("worker1", 1); });
    refused([&] { (void)ferry::rpc_async<plus_one>("worker1", 1); });
    refused([&] { ferry::notify<plus_one>("worker1", 1); });
    refused([&] { (void)here[0].rpc_sync<plus_one>("worker1", 1); });
    refused([&] { (void)here[0].rpc_async<plus_one>("worker1", 1); });
    refused([&] { (void)ferry::get_worker_info(); });
    refused([&] { (void)kept.to_here(); });
    refused([&] { (void)ferry::remote<plus_one>("worker1", 1); });
    refused([&] { (void)ferry::rref<int>(1); });
    dropped = {};  // it is the parent's
    refused([&] {
      (void)ferry::init_rpc({.name = "child", .rank = 0, .world_size = 1, .init_method = "file:///nowhere/x"});
    });
    ::_exit(good);
  }
  int status = 0;
  {
    const ferry_test::watchdog bound("the end of a forked child");
    REQUIRE(::waitpid(pid, &status, 0) == pid);
  }
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 10);
  CHECK(here[0].rpc_sync<plus_one>("worker1", 1) == 2);
  CHECK(kept.to_here() + dropped.to_here() == 5);
}

TEST_CASE("in a forked child a future that was pending at the fork throws, and the call goes on in the parent") {
  ferry_test::cluster here(2);
  const ferry::future<int> pending = here[0].rpc_async<plus_one_when_open>("worker1", 1);
  ferry::future<int> dropped = here[0].rpc_async<plus_one_when_open>("worker1", 2);
  ferry::future<int> given_up = here[0].rpc_async<plus_one_when_open>("worker1", 3);
  const ferry::future<int> kept[] = {dropped, given_up};
  ferry::promise<int> promise;
  const ferry::future<int> promised = promise.get_future();
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    int good = 0;
    const auto refused = [&](auto&& action) {
      try {
        action();
      } catch (const ferry::error& e) {
        if (e.kind() == errc::forked_process) ++good;
      } catch (...) {
        ::_exit(99);
      }
    };
    refused([&] { (void)pending.get(); });
    refused([&] { pending.wait(); });
    refused([&] { (void)pending.wait_for(100s); });
    refused([&] { (void)pending.wait_for(0s); });
    refused([&] { (void)promised.get(); });
    refused([&] { (void)ferry::sync_wait(await(pending)); });
    refused([&] { (void)ferry::when_all(pending, promised).get(); });
    dropped = {};
    given_up.cancel();
    refused([&] { (void)given_up.get(); });
    ::_exit(good);
  }
  int status = 0;
  {
    const ferry_test::watchdog bound("the end of a forked child");
    REQUIRE(::waitpid(pid, &status, 0) == pid);
  }
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 8);
  CHECK_FALSE(pending.ready());
  here[0].rpc_sync<open_for_all>("worker1");
  CHECK(pending.get() == 2);
  CHECK(kept[0].get() == 3);
  CHECK(kept[1].get() == 4);
}

TEST_CASE("[row 50] a method that the callee's program does not have, or has otherwise, is an error that says so") {
  captured_log log;
  ferry_test::watchdog watchdog("a test with another program");
  ferry_test::temporary_directory directory;
  const std::string meeting = "file://" + directory.file("store");
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "test_rpc_stranger";
  child_process child({.arguments = {meeting}, .program = program});
  ferry::worker self = ferry::init_rpc({.name = "worker0",
                                        .rank = 0,
                                        .world_size = 2,
                                        .init_method = meeting,
                                        .rpc_timeout = ferry::no_timeout,
                                        .secret = ferry::authentication_available() ? "of strangers" : ""});
  CHECK(self.rpc_sync<stranger::shared>("stranger", 20) == 41);
  for (int i = 0; i != 20; ++i) {
    for (const char* part : {"only_here", "worker_info(id=1, name=stranger)", "no method"}) {
      expect_error(errc::unknown_method, part, [&] { (void)self.rpc_sync<stranger::only_here>("stranger", 1); });
      expect_error(errc::unknown_method, part, [&] { (void)self.rpc_async<stranger::only_here>("stranger", 1).get(); });
    }
    self.notify<stranger::only_here>("stranger", 1);
    expect_error(errc::unknown_method, "only_here",
                 [&] { (void)self.remote<stranger::only_here>("stranger", 1).to_here(); });
    for (const char* part : {"take", "stranger::versioned", "worker_info(id=1, name=stranger)"}) {
      expect_error(errc::signature_mismatch, part,
                   [&] { (void)self.rpc_sync<stranger::take>("stranger", stranger::versioned{}); });
      expect_error(errc::signature_mismatch, part,
                   [&] { (void)self.rpc_async<stranger::take>("stranger", stranger::versioned{}).get(); });
    }
    for (const char* part : {"'stranger::of_one_name' as f64(f64)", "f64(i32)", "i32(f64, i32)"}) {
      expect_error(errc::signature_mismatch, part, [&] { (void)self.rpc_sync<stranger::of_one_name>("stranger", 1.); });
    }
  }
  CHECK(self.rpc_sync<stranger::shared>("stranger", 1) == 3);
  self.shutdown();
  CHECK(child.wait() == 0);
}

}  // namespace processes_test
