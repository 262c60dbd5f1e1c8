// Waits in a hash store, and what wakes them. conformance_test.cpp covers what every store guarantees.

#include <latch>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/base/error.hpp>
#include <ferry/store/hash_store.hpp>

namespace hash_store_test {

namespace {

using namespace std::chrono_literals;

TEST_CASE("many threads wait in a hash store, each for keys of its own and for some of all") {
  constexpr int size = 32;
  const auto content = std::make_shared<ferry::hash_store>();
  std::vector<int> answers(size, -1);
  std::latch waiting(size);
  {
    std::vector<std::jthread> threads;
    for (int own = 0; own != size; ++own) {
      threads.emplace_back([&, own, store = content->share()] {
        waiting.count_down();
        const std::vector<std::string> keys{"all/9", "own/" + std::to_string(own), "all/1", "all/9"};
        const auto values = store->get(keys, 60s);
        answers[static_cast<std::size_t>(own)] = std::stoi(values.at(1));
        CHECK(values.at(0) == "nine");
        CHECK(values.at(2) == "one");
      });
    }
    waiting.wait();
    for (int own = size; own-- != 0;) content->set("own/" + std::to_string(own), std::to_string(own));
    content->set("all/9", "nine");
    content->set("all/1", "one");
  }
  for (int own = 0; own != size; ++own) CHECK(answers[static_cast<std::size_t>(own)] == own);
}

TEST_CASE("keys of a hash store that are set and erased while a thread waits for all of them") {
  const auto content = std::make_shared<ferry::hash_store>();
  const std::vector<std::string> keys{"a", "b", "c"};
  std::jthread waiter([&, store = content->share()] {
    CHECK(store->get(keys, 60s) == std::vector<std::string>{"3", "2", "3"});
  });
  content->set("a", "1");
  content->set("c", "1");
  CHECK(content->erase("a"));
  CHECK(content->erase("c"));
  content->set("b", "2");
  CHECK_THROWS_AS((void)content->get(keys, 1ms), ferry::error);
  content->set("a", "3");
  content->set("c", "3");
}

TEST_CASE("closing one handle of a hash store ends its waits, and no others") {
  const auto content = std::make_shared<ferry::hash_store>();
  const auto closed = content->share();
  std::latch ended(1);
  std::jthread other([&, store = content->share()] { CHECK(store->get("key", 60s) == "value"); });
  std::jthread waiter([&] {
    CHECK_THROWS_AS((void)closed->get("key", 60s), ferry::error);
    CHECK_THROWS_AS((void)closed->wait_change("key", 0, 60s), ferry::error);
    ended.count_down();
  });
  closed->close();
  ended.wait();
  content->set("key", "value");
}

TEST_CASE("a wait for a change in a hash store is woken by changes of its own key only") {
  const auto content = std::make_shared<ferry::hash_store>();
  std::uint64_t seen = content->wait_change("key", ferry::store_change::unknown).version;
  CHECK(seen == 0);
  std::latch heard(1);
  std::jthread waiter([&, store = content->share()] {
    const auto change = store->wait_change("key", 0, 60s);
    CHECK(change.value == "value");
    // Changes may be folded into one.
    auto other = store->wait_change("other", 0, 60s);
    while (other.value) other = store->wait_change("other", other.version, 60s);
    heard.count_down();
  });
  content->set("key", "value");
  content->set("other", "1");
  CHECK_THROWS_AS((void)content->wait_change("third", 0, 1ms), ferry::error);
  while (!heard.try_wait()) {  // until the other thread has seen it
    (void)content->erase("other");
    if (!heard.try_wait()) content->set("other", "2");
  }
}

}  // namespace

}  // namespace hash_store_test
