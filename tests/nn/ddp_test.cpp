// ddp: its parts alone, and gradients equal to those of one process on the joined batch.

#include <ferry/nn/ddp.hpp>

#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/autograd.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "nn/ddp_buckets.hpp"

namespace ddp_test {

using ferry::dtype;
using ferry::errc;
using ferry::process_group;
using ferry::tensor;
using ferry::nn::ddp;
using ferry_test::run_cluster;

}  // namespace ddp_test
namespace nn = ferry::nn;
namespace dist = ferry::dist_autograd;

namespace ddp_test {

struct network {
  explicit network(std::uint64_t seed) : network(ferry::generator(seed)) {}
  explicit network(ferry::generator source)
      : first(3, 5, {.dtype = dtype::f64}, source), second(5, 2, {.dtype = dtype::f64}, source) {}
  tensor operator()(const tensor& x) const { return second(ferry::tanh(first(x))); }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("first", first);
    visit("second", second);
  }
  nn::linear first;
  nn::linear second;
};

// Whose second layer may be left out.
struct branching {
  explicit branching(std::uint64_t seed) : whole(seed) {}
  tensor operator()(const tensor& x, bool both) const {
    const tensor y = ferry::tanh(whole.first(x));
    return both ? whole.second(y) : y;
  }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("whole", whole);
  }
  network whole;
};

tensor batch_of(int rank, int step) {
  ferry::generator source(static_cast<std::uint64_t>(1000 * step + rank));
  return ferry::randn({4, 3}, source, dtype::f64);
}
tensor loss_of(const tensor& y) { return ferry::mean(y * y); }
bool close(const tensor& a, const tensor& b) { return ferry::allclose(a, b, 1e-12, 1e-14); }

// The gradients of one process on the batches of all ranks, for a network with these parameters.
std::vector<tensor> joined_gradients(const network& like, int n, int step) {
  const network alone = nn::clone(like);
  for (const tensor& each : nn::parameters(alone)) ferry::set_grad(each, tensor());
  tensor sum;
  for (int rank = 0; rank != n; ++rank) {
    const tensor loss = loss_of(alone(batch_of(rank, step)));
    sum = sum.defined() ? sum + loss : loss;
  }
  ferry::backward(sum * (1.0 / n));
  std::vector<tensor> gradients;
  for (const tensor& each : nn::parameters(alone)) gradients.push_back(ferry::grad(each));
  return gradients;
}

// At the server: a layer with a weight of its own.
tensor& server_weight() {
  static tensor weight = ferry::require_grad(ferry::full({3, 3}, 0.25, dtype::f64));
  return weight;
}
tensor remote_layer(const tensor& x) { return ferry::matmul(x, server_weight()); }
std::vector<double> server_gradient(dist::context_id id) {
  const auto found = dist::get_gradients(id);
  const tensor gradient = found.at(server_weight());
  std::vector<double> numbers;
  for (std::int64_t i = 0; i != 9; ++i) numbers.push_back(gradient.contiguous().view({9}).at<double>(i));
  return numbers;
}
// Averages that arrive when the test says so, in a group of one member.
class held_averages {
 public:
  nn::bucket_transport transport() {
    return [this](const process_group&, const tensor& bucket, ferry::timeout) {
      const std::lock_guard lock(mutex_);
      held_.emplace_back(bucket, ferry::promise<tensor>());
      return held_.back().second.get_future();
    };
  }
  [[nodiscard]] std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }
  void wait_for(std::size_t wanted) const {
    while (count() < wanted) std::this_thread::yield();
  }
  // Those that come later arrive at once.
  void release() {
    std::vector<std::pair<tensor, ferry::promise<tensor>>> held;
    {
      const std::lock_guard lock(mutex_);
      held.swap(held_);
    }
    for (auto& [bucket, promised] : held) promised.set_value(bucket);
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<tensor, ferry::promise<tensor>>> held_;
};

// Runs `call` while `held` has averages that have not arrived: returns once it has, after them.
template <class Call>
void call_before_averages(held_averages& held, const Call& call) {
  std::atomic<bool> entered = false;
  std::atomic<bool> returned = false;
  std::atomic<bool> released = false;
  ferry_test::run_together({[&] {
                              entered = true;
                              call();
                              CHECK(released);
                              returned = true;
                            },
                            [&] {
                              while (!entered) std::this_thread::yield();
                              // One that does not wait shows it soon.
                              for (int i = 0; i != 2000 && !returned; ++i) std::this_thread::yield();
                              released = true;
                              held.release();
                            }});
}

tensor identity(const tensor& y) { return y; }

