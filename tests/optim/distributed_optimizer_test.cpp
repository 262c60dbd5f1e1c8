// Optimizers of parameters of several workers: the steps of one optimizer, errors of all owners, turns, groups, checkpoints, updates within
// passes, bounds.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <cereal/archives/binary.hpp>

#include <ferry/autograd.hpp>
#include <ferry/ferry.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/wire/tensor_archive.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "fake_cuda.hpp"
#include "problems.hpp"

namespace distributed_optimizer_test {

using ferry::distributed_optimizer;
using ferry::dtype;
using ferry::errc;
using ferry::owner_errors;
using ferry::rref;
using ferry::tensor;
using ferry_test::cluster;
using problems::near;

}  // namespace distributed_optimizer_test
namespace dist = ferry::dist_autograd;

namespace distributed_optimizer_test {

// At the owners.

tensor keep_leaf(const tensor& values) { return ferry::require_grad(values.clone()); }
tensor keep_leaf_on(const tensor& values, int gpu) {
  return ferry::require_grad(values.to(ferry::device{ferry::device_kind::cuda, gpu}));
}
tensor keep_frozen(const tensor& values) { return values.clone(); }
tensor times(const tensor& w, const tensor& x) { return ferry::matmul(w, x); }
tensor times_there(const tensor& w, const tensor& x) {
  dist::wait_for_updates();
  return ferry::matmul(w, x.to(w.device())).to(ferry::device{});
}
tensor rows_of(const tensor& table, const tensor& indices) {
  return ferry::embedding(table, indices, {.sparse_gradient = true});
}
tensor value_of(const tensor& w) {
  dist::wait_for_updates();
  return ferry::detach(w).to(ferry::device{}).clone();
}
// On the current stream, which has waited for nothing but what get_gradients() makes it wait for.
tensor only_gradient(dist::context_id in) { return dist::get_gradients(in).begin()->dense.to(ferry::device{}).clone(); }
bool has_own_gradient(const tensor& w) { return ferry::grad(w).defined(); }
void set_own_gradient(const tensor& w) { ferry::set_grad(w, ferry::ones(w.shape(), w.dtype())); }

// What a trainer on one worker would have: the same parameters, and the loss over them.
struct problem {
  tensor t1 = ferry::tensor_of({{0.5, -1., 2.}, {1., 0.25, -0.5}, {-2., 1.5, 0.125}});
  tensor t2 = ferry::tensor_of({{1., 2., -1.}, {0.5, -0.25, 1.}, {0.75, 1., -2.}});
  std::vector<tensor> begin{ferry::tensor_of({{1., -0.5, 0.25}, {0.5, 2., -1.}, {-0.75, 1., 0.5}}),
                            ferry::tensor_of({{0.25, 1., -1.}, {1.5, -0.5, 0.5}, {1., 0.125, 2.}})};

