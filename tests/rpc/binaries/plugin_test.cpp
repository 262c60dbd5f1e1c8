// Methods that come and go with shared libraries.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "plugin_methods.hpp"

namespace plugin_test {
using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::captured_log;
using ferry_test::cluster;

namespace {

std::string library(const char* name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() /
         (std::string("libtest_plugin_") + name + ".so");
}

bool in_memory(const std::string& path) {
  void* found = ::dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (found) ::dlclose(found);
  return found != nullptr;
}

ferry_test::gate door;
int pass_door() {
  door.pass();
  return 20;
}
const ferry::provide<ferry::named<"test.wait_for_gate", pass_door>> own_methods;

bool gone(ferry::worker& caller) {
  try {
    const int answer = caller.rpc_sync<triple>("worker1", 2);
    CHECK(answer == 6);
    return false;
  } catch (const ferry::error& e) {
    CHECK(e.kind() == errc::unknown_method);
    return true;
  }
}

}  // namespace

TEST_CASE("a plug-in's methods are there while it is loaded, and its code goes with it") {
  captured_log log;
  cluster group(2);
  const std::string path = library("alpha");
  for (int round = 0; round != 20; ++round) {
    CHECK(gone(group[0]));
    ferry::plugin alpha(path);
    CHECK(alpha);
    CHECK(alpha.path() == path);
    CHECK(group[0].rpc_sync<triple>("worker1", 7) == 21);
    CHECK(group[0].rpc_async<greet>("worker1", "you").get() == "hello you");
    expect_error(errc::remote_exception, "of the plug-in", [&] { group[0].rpc_sync<fail>("worker1"); });
    if (round % 2 == 0) alpha.unload();
    if (round % 2 == 0) CHECK_FALSE(in_memory(path));
  }
  CHECK(gone(group[0]));
  CHECK_FALSE(in_memory(path));
}

struct unregistered_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void fail_here() { throw unregistered_error("of the program"); }

TEST_CASE("exception types that a plug-in has registered go with it, and come again") {
  cluster group(2);
  for (int round = 0; round != 3; ++round) {
    ferry::plugin alpha(library("alpha"));
    CHECK_THROWS_WITH_AS(group[0].rpc_sync<fail_as_registered>("worker1"), "of the plug-in, registered",
                         std::runtime_error);
    alpha.unload();
    CHECK_FALSE(in_memory(library("alpha")));
    CHECK_THROWS_AS(group[0].rpc_sync<fail_here>("worker1"), ferry::remote_error);
  }
}

TEST_CASE("several handles of a plug-in: the last one unloads") {
  captured_log log;
  cluster group(2);
  ferry::plugin first(library("alpha"));
  ferry::plugin second(library("alpha"));
  ferry::plugin third = std::move(first);
  CHECK_FALSE(first);  // NOLINT(bugprone-use-after-move): it is what is tested
  third.unload();
  third.unload();
  CHECK_FALSE(gone(group[0]));
  second = ferry::plugin();
  CHECK(gone(group[0]));
  CHECK_FALSE(in_memory(library("alpha")));
}

TEST_CASE("what is not a library is an error in the loader's words") {
  expect_error(errc::system_failure, "absent.so", [] { ferry::plugin absent("/nowhere/absent.so"); });
  ferry::plugin none;
  none.unload();
  CHECK_FALSE(none);
}

TEST_CASE("unloading waits for running handlers, whose methods are unknown meanwhile") {
  captured_log log;
  cluster group(2);
  struct form {
    std::string name;
    std::function<ferry::future<int>()> call;
    int answer;
    const char* in_use;
  };
  const std::vector<form> forms{
      {"blocking", [&] { return group[0].rpc_async<blocking>("worker1"); }, 20, "'alpha.blocking'"},
      {"coroutine", [&] { return group[0].rpc_async<coroutine>("worker1"); }, 40, "'alpha.coroutine'"},
      {"continued", [&] { return group[0].rpc_async<continued>("worker1"); }, 21, "'alpha.continued'"},
      {"leaving", [&] { return group[0].rpc_async<leaving>("worker1"); }, 1, "'test.wait_for_gate'"},
  };
  for (const form& each : forms) {
    CAPTURE(each.name);
    door.reset();
    ferry::plugin alpha(library("alpha"));
    const ferry::future<int> running = each.call();
    door.await_arrivals(1);
    try {
      alpha.unload(1ms);
      FAIL_CHECK("it was unloaded");
    } catch (const ferry::error& problem) {
      CHECK(problem.kind() == errc::method_busy);
      // A handler may wait for a call of the plug-in's own, which is in use, too: either is named.
      const std::string text = problem.what();
      const bool named = text.find(each.in_use) != text.npos || text.find("'test.wait_for_gate'") != text.npos;
      CHECK_MESSAGE(named, text);
    }
    CHECK_FALSE(gone(group[0]));  // all is as before

    std::thread unloader([&] { alpha.unload(); });
    while (!gone(group[0])) std::this_thread::yield();
    CHECK(in_memory(library("alpha")));
    door.open();
    CHECK(running.get() == each.answer);
    unloader.join();
    CHECK(gone(group[0]));
    CHECK_FALSE(in_memory(library("alpha")));
  }
}

TEST_CASE("a handler cannot unload its own plug-in") {
  captured_log log;
  cluster group(2);
  static ferry::plugin alpha;
  alpha = ferry::plugin(library("alpha"));
  void (*const unload)() = +[] { alpha.unload(); };
  const auto address = reinterpret_cast<std::uint64_t>(unload);
  for (int i = 0; i != 3; ++i) {
    expect_error(errc::method_busy, "by its own method 'alpha.call_back'",
                 [&] { group[0].rpc_sync<call_back>("worker1", address); });
    CHECK_FALSE(gone(group[0]));
  }
  alpha.unload();
  CHECK(gone(group[0]));
}

TEST_CASE("calls that race with loading and unloading are served or end with unknown_method") {
  captured_log log;
  cluster group(2);
  std::atomic<bool> stop{false};
  std::atomic<int> served{0};
  std::atomic<int> refused{0};
  std::atomic<int> wrong{0};
  const auto judge = [&](auto&& action) {
    try {
      if (!action()) ++wrong;
      ++served;
    } catch (const ferry::error& e) {
      if (e.kind() != errc::unknown_method) ++wrong;
      ++refused;
    }
  };
  std::vector<std::thread> callers;
  callers.emplace_back([&] {
    while (!stop) judge([&] { return group[0].rpc_sync<triple>("worker1", 5) == 15; });
  });
  callers.emplace_back([&] {
    while (!stop) {
      std::vector<ferry::future<std::string>> several;
      for (int i = 0; i != 8; ++i) several.push_back(group[1].rpc_async<greet>("worker0", "all"));
      for (const auto& each : several) judge([&] { return each.get() == "hello all"; });
    }
  });
  for (int round = 0; round != 100; ++round) {
    ferry::plugin alpha(library("alpha"));
    while (gone(group[0])) ++wrong;
    const int before = served;
    while (served == before) std::this_thread::yield();
    alpha.unload();
    const int refused_before = refused;
    while (refused == refused_before) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& each : callers) each.join();
  CHECK(wrong == 0);
}

TEST_CASE("a method that several libraries have is served until the last one goes") {
  captured_log log;
  cluster group(2);
  const auto call_both = [&] {
    CHECK(group[0].rpc_sync<everywhere>("worker1", 1) == 101);
    CHECK(group[0].rpc_sync<shared>("worker1", 1) == 1001);
  };
  ferry::plugin alpha(library("alpha"));
  call_both();
  ferry::plugin beta(library("beta"));
  call_both();
  alpha.unload();
  CHECK_FALSE(in_memory(library("alpha")));
  call_both();
  alpha = ferry::plugin(library("alpha"));
  beta.unload();
  CHECK_FALSE(in_memory(library("beta")));
  call_both();
  alpha.unload();
  CHECK(group[0].rpc_sync<everywhere>("worker1", 1) == 101);
  expect_error(errc::unknown_method, "plugins.shared", [&] { group[0].rpc_sync<shared>("worker1", 1); });
}

TEST_CASE("a plug-in with another function under a name that is taken is refused, with both named") {
  captured_log log;
  cluster group(2);
  ferry::plugin alpha(library("alpha"));
  for (const char* part : {"'alpha.triple' i32(i32) (the function alpha::triple)", "(the function rival::thrice)"}) {
    expect_error(errc::duplicate_method, part, [] { ferry::plugin rival(library("rival")); });
  }
  CHECK_FALSE(in_memory(library("rival")));
  CHECK_FALSE(gone(group[0]));

  // Loading it without ferry::plugin logs a message.
  void* rival = ::dlopen(library("rival").c_str(), RTLD_NOW);
  REQUIRE(rival);
  CHECK(log.has("alpha::triple", "rival::thrice", "The first one stays"));
  CHECK_FALSE(gone(group[0]));
  alpha.unload();
  CHECK(group[0].rpc_sync<triple>("worker1", 2) == 6);  // rival::thrice now
  ::dlclose(rival);
  CHECK(gone(group[0]));
}

TEST_CASE("dlopen and dlclose do, too: dlclose waits for running handlers") {
  captured_log log;
  cluster group(2);
  door.reset();
  void* alpha = ::dlopen(library("alpha").c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(alpha);
  CHECK_FALSE(gone(group[0]));
  void (*const wait)() = +[] {
    (void)ferry::serialize(1);  // the first use of a thread-local would need the loader's lock, which dlclose holds
    door.pass();
  };
  const auto running = group[0].rpc_async<call_back>("worker1", reinterpret_cast<std::uint64_t>(wait));
  door.await_arrivals(1);
  std::thread closer([&] { ::dlclose(alpha); });
  while (ferry::detail::method_hold::find(ferry::fingerprint("name:alpha.triple")).get()) std::this_thread::yield();
  door.open();
  closer.join();
  running.wait();
  CHECK(gone(group[0]));
  CHECK_FALSE(in_memory(library("alpha")));
}

TEST_CASE("the methods of a plug-in whose code cannot be unloaded go and come all the same") {
  captured_log log(ferry::log_level::info);
  cluster group(2);
  const std::string path = library("pinned");
  for (int round = 0; round != 3; ++round) {
    CHECK(gone(group[0]));
    ferry::plugin pinned(path);
    CHECK_FALSE(gone(group[0]));
    pinned.unload();
    CHECK(in_memory(path) == log.has(path, "its code stays in memory"));
  }
  CHECK(gone(group[0]));
}

}  // namespace plugin_test
