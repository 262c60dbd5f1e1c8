// Extremes, indices, joins, softmax at the edges, losses, and random choices.

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"
#include "fake_cuda.hpp"
#include "varied.hpp"

namespace indexing_test {

using ferry::dims;
using ferry::dtype;
using ferry::equal;
using ferry::errc;
using ferry::tensor;
using ferry::tensor_of;
using ferry_test::varied;

namespace {

constexpr ferry::device gpu{ferry::device_kind::cuda, 1};
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double inf = std::numeric_limits<double>::infinity();

tensor indices(std::initializer_list<std::int64_t> all) { return ferry::tensor_of(all); }

}  // namespace

TEST_CASE("extremes and their places") {
  const tensor t = tensor_of({{1, 7, 7}, {9, -2, 9}});
  const auto [most, where] = ferry::max(t, 1);
  CHECK(equal(most, tensor_of({7, 9})));
  CHECK(equal(where, indices({1, 0})));  // the first of equal ones
  CHECK(equal(ferry::min(t, 0, true).values, tensor_of({{1, -2, 7}})));
  CHECK(equal(ferry::argmin(t, -1), indices({0, 1})));
  CHECK(ferry::max(t).item<int>() == 9);
  CHECK(ferry::min(t.transpose(0, 1)).item<int>() == -2);
  const tensor odd = tensor_of({1., not_a_number, 3.});
  CHECK(std::isnan(ferry::max(odd).item<double>()));
  CHECK(ferry::argmin(odd, 0).item<std::int64_t>() == 1);
  const auto [top, places] = ferry::topk(t, 2, 0);
  CHECK(equal(top, tensor_of({{9, 7, 9}, {1, -2, 7}})));
  CHECK(equal(places, ferry::tensor_of<std::int64_t>({{1, 0, 1}, {0, 1, 0}})));
  CHECK(equal(ferry::topk(odd, 3).indices, indices({1, 2, 0})));
  CHECK(ferry::topk(ferry::zeros({0, 3}), 1).values.shape() == dims{0, 1});
  expect_error(errc::bad_shape, "max along axis 0 of a tensor of shape [0, 3]: it has no elements", [] {
    (void)ferry::max(ferry::zeros({0, 3}), 0);
  });
  expect_error(errc::invalid_argument, "topk: 4 elements along axis -1", [&] { (void)ferry::topk(t, 4); });
  expect_error(errc::bad_shape, "", [] { (void)ferry::max(tensor_of(1.), 0); });
}

TEST_CASE("elements by their indices") {
  const tensor t = ferry::arange(12).view({4, 3});
  CHECK(equal(ferry::index_select(t, 0, indices({3, 0, 3})),
              tensor_of<std::int64_t>({{9, 10, 11}, {0, 1, 2}, {9, 10, 11}})));
  CHECK(equal(ferry::index_select(t, 1, indices({2})), t.slice(1, 2)));
  CHECK(equal(ferry::index_select(t.transpose(0, 1), 1, indices({1, 1})).select(1, 0), t.select(0, 1)));
  CHECK(ferry::index_select(t, 0, ferry::zeros({0}, dtype::i64)).shape() == dims{0, 3});
  CHECK(equal(ferry::gather(t.to(dtype::u8), 0, ferry::tensor_of<std::int64_t>({{3, 2}})),
              tensor_of<std::uint8_t>({{9, 7}})));
  CHECK(equal(ferry::index_add(t, 0, indices({1, 1}), t.slice(0, 0, 2)).select(0, 1), indices({6, 9, 12})));
  CHECK(equal(ferry::scatter_add(ferry::zeros({3}), 0, indices({2, 2, 0}), tensor_of({1.f, 2.f, 4.f})),
              tensor_of({4.f, 0.f, 3.f})));
  CHECK(equal(ferry::embedding(t, ferry::tensor_of<std::int64_t>({{0, 3}, {1, 1}})).select(0, 1).select(0, 1),
              t.select(0, 1)));
  CHECK(equal(ferry::one_hot(indices({2, 0}), 3), tensor_of<std::int64_t>({{0, 0, 1}, {1, 0, 0}})));
  for (const std::int64_t wrong : {-1, 4}) {
    const std::string words = wrong < 0 ? "the index -1 is negative" : "the index 4 is not below 4";
    expect_error(errc::invalid_argument, words, [&] { (void)ferry::index_select(t, 0, indices({0, wrong})); });
    expect_error(errc::invalid_argument, words, [&] {
      (void)ferry::gather(t, 0, ferry::full({1, 1}, wrong, dtype::i64));
    });
    expect_error(errc::invalid_argument, words,
                 [&] { (void)ferry::index_add(t, 0, indices({wrong}), t.slice(0, 0, 1)); });
    expect_error(errc::invalid_argument, words, [&] { (void)ferry::one_hot(indices({wrong}), 4); });
    // The host does not wait for a device: zeros, and nothing written.
    const tensor there = t.to(gpu);
    CHECK(equal(ferry::index_select(there, 0, indices({wrong}).to(gpu)).to(ferry::device{}),
                ferry::zeros({1, 3}, dtype::i64)));
    CHECK(equal(ferry::index_add(there, 0, indices({wrong}).to(gpu), there.slice(0, 0, 1)).to(ferry::device{}), t));
  }
  expect_error(errc::bad_dtype, "the indices are of f32", [&] { (void)ferry::gather(t, 0, ferry::zeros({1, 1})); });
  expect_error(errc::bad_shape, "gather along axis 0 of a tensor of shape [4, 3] with indices of shape [1, 4]", [&] {
    (void)ferry::gather(t, 0, ferry::zeros({1, 4}, dtype::i64));
  });
  expect_error(errc::bad_shape, "they have to have one axis", [&] {
    (void)ferry::index_select(t, 0, ferry::zeros({1, 4}, dtype::i64));
  });
  expect_error(errc::bad_device, "with indices on", [&] {
    (void)ferry::gather(t, 0, ferry::zeros({1, 1}, dtype::i64, gpu));
  });
  expect_error(errc::bad_shape, "scatter_add of elements of shape [3] with indices of shape [2]", [] {
    (void)ferry::scatter_add(ferry::zeros({3}), 0, indices({0, 1}), ferry::zeros({3}));
  });
}

TEST_CASE("bags of embeddings") {
  const tensor weight = ferry::arange(8).to(dtype::f32).view({4, 2});
  const tensor all = indices({3, 1, 0});
  using ferry::bag_mode;
  const tensor offsets = indices({0, 2, 2});
  CHECK(equal(ferry::embedding_bag(weight, all, offsets, bag_mode::sum),
              tensor_of({{8.f, 10.f}, {0.f, 0.f}, {0.f, 1.f}})));
  CHECK(equal(ferry::embedding_bag(weight, all, offsets, bag_mode::mean),
              tensor_of({{4.f, 5.f}, {0.f, 0.f}, {0.f, 1.f}})));
  CHECK(equal(ferry::embedding_bag(weight, all, offsets, bag_mode::max),
              tensor_of({{6.f, 7.f}, {0.f, 0.f}, {0.f, 1.f}})));
  const tensor square = all.slice(0, 0, 2).view({1, 2});
  CHECK(equal(ferry::embedding_bag(weight, square), tensor_of({{4.f, 5.f}})));
  CHECK(equal(ferry::embedding_bag(weight, square, bag_mode::max), tensor_of({{6.f, 7.f}})));
  for (const tensor& wrong : {indices({1}), indices({0, 2, 1}), indices({0, 4}), ferry::zeros({0}, dtype::i64)}) {
    expect_error(errc::invalid_argument, "the offsets have to ascend from 0 to at most the number of indices, 3",
                 [&] { (void)ferry::embedding_bag(weight, all, wrong); });
  }
}

TEST_CASE("tensors joined and divided") {
  const tensor a = ferry::arange(4).view({2, 2});
  const tensor b = a + 10;
  CHECK(equal(ferry::cat({a, b}), ferry::tensor_of<std::int64_t>({{0, 1}, {2, 3}, {10, 11}, {12, 13}})));
  CHECK(
      equal(ferry::cat({a, b.transpose(0, 1)}, -1), ferry::tensor_of<std::int64_t>({{0, 1, 10, 12}, {2, 3, 11, 13}})));
  CHECK(ferry::cat({a, ferry::zeros({0, 2}, dtype::i64)}).shape() == dims{2, 2});
  CHECK(equal(ferry::stack({a, b}, 1).select(1, 1), b));
  CHECK(equal(ferry::cat({a.to(gpu), b.to(gpu)}).to(ferry::device{}), ferry::cat({a, b})));
  const auto parts = ferry::split(ferry::arange(5), 2);
  REQUIRE(parts.size() == 3);
  CHECK(equal(parts[2], indices({4})));
  CHECK(ferry::split(ferry::arange(5), dims{0, 5}).at(0).numel() == 0);
  CHECK(ferry::cat(ferry::split(ferry::zeros({2, 0}), 3, 1), 1).shape() == dims{2, 0});
  expect_error(errc::bad_shape, "cat along axis 0 of tensors of shapes [2, 2] and [3]", [&] {
    (void)ferry::cat({a, ferry::arange(3)});
  });
  expect_error(errc::bad_shape, "stack of tensors of shapes", [&] { (void)ferry::stack({a, ferry::arange(3)}); });
  expect_error(errc::bad_dtype, "cat of i64 and f32", [&] { (void)ferry::cat({a, ferry::zeros({2, 2})}); });
  expect_error(errc::invalid_argument, "cat of no tensors", [] { (void)ferry::cat(std::vector<tensor>{}); });
  expect_error(errc::bad_shape, "do not make up axis 0", [] { (void)ferry::split(ferry::arange(5), dims{2, 2}); });
  expect_error(errc::invalid_argument, "it has to be positive", [] { (void)ferry::split(ferry::arange(5), 0); });
}

TEST_CASE("normalised exponentials do not overflow") {
  const tensor large = tensor_of({1000., 1001.});
  CHECK(ferry::allclose(ferry::softmax(large, 0), ferry::softmax(tensor_of({0., 1.}), 0)));
  CHECK(ferry::logsumexp(large, 0).item<double>() == doctest::Approx(1001.3132616875));
  CHECK(ferry::allclose(ferry::log_softmax(tensor_of({-1e30, 0.}), 0), tensor_of({-1e30, 0.})));
  CHECK(ferry::logsumexp(tensor_of({-inf, -inf}), 0).item<double>() == -inf);
  CHECK(ferry::logsumexp(tensor_of({inf, 1.}), 0).item<double>() == inf);
  CHECK(ferry::logsumexp(ferry::zeros({0}), 0).item<float>() == -std::numeric_limits<float>::infinity());
  CHECK(ferry::softmax(ferry::zeros({2, 0}), 1).shape() == dims{2, 0});
  CHECK(ferry::allclose(ferry::softmax(tensor_of({-inf, 0.}), 0), tensor_of({0., 1.})));
  const tensor t = varied({3, 4, 2}, 1);
  CHECK(ferry::allclose(ferry::softmax(t.transpose(0, 2), 0), ferry::softmax(t, 2).transpose(0, 2)));
}

TEST_CASE("large logits of f32 lose nothing") {
  for (const float large : {1e3F, 1e5F, 1e8F}) {
    const tensor equal_ones = tensor_of({large, large});
    CHECK(ferry::allclose(ferry::log_softmax(equal_ones, 0), tensor_of({-0.6931472F, -0.6931472F})));
    CHECK(ferry::allclose(ferry::log_softmax(equal_ones.to(gpu), 0).to(ferry::device{}),
                          tensor_of({-0.6931472F, -0.6931472F})));
    CHECK(ferry::cross_entropy(equal_ones, ferry::zeros({}, dtype::i64)).item<float>() == doctest::Approx(0.6931472F));
  }
}

TEST_CASE("losses refuse what would broadcast") {
  expect_error(errc::bad_shape, "mse_loss of a prediction of shape [2, 1] and a target of shape [2]", [] {
    (void)ferry::mse_loss(ferry::zeros({2, 1}), ferry::zeros({2}));
  });
  expect_error(errc::bad_dtype, "nll_loss: the targets are of i32", [] {
    (void)ferry::cross_entropy(ferry::zeros({1, 3}), tensor_of({0}));
  });
  expect_error(errc::invalid_argument, "delta is inf",
               [] { (void)ferry::huber_loss(ferry::zeros({2}), ferry::zeros({2}), inf); });
  expect_error(errc::invalid_argument, "a bound is not a number",
               [] { (void)ferry::clamp(ferry::zeros({2}), std::nan(""), 1); });
  expect_error(errc::bad_shape, "index_add of slices of shape [2, 3]: 1 indices along axis 0 of [4, 3] need [1, 3]",
               [] {
                 (void)ferry::index_add(ferry::zeros({4, 3}), 0, indices({1}), ferry::zeros({2, 3}));
               });
  expect_error(errc::bad_dtype, "mean works on f32 and f64, not on i64", [] { (void)ferry::mean(indices({1})); });
  expect_error(errc::bad_dtype, "one_hot: the indices are of i32", [] { (void)ferry::one_hot(tensor_of({0}), 2); });
  expect_error(errc::invalid_argument, "one_hot: -1 classes", [] { (void)ferry::one_hot(indices({0}), -1); });
  expect_error(errc::invalid_argument, "delta is 0",
               [] { (void)ferry::huber_loss(ferry::zeros({2}), ferry::zeros({2}), 0); });
  expect_error(errc::bad_shape, "nll_loss needs", [] { (void)ferry::nll_loss(ferry::zeros({2, 3}), indices({0})); });
  expect_error(errc::invalid_argument, "nll_loss: the target 3 of row 1 is no class: there are 3, from 0", [] {
    (void)ferry::cross_entropy(ferry::zeros({2, 3}), indices({0, 3}));
  });
  expect_error(errc::invalid_argument, "nll_loss: the target -1 of row 0 is no class", [] {
    (void)ferry::cross_entropy(ferry::zeros({2, 3}), indices({-1, 2}), ferry::reduction::mean, -2);
  });
  CHECK(ferry::cross_entropy(ferry::zeros({3}), ferry::zeros({}, dtype::i64)).item<float>() ==
        doctest::Approx(std::log(3.)));
  CHECK(ferry::mse_loss(tensor_of({1., 3.}), tensor_of({0., 0.}), ferry::reduction::none).shape() == dims{2});
  CHECK(
      std::isnan(ferry::cross_entropy(ferry::zeros({1, 3}), indices({-1}), ferry::reduction::mean, -1).item<float>()));
}

TEST_CASE("layer_norm") {
  const tensor t = varied({2, 3, 4}, 1);
  const tensor y = ferry::layer_norm(t, {3, 4});
  CHECK(ferry::allclose(ferry::mean(y, {1, 2}), ferry::zeros({2}, dtype::f64), 0, 1e-12));
  CHECK(ferry::allclose(ferry::mean(y * y, {1, 2}), ferry::ones({2}, dtype::f64), 1e-4));
  expect_error(errc::bad_shape, "layer_norm over the last axes, of sizes [3]",
               [&] { (void)ferry::layer_norm(t, {3}); });
  expect_error(errc::bad_shape, "with a bias of shape [1]",
               [&] { (void)ferry::layer_norm(t, {4}, {}, ferry::ones({1}, dtype::f64)); });
}

TEST_CASE("dropout keeps the mean") {
  ferry::generator source(7);
  const tensor ones = ferry::ones({20000});
  const tensor kept = ferry::dropout(ones, 0.25, source);
  const double share = ferry::sum(ferry::gt(kept, 0).to(dtype::f64)).item<double>() / 20000;
  CHECK(std::fabs(share - 0.75) < 0.02);
  CHECK(ferry::max(kept).item<float>() == doctest::Approx(1 / 0.75));
  CHECK(equal(ferry::dropout(ones, 0, source), ones));
  CHECK(equal(ferry::dropout(ones, 1, source), ferry::zeros({20000})));
  ferry::generator again(7);
  CHECK(equal(ferry::dropout(ones.to(gpu), 0.25, again).to(ferry::device{}), kept));
  expect_error(errc::invalid_argument, "the probability is 1.5", [&] { (void)ferry::dropout(ones, 1.5); });
}

TEST_CASE("multinomial draws by weights") {
  ferry::generator source(3);
  const tensor drawn = ferry::multinomial(tensor_of({1.f, 0.f, 3.f}), 20000, true, source);
  CHECK(ferry::sum(ferry::eq(drawn, 1).to(dtype::i64)).item<std::int64_t>() == 0);
  const double share = ferry::sum(ferry::eq(drawn, 2).to(dtype::f64)).item<double>() / 20000;
  CHECK(std::fabs(share - 0.75) < 0.02);
  for (int i = 0; i != 50; ++i) {
    const tensor each = ferry::multinomial(tensor_of({{1., 5., 0., 2.}, {0., 1., 1., 1.}}), 3, false, source);
    CHECK(each.shape() == dims{2, 3});
    CHECK(equal(ferry::topk(each, 3).values, ferry::tensor_of<std::int64_t>({{3, 1, 0}, {3, 2, 1}})));
  }
  const tensor huge = ferry::multinomial(tensor_of({1e308, 1e308, 1.}), 100, true, source);
  CHECK(ferry::max(huge).item<std::int64_t>() == 1);
  CHECK(ferry::min(huge).item<std::int64_t>() == 0);
  expect_error(errc::invalid_argument, "3 different indices of 2 with a positive weight", [&] {
    (void)ferry::multinomial(tensor_of({1., 0., 2.}), 3);
  });
  expect_error(errc::invalid_argument, "a weight is -1", [&] { (void)ferry::multinomial(tensor_of({1., -1.}), 1); });
  expect_error(errc::invalid_argument, "no weight is positive",
               [&] { (void)ferry::multinomial(tensor_of({0.}), 1, true); });
}

}  // namespace indexing_test