bool any_is_not_zero(const std::vector<double>& numbers) {
  for (const double each : numbers) {
    if (each != 0) return true;
  }
  return false;
}

TEST_CASE("ddp: buckets go from the last parameter to the first, by bytes and dtype") {
  using ferry::detail::plan_buckets;
  const auto plan =
      plan_buckets({{100, dtype::f32}, {10, dtype::f32}, {10, dtype::f64}, {5, dtype::f32}, {5, dtype::f32}}, 40, 1000);
  REQUIRE(plan.size() == 3);
  CHECK(plan[0].members == std::vector<std::size_t>{4, 3});
  CHECK(plan[0].offsets == std::vector<std::int64_t>{0, 5});
  CHECK(plan[1].members == std::vector<std::size_t>{2});
  CHECK(plan[2].members == std::vector<std::size_t>{1, 0});
  CHECK(plan[2].elements == 110);
  CHECK(plan_buckets({{1000, dtype::f32}, {1000, dtype::f32}}, 4, 4).size() == 2);  // one parameter fits always
}

TEST_CASE("ddp: buckets are ready in their order, whatever that of gradients; a second gradient counts once") {
  const auto plan =
      ferry::detail::plan_buckets({{1, dtype::f32}, {1, dtype::f32}, {1, dtype::f32}, {1, dtype::f32}}, 8, 4);
  REQUIRE(plan.size() == 3);  // {3, 2}, {1}, {0}
  ferry::detail::bucket_readiness ready(plan, 4);
  CHECK_FALSE(ready.begun());
  CHECK(ready.mark(0) == 0);
  CHECK(ready.begun());
  CHECK(ready.mark(0) == 0);
  CHECK(ready.mark(3) == 0);
  CHECK(ready.mark(2) == 1);
  CHECK_FALSE(ready.complete());
  CHECK(ready.mark(1) == 3);
  CHECK(ready.complete());
  ready.reset();
  CHECK_FALSE(ready.begun());
  CHECK_FALSE(ready.has(0));
}

TEST_CASE(
    "ddp: parameters of rank 0 everywhere, gradients of the joined batch, over steps of an optimizer, in one bucket "
    "and several") {
  run_cluster(3, [](ferry::worker& self) {
    const process_group group(self);
    for (const std::size_t bytes : {std::size_t{1} << 20U, std::size_t{64}}) {
      ddp model(network(static_cast<std::uint64_t>(group.rank())), group,
                {.bucket_bytes = bytes, .first_bucket_bytes = bytes});
      ferry::optimizer<ferry::sgd> optimizer(model.parameters(), {.lr = 0.1});
      for (int step = 0; step != 4; ++step) {
        const auto expected = joined_gradients(model.module(), 3, step);
        optimizer.zero_grad();
        ferry::backward(loss_of(model(batch_of(group.rank(), step))));
        const auto parameters = model.parameters();
        for (std::size_t i = 0; i != parameters.size(); ++i) CHECK(close(ferry::grad(parameters[i]), expected[i]));
        optimizer.step();
      }
      for (const tensor& each : model.parameters()) {
        const tensor all = group.all_gather(ferry::detach(each)).get();
        for (int rank = 1; rank != 3; ++rank) CHECK(ferry::equal(all.select(0, rank), all.select(0, 0)));
      }
    }
  });
}

TEST_CASE("ddp: without synchronisation gradients add up, and the next pass averages the sum") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    ddp model(network(1), group);
    {
      const auto alone = model.no_sync();
      ferry::backward(loss_of(model(batch_of(group.rank(), 0))));
    }
    ferry::backward(loss_of(model(batch_of(group.rank(), 1))));
    const auto first = joined_gradients(model.module(), 2, 0);
    const auto second = joined_gradients(model.module(), 2, 1);
    const auto parameters = model.parameters();
    for (std::size_t i = 0; i != parameters.size(); ++i) CHECK(close(ferry::grad(parameters[i]), first[i] + second[i]));
  });
}

TEST_CASE("ddp: parameters without a gradient are named with the remedy, or found and averaged with zeros") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    {
      ddp model(branching(1), group);
      ferry::backward(loss_of(model(batch_of(group.rank(), 0), false)));
      expect_error(errc::invalid_argument, "whole.second.weight, whole.second.bias",
                   [&] { (void)model(batch_of(group.rank(), 0), true); });
      ferry::backward(loss_of(model(batch_of(group.rank(), 0), true)));  // it goes on
      CHECK(close(ferry::grad(model.module().whole.second.weight), joined_gradients(model.module().whole, 2, 0)[2]));
    }
    ddp model(branching(1), group, {.find_unused = true});
    const bool both = group.rank() == 0;
    ferry::backward(loss_of(model(batch_of(0, 0), both)));
    const tensor gradient = ferry::grad(model.module().whole.second.weight);
    const auto alone = joined_gradients(model.module().whole, 1, 0);
    CHECK(close(gradient, alone[2] * 0.5));  // that of rank 0 and zeros
  });
}

