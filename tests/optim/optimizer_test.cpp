// The class over the algorithms: groups, steps, checkpoints.

#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/wire/serialize.hpp>

#include "archive_formats.hpp"
#include "expect_error.hpp"
#include "problems.hpp"

namespace optimizer_test {

using ferry::dtype;
using ferry::errc;
using ferry::tensor;

using ferry_test::binary;
using ferry_test::json;
using ferry_test::portable;

namespace {

tensor leaf(const tensor& t) { return ferry::require_grad(t); }

std::vector<tensor> two_leaves() {
  return {leaf(ferry::tensor_of({{1., -2.}, {3., 4.}})), leaf(ferry::tensor_of({0.5, 0.25, 2.}))};
}

template <class Optimizer>
void train(Optimizer& optimizer, int steps) {
  for (int step = 0; step != steps; ++step) {
    optimizer.zero_grad();
    for (std::size_t group = 0; group != optimizer.group_count(); ++group) {
      for (const tensor& p : optimizer.parameters(group)) ferry::set_grad(p, problems::pull(p));
    }
    optimizer.step();
  }
}

// A user's algorithm.
struct sign_descent {
  static constexpr std::string_view name = "sign_descent";
  struct options {
    double lr = 0.5;
    template <class Archive>
    void serialize(Archive& archive) {
      archive(lr);
    }
  };
  struct state {
    int calls = 0;
    template <class Archive>
    void serialize(Archive& archive) {
      archive(calls);
    }
    template <class Visit>
    void visit_tensors(Visit&&) {}
  };
  static void check(const options&) {}
  static void update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                     const options& with) {
    const ferry::no_grad outside;
    for (std::size_t i = 0; i != parameters.size(); ++i) {
      if (!gradients[i].defined()) continue;
      ++states[i].calls;
      ferry::add_(parameters[i], gradients[i].item<double>() > 0 ? -with.lr : with.lr);
    }
  }
};
static_assert(ferry::optimizer_algorithm<sign_descent> && !ferry::updates_rows<sign_descent>);
static_assert(!ferry::optimizer_algorithm<int>);

}  // namespace

TEST_CASE("every group has its options, and steps read the gradients of the parameters") {
  const tensor a = leaf(ferry::tensor_of({1.}));
  const tensor b = leaf(ferry::tensor_of({1.}));
  const tensor c = leaf(ferry::tensor_of({1.}));
  ferry::optimizer<ferry::sgd> optimizer({a}, {.lr = 0.5});
  CHECK(optimizer.add_group({b, c}, {.lr = 0.25}) == 1);
  CHECK(optimizer.group_count() == 2);
  CHECK(optimizer.parameters(1).size() == 2);
  ferry::backward(a * 2 + b * 2);
  optimizer.step();
  CHECK(a.item<double>() == 0);
  CHECK(b.item<double>() == 0.5);
  CHECK(c.item<double>() == 1);
  optimizer.zero_grad();
  CHECK_FALSE(ferry::grad(a).defined());
  optimizer.step();
  CHECK(a.item<double>() == 0);
  optimizer.set_lr(1, 1);
  CHECK(optimizer.options(1).lr == 1);
  CHECK(optimizer.options().lr == 0.5);
  expect_error(errc::invalid_argument, "sgd: the option lr is -1", [&] { optimizer.set_lr(-1); });
  CHECK(optimizer.options().lr == 0.5);
  expect_error(errc::invalid_argument, "sgd: there is no group 2, only 2", [&] { (void)optimizer.options(2); });
}

TEST_CASE("a copy is a snapshot") {
  const tensor w = ferry::require_grad(ferry::tensor_of({1.}));
  ferry::optimizer<ferry::adam> own({w}, {.lr = 0.1});
  ferry::set_grad(w, ferry::tensor_of({1.}));
  own.step();
  const auto kept = own;
  for (int step = 0; step != 3; ++step) own.step();
  CHECK(kept.state(w).steps == 1);
  CHECK(kept.state(w).mean.item<double>() == doctest::Approx(0.1));
  CHECK(own.state(w).mean.item<double>() == doctest::Approx(0.3439));
  own = kept;
  CHECK(own.state(w).steps == 1);
  own.step();
  CHECK(kept.state(w).mean.item<double>() == doctest::Approx(0.1));
}

