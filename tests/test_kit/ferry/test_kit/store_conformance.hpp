#pragma once

// Part of the test kit: the suite that every store must pass. For a store of your own, describe it and run the suites:
//
//   struct my_fixture final : ferry::test_kit::store_fixture { ... };
//   TEST_CASE("my_store conforms") { ferry::test_kit::store_conformance<my_fixture>(); }
//   TEST_CASE("my_store conforms over processes") { ferry::test_kit::store_conformance_over_processes<my_fixture>(); }
//
// For the second one, my_fixture has static std::shared_ptr<ferry::store> open_location(const std::string& location).

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <ostream>  // for doctest's printing of an errc
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/base/error.hpp>
#include <ferry/base/work.hpp>
#include <ferry/store/store.hpp>

#include <ferry/test_kit/child_process.hpp>

namespace ferry::test_kit {

using namespace std::chrono_literals;

/// One store under test. Implementations are default-constructible.
class store_fixture {
 public:
  virtual ~store_fixture() = default;
  /// A new handle on the store, as another worker would have.
  virtual std::shared_ptr<ferry::store> open() = 0;
  /// Text from which open_location() in another process opens the same store; empty if that is impossible.
  virtual std::string location() = 0;
};

/// Never expires in a test that works.
inline constexpr auto plenty = std::chrono::seconds(60);

/// The error that `action` throws; fails the test if it throws none.
template <class Action>
ferry::errc kind_of(Action action, std::string* text = nullptr) {
  try {
    static_cast<void>(action());
  } catch (const ferry::error& problem) {
    if (text) *text = problem.what();
    return problem.kind();
  }
  FAIL("no error was thrown");
  return {};
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Counts the waits of its thread and lets another thread detect that one has begun.
class counting_observer final : public ferry::blocking_observer {
 public:
  void before_blocking() override {
    ++depth_;
    ++begun;
    begun.notify_all();
  }
  void after_blocking() noexcept override { --depth_; }
  std::atomic<int> begun = 0;
  [[nodiscard]] int depth() const { return depth_; }

 private:
  std::atomic<int> depth_ = 0;
};

/// Runs `action` in a thread with an observer; returns when it blocks.
template <class Action>
auto start_blocking(counting_observer& observer, Action action) {
  auto running = std::async(std::launch::async, [&observer, action] {
    ferry::set_blocking_observer(&observer);
    return action();
  });
  observer.begun.wait(0);
  return running;
}

inline void check_store(store_fixture& fixture) {
  const std::shared_ptr<ferry::store> a = fixture.open();
  const std::shared_ptr<ferry::store> b = fixture.open();

  SUBCASE("a value that one handle sets, another gets") {
    a->set("key", "value");
    CHECK(b->get("key") == "value");
    CHECK(b->try_get("key") == "value");
    a->set("key", "other");
    CHECK(b->get("key") == "other");
    CHECK(b->try_get("absent") == std::nullopt);
  }

  SUBCASE("values are any bytes, keys too") {
    std::string all;
    for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
    a->set(all, all);
    a->set("empty", "");
    CHECK(b->get(all) == all);
    CHECK(b->get("empty").empty());
    CHECK(b->count() == 2);
    const std::string large(a->max_value_bytes(), 'x');
    a->set("large", large);
    CHECK((b->get("large") == large));
  }

  SUBCASE("limits on keys and values") {
    std::string text;
    CHECK(kind_of([&] { a->set("", "v"); }) == ferry::errc::invalid_argument);
    CHECK(kind_of([&] { return a->get(std::string(ferry::store::max_key_bytes + 1, 'k')); }, &text) ==
          ferry::errc::limit_exceeded);
    CHECK(contains(text, "4096"));
    CHECK(kind_of([&] { a->set("k", std::string(a->max_value_bytes() + 1, 'v')); }) == ferry::errc::limit_exceeded);
    CHECK(kind_of([&] { a->set_default_timeout({}); }) == ferry::errc::invalid_argument);
    a->set("still", "works");
    CHECK(b->get("still") == "works");
  }

  SUBCASE("get waits until the key exists") {
    counting_observer observer;
    auto got = start_blocking(observer, [&] { return b->get("later", plenty); });
    a->set("later", "now");
    CHECK(got.get() == "now");
    CHECK(observer.depth() == 0);
  }

  SUBCASE("wait and get of several keys end when the last one exists") {
    const std::vector<std::string> keys = {"one", "two", "three"};
    counting_observer observer;
    counting_observer other;
    auto got = start_blocking(observer, [&] { return b->get(keys, plenty); });
    auto waited = start_blocking(other, [&] {
      b->wait(keys, plenty);
      return true;
    });
    a->set("three", "3");
    a->set("one", "1");
    a->set("two", "2");
    CHECK(got.get() == std::vector<std::string>{"1", "2", "3"});
    CHECK(waited.get());
    CHECK(b->get(std::vector<std::string>{}).empty());
    CHECK(b->get(std::vector<std::string>{"one", "one"}) == std::vector<std::string>{"1", "1"});
  }

  SUBCASE("values of several keys may be larger together than a message") {
    const std::vector<std::string> keys = {"a", "b", "c"};
    for (const std::string& key : keys) a->set(key, std::string(a->max_value_bytes(), key[0]));
    const std::vector<std::string> values = b->get(keys);
    REQUIRE(values.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) CHECK((values[i] == std::string(a->max_value_bytes(), keys[i][0])));
    CHECK(b->list("").size() == 3);
  }

  SUBCASE("a wait that is not met names the missing keys") {
    a->set("there", "1");
    std::string text;
    const std::vector<std::string> keys = {"there", "names/3", "names/4"};
    // A server that did not answer in time cannot name the missing ones.
    const auto time_out = [&](const auto& wait) {
      do {
        CHECK(kind_of(wait, &text) == ferry::errc::store_timeout);
      } while (contains(text, "for the answer of"));
    };
    time_out([&] { b->wait(keys, 20ms); });
    CHECK(contains(text, "names/3'"));
    CHECK(contains(text, "names/4'"));
    CHECK_FALSE(contains(text, "there'"));
    time_out([&] { return b->get("names/9", 1ms); });
    CHECK(contains(text, "names/9"));
    b->set_default_timeout(5ms);
    CHECK(kind_of([&] { return b->get("names/9"); }) == ferry::errc::store_timeout);
    CHECK(b->default_timeout() == ferry::timeout(5ms));
    b->set_default_timeout(plenty);
    CHECK(b->get("there") == "1");  // usable afterwards
  }

  SUBCASE("add") {
    CHECK(a->add("counter", 5) == 5);
    CHECK(b->add("counter", -7) == -2);
    CHECK(a->get("counter") == "-2");
    a->set("counter", "40");
    CHECK(b->add("counter", 2) == 42);
    std::string text;
    a->set("text", "4x");
    CHECK(kind_of([&] { b->add("text", 1); }, &text) == ferry::errc::invalid_argument);
    CHECK(contains(text, "text"));
    CHECK(a->get("text") == "4x");
    CHECK(a->add("big", std::numeric_limits<std::int64_t>::max()) == std::numeric_limits<std::int64_t>::max());
    CHECK(kind_of([&] { b->add("big", 1); }) == ferry::errc::invalid_argument);
    CHECK(b->add("low", std::numeric_limits<std::int64_t>::min()) == std::numeric_limits<std::int64_t>::min());
  }

  SUBCASE("compare_set returns the value afterwards") {
    CHECK(a->compare_set("token", "", "mine") == "mine");
    CHECK(b->compare_set("token", "", "yours") == "mine");
    CHECK(b->compare_set("token", "wrong", "yours") == "mine");
    CHECK(b->compare_set("token", "mine", "") == "");
    CHECK(a->try_get("token") == "");
    CHECK(a->compare_set("token", "", "again") == "again");
    CHECK(a->compare_set("absent", "something", "x") == "");
    CHECK(a->try_get("absent") == std::nullopt);
  }

  SUBCASE("erase, count, list") {
    for (const char* key : {"b/2", "a/1", "b/1", "c"}) a->set(key, std::string("v") + key);
    CHECK(b->count() == 4);
    CHECK(b->count("b/") == 2);
    CHECK(b->list("b/") == std::vector<ferry::store_entry>{{"b/1", "vb/1"}, {"b/2", "vb/2"}});
    CHECK(b->list().size() == 4);
    CHECK(b->list("x").empty());
    CHECK(b->erase("b/1"));
    CHECK_FALSE(a->erase("b/1"));
    CHECK(a->count("b/") == 1);
    CHECK(a->try_get("b/1") == std::nullopt);
  }

  SUBCASE("wait_change") {
    ferry::store_change seen = b->wait_change("w", ferry::store_change::unknown);
    CHECK(seen.version == 0);
    CHECK_FALSE(seen.value);
    CHECK(kind_of([&] { b->wait_change("w", seen.version, 5ms); }) == ferry::errc::store_timeout);

    counting_observer observer;
    auto change = start_blocking(observer, [&] { return b->wait_change("w", 0, plenty); });
    a->set("w", "1");
    seen = change.get();
    CHECK(seen.value == "1");
    CHECK(seen.version != 0);

    counting_observer second;
    change = start_blocking(second, [&, last = seen.version] { return b->wait_change("w", last, plenty); });
    a->set("other", "no");
    a->set("w", "1");  // the same value is a change too
    const auto again = change.get();
    CHECK(again.value == "1");
    CHECK(again.version != seen.version);

    counting_observer third;
    change = start_blocking(third, [&, last = again.version] { return b->wait_change("w", last, plenty); });
    a->erase("w");
    CHECK(change.get().version == 0);
    a->set("w", "back");
    CHECK(b->wait_change("w", again.version).value == "back");
  }

  SUBCASE("close ends waits and refuses everything after it") {
    counting_observer observer;
    counting_observer other;
    auto get = start_blocking(observer, [&] { return kind_of([&] { return b->get("never", plenty); }); });
    auto change = start_blocking(other, [&] { return kind_of([&] { b->wait_change("never", 0, plenty); }); });
    b->close();
    CHECK(get.get() == ferry::errc::store_failed);
    CHECK(change.get() == ferry::errc::store_failed);
    b->close();
    CHECK(kind_of([&] { b->set("k", "v"); }) == ferry::errc::store_failed);
    CHECK(kind_of([&] { return b->try_get("k"); }) == ferry::errc::store_failed);
    CHECK(kind_of([&] { return b->list(); }) == ferry::errc::store_failed);
    CHECK(kind_of([&] { b->add("k", 1); }) == ferry::errc::store_failed);
    CHECK(a->try_get("k") == std::nullopt);
    CHECK(a->drain(plenty));
  }

  SUBCASE("many threads on many handles: every add counts, one compare_set wins") {
    constexpr int threads = 6;
    constexpr int rounds = 40;
    std::atomic<int> winners = 0;
    std::vector<std::thread> running;
    for (int t = 0; t < threads; ++t) {
      running.emplace_back([&, t] {
        const auto mine = t % 3 == 0 ? a : t % 3 == 1 ? b : fixture.open();
        for (int i = 0; i < rounds; ++i) {
          mine->add("sum", 1);
          const std::string key = "race/" + std::to_string(i);
          if (mine->compare_set(key, "", std::to_string(t)) == std::to_string(t)) ++winners;
        }
        // A barrier, as used by start-up and shutdown.
        mine->add("arrived", 1);
        while (mine->get("arrived", plenty) != std::to_string(threads)) {
          const auto state = mine->wait_change("arrived", ferry::store_change::unknown);
          if (state.value != std::to_string(threads)) mine->wait_change("arrived", state.version, plenty);
        }
      });
    }
    for (std::thread& each : running) each.join();
    CHECK(a->get("sum") == std::to_string(threads * rounds));
    CHECK(winners == rounds);
    CHECK(b->count("race/") == rounds);
  }
}

namespace detail {

/// Performs a role in another process, on the store there.
inline void play_store_role(const std::string& role, ferry::store& store) {
  if (role == "meet") {
    const std::string rank = given("FERRY_TEST_KIT_RANK");
    store.set("names/" + rank, "child" + rank);
    CHECK(store.get("names/0", plenty) == "parent");
    for (int i = 0; i < 100; ++i) store.add("sum", 1);
    store.wait("go", plenty);
  } else if (role == "wait for ever") {
    store.set("waiting", "");
    store.wait("never", ferry::no_timeout);
  } else {
    REQUIRE(role == "write for ever");
    const std::string value(100'000, 'x');
    for (;;) {
      store.set("value", value);
      store.add("written", 1);
    }
  }
}

inline void check_store_over_processes(store_fixture& fixture) {
  const std::shared_ptr<ferry::store> a = fixture.open();
  const auto start = [&](const std::string& role, const std::string& rank = {}) {
    return child_process::in_role(role, {{"FERRY_TEST_KIT_STORE", fixture.location()}, {"FERRY_TEST_KIT_RANK", rank}});
  };

  SUBCASE("processes meet") {
    std::vector<child_process> children;
    std::vector<std::string> keys;
    for (int rank = 1; rank < 4; ++rank) {
      children.push_back(start("meet", std::to_string(rank)));
      keys.push_back("names/" + std::to_string(rank));
    }
    a->set("names/0", "parent");
    CHECK(a->get(keys, plenty) == std::vector<std::string>{"child1", "child2", "child3"});
    a->set("go", "");
    for (child_process& each : children) CHECK(each.wait() == 0);
    CHECK(a->get("sum") == "300");
  }

  SUBCASE("a process that is killed leaves a store that works") {
    child_process waiter = start("wait for ever");
    child_process writer = start("write for ever");
    a->wait("waiting", plenty);
    const auto before = a->wait_change("written", ferry::store_change::unknown);
    a->wait_change("written", before.version, plenty);
    waiter.kill(SIGKILL);
    writer.kill(SIGKILL);
    CHECK(waiter.wait() == 128 + SIGKILL);
    CHECK(writer.wait() == 128 + SIGKILL);
    const std::int64_t count = std::stoll(a->get("written"));
    CHECK(a->add("written", 1) == count + 1);
    CHECK(a->get("value") == std::string(100'000, 'x'));
    a->set("never", "now");
    CHECK(fixture.open()->get("never") == "now");
  }
}

}  // namespace detail

/// Runs all single-process tests, as subcases of the current test case.
template <class Fixture>
void store_conformance() {
  Fixture fixture;
  check_store(fixture);
}

/// Runs the tests that need several processes, as subcases of the current test case, which must do nothing else: it is
/// also run in the other processes.
template <class Fixture>
void store_conformance_over_processes() {
  if (const std::string role = child_process::current_role(); !role.empty()) {
    return detail::play_store_role(role, *Fixture::open_location(given("FERRY_TEST_KIT_STORE")));
  }
  Fixture fixture;
  detail::check_store_over_processes(fixture);
}

}  // namespace ferry::test_kit
