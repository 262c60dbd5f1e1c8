// What the layers do beyond the values that PyTorch has recorded, and what they refuse.

#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"

namespace layers_test {

using ferry::dtype;
using ferry::errc;
using ferry::tensor;

}  // namespace layers_test
namespace nn = ferry::nn;

namespace layers_test {

TEST_CASE("dropout drops while it is trained") {
  nn::dropout drop(0.25);
  ferry::generator source(1);
  const tensor x = ferry::ones({10000}, dtype::f64);
  const tensor y = drop(x, source);
  const double zeros = ferry::sum(ferry::eq(y, 0.0).to(dtype::f64)).item<double>();
  CHECK((zeros > 2300 && zeros < 2700));
  CHECK(ferry::max(y).item<double>() == 1 / 0.75);
  nn::eval(drop);
  CHECK(drop(x, source).same_as(x));
  expect_error(errc::invalid_argument, "the probability is 1.5", [] { (void)nn::dropout(1.5); });
}

TEST_CASE("a row of padding begins with zeros and stays") {
  nn::embedding table(4, 3, {.padding = -1});
  CHECK(table.padding == 3);
  CHECK(ferry::equal(ferry::detach(table.weight).select(0, 3), ferry::zeros({3})));
  const tensor before = ferry::detach(table.weight).clone();
  ferry::optimizer<ferry::sgd> optimizer(nn::parameters(table), {.lr = 0.5});
  for (int step = 0; step != 3; ++step) {
    optimizer.zero_grad();
    const tensor rows = table(ferry::tensor_of<std::int64_t>({3, 0, 3}));
    ferry::backward(ferry::sum((rows - 1.0) * (rows - 1.0)));
    optimizer.step();
  }
  CHECK(ferry::equal(ferry::detach(table.weight).select(0, 3), ferry::zeros({3})));
  CHECK(!ferry::equal(ferry::detach(table.weight).select(0, 0), before.select(0, 0)));
  CHECK(ferry::equal(ferry::detach(table.weight).select(0, 1), before.select(0, 1)));
  expect_error(errc::invalid_argument, "the padding is row 4 of a table of 4 rows",
               [] { (void)nn::embedding(4, 3, {.padding = 4}); });
}

TEST_CASE("tables with sparse gradients") {
  const nn::embedding table(4, 3, {.sparse_gradient = true});
  const nn::embedding_bag bags(4, 3, {.mode = ferry::bag_mode::sum, .sparse_gradient = true});
  const tensor indices = ferry::tensor_of<std::int64_t>({{1, 3}});
  ferry::backward(ferry::sum(table(indices)) + ferry::sum(bags(indices)));
  for (const tensor& weight : {table.weight, bags.weight}) {
    CHECK_FALSE(ferry::grad(weight).defined());
    CHECK(ferry::equal(ferry::sparse_grad(weight).to_dense().select(1, 0), ferry::tensor_of({0.F, 1.F, 0.F, 1.F})));
  }
}

TEST_CASE("the first layer of a sequential may take several arguments") {
  const nn::sequential net(nn::embedding_bag(10, 4), ferry::tanh, nn::linear(4, 2));
  const tensor y = net(ferry::tensor_of<std::int64_t>({1, 2, 3}), ferry::tensor_of<std::int64_t>({0, 2}));
  CHECK(y.shape() == ferry::dims{2, 2});
  CHECK(y.requires_grad());
}

TEST_CASE("no rows, and no gradients where none are wanted") {
  const nn::linear layer(3, 2);
  CHECK(layer(ferry::ones({0, 3})).shape() == ferry::dims{0, 2});
  CHECK(layer(ferry::ones({2, 0, 3})).shape() == ferry::dims{2, 0, 2});
  const ferry::no_grad outside;
  CHECK(!layer(ferry::ones({1, 3})).requires_grad());
}

TEST_CASE("a state that has another batch is refused, and one of the last step goes on") {
  const nn::gru_cell cell(3, 2);
  tensor state = cell(ferry::ones({4, 3}));
  state = cell(ferry::ones({4, 3}), state);
  CHECK(state.shape() == ferry::dims{4, 2});
  ferry::backward(ferry::sum(state));
  CHECK(ferry::grad(cell.weight_hh).defined());
  expect_error(errc::bad_shape, "[3, 2]", [&] { (void)cell(ferry::ones({4, 3}), ferry::ones({3, 2})); });
  expect_error(errc::bad_shape, "[4, 3]", [&] { (void)cell(ferry::ones({4, 3}), ferry::ones({4, 3})); });
}

TEST_CASE("sizes and types that make no sense are refused") {
  expect_error(errc::bad_shape, "linear: in is 0; it must be at least 1", [] { (void)nn::linear(0, 1); });
  expect_error(errc::bad_shape, "linear: out is -1", [] { (void)nn::linear(1, -1); });
  expect_error(errc::bad_shape, "embedding: their width is 0", [] { (void)nn::embedding(1, 0); });
  expect_error(errc::bad_shape, "gru_cell: hidden is 0", [] { (void)nn::gru_cell(1, 0); });
  expect_error(errc::bad_shape, "layer_norm over no axes", [] { (void)nn::layer_norm(ferry::dims{}); });
  expect_error(errc::invalid_argument, "epsilon is 0", [] { (void)nn::layer_norm({2}, {.epsilon = 0}); });
  expect_error(errc::bad_dtype, "linear: parameters are f32 or f64, not i32",
               [] { (void)nn::linear(1, 1, {.dtype = dtype::i32}); });
  const nn::linear layer(3, 2);
  expect_error(errc::bad_shape,
               "linear needs x [..., in], weight [out, in] and bias [out]; the shapes are [4, 2], [2, 3]", [&] {
                 (void)layer(ferry::ones({4, 2}));
               });
  expect_error(errc::bad_shape, "linear needs x [..., in]", [&] { (void)layer(ferry::ones({})); });
  expect_error(errc::bad_dtype, "linear", [&] { (void)layer(ferry::ones({4, 3}, dtype::f64)); });
}

}  // namespace layers_test
