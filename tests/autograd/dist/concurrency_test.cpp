// Many passes, contexts and threads at once.

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "dist_test.hpp"
#include "gate.hpp"
#include "sanitizers.hpp"

namespace concurrency_test {

using namespace dist_test;

std::atomic<unsigned> calls{0};
// Fails each third time it runs.
struct fails_at_times : ferry::function<fails_at_times> {
  static constexpr std::string_view name = "fails_at_times";
  struct saved {};
  static tensor forward(saved&, const tensor& x) { return x * 1.0; }
  static tensor backward(const saved&, const tensor& gradient) {
    if (calls.fetch_add(1) % 3 == 0) throw std::domain_error("at times");
    return gradient;
  }
};
tensor around(const tensor& a, int hops) {
  if (hops == 0) return fails_at_times::apply(a);
  const auto here = ferry::get_worker_info().id().value;
  return ferry::rpc_sync<around>((here + 1) % 4, a, hops - 1) + a;
}
tensor fan_out(const tensor& a) {
  std::vector<ferry::future<tensor>> parts;
  for (int worker = 0; worker != 4; ++worker) parts.push_back(ferry::rpc_async<around>(worker, a, worker));
  tensor whole = a;
  for (auto& each : parts) whole = whole + each.get();
  return whole;
}

ferry_test::gate entered;
struct holds : ferry::function<holds> {
  static constexpr std::string_view name = "concurrency_holds";
  struct saved {};
  static tensor forward(saved&, const tensor& x) { return x * 1.0; }
  static tensor backward(const saved&, const tensor& gradient) {
    entered.pass();
    return gradient;
  }
};
tensor held(const tensor& a) { return holds::apply(a); }

std::atomic<const ferry::worker*> other{nullptr};
std::atomic<bool> went_back{false};
// Holds up the thread that runs it until the gradients of another worker are there.
struct waits_for_other : ferry::function<waits_for_other> {
  static constexpr std::string_view name = "waits_for_other";
  struct saved {};
  static tensor forward(saved&, const tensor& x) { return x * 1.0; }
  static tensor backward(const saved&, const tensor& gradient) {
    await([] { return went_back && other.load()->debug_info("agent.client_active_calls") == "0"; });
    return gradient;
  }
};
struct goes_back : ferry::function<goes_back> {
  static constexpr std::string_view name = "goes_back";
  struct saved {};
  static tensor forward(saved&, const tensor& x) { return x * 2.0; }
  static tensor backward(const saved&, const tensor& gradient) {
    went_back = true;
    return gradient * 2.0;
  }
};
tensor there_and_back(const tensor& a) { return goes_back::apply(a); }
std::atomic<std::thread::id> ran_on{};
struct notes_thread : ferry::function<notes_thread> {
  static constexpr std::string_view name = "notes_thread";
  struct saved {};
  static tensor forward(saved&, const tensor& x) { return x * 1.0; }
  static tensor backward(const saved&, const tensor& gradient) {
    ran_on = std::this_thread::get_id();
    return gradient;
  }
};

TEST_CASE("passes of many contexts from all workers at once, some of which fail") {
  cluster group(4);
  constexpr int rounds = ferry_test::sanitized ? 8 : 30;
  std::atomic<int> good{0};
  std::atomic<int> bad{0};
  std::vector<std::function<void()>> trainers;
  for (int worker = 0; worker != 4; ++worker) {
    for (int thread = 0; thread != 3; ++thread) {
      trainers.emplace_back([&, worker, thread] {
        const tensor a = leaf({1, 2, 3});
        for (int round = 0; round != rounds; ++round) {
          const dist::context context(group[worker]);
          // A node for each hop; each of the four calls of fan_out() ends with one that may fail.
          const tensor b = thread == 0 ? group[worker].rpc_sync<fan_out>((worker + 1) % 4, a)
                                       : group[worker].rpc_sync<around>((worker + thread) % 4, a, 6);
          const double once = thread == 0 ? 1 + (1 + 2 + 3 + 4) : 7;
          double times = 0;
          for (int pass = 0; pass != 2; ++pass) {
            try {
              context.backward(ferry::sum(b), {.retain_graph = true});
              times += 1;
              ++good;
            } catch (const ferry::remote_error& e) {
              CHECK(std::string(e.what()).find("at times") != std::string::npos);
              ++bad;
            }
          }
          // What failed may have added some: no less than what did not, and a whole number of paths.
          if (times > 0) CHECK(numbers(context.gradients().at(a))[0] >= times * once);
        }
      });
    }
  }
  ferry_test::run_together(trainers);
  CHECK(good != 0);
  CHECK(bad != 0);
  await_no_contexts(group);
}

TEST_CASE("what other workers send does not hold up the thread that begins a pass") {
  cluster group(2);
  other = &group[1];
  const dist::context context(group[0]);
  const tensor a = leaf({1, 2});
  // Made first, so that its node runs last of those that the thread finds ready.
  const tensor local = waits_for_other::apply(a);
  const tensor back = group[0].rpc_sync<there_and_back>("worker1", notes_thread::apply(a));
  const auto pass = dist::backward_async(context, std::vector<tensor>{ferry::sum(local), ferry::sum(back)});
  pass.get();
  CHECK(ran_on.load() != std::thread::id());
  CHECK(ran_on.load() != std::this_thread::get_id());
  CHECK(numbers(context.gradients().at(a)) == vec{3, 3});
}

TEST_CASE("passes of one context come one after the other") {
  cluster group(2);
  const tensor a = leaf({1, 2});
  const dist::context context(group[0]);
  const tensor b = ferry::sum(group[0].rpc_sync<held>("worker1", a));
  const tensor c = ferry::sum(group[0].rpc_sync<twice>("worker1", a));
  auto pass = dist::backward_async(context, b);
  entered.await_arrivals(1);
  expect_error(errc::invalid_argument, "a pass of context", [&] { context.backward(c, {.retain_graph = true}); });
  expect_error(errc::invalid_argument, "a pass of context",
               [&] { (void)dist::backward_async(context, c, {.retain_graph = true}); });
  // Another root, at another worker.
  const auto there = group[0].remote<twice>("worker1", ferry::sum(a));
  expect_error(errc::invalid_argument, "a pass of context", [&] { dist::backward(there, context); });
  CHECK(passes(group[0]) == 1);
  CHECK(passes(group[1]) == 1);
  entered.open();
  pass.get();
  context.backward(c);
  CHECK(numbers(context.gradients().at(a)) == vec{3, 3});
  CHECK(passes(group[0]) + passes(group[1]) == 0);
  entered.reset();
}

TEST_CASE("failures that race with the gradients of the pass leave no pass behind") {
  // One branch fails at once, while the others are on their way to workers that have not heard of the pass.
  cluster group(4);
  const tensor a = leaf({1, 2, 3});
  const dist::context context(group[0]);
  calls = 0;
  const tensor b = group[0].rpc_sync<fan_out>("worker1", a);
  constexpr int rounds = ferry_test::sanitized ? 60 : 300;
  int failed = 0;
  for (int round = 0; round != rounds; ++round) {
    try {
      context.backward(
          ferry::sum(b),
          {.retain_graph = true, .mode = round % 2 == 0 ? dist::backward_mode::smart : dist::backward_mode::fast});
    } catch (const ferry::remote_error&) {
      ++failed;
    }
    // Each worker is done with it, or is about to be told.
    for (int worker = 0; worker != 4; ++worker) await([&] { return passes(group[worker]) == 0; });
  }
  CHECK(failed != 0);
}

TEST_CASE("contexts that end while their passes run, from many threads") {
  cluster group(4);
  constexpr int rounds = ferry_test::sanitized ? 10 : 40;
  std::vector<std::function<void()>> trainers;
  for (int worker = 0; worker != 4; ++worker) {
    trainers.emplace_back([&, worker] {
      const tensor a = leaf({1, 2, 3});
      for (int round = 0; round != rounds; ++round) {
        ferry::future<void> pass;
        {
          const dist::context context(group[worker]);
          const tensor b = group[worker].rpc_sync<fan_out>((worker + 1) % 4, a);
          pass = dist::backward_async(context, ferry::sum(b));
        }
        try {
          pass.get();
        } catch (const ferry::error&) {  // it ended, or failed, before
        }
      }
    });
  }
  ferry_test::run_together(trainers);
  await_no_contexts(group);
}

}  // namespace concurrency_test