TEST_CASE("numbers of steps that no run has, and options that are not finite, are refused") {
  const tensor w = ferry::require_grad(ferry::tensor_of({1.}));
  ferry::optimizer<ferry::adam> own({w});
  own.state(w).steps = std::int64_t{1} << 53U;
  std::stringstream file;
  {
    cereal::BinaryOutputArchive out(file);
    out(own);
  }
  ferry::optimizer<ferry::adam> other({w});
  cereal::BinaryInputArchive in(file);
  expect_error(errc::malformed, "the archive claims 9007199254740992 steps", [&] { in(other); });
  expect_error(errc::invalid_argument, "adam: the option lr is inf; it must be at least 0, and finite",
               [&] { other.set_lr(std::numeric_limits<double>::infinity()); });
}

TEST_CASE("one parameter is updated as soon as its gradient is there") {
  const tensor a = leaf(ferry::tensor_of({1.}));
  const tensor b = leaf(ferry::tensor_of({1.}));
  ferry::optimizer<ferry::sgd> optimizer({a, b}, {.lr = 0.5});
  for (const tensor& each : {a, b}) {
    ferry::on_accumulated(each, [&](const tensor& ready) {
      optimizer.step(ready);
      ferry::set_grad(ready, {});
    });
  }
  ferry::backward(a + b);
  CHECK(a.item<double>() == 0.5);
  CHECK(b.item<double>() == 0.5);
  expect_error(errc::invalid_argument, "sgd: the tensor is a parameter of none of the groups",
               [&] { optimizer.step(ferry::tensor_of({1.})); });
}

TEST_CASE("rows of a parameter with the options of its group") {
  const tensor table = leaf(ferry::ones({3, 2}, dtype::f64));
  ferry::optimizer<ferry::adagrad> optimizer({table}, {.lr = 0.5, .eps = 0});
  optimizer.step_rows(table, ferry::tensor_of<std::int64_t>({1}), ferry::tensor_of({{3., -3.}}));
  CHECK(ferry::equal(ferry::detach(table), ferry::tensor_of({{1., 1.}, {0.5, 1.5}, {1., 1.}})));
  CHECK(optimizer.state(table).steps == 1);
}

TEST_CASE("parameters that cannot be optimized are refused") {
  const tensor a = leaf(ferry::ones({2}));
  ferry::optimizer<ferry::sgd> optimizer({a});
  expect_error(errc::invalid_argument, "sgd: a group without parameters", [&] { optimizer.add_group({}); });
  expect_error(errc::invalid_argument, "sgd: parameter 0 is in a group already", [&] { optimizer.add_group({a}); });
  const tensor b = leaf(ferry::ones({2}));
  expect_error(errc::invalid_argument, "sgd: parameter 1 is in a group already", [&] { optimizer.add_group({b, b}); });
  expect_error(errc::invalid_argument, "only leaves are optimized", [&] { optimizer.add_group({b * 2}); });
  expect_error(errc::invalid_argument, "sgd: parameter 1 is undefined", [&] { optimizer.add_group({b, tensor()}); });
  expect_error(errc::bad_dtype, "sgd: parameter 0 is of i64", [&] { optimizer.add_group({ferry::arange(3)}); });
  CHECK(optimizer.group_count() == 1);
}

TEST_CASE("an algorithm of one's own") {
  const tensor a = leaf(ferry::tensor_of({1.}));
  ferry::optimizer<sign_descent> optimizer({a});
  ferry::backward(a * 3);
  optimizer.step();
  CHECK(a.item<double>() == 0.5);
  ferry::optimizer<sign_descent> other({leaf(ferry::tensor_of({1.}))});
  binary::read(binary::write(optimizer), other);
  CHECK(other.state(other.parameters()[0]).calls == 1);
}

