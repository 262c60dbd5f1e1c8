// Large graphs, threads, and what is released when.

#include <atomic>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "sanitizers.hpp"

namespace engine_test {

using ferry::tensor;

namespace {

std::atomic<int> alive{0};

// Counts the nodes that exist.
struct counted : ferry::function<counted> {
  static constexpr std::string_view name = "counted";
  struct token {
    token() { ++alive; }
    token(const token&) = delete;
    token& operator=(const token&) = delete;
    ~token() { --alive; }
  };
  struct saved {
    std::unique_ptr<token> mark = std::make_unique<token>();
  };
  static tensor forward(saved&, const tensor& x) { return x * 1; }
  static tensor backward(const saved&, const tensor& gradient) { return gradient; }
};

}  // namespace

TEST_CASE("a graph of a million nodes runs, and is freed, without recursion") {
  // A sanitizer takes ten times as long for each, and its frames are larger.
  constexpr int length = ferry_test::sanitized ? 100'000 : 1'000'000;
  const tensor x = ferry::require_grad(ferry::tensor_of({1.}));
  {
    tensor y = x;
    for (int i = 0; i != length; ++i) y = y + 0;
    ferry::backward(y);
  }
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({1.})));
  tensor unused = x;
  for (int i = 0; i != length; ++i) unused = unused + 0;
}

TEST_CASE("nodes live as long as the graph leads to them, and what they keep until it is used up") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1.}));
  {
    const tensor y = counted::apply(counted::apply(x));
    const tensor branch = counted::apply(y);
    CHECK(alive == 3);
    ferry::backward(y, {.retain_graph = true});
    CHECK(alive == 3);
    ferry::backward(y);
    CHECK(alive == 1);
  }
  CHECK(alive == 0);
}

TEST_CASE("values that keep themselves are no circle") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1.}));
  ferry::weak_tensor left;
  {
    tensor y = x * 2;
    ferry::mul_(y, y.clone());
    ferry::retain_grad(y);
    left = y;
    ferry::backward(ferry::sum(y * y));
  }
  CHECK(left.expired());
  CHECK(x.use_count() == 1);
}

TEST_CASE("threads share leaves, and go back through one graph at once") {
  constexpr int threads = 4;
  constexpr int rounds = 200;
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  const tensor w = ferry::require_grad(ferry::tensor_of({3., 4.}));
  const tensor shared = ferry::sum(x * w * w);
  std::vector<std::thread> all;
  for (int i = 0; i != threads; ++i) {
    all.emplace_back([&] {
      for (int round = 0; round != rounds; ++round) {
        ferry::backward(shared, {.retain_graph = true});
        ferry::backward(ferry::sum(x * w));
      }
    });
  }
  for (std::thread& each : all) each.join();
  constexpr double passes = threads * rounds;
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({passes * 12, passes * 20})));
  CHECK(ferry::equal(ferry::grad(w), ferry::tensor_of({passes * 7, passes * 18})));
}

TEST_CASE("a wide graph: one value used many times") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1.}));
  const tensor y = x * 1;
  tensor total = y;
  for (int i = 0; i != 10'000; ++i) total = total + y;
  ferry::backward(total);
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({10'001.})));
}

}  // namespace engine_test