  tensor local_loss(const std::vector<tensor>& w) const {
    return ferry::sum(ferry::matmul(w[1], ferry::matmul(w[0], t2)) + t1);
  }
  tensor loss(const std::vector<rref<tensor>>& w) const {
    return ferry::sum(w[1].rpc_sync<&times>(w[0].rpc_sync<&times>(t2)) + t1);
  }
};

std::vector<rref<tensor>> at_owners(ferry::worker& self, const std::vector<tensor>& values,
                                    const std::vector<std::string>& owners) {
  std::vector<rref<tensor>> all;
  for (std::size_t i = 0; i != values.size(); ++i) all.push_back(self.remote<keep_leaf>(owners[i], values[i]));
  return all;
}
std::vector<tensor> leaves(const std::vector<tensor>& values) {
  std::vector<tensor> all;
  for (const tensor& each : values) all.push_back(keep_leaf(each));
  return all;
}
void check_equal(const std::vector<rref<tensor>>& remote, const std::vector<tensor>& local, double tolerance = 1e-12) {
  REQUIRE(remote.size() == local.size());
  for (std::size_t i = 0; i != local.size(); ++i) {
    CAPTURE(i);
    CHECK(near(remote[i].rpc_sync<&value_of>(), local[i], tolerance));
  }
}

// What each worker owns for others. Waits, within the limit of the test, until that is what it was.
std::vector<std::string> owned_by(cluster& group) {
  std::vector<std::string> all;
  for (int rank = 0; rank != group.size(); ++rank) all.push_back(group[rank].debug_info("num_owner_rrefs"));
  return all;
}
void wait_until_owned(cluster& group, const std::vector<std::string>& as_before) {
  while (owned_by(group) != as_before) std::this_thread::yield();
}

// Fails if it is asked to; otherwise it only counts.
struct failing {
  static constexpr std::string_view name = "failing";
  struct options {
    bool fail = true;
    template <class Archive>
    void serialize(Archive& archive) {
      archive(fail);
    }
  };
  struct state {
    std::int64_t steps = 0;
    template <class Archive>
    void serialize(Archive& archive) {
      archive(steps);
    }
    template <class Visit>
    void visit_tensors(Visit&&) {}
  };
  static void check(const options&) {}
  static void update(std::span<const tensor> parameters, std::span<const tensor>, std::span<state> states,
                     const options& with) {
    if (with.fail) throw std::domain_error("step with " + std::to_string(parameters.size()) + " parameters");
    for (state& each : states) ++each.steps;
  }
};

// Notices if two updates run at once at one worker.
struct alone {
  static constexpr std::string_view name = "alone";
  using options = failing::options;
  using state = failing::state;
  static inline std::atomic<int> inside{0};
  static inline std::atomic<int> overlaps{0};
  static inline std::atomic<int> updates{0};
  static void check(const options&) {}
  static void update(std::span<const tensor> parameters, std::span<const tensor>, std::span<state>, const options&) {
    if (inside.fetch_add(1) != 0) ++overlaps;
    for (int i = 0; i != 50; ++i) std::this_thread::yield();
    for (const tensor& each : parameters) {
      const ferry::no_grad outside;
      ferry::add_(each, 1);
    }
    ++updates;
    --inside;
  }
};

// At the owner: a copy between two updates. The way back to it needs no value of the parameter, which others may have changed by then.
tensor fetch(const tensor& w) {
  const dist::update_turn turn(dist::worker_updates(), {});
  return w.clone();
}

// A trainer, at its worker.
void train_alone(const rref<tensor>& w, int steps) {
  distributed_optimizer<alone> optimizer({w});
  for (int step = 0; step != steps; ++step) {
    const dist::context pass;
    const tensor loss = ferry::sum(w.rpc_sync<&fetch>() * 2.0);
    if (step % 2 == 0) {
      pass.backward(loss);
      optimizer.step(pass);
    } else {
      pass.backward(loss, {.then = optimizer});
    }
  }
}

template <class Algorithm>
void compare(typename Algorithm::options with) {
  CAPTURE(Algorithm::name);
  cluster group(3);
  const problem p;
  const auto remote = at_owners(group[0], p.begin, {"worker1", "worker2"});
  const auto local = leaves(p.begin);
  distributed_optimizer<Algorithm> optimizer(remote, with);
  ferry::optimizer<Algorithm> own(local, with);
  for (int step = 0; step != 3; ++step) {
    {
      const dist::context pass(group[0]);
      pass.backward(p.loss(remote));
      optimizer.step(pass);
    }
    own.zero_grad();
    ferry::backward(p.local_loss(local));
    own.step();
    check_equal(remote, local);
  }
  for (const auto& each : remote) CHECK_FALSE(each.template rpc_sync<&has_own_gradient>());
}

TEST_CASE("weights of two workers become those that one optimizer makes of them, for each algorithm [row 292]") {
  SUBCASE("adagrad") { compare<ferry::adagrad>({.lr = 0.05}); }
  SUBCASE("adam") { compare<ferry::adam>({.lr = 1e-2, .amsgrad = true}); }
  SUBCASE("adamw") { compare<ferry::adamw>({.lr = 0.05, .amsgrad = true}); }
  SUBCASE("sgd") { compare<ferry::sgd>({.lr = 0.05}); }
  SUBCASE("sgd with momentum") {
    compare<ferry::sgd>({.lr = 1e-3, .momentum = 1, .weight_decay = 1, .nesterov = true});
  }
  SUBCASE("adadelta") { compare<ferry::adadelta>({.rho = 0.95}); }
  SUBCASE("rmsprop") { compare<ferry::rmsprop>({.lr = 0.05}); }
  SUBCASE("adamax") { compare<ferry::adamax>({.lr = 0.05}); }
  SUBCASE("rprop") { compare<ferry::rprop>({.lr = 0.05}); }
}

TEST_CASE("a parameter without a gradient stays as it is, and so does what is kept of it [row 293]") {
  cluster group(3);
  const problem p;
  const auto check = [&]<class Algorithm>(std::type_identity<Algorithm>, typename Algorithm::options with) {
    CAPTURE(Algorithm::name);
    const auto remote = at_owners(group[0], p.begin, {"worker1", "worker2"});
    remote[1].rpc_sync<&set_own_gradient>();  // which is none of the context
    distributed_optimizer<Algorithm> optimizer(remote, with);
    for (int step = 0; step != 2; ++step) {
      const dist::context pass(group[0]);
      pass.backward(ferry::sum(remote[0].rpc_sync<&times>(p.t2)));
      optimizer.step(pass);
    }
    CHECK_FALSE(near(remote[0].rpc_sync<&value_of>(), p.begin[0], 1e-12));
    CHECK(near(remote[1].rpc_sync<&value_of>(), p.begin[1], 0));
    const auto kept = optimizer.checkpoint();
    REQUIRE(kept.size() == 1);
    if constexpr (requires { kept[0].states[0].steps; }) CHECK(kept[0].states[1].steps == 0);
    auto untouched = kept[0].states[1];
    untouched.visit_tensors([](std::string_view name, tensor& t) {
      CAPTURE(name);
      CHECK_FALSE(t.defined());
    });
  };
  check(std::type_identity<ferry::sgd>(), {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.1});
  check(std::type_identity<ferry::rmsprop>(), {.lr = 0.05});
  check(std::type_identity<ferry::rprop>(), {.lr = 0.05});
  check(std::type_identity<ferry::adadelta>(), {});
}

TEST_CASE("parameters of this worker, frozen ones, and ones of several groups at one owner") {
  cluster group(3);
  const problem p;
  const auto remote = at_owners(group[0], p.begin, {"worker1", "worker1"});
  const tensor mine = keep_leaf(p.begin[0]);
  const auto frozen = group[0].remote<keep_frozen>("worker1", p.begin[0]);
  using optimizer_type = distributed_optimizer<ferry::sgd>;
  optimizer_type optimizer(std::vector<optimizer_type::group>{{{remote[0], group[0].make_rref(mine)}, {.lr = 0.5}},
                                                              {{frozen, remote[1]}, {.lr = 0.25}}});
  CHECK(optimizer.group_count() == 2);
  CHECK(optimizer.size() == 2);
  CHECK(optimizer.size(1) == 2);
  REQUIRE(optimizer.owners().size() == 2);
  CHECK(optimizer.owners()[0].name() == "worker1");
  CHECK(optimizer.owners()[1].name() == "worker0");
  const auto step = [&] {
    const dist::context pass(group[0]);
    pass.backward(p.loss(remote) + ferry::sum(mine));
    optimizer.step(pass);
  };
  const auto local = leaves({p.begin[0], p.begin[1], p.begin[0]});
  ferry::optimizer<ferry::sgd> own({local[0], local[2]}, {.lr = 0.5});
  own.add_group({local[1]}, {.lr = 0.25});
  const auto own_step = [&] {
    own.zero_grad();
    ferry::backward(p.local_loss(local) + ferry::sum(local[2]));
    own.step();
  };
  step();
  own_step();
  optimizer.set_lr(0.125, 1);
  own.set_lr(0.125, 1);
  CHECK(optimizer.options(1).lr == 0.125);
  CHECK(optimizer.options().lr == 0.5);
  step();
  own_step();
  check_equal(remote, {local[0], local[1]});
  CHECK(near(mine, local[2], 1e-12));
  CHECK(near(frozen.rpc_sync<&value_of>(), p.begin[0], 0));
  expect_error(errc::invalid_argument, "sgd: the option lr is -1", [&] { optimizer.set_lr(-1); });
  expect_error(errc::invalid_argument, "sgd: there is no group 2, only 2", [&] { optimizer.set_lr(1, 2); });
  CHECK(optimizer.options().lr == 0.5);
}

TEST_CASE(
    "a context of this worker that is over makes no step, at no owner; nor does an optimizer that was moved from") {
  cluster group(3);
  const problem p;
  const auto remote = at_owners(group[0], p.begin, {"worker1", "worker2"});
  distributed_optimizer<ferry::sgd> optimizer(remote, {.lr = 0.5});
  dist::context_id over;
  {
    const dist::context pass(group[0]);
    over = pass.id();
    pass.backward(p.loss(remote));
  }
  expect_error(errc::invalid_argument, "of this worker is over", [&] { optimizer.step(over); });
  expect_error(errc::invalid_argument, "of this worker is over",
               [&] { (void)ferry::clip_grad_norm_(over, remote, 1); });
  check_equal(remote, p.begin);
  const auto taken = std::move(optimizer);
  expect_error(errc::invalid_argument, "was moved from",
               [&] { optimizer.step(over); });  // NOLINT(bugprone-use-after-move)
  expect_error(errc::invalid_argument, "was moved from", [&] { (void)optimizer.updaters(); });
}

TEST_CASE("a step that fails throws what each owner threw, once all have answered [row 290]") {
  cluster group(3);
  const problem p;
  const auto remote = at_owners(group[0], p.begin, {"worker1", "worker2"});
  distributed_optimizer<failing> optimizer(remote);
  const dist::context pass(group[0]);
  pass.backward(p.loss(remote));
  try {
    optimizer.step(pass);
    FAIL("no error");
  } catch (const owner_errors& failure) {
    CHECK(std::string(failure.what()) ==
          "remote_exception: failing: a step failed at 2 of 2 workers: 'worker1': step with 1 parameters; 'worker2': "
          "step "
          "with 1 parameters");
    REQUIRE(failure.parts().size() == 2);
    CHECK(failure.parts()[1].at.name() == "worker2");
    CHECK_THROWS_AS(std::rethrow_exception(failure.parts()[0].what), std::domain_error);
  }
  optimizer.set_options({.fail = false});
  optimizer.step(pass);
  CHECK(optimizer.checkpoint()[0].states[0].steps == 1);
}

TEST_CASE(
    "an optimizer that cannot be made at some owners is an error with all of theirs, and leaves nothing anywhere") {
  cluster group(3);
  const problem p;
  const auto good = at_owners(group[0], p.begin, {"worker0", "worker1"});
  const auto odd = group[0].remote<keep_leaf>("worker2", ferry::tensor_of<std::int64_t>({1, 2}).to(dtype::f32));
  const std::vector<rref<tensor>> twice{good[0], good[1], good[1], odd, odd};
  for (const rref<tensor>& each : twice) (void)each.rpc_sync<&value_of>();  // all have been made
  const auto before = owned_by(group);
  {
    distributed_optimizer<ferry::sgd> optimizer({good[0], good[1], odd});
    CHECK(owned_by(group) != before);
  }
  wait_until_owned(group, before);
  try {
    distributed_optimizer<ferry::sgd> optimizer(twice);
    FAIL("no error");
  } catch (const owner_errors& failure) {
    CHECK(failure.kind() == errc::invalid_argument);
    REQUIRE(failure.parts().size() == 2);
    const std::string text = failure.what();
    CAPTURE(text);
    CHECK(text.find("sgd: the making of an optimizer failed at 2 of 3 workers: 'worker1': ") != std::string::npos);
    CHECK(text.find("'worker2': ") != std::string::npos);
    CHECK(text.find("is in a group already") != std::string::npos);
  }
  wait_until_owned(group, before);
  expect_error(errc::invalid_argument, "sgd: parameter 1 of group 0 is an empty reference", [&] {
    distributed_optimizer<ferry::sgd>({good[0], rref<tensor>()});
  });
  expect_error(errc::invalid_argument, "sgd: a group without parameters",
               [&] { distributed_optimizer<ferry::sgd>(std::vector<rref<tensor>>()); });
  expect_error(errc::invalid_argument, "sgd: the option lr is -1",
               [&] { distributed_optimizer<ferry::sgd>(good, {.lr = -1}); });
}

TEST_CASE("updates of several trainers on a shared parameter come one after the other, in steps and within passes") {
  constexpr int trainers = 3;
  constexpr int steps = 10;
  cluster group(trainers + 1);
  alone::overlaps = 0;
  alone::updates = 0;
  const auto w = group[0].remote<keep_leaf>("worker0", ferry::zeros({1, 4}, dtype::f64));
  std::vector<ferry::future<void>> all;
  for (int rank = 1; rank <= trainers; ++rank) all.push_back(group[0].rpc_async<train_alone>(rank, w, steps));
  for (auto& each : all) each.get();
  CHECK(alone::overlaps == 0);
  CHECK(alone::updates == trainers * steps);
  CHECK(near(w.rpc_sync<&value_of>(), ferry::full({1, 4}, double(trainers * steps), dtype::f64), 0));
}

TEST_CASE(
    "a context that no worker concerned has is an error; one that reached no parameter is a step without updates") {
  cluster group(2);
  const problem p;
  const auto remote = at_owners(group[0], p.begin, {"worker1", "worker1"});
  distributed_optimizer<ferry::sgd> optimizer(remote, {.lr = 0.5});
  dist::context_id over;
  {
    const dist::context pass(group[0]);
    over = pass;
    // Another thread is in no context: the owner hears of this one for the first time.
    ferry_test::run_together({[&] { optimizer.step(over); }});
    optimizer.step(pass);
  }
  check_equal(remote, p.begin, 0);
  expect_error(errc::invalid_argument, "sgd: the context ",
               [&] { optimizer.step(dist::context_id{over.value + 1000}); });
  expect_error(errc::invalid_argument, "clip_grad_norm_: the context ",
               [&] { (void)ferry::clip_grad_norm_(dist::context_id{over.value + 1000}, remote, 1); });
}

TEST_CASE("rows of tables: untouched ones keep their momentum, as in a step of one worker") {
  cluster group(2);
  const tensor begin = ferry::arange(0, 18).to(dtype::f64).view({6, 3}) * 0.25;
  const auto remote = group[0].remote<keep_leaf>("worker1", begin);
  const tensor local = keep_leaf(begin);
  problems::for_each_algorithm([&]<class Algorithm>(std::type_identity<Algorithm>) {
    CAPTURE(Algorithm::name);
    const auto with = problems::full_options<Algorithm>();
    distributed_optimizer<Algorithm> optimizer({remote}, with);
    ferry::optimizer<Algorithm> own({local}, with);
    for (const std::vector<std::int64_t>& batch : {std::vector<std::int64_t>{4, 1, 4}, {0, 1}, {5}}) {
      const tensor indices = ferry::from_vector(batch);
      {
        const dist::context pass(group[0]);
        const tensor rows = remote.rpc_sync<&rows_of>(indices);
        pass.backward(ferry::sum(rows * rows));
        optimizer.step(pass);
      }
      own.zero_grad();
      const tensor rows = rows_of(local, indices);
      ferry::backward(ferry::sum(rows * rows));
      own.step();
      CHECK(near(remote.rpc_sync<&value_of>(), local, 1e-12));
    }
  });
}

TEST_CASE("updates within a pass are those of a step after it") {
  for (const bool two_passes : {false, true}) {
    CAPTURE(two_passes);
    cluster group(3);
    const problem p;
    const auto remote = at_owners(group[0], p.begin, {"worker1", "worker2"});
    const auto local = leaves(p.begin);
    distributed_optimizer<ferry::adam> optimizer(remote, {.lr = 0.05});
    ferry::optimizer<ferry::adam> own(local, {.lr = 0.05});
    for (int step = 0; step != 4; ++step) {
      const dist::context pass(group[0]);
      if (two_passes) pass.backward(p.loss(remote));  // its gradients are in the whole, too
      pass.backward(p.loss(remote), {.then = optimizer});
      own.zero_grad();
      if (two_passes) ferry::backward(p.local_loss(local));
      ferry::backward(p.local_loss(local));
      own.step();
      check_equal(remote, local);
    }
    CHECK(optimizer.checkpoint()[0].states[1].steps == 4);
  }
}

TEST_CASE("an update that fails within a pass ends it with its error; the next pass works") {
  cluster group(3);
  const problem p;
  const auto remote = at_owners(group[0], p.begin, {"worker1", "worker2"});
  distributed_optimizer<failing> optimizer(remote);
  {
    const dist::context pass(group[0]);
    CHECK_THROWS_WITH_AS(pass.backward(p.loss(remote), {.then = optimizer}),
                         doctest::Contains("step with 1 parameters"), ferry::error);
  }
  optimizer.set_options({.fail = false});
  const dist::context pass(group[0]);
  pass.backward(p.loss(remote), {.then = optimizer});
  CHECK(optimizer.checkpoint()[0].states[0].steps == 1);
}

TEST_CASE(
    "a checkpoint loads with other owners, other placements, and into an optimizer of one worker; and the other way "
    "round") {
  cluster group(4);
  const problem p;
  std::vector<tensor> begin = p.begin;
  begin.push_back(ferry::tensor_of({{1., 2.}}));  // without a gradient
  using optimizer_type = distributed_optimizer<ferry::adam>;
  const auto groups = [](const std::vector<rref<tensor>>& all) {
    return std::vector<optimizer_type::group>{{{all[1]}, {.lr = 0.5}}, {{all[2], all[0]}, {.lr = 0.25}}};
  };
  const auto remote = at_owners(group[0], begin, {"worker1", "worker2", "worker1"});
  optimizer_type optimizer(groups(remote));
  const auto step = [&](const std::vector<rref<tensor>>& w, optimizer_type& with) {
    const dist::context pass(group[0]);
    pass.backward(p.loss(w));
    with.step(pass);
  };
  for (int i = 0; i != 3; ++i) step(remote, optimizer);
  optimizer.set_lr(0.125);
  std::ostringstream file;
  {
    cereal::BinaryOutputArchive archive(file);
    archive(optimizer);
  }
  std::vector<tensor> values;
  for (const auto& each : remote) values.push_back(each.rpc_sync<&value_of>());

  const auto load_into = [&](auto& target) {
    std::istringstream in(file.str());
    cereal::BinaryInputArchive archive(in);
    archive(target);
  };
  // Where everything is at one worker, and elsewhere.
  const auto moved = at_owners(group[0], values, {"worker3", "worker3", "worker3"});
  optimizer_type other(groups(moved));
  load_into(other);
  CHECK(other.options().lr == 0.125);
  // On this worker.
  const auto local = leaves(values);
  ferry::optimizer<ferry::adam> own({local[1]}, {});
  own.add_group({local[2], local[0]});
  load_into(own);
  CHECK(own.options().lr == 0.125);
  CHECK(own.state(local[0]).steps == 3);
  CHECK(own.state(local[2]).steps == 0);
  for (int i = 0; i != 2; ++i) {
    step(remote, optimizer);
    step(moved, other);
    own.zero_grad();
    ferry::backward(p.local_loss(local));
    own.step();
  }
  check_equal(remote, local);
  check_equal(moved, local);
  // Back, from one worker to several.
  file.str("");
  {
    cereal::BinaryOutputArchive archive(file);
    archive(own);
  }
  load_into(other);
  CHECK(other.checkpoint()[1].states[1].steps == 5);

  // What does not fit changes nothing, at any worker.
  const auto wrong =
      at_owners(group[0], {values[1], values[2], ferry::ones({5}, dtype::f64)}, {"worker1", "worker2", "worker3"});
  optimizer_type odd(std::vector<optimizer_type::group>{{{wrong[0]}, {.lr = 3}}, {{wrong[1], wrong[2]}, {.lr = 4}}});
  try {
    load_into(odd);
    FAIL("no error");
  } catch (const owner_errors& failure) {
    CHECK(failure.kind() == errc::bad_shape);
    const std::string text = failure.what();
    CAPTURE(text);
    CHECK(text.find("'worker3': ") != std::string::npos);
    CHECK(text.find("parameter 1 in group 1") != std::string::npos);
    CHECK(failure.parts().size() == 1);
  }
  CHECK(odd.options(1).lr == 4);
  CHECK(odd.checkpoint()[0].states[0].steps == 0);
  distributed_optimizer<ferry::sgd> another(remote);
  expect_error(errc::invalid_argument, "sgd: the archive holds the state of another algorithm",
               [&] { load_into(another); });
  optimizer_type one_group(remote);
  expect_error(errc::invalid_argument, "adam: the archive holds 2 groups, the optimizer has 1",
               [&] { load_into(one_group); });
}

TEST_CASE("the norm of the gradients of several workers is bounded as that of one") {
  cluster group(3);
  const problem p;
  const auto remote = at_owners(group[0], p.begin, {"worker1", "worker2"});
  const auto table = group[0].remote<keep_leaf>("worker1", ferry::ones({5, 2}, dtype::f64));
  const tensor indices = ferry::from_vector(std::vector<std::int64_t>{3, 1, 3});
  const auto local = leaves({p.begin[0], p.begin[1], ferry::ones({5, 2}, dtype::f64)});
  ferry::backward(p.local_loss(local) + ferry::sum(rows_of(local[2], indices)) * 2.0);
  const double whole = ferry::clip_grad_norm_(local, 1.5).item<double>();
  for (const double most : {1e6, 1.5}) {
    CAPTURE(most);
    const dist::context pass(group[0]);
    pass.backward(p.loss(remote) + ferry::sum(table.rpc_sync<&rows_of>(indices)) * 2.0);
    const double norm = ferry::clip_grad_norm_(pass, {remote[0], table, remote[1], remote[0]}, most);
    CHECK(norm == doctest::Approx(whole).epsilon(1e-12));
    if (most < 1e6) {
      // Steps see that, and it is within the bound now.
      distributed_optimizer<ferry::sgd> optimizer({remote[0], remote[1], table}, {.lr = 0.5});
      optimizer.step(pass);
      CHECK(ferry::clip_grad_norm_(pass, {remote[0], remote[1], table}, most) == doctest::Approx(1.5).epsilon(1e-6));
    }
  }
  ferry::optimizer<ferry::sgd> own(local, {.lr = 0.5});
  own.step();
  check_equal({remote[0], remote[1], table}, local);
  const dist::context pass(group[0]);
  pass.backward(p.loss(remote));
  CHECK(ferry::clip_grad_norm_(pass, {table}, 1) == 0);
  CHECK(ferry::clip_grad_norm_(pass, {}, 1) == 0);
  const double whole_norm = ferry::clip_grad_norm_(pass, remote, std::numeric_limits<double>::infinity());
  CHECK(whole_norm > 0);
  CHECK(ferry::clip_grad_norm_(pass, remote, std::numeric_limits<double>::infinity()) == whole_norm);
  expect_error(errc::invalid_argument, "clip_grad_norm_: the option most is -1",
               [&] { (void)ferry::clip_grad_norm_(pass, remote, -1); });
}

TEST_CASE("a worker with a list of methods serves the optimizers that it is told to, and what bounds gradients") {
  const ferry_test::cluster_options with_list{.configure = [](ferry::worker_config& config) {
    if (config.rank == 1) config.serve = ferry::serve_list<keep_leaf, times>;
  }};
  const tensor values = ferry::tensor_of({{1., 2.}, {3., 4.}});
  const tensor x = ferry::tensor_of({{1.}, {1.}});
  {
    cluster group(2, with_list);
    const std::vector<rref<tensor>> parameters{group[0].remote<keep_leaf>("worker1", values)};
    expect_error(errc::unknown_method, "list of methods",
                 [&] { (void)distributed_optimizer<ferry::adamax>(parameters, {.lr = 0.5}); });
  }
  ferry::serve_optimizers<ferry::adamax, ferry::sgd>();
  cluster group(2, with_list);
  const std::vector<rref<tensor>> parameters{group[0].remote<keep_leaf>("worker1", values)};
  distributed_optimizer<ferry::sgd> optimizer(parameters, {.lr = 0.5});
  optimizer.set_lr(0.25);
  for (const bool within : {false, true}) {
    const dist::context pass(group[0]);
    const tensor loss = ferry::sum(parameters[0].rpc_sync<&times>(x));
    dist::backward(pass, loss, within ? dist::backward_options{.then = optimizer} : dist::backward_options{});
    if (within) continue;
    CHECK(ferry::clip_grad_norm_(pass, parameters, 1) == doctest::Approx(2));
    optimizer.step(pass);
  }
  // 0.25 times 1/2, then 0.25 times 1.
  CHECK(near(parameters[0].to_here(), values - 0.375, 1e-5));
  std::stringstream file;
  {
    cereal::BinaryOutputArchive archive(file);
    archive(optimizer);
  }
  cereal::BinaryInputArchive archive(file);
  archive(optimizer);
  expect_error(errc::unknown_method, "list of methods",
               [&] { (void)distributed_optimizer<ferry::adagrad>(parameters, {}); });
}

TEST_CASE("a lost owner is one that fails; the others have made the step") {
  cluster group(3, {.graceful = false});
  const problem p;
  const auto remote = at_owners(group[0], p.begin, {"worker1", "worker2"});
  distributed_optimizer<ferry::sgd> optimizer(remote, {.lr = 0.5});
  const dist::context pass(group[0]);
  pass.backward(p.loss(remote));
  group[2].shutdown(false);
  try {
    optimizer.step(pass);
    FAIL("no error");
  } catch (const owner_errors& failure) {
    CHECK(failure.kind() == errc::peer_lost);
    REQUIRE(failure.parts().size() == 1);
    CHECK(failure.parts()[0].at.name() == "worker2");
  }
  CHECK_FALSE(near(remote[0].rpc_sync<&value_of>(), p.begin[0], 1e-12));
}

TEST_CASE("parameters on devices: steps and updates within passes follow each other in stream order") {
  cluster group(2, {.configure = [](ferry::worker_config& config) { config.set_devices({"cuda:0", "cuda:1"}); }});
  const problem p;
  std::vector<rref<tensor>> remote;
  for (int i = 0; i != 2; ++i) {
    remote.push_back(group[0].remote<keep_leaf_on>("worker1", p.begin[static_cast<std::size_t>(i)], i));
  }
  const auto local = leaves(p.begin);
  distributed_optimizer<ferry::sgd> optimizer(remote, {.lr = 0.05, .momentum = 0.5});
  ferry::optimizer<ferry::sgd> own(local, {.lr = 0.05, .momentum = 0.5});
  for (int step = 0; step != 10; ++step) {  // the double delays streams at random
    const dist::context pass(group[0]);
    const tensor y = remote[1].rpc_sync<&times_there>(remote[0].rpc_sync<&times_there>(p.t2));
    if (step % 2 == 0) {
      pass.backward(ferry::sum(y + p.t1));
      CHECK(ferry::clip_grad_norm_(pass, remote, 0.5) > 0.5);
      optimizer.step(pass);
    } else {
      pass.backward(ferry::sum(y + p.t1), {.then = optimizer});
    }
    own.zero_grad();
    ferry::backward(p.local_loss(local));
    if (step % 2 == 0) (void)ferry::clip_grad_norm_(local, 0.5);
    own.step();
  }
  check_equal(remote, local);
}

TEST_CASE("what is clipped on devices is read, and added to by the next pass, in stream order") {
  cluster group(2, {.configure = [](ferry::worker_config& config) { config.set_devices({"cuda:0", "cuda:1"}); }});
  const tensor values = ferry::full({64, 64}, 0.5, dtype::f64);
  const tensor x = ferry::ones({64, 1}, dtype::f64);
  const std::vector<rref<tensor>> remote{group[0].remote<keep_leaf_on>("worker1", values, 1)};
  const auto gradient_is = [&](const dist::context& in, double expected) {
    const tensor found = group[0].rpc_sync<only_gradient>("worker1", in.id());
    return near(found, ferry::full({64, 64}, expected, dtype::f64), 1e-5);
  };
  for (const auto how : {fake_cuda::schedule::newest_first, fake_cuda::schedule::random}) {
    fake_cuda::set_schedule(how);
    for (int round = 0; round != 16; ++round) {
      const dist::context context(group[0]);
      // The graph is made before: a call in between would wait for the update.
      const tensor loss = ferry::sum(remote[0].rpc_sync<&times_there>(x));
      context.backward(loss, {.retain_graph = true});
      CHECK(ferry::clip_grad_norm_(context, remote, 16) == doctest::Approx(64));
      if (round % 2 == 0) CHECK(gradient_is(context, 0.25));
      context.backward(loss);
      CHECK(gradient_is(context, 1.25));
    }
  }
  fake_cuda::set_schedule(fake_cuda::schedule::random);
}

}  // namespace distributed_optimizer_test