TEST_CASE_TEMPLATE("a run that is interrupted by a checkpoint goes on as if it were not", Format, binary, portable,
                   json) {
  problems::for_each_algorithm([]<class Algorithm>(std::type_identity<Algorithm>) {
    CAPTURE(Algorithm::name);
    const auto with = problems::full_options<Algorithm>();
    ferry::optimizer<Algorithm> whole(two_leaves(), with);
    train(whole, 12);

    ferry::optimizer<Algorithm> first(two_leaves(), with);
    train(first, 5);
    const std::string options_and_state = Format::write(first);
    std::vector<tensor> parameters;
    for (const tensor& p : first.parameters()) parameters.push_back(leaf(ferry::detach(p).clone()));
    ferry::optimizer<Algorithm> second(parameters);  // other options: the archive has them
    Format::read(options_and_state, second);
    train(second, 7);
    for (std::size_t i = 0; i != 2; ++i) {
      CHECK(ferry::equal(ferry::detach(second.parameters()[i]), ferry::detach(whole.parameters()[i])));
    }
  });
}

TEST_CASE("optimizers travel in ferry's own archive, too") {
  ferry::optimizer<ferry::adam> first(two_leaves(), {.lr = 0.25, .amsgrad = true});
  train(first, 3);
  const ferry::serialized packed = ferry::serialize(first.options(), first.state(first.parameters()[0]));
  const auto [with, kept] = ferry::deserialize<ferry::adam::options, ferry::adam::state>(packed);
  CHECK(with.lr == 0.25);
  CHECK(with.amsgrad);
  CHECK(kept.steps == 3);
  CHECK(ferry::equal(kept.mean, first.state(first.parameters()[0]).mean));
}

TEST_CASE("a checkpoint of something else is refused, and changes nothing") {
  ferry::optimizer<ferry::adam> saved(two_leaves(), {.lr = 0.25});
  train(saved, 3);
  const std::string text = binary::write(saved);
  const auto refuse = [](errc code, const char* why, const std::string& from, auto& into) {
    train(into, 2);
    const auto before = into.state(into.parameters()[0]);
    const double lr = into.options().lr;
    expect_error(code, why, [&] { binary::read(from, into); });
    CHECK(into.options().lr == lr);
    problems::for_each_pair(before, into.state(into.parameters()[0]),
                            [](auto, const tensor& a, const tensor& b) { CHECK(a.same_as(b)); });
  };
  ferry::optimizer<ferry::adamw> other_algorithm(two_leaves());
  refuse(errc::invalid_argument, "adamw: the archive holds the state of another algorithm", text, other_algorithm);
  ferry::optimizer<ferry::adam> fewer({two_leaves()[0]});
  refuse(errc::invalid_argument, "adam: the archive holds 2 parameters of group 0, which has 1", text, fewer);
  ferry::optimizer<ferry::adam> groups({two_leaves()[0]});
  groups.add_group({two_leaves()[1]});
  refuse(errc::invalid_argument, "adam: the archive holds 1 groups, the optimizer has 2", text, groups);
  ferry::optimizer<ferry::adam> shapes({two_leaves()[0], leaf(ferry::ones({4}, dtype::f64))});
  refuse(errc::bad_shape, "mean of parameter 1 in group 0 is f64 [3], not f64 [4]", text, shapes);
  ferry::optimizer<ferry::adam> types({two_leaves()[0], leaf(ferry::ones({3}))});
  refuse(errc::bad_dtype, "mean of parameter 1 in group 0 is f64 [3], not f32 [3]", text, types);
  ferry::optimizer<ferry::adam> same(two_leaves());
  refuse(errc::malformed, "does not hold an optimizer", std::string(text.size(), '\x7f'), same);
  for (const std::size_t size : {std::size_t{0}, std::size_t{10}, text.size() / 2, text.size() - 1}) {
    CHECK_THROWS_AS(binary::read(text.substr(0, size), same), cereal::Exception);
  }
  // The options are checked: those that the archive claims, and the number of steps.
  std::string wrong = text;
  const double negative = -1;
  wrong.replace(20, sizeof(double), reinterpret_cast<const char*>(&negative), sizeof(double));
  refuse(errc::invalid_argument, "adam: the option lr is -1", wrong, same);
}

}  // namespace optimizer_test