TEST_CASE("ddp: gradients that travel as bf16, and a transport of one's own") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    ddp model(network(1), group, {.transport = nn::average_as_bf16()});
    ferry::backward(loss_of(model(batch_of(group.rank(), 0))));
    const auto expected = joined_gradients(model.module(), 2, 0);
    const auto parameters = model.parameters();
    for (std::size_t i = 0; i != parameters.size(); ++i) {
      CHECK(ferry::allclose(ferry::grad(parameters[i]), expected[i], 0.05, 0.01));
      CHECK_FALSE(ferry::equal(ferry::grad(parameters[i]), expected[i]));
    }
    int buckets = 0;
    ddp counted(network(1), group,
                {.bucket_bytes = 64,
                 .first_bucket_bytes = 64,
                 .transport = [&](const process_group& over, const tensor& bucket, ferry::timeout limit) {
                   ++buckets;
                   return nn::average_in_place()(over, bucket, limit);
                 }});
    ferry::backward(loss_of(counted(batch_of(group.rank(), 0))));
    CHECK(buckets == 4);  // one for each parameter
  });
}

TEST_CASE(
    "ddp: a transport whose result is not that of the bucket is named, and so is a parameter that was frozen after the "
    "call") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    const auto gives = [](tensor result) {
      return [result](const process_group& over, const tensor& bucket, ferry::timeout limit) {
        return nn::average_in_place()(over, bucket, limit).then([result](const tensor&) { return result; });
      };
    };
    ddp narrow(network(1), group, {.transport = gives(ferry::ones({1}))});
    expect_error(errc::bad_shape, "ddp_options::transport for bucket 0 is f32 [1]",
                 [&] { ferry::backward(loss_of(narrow(batch_of(group.rank(), 0)))); });
    ddp empty(network(1), group, {.transport = gives(tensor())});
    expect_error(errc::bad_shape, "for bucket 0 is undefined",
                 [&] { ferry::backward(loss_of(empty(batch_of(group.rank(), 0)))); });
  });
}

TEST_CASE(
    "ddp: a module with other parameters than when the ddp was made is refused, and so are ones that were frozen "
    "then") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    const tensor x = ferry::ones({1, 2});
    ddp moved(nn::linear(2, 2), group);
    nn::to(moved.module(), dtype::f64);
    expect_error(errc::invalid_argument, "ddp: parameter 'weight' is another tensor", [&] { (void)moved(x); });
    {
      const ferry::no_grad evaluation;
      (void)moved(x.to(dtype::f64));
    }
    nn::linear half(2, 2);
    ferry::require_grad(half.bias, false);
    ddp thawed(half, group);
    (void)thawed(x);
    ferry::require_grad(thawed.module().bias, true);
    expect_error(errc::invalid_argument, "parameter 'bias' required no gradient", [&] { (void)thawed(x); });
  });
}

struct net_with_mode {
  nn::linear layer{2, 2};
  bool training = true;
  tensor operator()(const tensor& x) const { return layer(x); }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("layer", layer);
  }
};

TEST_CASE("ddp: is a module, with the names of its own") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    ddp model(nn::linear(2, 2), group);
    CHECK(nn::named_parameters(model).front().name == "weight");
    nn::load(model, nn::named_parameters(model.module()));
    ddp with_mode(net_with_mode(), group);
    nn::eval(with_mode);
    CHECK_FALSE(with_mode.module().training);
    nn::train(with_mode);
    CHECK(with_mode.module().training);
  });
}

TEST_CASE("ddp: modules that differ are refused on every member") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    expect_error(errc::group_mismatch, "differ", [&] {
      if (group.rank() == 0) {
        (void)ddp(nn::linear(2, 2), group);
      } else {
        (void)ddp(nn::linear(2, 3), group);
      }
    });
  });
}

TEST_CASE("[row 297] ddp: gradients of a pass in a context equal those of a local pass, and stay in the context") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    ddp model(network(1), group, {.bucket_bytes = 64, .first_bucket_bytes = 64});
    const auto expected = joined_gradients(model.module(), 2, 0);
    const dist::context pass(self);
    const tensor loss = loss_of(model(batch_of(group.rank(), 0)));
    pass.backward(loss);
    const auto gradients = pass.gradients();
    const auto parameters = model.parameters();
    for (std::size_t i = 0; i != parameters.size(); ++i) {
      CHECK(close(gradients.at(parameters[i]), expected[i]));
      CHECK_FALSE(ferry::grad(parameters[i]).defined());
    }
    self.barrier();
  });
}

