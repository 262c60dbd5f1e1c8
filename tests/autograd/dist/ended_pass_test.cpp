// Passes that end while a node of theirs still runs, and contexts of makers that are gone: nothing that comes late changes anything.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "autograd/dist/dist_context.hpp"
#include "autograd/dist/dist_pass.hpp"
#include "autograd/dist/dist_worker.hpp"
#include "autograd/dist/message_set.hpp"
#include "dist_test.hpp"
#include "gate.hpp"
#include "rpc/worker/worker_core.hpp"
#include "tests/rpc/worker/dynamic_group.hpp"

namespace ended_pass_test {

using namespace dist_test;
using namespace std::chrono_literals;

// The first time, its formula is held up, and looks whether what was saved for it is still there.
std::unique_ptr<ferry_test::gate> held;
std::atomic<int> runs{0};
std::atomic<bool> was_released{false};
struct slow : ferry::function<slow> {
  static constexpr std::string_view name = "slow";
  struct saved {
    tensor x;
    std::shared_ptr<int> there = std::make_shared<int>(1);
  };
  static tensor forward(saved& kept, const tensor& x) {
    kept.x = x;
    return x * 1.0;
  }
  static tensor backward(const saved& kept, const tensor& gradient) {
    const std::weak_ptr<int> there = kept.there;
    if (runs++ == 0) held->pass();
    if (there.expired()) {
      was_released = true;
      return gradient;
    }
    return gradient * kept.x;
  }
};
tensor slowly(const tensor& a) { return slow::apply(a); }
tensor passed_on(const tensor& a) { return ferry::rpc_sync<twice>("far", a); }

// That of one worker.
struct one_update final : dist::update_after {
  explicit one_update(updater who) : who_(who) {}
  [[nodiscard]] std::vector<updater> updaters() const override { return {who_}; }
  updater who_;
};

// Of a parameter of worker1.
tensor parameter;
tensor times_parameter(const tensor& a) { return a * parameter; }

ferry::future<void> unanswered() {
  static ferry::promise<void> never;
  return never.get_future();
}

void reset() {
  held = std::make_unique<ferry_test::gate>();
  runs = 0;
  was_released = false;
}
// As if its limit were over, which its root may notice at any moment.
void end_at_limit(const ferry::worker& root, const dist::context& context) {
  const auto there = ferry::detail::dist_worker::of(ferry::detail::core_of(root))->find(context.id());
  REQUIRE(there);
  const auto pass = there->running_pass();
  REQUIRE(pass);
  pass->on_limit();
}
int stragglers(const ferry::worker& of) {
  return ferry::detail::dist_worker::of(ferry::detail::core_of(of))->stragglers();
}
std::uint64_t current_here() {
  const auto here = dist::current();
  return here ? here->value : 0;
}

TEST_CASE("a pass that begins while a node of an ended one still runs does not drop what that node reads") {
  reset();
  cluster group(2);
  const tensor a = leaf({2, 3});
  const dist::context context(group[0]);
  const tensor root = ferry::sum(group[0].rpc_sync<slowly>("worker1", a));
  const ferry::future<void> first = dist::backward_async(context, root);
  held->await_arrivals(1);
  end_at_limit(group[0], context);
  expect_error(errc::rpc_timeout, "took longer than its limit", [&] { first.get(); });
  await([&] { return stragglers(group[1]) == 1; });
  context.backward(root);
  CHECK(numbers(context.gradients().at(a)) == vec{2, 3});
  held->open();
  await([&] { return stragglers(group[1]) == 0; });
  CHECK_FALSE(was_released);
  CHECK(numbers(context.gradients().at(a)) == vec{2, 3});  // once
  held.reset();
}

TEST_CASE("a leaf whose hook is slower than the pass is not added to when that is over, nor updated") {
  reset();
  cluster group(2);
  parameter = leaf({2, 3});
  const tensor a = leaf({1, 1});
  std::atomic<int> seen{0};
  ferry::gradient_hook hook = ferry::on_gradient(parameter, [&](const tensor&) -> tensor {
    if (seen++ == 0) held->pass();
    return {};
  });
  std::atomic<int> updates{0};
  const dist::registered_update update(group[1], [&](const dist::leaf_gradient&) { ++updates; });
  const one_update then({group[1].id(), update.number()});
  const dist::context context(group[0]);
  const tensor root = ferry::sum(group[0].rpc_sync<times_parameter>("worker1", a));
  const ferry::future<void> first = dist::backward_async(context, root, {.retain_graph = true, .then = then});
  held->await_arrivals(1);
  end_at_limit(group[0], context);
  expect_error(errc::rpc_timeout, "took longer than its limit", [&] { first.get(); });
  await([&] { return stragglers(group[1]) == 1; });
  context.backward(root, {.then = then});
  CHECK(updates == 1);
  held->open();
  await([&] { return stragglers(group[1]) == 0; });
  CHECK(updates == 1);
  CHECK(numbers(dist::get_gradients(context.id(), group[1]).at(parameter)) == vec{1, 1});
  hook.remove();
  parameter = {};
  held.reset();
}

TEST_CASE("an update under way is finished before its pass is over") {
  reset();
  cluster group(2);
  parameter = leaf({2, 3});
  const tensor a = leaf({1, 1});
  std::atomic<bool> updated{false};
  const dist::registered_update update(group[1], [&](const dist::leaf_gradient&) {
    held->pass();
    updated = true;
  });
  const one_update then({group[1].id(), update.number()});
  const dist::context context(group[0]);
  const tensor root = ferry::sum(group[0].rpc_sync<times_parameter>("worker1", a));
  const ferry::future<void> pass = dist::backward_async(context, root, {.then = then});
  held->await_arrivals(1);
  end_at_limit(group[0], context);
  await([&] { return stragglers(group[1]) == 1; });  // it has heard of it
  CHECK_FALSE(pass.wait_for(100ms));
  held->open();
  expect_error(errc::rpc_timeout, "took longer than its limit", [&] { pass.get(); });
  CHECK(updated);
  await([&] { return passes(group[1]) == 0; });
  parameter = {};
  held.reset();
}

TEST_CASE("each failure of a pass is news once, whatever its number") {
  cluster group(2);
  const dist::context context(group[0]);
  (void)group[0].rpc_sync<twice>("worker1", leaf({1, 2}));
  const auto there = ferry::detail::dist_worker::of(ferry::detail::core_of(group[1]))->find(context.id());
  REQUIRE(there);
  const ferry::detail::pass_failure why{static_cast<std::uint32_t>(errc::bad_shape), {}, "told"};
  for (std::uint64_t number = 0; number != 400; ++number)
    CHECK(there->note_failure(std::uint64_t{3} << 48U | number, why));
  CHECK(there->note_failure(5, why));  // of worker 0, whose numbers come before those
  CHECK_FALSE(there->note_failure(5, why));
}

TEST_CASE("a late call of another worker does not make a context of a maker that is gone") {
  struct forger final : ferry::interceptor {
    [[nodiscard]] std::string_view name() const noexcept override { return "forger"; }
    std::unique_ptr<ferry::caller_hooks> on_request(ferry::outgoing_request& request) override {
      if (const std::uint64_t id = context.load(); id != 0) {
        ferry::detail::autograd_record record;
        record.context = id;
        record.message = id;
        const ferry::byte_buffer bytes = encode_autograd_record(record);
        request.add_record(ferry::detail::autograd_record_type, true, {bytes.data(), bytes.size()});
      }
      return nullptr;
    }
    std::atomic<std::uint64_t> context{0};
  };
  dynamic_group_test::meeting_place place;
  ferry::worker host = ferry::init_rpc(dynamic_group_test::config_of(place.method, "host", 0));
  const auto forged = std::make_shared<forger>();
  ferry::worker_config config = dynamic_group_test::config_of(place.method, "other", 2);
  config.interceptors = {forged};
  ferry::worker other = ferry::init_rpc(config);
  const std::uint64_t made = [&] {
    ferry::worker maker = ferry::init_rpc(dynamic_group_test::config_of(place.method, "maker", 1));
    const dist::context context(maker);
    (void)maker.rpc_sync<twice>("host", leaf({1, 2}));
    CHECK(contexts(host) == 1);
    maker.shutdown();
    return context.id().value;
  }();
  forged->context = made;
  // Calls that come before the host has heard of the maker's end are in the context, which ends with it.
  await([&] { return other.rpc_sync<current_here>("host") == 0; });
  CHECK(other.rpc_sync<current_here>("host") == 0);
  CHECK(contexts(host) == 0);
  forged->context = 0;
  // Its successor under the same name and id makes contexts as any worker.
  ferry::worker successor = ferry::init_rpc(dynamic_group_test::config_of(place.method, "maker", 1));
  {
    const dist::context context(successor);
    const tensor a = leaf({1, 2});
    context.backward(ferry::sum(successor.rpc_sync<twice>("host", a)));
    CHECK(numbers(context.gradients().at(a)) == vec{2, 2});
  }
  await([&] { return contexts(host) == 0; });
  successor.shutdown();
  other.shutdown();
  host.shutdown();
}

TEST_CASE("a worker that leaves tells those whom only it knows that contexts are over") {
  dynamic_group_test::meeting_place place;
  ferry::worker maker = ferry::init_rpc(dynamic_group_test::config_of(place.method, "maker", 0));
  ferry::worker far = ferry::init_rpc(dynamic_group_test::config_of(place.method, "far", 1));
  for (int round = 0; round != 3; ++round) {
    const std::string name = "between" + std::to_string(round);
    ferry::worker between = ferry::init_rpc(dynamic_group_test::config_of(place.method, name, 2 + round));
    {
      const dist::context context(maker);
      (void)maker.rpc_sync<passed_on>(name, leaf({1, 2}));
      CHECK(contexts(far) == 1);
    }
    // It hears that from a request of the next context, and owes it to the other until it makes one itself, or for 5 ms.
    const dist::context next(maker);
    (void)maker.rpc_sync<twice>(name, leaf({1, 2}));
    await([&] { return contexts(between) == 1; });
    // What its shutdown asks of it, once it is quiet: it returns when they have heard.
    const auto own = ferry::detail::dist_worker::of(ferry::detail::core_of(between));
    own->on_group_quiet(ferry::deadline::after(60s), true);
    CHECK(own->loose_ends() == 0);
    CHECK(contexts(far) == 0);
    between.shutdown();
  }
  far.shutdown();
  maker.shutdown();
}

TEST_CASE("a hop of a pass may take longer than calls do by default") {
  reset();
  ferry_test::cluster_options options;
  options.configure = [](ferry::worker_config& config) {
    config.rpc_timeout = 100ms;
    config.init_timeout = 60s;
  };
  cluster group(2, options);
  const tensor a = leaf({2, 3});
  const dist::context context(group[0]);
  const tensor root = ferry::sum(group[0].rpc_sync<slowly>({"worker1", {.timeout = 20s}}, a));
  // While the formula runs, a call that is not answered reaches its default timeout.
  std::exception_ptr problem;
  std::thread opener([&] {
    held->await_arrivals(1);
    try {
      group[0].rpc_sync<unanswered>("worker1");
    } catch (const ferry::error& e) {
      if (e.kind() != errc::rpc_timeout) problem = std::current_exception();
    }
    held->open();
  });
  context.backward(root);
  opener.join();
  CHECK_FALSE(problem);
  CHECK(numbers(context.gradients().at(a)) == vec{2, 3});
  held.reset();
  group.shutdown(false);
}

}  // namespace ended_pass_test
