#pragma once

// Part of the test kit: the suite that every backend must pass. For a backend of your own, describe it and run the
// suite in a test case:
//
//   struct my_backend_under_test {
//     using tag = my_backend;                                          // backend_traits<my_backend> exists
//     static std::string missing() { return {}; }                      // why this machine cannot run it, if so
//     static auto options() { return ferry::construct_rpc_backend_options<my_backend>(); }
//   };
//   TEST_CASE("my_backend conforms") { ferry::test_kit::backend_conformance<my_backend_under_test>(); }
//
// Its workers are threads of one process; they meet through a file in a temporary directory.

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <ostream>  // for doctest's printing of an errc
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ferry.hpp>

namespace ferry::test_kit {
namespace detail {

// The methods that the workers call.
inline int add(int a, int b) { return a + b; }
inline ferry::tensor negated(const ferry::tensor& values) { return ferry::mul(values, -1); }
inline std::string name_here() { return ferry::get_worker_info().name(); }
inline int ask(const std::string& whom, int a, int b) { return ferry::rpc_sync<add>(whom, a, b); }
inline int refuse(const std::string& why) { throw std::out_of_range(why); }
inline std::atomic<int>& notes_taken() {
  static std::atomic<int> count{0};
  return count;
}
inline void take_note(int value) {
  notes_taken() += value;
  notes_taken().notify_all();
}
inline std::atomic<bool>& held() {
  static std::atomic<bool> flag{false};
  return flag;
}
inline std::atomic<int>& holding() {
  static std::atomic<int> count{0};
  return count;
}
inline void hold() {
  ++holding();
  holding().notify_all();
  held().wait(true);
}
inline std::atomic<int>& stops_seen() {
  static std::atomic<int> count{0};
  return count;
}
inline ferry::task<void> wait_for_stop(const std::string& whom) {
  try {
    co_await ferry::rpc_async<hold>(whom);
  } catch (const ferry::error&) {
    ++stops_seen();
    stops_seen().notify_all();
    throw;  // so that the caller gets a timeout, whichever end detects it first
  }
}

template <class Under>
class backend_group {
 public:
  using configure = std::function<void(ferry::worker_config&)>;