TEST_CASE(
    "[row 294] without ddp, gradients of trainers and of the remote worker are not zero; [row 300] with it, a remote "
    "layer before") {
  run_cluster(5, [](ferry::worker& self) {
    const int rank = self.id().value;
    if (rank == 4) return self.barrier();  // the server; its gradients are per context
    const process_group trainers(self, {"worker0", "worker1", "worker2", "worker3"});
    for (const bool averaged : {false, true}) {
      ddp model(network(1), trainers);
      const network plain = nn::clone(model.module());
      const dist::context pass(self);
      const tensor hidden = self.rpc_sync<remote_layer>("worker4", batch_of(rank, 0));
      const tensor loss = loss_of(averaged ? model(hidden) : plain(hidden));
      pass.backward(loss);
      const auto gradients = pass.gradients();
      for (const tensor& each : averaged ? model.parameters() : nn::parameters(plain)) {
        const tensor gradient = gradients.at(each);
        CHECK(ferry::sum(gradient * gradient).item<double>() > 0);
        const tensor all = trainers.all_gather(gradient).get();
        CHECK(ferry::equal(all.select(0, 0), all.select(0, 1)) == averaged);
      }
      CHECK(any_is_not_zero(self.rpc_sync<server_gradient>("worker4", pass.id())));  // of its own: not averaged
    }
    self.barrier();
  });
}

TEST_CASE(
    "[row 296] [row 298] ddp: members with fewer batches join, inside a context and outside, and end with equal "
    "parameters") {
  for (const bool in_context : {false, true}) {
    run_cluster(3, [&](ferry::worker& self) {
      const process_group group(self);
      ddp model(network(1), group);
      ferry::optimizer<ferry::sgd> optimizer(model.parameters(), {.lr = 0.1});
      int passes = 0;
      model.join([&] {
        for (int step = 0; step != 2 + group.rank(); ++step, ++passes) {
          if (in_context) {
            const dist::context pass(self);
            pass.backward(loss_of(model(batch_of(group.rank(), step))));
            const auto gradients = pass.gradients();
            for (const tensor& each : model.parameters()) ferry::set_grad(each, gradients.at(each).clone());
          } else {
            optimizer.zero_grad();
            ferry::backward(loss_of(model(batch_of(group.rank(), step))));
          }
          if (step == 3) {  // only rank 2 is left: its gradient, and zeros
            const network alone = nn::clone(model.module());
            for (const tensor& each : nn::parameters(alone)) ferry::set_grad(each, tensor());
            ferry::backward(loss_of(alone(batch_of(2, step))) * (1.0 / 3));
            CHECK(close(ferry::grad(model.module().first.weight), ferry::grad(alone.first.weight)));
          }
          optimizer.step();
        }
      });
      CHECK(passes == 2 + group.rank());
      for (const tensor& each : model.parameters()) {
        const tensor all = group.all_gather(ferry::detach(each)).get();
        for (int rank = 1; rank != 3; ++rank) CHECK(ferry::equal(all.select(0, rank), all.select(0, 0)));
      }
    });
  }
}

TEST_CASE("ddp: a pass that fails while its averages are awaited holds up the next call until they have arrived") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group alone(self, {self.name()});
    if (self.id().value == 0) {
      held_averages held;
      ddp model(network(1), alone, {.bucket_bytes = 64, .first_bucket_bytes = 64, .transport = held.transport()});
      ferry::future<void> whole;
      {
        const dist::context pass(self);
        // The gradient of y comes from the other worker, so that a thread of this one runs the hooks.
        const tensor y = self.rpc_sync<identity>("worker1", model(batch_of(0, 0)));
        whole = dist::backward_async(pass, loss_of(y));
        held.wait_for(4);
      }
      expect_error(errc::invalid_argument, "ended during the pass", [&] { whole.get(); });
      call_before_averages(held, [&] { (void)model(batch_of(0, 0)); });
      held.release();
    }
    self.barrier();
  });
}

