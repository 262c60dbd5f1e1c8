#include <ferry/rpc/context_values.hpp>

#include <ferry/rpc/combinators.hpp>
#include <ferry/rpc/promise.hpp>
#include <ferry/rpc/task.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "allocation_count.hpp"
#include "test_executor.hpp"

namespace context_values_test {

using ferry::context_value_scope;
using ferry::context_values;
using ferry::context_values_scope;
using ferry::current_value;
using ferry::current_values;
using ferry_test::entered_context;
using ferry_test::manual_executor;
using ferry_test::pool_executor;

namespace {

constexpr ferry::context_key<int> depth("depth");
constexpr ferry::context_key<int> other("other");
constexpr ferry::context_key<std::string> tenant("tenant");
constexpr ferry::context_key<std::shared_ptr<int>> shared("shared");

/// The value of `depth` on this thread; -1: none.
int depth_here() {
  const int* value = current_value(depth);
  return value ? *value : -1;
}

class mark final : public ferry::travelling_value {
 public:
  explicit mark(int value) : value_(value) {}
  void on_request(ferry::outgoing_request&) const override {}
  [[nodiscard]] int value() const { return value_; }

 private:
  int value_;
};
/// A base class before the travelling one, so that their addresses differ.
struct named_mark final : std::string, ferry::travelling_value {
  using std::string::string;
  void on_request(ferry::outgoing_request&) const override {}
};
constexpr ferry::context_key<mark> first_mark("first mark");
constexpr ferry::context_key<named_mark> second_mark("second mark");

std::vector<const ferry::travelling_value*> travelling(const context_values& values) {
  std::vector<const ferry::travelling_value*> all;
  values.for_each_travelling([&](const ferry::travelling_value& each) { all.push_back(&each); });
  return all;
}

/// A context with initial values, as a call has.
class context_of_a_call final : public ferry::call_context {
 public:
  explicit context_of_a_call(context_values values, std::shared_ptr<ferry::executor> threads = nullptr)
      : call_context(std::move(threads)) {
    set_initial_values(std::move(values));
  }
};

/// An awaitable that is not ferry's: the test resumes the handle.
struct parking_place {
  std::coroutine_handle<> parked;
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) noexcept { parked = handle; }
  void await_resume() const noexcept {}
};

/// A coroutine type that is not ferry's.
struct foreign {
  struct promise_type {
    foreign get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
};

ferry::task<int> depth_after(ferry::future<int> awaited) {
  co_await awaited;
  co_return depth_here();
}

}  // namespace

TEST_CASE("a map of context values is never changed: with() and without() make others") {
  const context_values none;
  CHECK(none.empty());
  CHECK(none.size() == 0);
  CHECK(none.get(depth) == nullptr);
  CHECK(none.describe().empty());

  const context_values one = none.with(depth, 1);
  const context_values two = one.with(tenant, "blue").with(depth, 2);
  CHECK(none.empty());
  CHECK(*one.get(depth) == 1);
  CHECK(one.get(tenant) == nullptr);
  CHECK(*two.get(depth) == 2);
  CHECK(*two.get(tenant) == "blue");
  CHECK(two.get(other) == nullptr);  // another key of the same type
  CHECK(two.size() == 2);
  CHECK(two.describe() == "depth, tenant");

  const context_values less = two.without(depth);
  CHECK(less.get(depth) == nullptr);
  CHECK(less.get(tenant) == two.get(tenant));  // the value is shared, not copied
  CHECK(less.without(other).get(tenant) == less.get(tenant));
  CHECK(less.without(tenant).empty());
  CHECK(none.without(depth).empty());
}

TEST_CASE("a value lives as long as a map that holds it") {
  const auto owned = std::make_shared<int>(1);
  context_values a = context_values().with(shared, owned).with(depth, 1);
  CHECK(owned.use_count() == 2);
  context_values b = a.with(depth, 2);
  CHECK(owned.use_count() == 2);
  a = context_values();
  CHECK(owned.use_count() == 2);
  b = b.with(shared, nullptr);
  CHECK(owned.use_count() == 1);
}

TEST_CASE("a constructor of a value that throws changes nothing") {
  struct picky {
    explicit picky(int value) {
      if (value < 0) throw std::invalid_argument("negative");
    }
  };
  static constexpr ferry::context_key<picky> key("picky");
  const context_values values = context_values().with(depth, 1);
  CHECK_THROWS_AS((void)values.with(key, -1), std::invalid_argument);
  CHECK_THROWS_AS([] { const context_value_scope scope(key, -1); }(), std::invalid_argument);
  CHECK(values.size() == 1);
  CHECK(current_values().empty());
}

TEST_CASE("values that travel are found among the others, in the order of their keys") {
  CHECK(!context_values().has_travelling());
  CHECK(!context_values().with(depth, 1).has_travelling());
  context_values values = context_values().with(depth, 1).with(first_mark, mark(1)).with(tenant, "blue");
  values = values.with(second_mark, "second").with(other, 1);
  CHECK(values.has_travelling());
  CHECK(travelling(values) ==
        std::vector<const ferry::travelling_value*>{values.get(first_mark), values.get(second_mark)});
  CHECK(*values.get(second_mark) == "second");

  values = values.with(first_mark, mark(2));
  CHECK(values.get(first_mark)->value() == 2);
  CHECK(travelling(values) ==
        std::vector<const ferry::travelling_value*>{values.get(first_mark), values.get(second_mark)});
  values = values.without(first_mark);
  CHECK(travelling(values) == std::vector<const ferry::travelling_value*>{values.get(second_mark)});
  CHECK(*values.get(depth) == 1);
  CHECK(!values.without(second_mark).has_travelling());
}

TEST_CASE("scopes set the values of their thread, and nest") {
  CHECK(depth_here() == -1);
  {
    const context_value_scope outer(depth, 1);
    const context_value_scope beside(tenant, "blue");
    CHECK(depth_here() == 1);
    {
      const context_value_scope inner(depth, 2);
      CHECK(depth_here() == 2);
      CHECK(*current_value(tenant) == "blue");
      std::thread([] { CHECK(current_values().empty()); }).join();
      const context_values_scope nothing((context_values()));
      CHECK(current_values().empty());
    }
    CHECK(depth_here() == 1);
  }
  CHECK(current_values().empty());
}

TEST_CASE("a thread that enters a context begins with the context's initial values") {
  const ferry::context_ptr context(new context_of_a_call(context_values().with(depth, 1)));
  const context_value_scope outside(tenant, "blue");
  {
    const ferry::context_scope entered(context);
    CHECK(depth_here() == 1);
    CHECK(current_value(tenant) == nullptr);
    const context_value_scope changed(depth, 2);
    {
      const ferry::context_scope again(context);
      CHECK(depth_here() == 1);
    }
    CHECK(depth_here() == 2);
    const auto captured = ferry::captured_context::current();
    CHECK(captured.context.get() == context.get());
    std::thread([&] {
      const ferry::context_scope there(captured);
      CHECK(ferry::thread_context() == context.get());
      CHECK(depth_here() == 2);
    }).join();
    const ferry::context_scope none(ferry::context_ptr{});
    CHECK(current_values().empty());
  }
  CHECK(*current_value(tenant) == "blue");
}

TEST_CASE("callbacks of a future run with the values of where they were attached") {
  for (const bool pending : {true, false}) {
    CAPTURE(pending);
    ferry::promise<int> promise;
    if (!pending) promise.set_value(1);
    const auto future = promise.get_future();
    int done = -2;
    ferry::future<int> then;
    ferry::future<int> awaited;
    {
      const context_value_scope scope(depth, 1);
      then = future.then([](int) { return depth_here(); });
      future.add_done_callback([&](int) { done = depth_here(); });
      awaited = future.then([future](int) { return depth_after(future); });
    }
    const ferry::future<int> without = future.then([](int) { return depth_here(); });
    const context_value_scope completing(depth, 9);
    if (pending) promise.set_value(1);
    CHECK(then.get() == 1);
    CHECK(done == 1);
    CHECK(awaited.get() == 1);
    CHECK(without.get() == -1);
    CHECK(depth_here() == 9);
  }
}

TEST_CASE("callbacks run with their values on the threads of their context, too") {
  const auto threads = std::make_shared<manual_executor>();
  ferry::promise<int> promise;
  ferry::future<int> result;
  {
    const entered_context context(threads);
    const context_value_scope scope(depth, 1);
    result = promise.get_future().then([](int) { return depth_here(); });
  }
  promise.set_value(1);
  CHECK(threads->run() == 1);
  CHECK(result.get() == 1);
  CHECK(depth_here() == -1);
}

TEST_CASE("the captures of a callback are destroyed with its values") {
  struct observer {
    int* seen;
    explicit observer(int* where) : seen(where) {}
    observer(const observer&) = delete;
    observer(observer&& from) noexcept : seen(std::exchange(from.seen, nullptr)) {}
    ~observer() {
      if (seen) *seen = depth_here();
    }
  };
  ferry::promise<int> inner;
  int at_end = -2;
  ferry::future<int> result;
  {
    const context_value_scope scope(depth, 1);
    result = ferry::make_ready_future(1).then(
        [last = observer(&at_end), inside = inner.get_future()](int) { return inside; });
  }
  inner.set_value(1);
  CHECK(result.get() == 1);
  CHECK(at_end == 1);
}

TEST_CASE("when_all and when_any copy results with the values of where they were made") {
  struct copied {
    int depth_of_copy = -2;
    copied() = default;
    copied(const copied&) : depth_of_copy(depth_here()) {}
    copied& operator=(const copied&) = default;
  };
  ferry::promise<copied> promise;
  const auto future = promise.get_future();  // a second handle: the value is copied
  ferry::future<std::vector<copied>> all;
  ferry::future<int> first;
  {
    const context_value_scope scope(depth, 1);
    std::vector<ferry::future<copied>> inputs{future};
    all = ferry::when_all(inputs);
    first = ferry::when_any(inputs).then([](const ferry::when_any_result<copied>&) { return depth_here(); });
  }
  const context_value_scope completing(depth, 9);
  promise.set_value(copied());
  CHECK(all.value().at(0).depth_of_copy == 1);
  CHECK(first.get() == 1);
}

TEST_CASE("a task runs with the values of where it is started or awaited, not of where it was made") {
  auto here = []() -> ferry::task<int> { co_return depth_here(); };
  auto outer = [&]() -> ferry::task<std::vector<int>> {
    std::vector<int> seen;
    auto made = here();
    {
      const context_value_scope scope(depth, 5);
      seen.push_back(co_await here());
      seen.push_back(co_await std::move(made));
    }
    seen.push_back(co_await here());
    co_return seen;
  };
  auto made = outer();
  const context_value_scope scope(depth, 1);
  CHECK(ferry::sync_wait(std::move(made)) == std::vector<int>{5, 5, 1});
  CHECK(ferry::start(here()).get() == 1);
  CHECK(depth_here() == 1);
}

TEST_CASE("a scope is held across suspensions, and does not leak into what starts or resumes the coroutine") {
  ferry::promise<int> promise;
  std::vector<int> seen;
  auto body = [&]() -> ferry::task<void> {
    seen.push_back(depth_here());
    const context_value_scope scope(depth, 2);
    co_await promise.get_future();
    seen.push_back(depth_here());
    {
      const context_value_scope inner(depth, 3);
      co_await promise.get_future();  // ready: goes on at once
      seen.push_back(depth_here());
    }
    seen.push_back(depth_here());
  };
  // The same as a coroutine that starts at once.
  auto eager_body = [&]() -> ferry::future<void> {
    seen.push_back(depth_here());
    const context_value_scope scope(depth, 2);
    co_await promise.get_future();
    seen.push_back(depth_here());
  };
  ferry::future<void> done;
  ferry::future<void> eager_done;
  {
    const context_value_scope scope(depth, 1);
    done = ferry::start(body());
    CHECK(depth_here() == 1);
    eager_done = eager_body();
    CHECK(depth_here() == 1);
  }
  CHECK(depth_here() == -1);
  CHECK(seen == std::vector<int>{1, 1});
  const context_value_scope completing(depth, 9);
  promise.set_value(1);
  CHECK(done.ready());
  CHECK(eager_done.ready());
  CHECK(seen == std::vector<int>{1, 1, 2, 3, 2, 2});
  CHECK(depth_here() == 9);
}

TEST_CASE("a task that is awaited keeps its values to itself when it suspends and when it ends") {
  ferry::promise<int> promise;
  std::vector<int> seen;
  auto inner = [&]() -> ferry::task<void> {
    const context_value_scope scope(depth, 2);
    co_await promise.get_future();
    seen.push_back(depth_here());
  };
  auto outer = [&]() -> ferry::task<void> {
    co_await inner();
    seen.push_back(depth_here());
    const context_value_scope scope(depth, 3);
    co_await inner();
    seen.push_back(depth_here());
  };
  const auto threads = std::make_shared<manual_executor>();
  ferry::future<void> done;
  {
    const entered_context context(threads);
    const context_value_scope scope(depth, 1);
    done = ferry::start(outer());
    CHECK(depth_here() == 1);
  }
  std::thread([&] { promise.set_value(1); }).join();
  threads->run();
  CHECK(done.ready());
  CHECK(seen == std::vector<int>{2, 1, 2, 3});
  CHECK(current_values().empty());
}

TEST_CASE("coroutines that wake each other without an executor keep their values apart") {
  constexpr int rounds = 50;
  std::vector<ferry::promise<int>> ping(rounds);
  std::vector<ferry::promise<int>> pong(rounds);
  bool left_right = true;
  auto player = [&](int own, std::vector<ferry::promise<int>>& hit, std::vector<ferry::promise<int>>& awaited,
                    bool begins) -> ferry::task<void> {
    const context_value_scope scope(depth, own);
    for (std::size_t i = 0; i < rounds; ++i) {
      if (begins) hit[i].set_value(1);
      co_await awaited[i].get_future();
      left_right = left_right && depth_here() == own;
      if (!begins) hit[i].set_value(1);
      left_right = left_right && depth_here() == own;
    }
  };
  const auto right = ferry::start(player(1, pong, ping, false));
  const auto left = ferry::start(player(2, ping, pong, true));
  CHECK(left.ready());
  CHECK(right.ready());
  CHECK(left_right);
  CHECK(current_values().empty());
}

TEST_CASE("a coroutine of another type awaits with its values") {
  ferry::promise<int> promise;
  std::vector<int> seen;
  auto outer = [&]() -> foreign {
    seen.push_back(co_await depth_after(promise.get_future()));
    seen.push_back(depth_here());
  };
  {
    const context_value_scope scope(depth, 1);
    outer();
  }
  const context_value_scope completing(depth, 9);
  promise.set_value(1);
  CHECK(seen == std::vector<int>{1, 1});
  CHECK(depth_here() == 9);
}

TEST_CASE("an awaitable of another library resumes a coroutine with its values, and keeps its own") {
  parking_place place;
  std::vector<int> seen;
  auto inner = [&]() -> ferry::task<void> {
    const context_value_scope scope(depth, 2);
    co_await place;
    seen.push_back(depth_here());
  };
  auto body = [&]() -> ferry::task<void> {
    co_await inner();
    seen.push_back(depth_here());
    const context_value_scope scope(depth, 3);
    co_await place;
    seen.push_back(depth_here());
  };
  ferry::future<void> done;
  {
    const context_value_scope scope(depth, 1);
    done = ferry::start(body());
  }
  std::thread([&] {
    const context_value_scope scope(depth, 9);
    place.parked.resume();
    CHECK(depth_here() == 9);
  }).join();
  CHECK(seen == std::vector<int>{2, 1});
  place.parked.resume();
  CHECK(done.ready());
  CHECK(seen == std::vector<int>{2, 1, 3});
  CHECK(current_values().empty());
}

TEST_CASE("an awaitable of another library may decide not to suspend, throw, or never resume") {
  enum class way { stays, throws, returns, resumes };
  struct fickle {
    way chosen;
    std::coroutine_handle<> next;
    [[nodiscard]] bool await_ready() const noexcept { return false; }
    bool await_suspend(std::coroutine_handle<> handle) {
      next = handle;
      if (chosen == way::throws) throw std::runtime_error("not today");
      return chosen != way::stays;
    }
    [[nodiscard]] int await_resume() const noexcept { return depth_here(); }
  };
  const auto owned = std::make_shared<int>(0);
  auto body = [&owned](fickle& awaited) -> ferry::task<int> {
    const context_value_scope scope(depth, 2);
    const context_value_scope held(shared, owned);
    co_return co_await awaited;
  };
  {
    fickle stays{way::stays, {}};
    CHECK(ferry::sync_wait(body(stays)) == 2);
    fickle throws{way::throws, {}};
    CHECK_THROWS_WITH(ferry::sync_wait(body(throws)), "not today");
    fickle resumes{way::resumes, {}};
    const auto result = ferry::start(body(resumes));
    CHECK(!result.ready());
    resumes.next.resume();
    CHECK(result.get() == 2);
    CHECK(owned.use_count() == 1);
  }
  fickle abandoned{way::returns, {}};
  const auto never = ferry::start(body(abandoned));
  CHECK(owned.use_count() > 1);
  abandoned.next.destroy();  // as a library does at its end: the coroutine is destroyed
  CHECK(owned.use_count() == 1);
  CHECK(current_values().empty());
}

TEST_CASE("programs without values allocate nothing for them" * doctest::skip(!ferry_test::counts_allocations)) {
  ferry::promise<int> promise;
  const auto future = promise.get_future();
  auto body = [](const ferry::future<int>& pending, std::size_t& used) -> ferry::task<void> {
    const auto before = ferry_test::allocations_of_this_thread();
    const context_values copy = current_values();
    const context_values_scope scope(copy);
    co_await pending;
    const auto captured = ferry::captured_context::current();
    used = ferry_test::allocations_of_this_thread() - before;
  };
  std::size_t used = 99;
  const auto done = ferry::start(body(future, used));
  promise.set_value(1);
  CHECK(done.ready());
  CHECK(used == 0);
}

TEST_CASE("copying and entering values allocates nothing" * doctest::skip(!ferry_test::counts_allocations)) {
  const context_values values = context_values().with(depth, 1).with(tenant, "blue");
  const auto before = ferry_test::allocations_of_this_thread();
  {
    const context_values copy = values;
    const context_values_scope scope(copy);
    CHECK(depth_here() == 1);
  }
  CHECK(ferry_test::allocations_of_this_thread() == before);
}

TEST_CASE("stress: coroutines keep their values on all threads") {
  const auto threads = std::make_shared<pool_executor>(3);
  const entered_context context(threads);
  const auto owned = std::make_shared<int>(0);
  for (int round = 0; round < 50; ++round) {
    constexpr int coroutines = 8;
    constexpr int steps = 10;
    std::vector<ferry::promise<int>> promises(steps);
    std::atomic<int> wrong = 0;
    auto nested = [&](int own, const ferry::future<int>& awaited) -> ferry::task<void> {
      const context_value_scope scope(depth, own + 1000);
      co_await awaited;
      if (depth_here() != own + 1000) ++wrong;
    };
    auto body = [&](int own) -> ferry::task<int> {
      const context_value_scope scope(depth, own);
      for (auto& promise : promises) {
        const auto awaited = promise.get_future();
        {
          const context_value_scope inner(shared, owned);
          co_await awaited;
          if (depth_here() != own || *current_value(shared) != owned) ++wrong;
        }
        co_await nested(own, awaited);
        if (depth_here() != own || current_value(shared)) ++wrong;
        co_await awaited.then([&, own](int) {
          if (depth_here() != own) ++wrong;
        });
      }
      co_return depth_here();
    };
    std::thread completer([&promises] {
      const context_value_scope scope(depth, -5);
      for (auto& promise : promises) promise.set_value(1);
    });
    std::vector<ferry::future<int>> results;
    for (int i = 0; i < coroutines; ++i) {
      results.push_back(ferry::start(body(i)));
      if (depth_here() != -1) ++wrong;
    }
    for (int i = 0; i < coroutines; ++i) CHECK(results[static_cast<std::size_t>(i)].get() == i);
    completer.join();
    CHECK(wrong == 0);
  }
  CHECK(current_values().empty());
}

TEST_CASE("a map is a sole owner while there is no copy of it, and no other map has its values") {
  CHECK_FALSE(context_values().is_sole_owner());
  const context_values one = context_values().with(depth, 1);
  CHECK(one.is_sole_owner());
  {
    const context_values copy = one;
    CHECK_FALSE(one.is_sole_owner());
  }
  CHECK(one.is_sole_owner());
  {
    const context_values more = one.with(other, 2);
    CHECK_FALSE(one.is_sole_owner());
    CHECK_FALSE(more.is_sole_owner());
  }
  CHECK(one.is_sole_owner());
  {
    const context_values_scope scope(one);
    CHECK_FALSE(one.is_sole_owner());
  }
  CHECK(one.is_sole_owner());
}

}  // namespace context_values_test
