// What a reactor thread has collected: its order, what the monitor may take from it, and that no item is lost or run twice.

#include "transport/reactor/thread_batch.hpp"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

using ferry::work;
using ferry::detail::thread_batch;
using ferry::detail::work_list;

namespace thread_batch_test {

namespace {

struct numbered : work {
  int number = 0;
  std::atomic<int> runs{0};
};

struct counting final : ferry::deferred_io {
  void flush() noexcept override { ++flushes; }
  bool resume_watching(bool) noexcept override { return true; }
  int flushes = 0;
};

int number_of(const work* item) { return item ? static_cast<const numbered*>(item)->number : -1; }

std::vector<int> numbers(const work_list& list) {
  std::vector<int> result;
  for (const work* each = list.head; each; each = each->next) result.push_back(number_of(each));
  CHECK(result.size() == list.count);
  return result;
}

std::vector<numbered> items() {
  std::vector<numbered> all(5);
  for (int i = 0; i != 5; ++i) all[static_cast<std::size_t>(i)].number = i;
  return all;
}

}  // namespace

TEST_SUITE_BEGIN("thread batch");

TEST_CASE("items are run in the order in which they came, whether from within others or not") {
  auto all = items();
  thread_batch batch;
  CHECK(batch.empty());
  CHECK(batch.pop() == nullptr);
  batch.push(&all[0], false);
  CHECK_FALSE(batch.empty());
  CHECK_FALSE(batch.has_rest());
  batch.push(&all[1], false);
  batch.push(&all[2], true);
  CHECK(batch.has_rest());
  CHECK(number_of(batch.pop()) == 0);
  batch.push(&all[3], true);
  CHECK(number_of(batch.pop()) == 1);
  CHECK(number_of(batch.pop()) == 2);
  CHECK(number_of(batch.pop()) == 3);
  CHECK(batch.empty());
  batch.push(&all[4], true);
  batch.push(&all[0], false);
  CHECK(numbers(batch.take_all()) == std::vector{4, 0});
  CHECK(batch.empty());
  batch.push(&all[1], false);
  batch.push(&all[2], false);
  CHECK(numbers(batch.take_all()) == std::vector{1, 2});
}

TEST_CASE("the monitor takes what is corked at once, and items once none has begun since its last look") {
  auto all = items();
  thread_batch batch;
  const auto connection = std::make_shared<counting>();
  CHECK_FALSE(batch.cork(connection));  // nothing will be run: it must be flushed by its owner
  batch.push(&all[0], false);
  batch.push(&all[1], false);
  CHECK(batch.cork(connection));
  std::vector<std::shared_ptr<ferry::deferred_io>> corked;
  work_list stuck;
  batch.note_progress();
  CHECK(batch.inspect(corked, stuck));
  CHECK(corked.size() == 1);
  CHECK(stuck.head == nullptr);
  batch.flush_corked();
  CHECK(connection->flushes == 0);  // the monitor flushes it
  CHECK(batch.inspect(corked, stuck));
  CHECK(numbers(stuck) == std::vector{0, 1});
  CHECK(batch.empty());
  CHECK_FALSE(batch.inspect(corked, stuck));

  batch.push(&all[2], false);
  CHECK(batch.cork(connection));
  CHECK(number_of(batch.pop()) == 2);
  batch.flush_corked();
  batch.flush_corked();
  CHECK(connection->flushes == 1);
}

TEST_CASE("while a monitor takes items from it no item is lost, and none is run twice") {
  constexpr int count = 50'000;
  std::vector<numbered> all(count);
  thread_batch batch;
  std::atomic<bool> ended{false};
  const auto run = [](work* item) { static_cast<numbered*>(item)->runs.fetch_add(1); };
  std::thread monitor([&] {
    std::vector<std::shared_ptr<ferry::deferred_io>> corked;
    const auto look = [&] {
      work_list stuck;
      (void)batch.inspect(corked, stuck);
      for (work* each = stuck.head; each;) {
        work* const next = each->next;
        run(each);
        each = next;
      }
    };
    while (!ended.load()) look();
    look();
    look();
  });
  for (int i = 0; i != count; ++i) {
    batch.push(&all[static_cast<std::size_t>(i)], i % 3 == 0);
    if (i % 2 == 0) continue;
    if (i % 4 == 1) batch.note_progress();
    while (work* const item = batch.pop()) run(item);
  }
  ended.store(true);
  monitor.join();
  int wrong = 0;
  for (const numbered& each : all) wrong += each.runs.load() == 1 ? 0 : 1;
  CHECK(wrong == 0);
}

TEST_SUITE_END();

}  // namespace thread_batch_test
