// Steps by sparse gradients.

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/factories.hpp>

#include "fake_cuda.hpp"
#include "problems.hpp"

namespace sparse_test {

using ferry::device;
using ferry::device_kind;
using ferry::dtype;
using ferry::sparse_grad;
using ferry::sparse_tensor;
using ferry::tensor;
using problems::near;

namespace {

constexpr ferry::embedding_options as_rows{.sparse_gradient = true};

tensor table(device where = {}) {
  return ferry::require_grad((ferry::arange(0, 18).to(dtype::f64).view({6, 3}) * 0.25).to(where));
}
tensor loss(const tensor& w, const ferry::embedding_options& with = as_rows) {
  const tensor rows = ferry::embedding(w, ferry::from_vector(std::vector<std::int64_t>{4, 1, 4}).to(w.device()), with);
  return ferry::sum(rows * rows);
}

}  // namespace

TEST_CASE("a step takes sparse gradients by rows where the algorithm has that, else densely") {
  for (const device where : {device{}, device{device_kind::cuda, 1}}) {
    problems::for_each_algorithm([&]<class Algorithm>(std::type_identity<Algorithm>) {
      CAPTURE(Algorithm::name);
      const auto with = problems::full_options<Algorithm>();
      const tensor w = table(where);
      const tensor bias = ferry::require_grad(ferry::ones({2}, dtype::f64, where));
      const tensor expected = ferry::detach(w).clone();
      const tensor start = ferry::detach(w).to(device{}).clone();
      typename Algorithm::state kept;
      ferry::optimizer<Algorithm> optimizer({w, bias}, with);
      for (int round = 0; round != 3; ++round) {
        optimizer.zero_grad();
        CHECK_FALSE(has_sparse_grad(w));
        ferry::backward(loss(w) + ferry::sum(bias));
        REQUIRE(has_sparse_grad(w));
        if (round == 2) {
          optimizer.step(w);
        } else {
          optimizer.step();
        }
        const tensor gradient = sparse_grad(w).to_dense();
        if constexpr (ferry::updates_rows<Algorithm>) {
          Algorithm::update_rows(expected, sparse_grad(w).indices().select(0, 0), sparse_grad(w).values(), kept, with);
        } else {
          Algorithm::update({&expected, 1}, {&gradient, 1}, {&kept, 1}, with);
        }
        CHECK(near(w, expected, 1e-12));
      }
      const tensor now = ferry::detach(w).to(device{});
      CHECK_FALSE(ferry::equal(now.select(0, 4), start.select(0, 4)));
      if constexpr (ferry::updates_rows<Algorithm>) CHECK(ferry::equal(now.select(0, 2), start.select(0, 2)));
      CHECK_FALSE(near(bias, ferry::ones({2}), 1e-6));
    });
  }
}

TEST_CASE("a step by rows of plain descent is the dense one") {
  const tensor sparse = table();
  const tensor dense = table();
  ferry::optimizer<ferry::sgd> by_rows({sparse}, {.lr = 0.1});
  ferry::optimizer<ferry::sgd> whole({dense}, {.lr = 0.1});
  ferry::backward(loss(sparse));
  ferry::backward(loss(dense, {}));
  by_rows.step();
  whole.step();
  CHECK(near(sparse, dense, 1e-12));
}

TEST_CASE("a step in a hook, as soon as the rows are there") {
  const tensor w = table();
  ferry::optimizer<ferry::sgd> optimizer({w}, {.lr = 1});
  ferry::on_accumulated(w, [&](const tensor& leaf) {
    optimizer.step(leaf);
    ferry::set_grad(leaf, {});
  });
  ferry::backward(ferry::sum(ferry::embedding(w, ferry::from_vector(std::vector<std::int64_t>{1, 1}), as_rows)));
  CHECK(w.at<double>(1, 0) == 0.75 - 2);
  CHECK_FALSE(has_sparse_grad(w));
}

TEST_CASE("bounds count sparse gradients as their dense form") {
  for (const device where : {device{}, device{device_kind::cuda, 1}}) {
    const tensor w = table(where);
    const tensor bias = ferry::require_grad(ferry::ones({2}, dtype::f64, where));
    const tensor dense = table(where);
    ferry::backward(loss(w) + ferry::sum(bias) * 3);
    ferry::backward(loss(dense, {}));
    const std::vector<tensor> sparse_ones{w, bias};
    const std::vector<tensor> dense_ones{dense, bias};
    const std::vector<tensor> copies{ferry::grad(dense).clone(), ferry::grad(bias).clone()};
    const tensor norm = ferry::clip_grad_norm_(sparse_ones, 1);
    CHECK(near(norm, ferry::clip_norm_(copies, 1), 1e-12));
    CHECK(has_sparse_grad(w));
    CHECK(sparse_grad(w).is_coalesced());
    CHECK(near(sparse_grad(w).to_dense(), copies[0], 1e-12));
    CHECK(near(ferry::grad(bias), copies[1], 1e-12));
    ferry::clip_grad_value_(sparse_ones, 0.01);
    CHECK(near(sparse_grad(w).to_dense().select(0, 4), ferry::full({3}, 0.01, dtype::f64), 1e-12));
    CHECK(near(sparse_grad(w).to_dense().select(0, 0), ferry::zeros({3}), 1e-12));
  }
}

}  // namespace sparse_test
