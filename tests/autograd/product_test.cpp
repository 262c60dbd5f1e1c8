// Gradients of products of matrices, batches and vectors.

#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>

#include "gradient_check.hpp"

namespace product_test {

using ferry::dims;
using ferry::tensor;
using ferry_test::check_gradients;
using ferry_test::tensors;
using ferry_test::varied;

TEST_CASE("products of batches and vectors") {
  const std::vector<std::pair<dims, dims>> shapes{
      {{3, 4}, {4, 2}},
      {{2, 3, 4}, {2, 4, 2}},
      {{2, 3, 4}, {4, 2}},
      {{3, 4}, {2, 4, 2}},
      {{2, 1, 3, 4}, {3, 4, 2}},
      {{1, 3, 4}, {2, 4, 2}},
      {{2, 3, 4}, {1, 1, 4, 2}},
      {{4}, {4}},
      {{3, 4}, {4}},
      {{2, 3, 4}, {4}},
      {{4}, {4, 2}},
      {{4}, {2, 4, 3}},
      {{1}, {1}},
  };
  for (const auto& [a, b] : shapes) {
    CAPTURE(to_string(a));
    CAPTURE(to_string(b));
    check_gradients([](const tensors& in) -> tensors { return {ferry::matmul(in[0], in[1])}; },
                    {varied(a, 1), varied(b, 2)});
  }
}

TEST_CASE("products of transposed batches") {
  check_gradients(
      [](const tensors& in) -> tensors {
        return {ferry::matmul(in[0].transpose(1, 2), in[1].permute({2, 1, 0}))};
      },
      {varied({2, 4, 3}, 1), varied({2, 4, 2}, 2)});
}

TEST_CASE("linear, with a bias and without") {
  for (const dims& x : {dims{3, 4}, dims{4}, dims{2, 3, 4}}) {
    CAPTURE(to_string(x));
    check_gradients([](const tensors& in) -> tensors { return {ferry::linear(in[0], in[1])}; },
                    {varied(x, 1), varied({2, 4}, 2)});
    check_gradients([](const tensors& in) -> tensors { return {ferry::linear(in[0], in[1], in[2])}; },
                    {varied(x, 1), varied({2, 4}, 2), varied({2}, 3)});
  }
}

TEST_CASE("what is not asked for is not computed") {
  const tensor x = varied({3, 4}, 1);
  const tensor weight = ferry::require_grad(varied({2, 4}, 2));
  const tensor bias = varied({2}, 3);
  const tensors found = ferry::gradients({ferry::sum(ferry::linear(x, weight, bias))}, {weight});
  CHECK(found[0].shape() == weight.shape());
}

TEST_CASE("products without elements have gradients of zeros") {
  const tensor a = ferry::require_grad(varied({0, 4}, 1));
  const tensor weight = ferry::require_grad(varied({2, 4}, 2));
  const tensors found = ferry::gradients({ferry::sum(ferry::linear(a, weight))}, {a, weight});
  CHECK(found[0].shape() == a.shape());
  CHECK(equal(found[1], ferry::zeros({2, 4}, ferry::dtype::f64)));
}

}  // namespace product_test