  /// Starts all of them at once. The error of a worker that does not start is in error(rank).
  explicit backend_group(int size, const configure& change = {}) : workers_(as_size(size)), errors_(as_size(size)) {
    std::string pattern = (std::filesystem::temp_directory_path() / "ferry_kit_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::system_error(errno, std::generic_category(), pattern);
    directory_ = pattern;
    each([&](int rank) {
      ferry::worker_config config;
      config.name = "worker" + std::to_string(rank);
      config.rank = rank;
      config.world_size = size;
      config.init_method = "file://" + (directory_ / "store").string();
      if (change) change(config);
      try {
        workers_[as_size(rank)] = ferry::init_rpc<typename Under::tag>(config, Under::options());
      } catch (...) {
        errors_[as_size(rank)] = std::current_exception();
      }
    });
  }
  ~backend_group() {
    each([&](int rank) { workers_[as_size(rank)] = ferry::worker(); });
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  backend_group(const backend_group&) = delete;
  backend_group& operator=(const backend_group&) = delete;

  [[nodiscard]] int size() const { return static_cast<int>(workers_.size()); }
  ferry::worker& operator[](int rank) { return workers_[as_size(rank)]; }
  [[nodiscard]] std::exception_ptr error(int rank) const { return errors_[as_size(rank)]; }
  [[nodiscard]] bool started() const {
    for (const auto& each : errors_) {
      if (each) std::rethrow_exception(each);
    }
    return true;
  }

  /// `body(rank)` for every worker, each on a thread of its own.
  void each(const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank != size(); ++rank) threads.emplace_back([&body, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  static std::size_t as_size(int number) { return static_cast<std::size_t>(number); }
  std::filesystem::path directory_;
  std::vector<ferry::worker> workers_;
  std::vector<std::exception_ptr> errors_;
};

/// The kind of the ferry::error that `action` throws; fails the test if it throws none.
template <class Action>
ferry::errc error_of(Action action) {
  try {
    static_cast<void>(action());
  } catch (const ferry::error& problem) {
    return problem.kind();
  }
  FAIL_CHECK("no error was thrown");
  return {};
}

template <class Under>
void check_joining() {
  SUBCASE("groups of several sizes form, and every worker lists all others") {
    for (const int size : {1, 2, 4}) {
      backend_group<Under> group(size);
      REQUIRE(group.started());
      for (int rank = 0; rank != size; ++rank) {
        CHECK(group[rank].name() == "worker" + std::to_string(rank));
        CHECK((group[rank].id() == ferry::worker_id{rank}));
        const auto all = group[rank].workers();
        REQUIRE(all.size() == static_cast<std::size_t>(size));
        for (int other = 0; other != size; ++other) {
          CHECK((all[static_cast<std::size_t>(other)] == ferry::worker_info("worker" + std::to_string(other), other)));
          CHECK(group[rank].get_worker_info("worker" + std::to_string(other)).id().value == other);
          CHECK(group[rank].get_worker_info(ferry::worker_id{other}).id().value == other);
        }
      }
    }
  }
  SUBCASE("a name given twice prevents all workers from starting") {
    backend_group<Under> group(3, [](ferry::worker_config& config) {
      if (config.rank == 2) config.name = "worker0";
    });
    for (int rank = 0; rank != 3; ++rank) {
      CHECK(error_of([&] {
              if (group.error(rank)) std::rethrow_exception(group.error(rank));
              return 0;
            }) == ferry::errc::duplicate_name);
    }
  }
  SUBCASE("a group that stays incomplete is an error at the deadline") {
    backend_group<Under> group(1, [](ferry::worker_config& config) {
      config.world_size = 2;
      config.init_timeout = std::chrono::milliseconds(50);
    });
    CHECK(error_of([&] {
            if (group.error(0)) std::rethrow_exception(group.error(0));
            return 0;
          }) == ferry::errc::store_timeout);
  }
  SUBCASE("a process may have several groups, one after the other and at once") {
    for (int incarnation = 0; incarnation != 2; ++incarnation) {
      backend_group<Under> one(2);
      backend_group<Under> other(2);
      REQUIRE(one.started());
      REQUIRE(other.started());
      CHECK(one[0].template rpc_sync<add>("worker1", 1, incarnation) == 1 + incarnation);
      CHECK(other[1].template rpc_sync<add>("worker0", 2, incarnation) == 2 + incarnation);
    }
  }
}

template <class Under>
void check_calls() {
  backend_group<Under> group(3);
  REQUIRE(group.started());
  SUBCASE("every worker calls every worker, by name and by id, itself included") {
    group.each([&](int rank) {
      for (int other = 0; other != 3; ++other) {
        const std::string name = "worker" + std::to_string(other);
        CHECK(group[rank].template rpc_sync<name_here>(name) == name);
        CHECK(group[rank].template rpc_sync<add>(other, rank, other) == rank + other);
      }
    });
  }
  SUBCASE("many calls are under way at once") {
    std::vector<ferry::future<int>> sums;
    for (int i = 0; i != 1000; ++i) sums.push_back(group[0].template rpc_async<add>(1 + i % 2, i, 1));
    for (int i = 0; i != 1000; ++i) CHECK(sums[static_cast<std::size_t>(i)].get() == i + 1);
  }
  SUBCASE("several threads of a worker make calls") {
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t != 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i != 200; ++i) wrong += group[0].template rpc_sync<add>(1, t, i) == t + i ? 0 : 1;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
  }
  SUBCASE("tensors and views are transferred") {
    const auto grid = ferry::arange(24.0).reshape({4, 6});
    for (const auto& sent : {grid, grid.transpose(0, 1), grid.slice(1, 0, 6, 2), ferry::empty({0, 3})}) {
      CHECK(ferry::equal(group[0].template rpc_sync<negated>("worker2", sent), ferry::mul(sent, -1)));
    }
    const auto large = ferry::ones({3'000'000});
    CHECK(ferry::equal(group[0].template rpc_sync<negated>("worker2", large), ferry::mul(large, -1)));
  }
  SUBCASE("handlers make calls") {
    CHECK(group[0].template rpc_sync<ask>("worker1", std::string("worker2"), 3, 4) == 7);
  }
  SUBCASE("one-way calls arrive") {
    notes_taken() = 0;
    for (int i = 0; i != 100; ++i) group[0].template notify<take_note>("worker1", 1);
    for (int seen = notes_taken(); seen != 100; seen = notes_taken()) notes_taken().wait(seen);
  }
}

template <class Under>
void check_errors() {
  backend_group<Under> group(3);
  REQUIRE(group.started());
  SUBCASE("an unknown destination") {
    CHECK(error_of([&] { return group[0].template rpc_sync<add>("unknown", 1, 2); }) == ferry::errc::unknown_worker);
    CHECK(error_of([&] { return group[0].template rpc_sync<add>(3, 1, 2); }) == ferry::errc::unknown_worker);
    CHECK(error_of([&] { return group[0].template rpc_sync<add>(-1, 1, 2); }) == ferry::errc::unknown_worker);
  }
  SUBCASE("an exception of a handler") {
    CHECK_THROWS_WITH_AS(group[0].template rpc_sync<refuse>("worker1", std::string("not today")), "not today",
                         std::out_of_range);
    CHECK(group[0].template rpc_sync<add>("worker1", 1, 2) == 3);
  }
  SUBCASE("a timeout, which also ends the callee's calls") {
    CHECK(group[0].template rpc_sync<add>("worker1", 1, 2) == 3);  // so that there is a connection
    held() = true;
    const int before = stops_seen();
    CHECK(error_of([&] {
            group[0].template rpc_sync<wait_for_stop>({"worker1", {.timeout = std::chrono::milliseconds(500)}},
                                                      std::string("worker2"));
            return 0;
          }) == ferry::errc::rpc_timeout);
    for (int seen = stops_seen(); seen == before; seen = stops_seen()) stops_seen().wait(seen);
    held() = false;
    held().notify_all();
    CHECK(group[0].template rpc_sync<add>("worker1", 1, 2) == 3);
  }
  SUBCASE("a worker that has left is an error at once, and the others go on") {
    CHECK(group[0].template rpc_sync<add>("worker2", 1, 2) == 3);
    group[2].shutdown(false);
    CHECK_THROWS_AS(group[0].template rpc_sync<add>("worker2", 1, 2), ferry::error);
    CHECK_THROWS_AS(group[1].template rpc_sync<add>("worker2", 1, 2), ferry::error);
    CHECK(group[0].template rpc_sync<add>("worker1", 1, 2) == 3);
    group[0].shutdown(false);
    group[1].shutdown(false);
  }
  SUBCASE("calls that are under way when a worker leaves at once end") {
    held() = true;
    const int before = holding();
    auto pending = group[0].template rpc_async<hold>("worker1");
    holding().wait(before);
    std::thread releases([&] {
      CHECK_THROWS_AS(pending.get(), ferry::error);
      held() = false;
      held().notify_all();
    });
    group[0].shutdown(false);
    releases.join();
    CHECK(error_of([&] { return group[0].template rpc_sync<add>("worker1", 1, 2); }) == ferry::errc::not_initialized);
    group[1].shutdown(false);
    group[2].shutdown(false);
  }
}

template <class Under>
void check_leaving() {
  backend_group<Under> group(3);
  REQUIRE(group.started());
  SUBCASE("a graceful shutdown serves until every worker has called it") {
    std::thread early([&] { group[0].shutdown(); });
    CHECK(group[1].template rpc_sync<add>("worker0", 1, 2) == 3);
    CHECK(group[2].template rpc_sync<ask>("worker0", std::string("worker1"), 3, 4) == 7);
    std::thread second([&] { group[1].shutdown(); });
    CHECK(group[2].template rpc_sync<add>("worker1", 5, 6) == 11);
    group[2].shutdown();
    early.join();
    second.join();
  }
  SUBCASE("calls made before a graceful shutdown complete") {
    notes_taken() = 0;
    group.each([&](int rank) {
      for (int i = 0; i != 50; ++i) group[rank].template notify<take_note>((rank + 1) % 3, 1);
      group[rank].shutdown();
    });
    CHECK(notes_taken() == 150);
  }
  SUBCASE("a graceful shutdown without one worker ends at its deadline") {
    CHECK(error_of([&] {
            group[0].shutdown(true, std::chrono::milliseconds(50));
            return 0;
          }) == ferry::errc::shutdown_timeout);
    group[1].shutdown(false);
    group[2].shutdown(false);
  }
}

}  // namespace detail

/// Runs everything as subcases of the current test case.
template <class Under>
void backend_conformance() {
  if (const auto why = Under::missing(); !why.empty()) {
    MESSAGE("skipped: " << why);
    return;
  }
  SUBCASE("joining") { detail::check_joining<Under>(); }
  SUBCASE("calls") { detail::check_calls<Under>(); }
  SUBCASE("errors") { detail::check_errors<Under>(); }
  SUBCASE("leaving") { detail::check_leaving<Under>(); }
}

}  // namespace ferry::test_kit