TEST_CASE("ddp: gradients of a pass that is over are not taken for those of the next one") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group alone(self, {self.name()});
    if (self.id().value == 0) {
      network plain(1);
      std::atomic<bool> reached = false;
      std::atomic<bool> goes_on = false;
      std::atomic<bool> done = false;
      // Before the hook of ddp, and after it.
      auto before = ferry::on_accumulated(plain.second.bias, [&](const tensor&) {
        reached = true;
        while (!goes_on) std::this_thread::yield();
      });
      ddp model(plain, alone, {.bucket_bytes = 64, .first_bucket_bytes = 64});
      auto after = ferry::on_accumulated(plain.second.bias, [&](const tensor&) { done = true; });
      ferry::future<void> whole;
      {
        const dist::context pass(self);
        const tensor y = self.rpc_sync<identity>("worker1", model(batch_of(0, 0)));
        whole = dist::backward_async(pass, loss_of(y));
        while (!reached) std::this_thread::yield();
      }
      expect_error(errc::invalid_argument, "ended during the pass", [&] { whole.get(); });
      goes_on = true;
      while (!done) std::this_thread::yield();
      const dist::context pass(self);
      pass.backward(loss_of(model(batch_of(0, 1))));  // the call throws if the hook has counted a gradient
      CHECK(close(pass.gradients().at(plain.second.bias), joined_gradients(plain, 1, 1)[3]));
      before.remove();
      after.remove();
    }
    self.barrier();
  });
}

TEST_CASE("ddp: averages that are under way when a pass turns out incomplete are waited for") {
  run_cluster(1, [](ferry::worker& self) {
    const process_group alone(self);
    held_averages held;
    ddp model(network(1), alone, {.bucket_bytes = 64, .first_bucket_bytes = 64, .transport = held.transport()});
    (void)model(batch_of(0, 0));
    ferry::backward(loss_of(model.module().second(ferry::zeros({4, 5}, dtype::f64))));  // not the first layer
    CHECK(held.count() == 2);
    call_before_averages(held, [&] {
      expect_error(errc::invalid_argument, "first.weight, first.bias", [&] { (void)model(batch_of(0, 0)); });
    });
  });
}

TEST_CASE(
    "ddp: of several calls before one pass, what none of them uses is unused; calls whose outputs are gone do not "
    "count") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    ddp model(branching(1), group, {.bucket_bytes = 64, .first_bucket_bytes = 64, .find_unused = true});
    const auto parameters = model.parameters();
    (void)model(batch_of(0, 0), true);
    for (const bool first : {true, false}) {  // the first call or the second one uses all parameters
      for (const tensor& each : parameters) ferry::set_grad(each, tensor());
      const tensor one = model(batch_of(0, 0), first);
      const tensor other = model(batch_of(0, 0), !first);
      ferry::backward(loss_of(one) + loss_of(other));
      CHECK(close(ferry::grad(parameters[2]), joined_gradients(model.module().whole, 1, 0)[2]));
    }
    for (const tensor& each : parameters) ferry::set_grad(each, tensor());
    (void)model(batch_of(0, 0), true);  // no pass follows
    ferry::backward(loss_of(model(batch_of(0, 0), false)));
    CHECK(any_is_not_zero({ferry::grad(parameters[0]).at<double>(0, 0)}));
    CHECK(ferry::sum(ferry::grad(parameters[2])).item<double>() == 0);
  });
}

TEST_CASE("ddp: parameters that the outputs do not depend on are found in contexts, too") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    ddp model(branching(1), group, {.find_unused = true});
    for (int round = 0; round != 2; ++round) {
      const dist::context pass(self);
      pass.backward(loss_of(model(batch_of(0, 0), group.rank() == 0)));
      const auto gradients = pass.gradients();
      const network& whole = model.module().whole;
      CHECK(close(gradients.at(whole.second.weight), joined_gradients(whole, 1, 0)[2] * 0.5));
      CHECK_FALSE(ferry::grad(whole.second.weight).defined());
      self.barrier();
    }
  });
}

TEST_CASE("ddp: an optimizer that steps within the pass, before the averages, is refused") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    ddp model(network(1), group);
    std::vector<ferry::rref<tensor>> references;
    for (const tensor& each : model.parameters()) references.push_back(self.make_rref(each));
    const tensor before = model.parameters()[0].clone();
    {
      ferry::distributed_optimizer<ferry::sgd> optimizer(references, {.lr = 0.1});
      const dist::context pass(self);
      const tensor loss = loss_of(model(batch_of(group.rank(), 0)));
      expect_error(errc::invalid_argument, "before their averages are there",
                   [&] { pass.backward(loss, {.then = optimizer}); });
    }
    CHECK(ferry::equal(ferry::detach(model.parameters()[0]), ferry::detach(before)));
    self.barrier();
    const dist::context pass(self);
    pass.backward(loss_of(model(batch_of(group.rank(), 0))));  // it goes on
    CHECK(close(pass.gradients().at(model.parameters()[0]), joined_gradients(model.module(), 2, 0)[0]));
    self.barrier();
  });
}

}  // namespace ddp_test
