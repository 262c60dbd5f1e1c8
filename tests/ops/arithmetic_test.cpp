#include <ferry/ops/ops.hpp>

#include <limits>

#include <doctest/doctest.h>

#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"

namespace arithmetic_test {

using ferry::dims;
using ferry::dtype;
using ferry::equal;
using ferry::errc;
using ferry::tensor;
using ferry::tensor_of;

TEST_CASE("element-wise arithmetic") {
  for (const dtype type : {dtype::i32, dtype::i64, dtype::f32, dtype::f64}) {
    const tensor a = ferry::arange(6).view({2, 3}).to(type);
    const tensor b = ferry::full({2, 3}, 2, type);
    CHECK(equal(a + b, ferry::arange(2, 8).view({2, 3}).to(type)));
    CHECK(equal(a - b, a - 2));
    CHECK(equal(a * b, a + a));
    CHECK(equal(2 * a, a * b));
    CHECK(equal(1 + a, a + 1));
    CHECK(equal(ferry::add(a, b, 3), a + 6));
    CHECK(equal(ferry::sub(a, b, 2), a - 4));
    CHECK(equal(a.transpose(0, 1) + b.transpose(0, 1), (a + b).transpose(0, 1)));
    CHECK(equal(a.slice(1, 0, 3, 2) * 2, (a * 2).slice(1, 0, 3, 2)));
  }
  CHECK(equal(tensor_of({1.5F}) * 2.5, tensor_of({3.75F})));
}

TEST_CASE("shapes broadcast") {
  const tensor row = tensor_of({1.F, 2.F, 3.F});
  const tensor column = tensor_of({{10.F}, {20.F}});
  CHECK(equal(row + column, tensor_of({{11.F, 12.F, 13.F}, {21.F, 22.F, 23.F}})));
  CHECK(equal(row * tensor_of(2.F), row * 2));
  CHECK((ferry::zeros({0, 3}) + row).shape() == dims{0, 3});
  CHECK(ferry::broadcast_shapes({5, 1, 3}, {4, 1}) == dims{5, 4, 3});
  CHECK(ferry::broadcast_shapes({1}, {0}) == dims{0});
  expect_error(errc::bad_shape, "shapes [2, 3] and [4] do not fit together", [] {
    (void)(ferry::zeros({2, 3}) + ferry::zeros({4}));
  });
}

TEST_CASE("in place") {
  const tensor w = tensor_of({1.F, 2.F, 3.F});
  const tensor g = tensor_of({10.F, 10.F, 10.F});
  CHECK(ferry::add_(w, g, -0.1).same_as(w));
  CHECK(ferry::allclose(w, tensor_of({0.F, 1.F, 2.F})));
  CHECK(w.version() == 1);
  ferry::sub_(w, g);
  ferry::mul_(w, 2);
  ferry::mul_(w, tensor_of({0.5F}));
  ferry::add_(w, 10);
  CHECK(ferry::allclose(w, tensor_of({0.F, 1.F, 2.F})));
  CHECK(w.version() == 5);
  const tensor line = ferry::arange(5);
  ferry::add_(line.slice(0, 1), line.slice(0, 0, 4));  // reads the old values although the views overlap
  CHECK(equal(line, tensor_of<std::int64_t>({0, 1, 3, 5, 7})));
  ferry::add_(line, line);
  CHECK(equal(line, tensor_of<std::int64_t>({0, 2, 6, 10, 14})));
  expect_error(errc::bad_shape, "shape [2] does not expand to [3]", [&] { ferry::add_(w, ferry::zeros({2})); });
  expect_error(errc::bad_shape, "more than once", [] { ferry::add_(ferry::zeros({1}).expand({3}), 1); });
}

TEST_CASE("operands that the arithmetic refuses") {
  const tensor i = tensor_of({1, 2});
  expect_error(errc::bad_dtype, "add of i32 and f32: convert one of them with to()",
               [&] { (void)(i + ferry::zeros({2})); });
  expect_error(errc::bad_dtype, "mul: the scalar 0.5 does not fit a tensor of i32", [&] { (void)(i * 0.5); });
  expect_error(errc::bad_dtype, "sum works on i32, i64, f32 and f64, not on bool",
               [] { (void)ferry::sum(ferry::zeros({2}, dtype::bool_)); });
}

TEST_CASE("integers wrap") {
  using limits = std::numeric_limits<std::int64_t>;
  const tensor top = tensor_of({limits::max()});
  CHECK((top + 1).item<std::int64_t>() == limits::min());
  CHECK((top * 2).item<std::int64_t>() == -2);
  CHECK((top - limits::min()).item<std::int64_t>() == -1);
  CHECK(ferry::sum(ferry::full({2}, limits::max(), dtype::i64)).item<std::int64_t>() == -2);
}

TEST_CASE("sums over axes") {
  const tensor t = ferry::arange(0, 24).view({2, 3, 4});
  CHECK(ferry::equal(ferry::sum(t, {2}), ferry::tensor_of<std::int64_t>({{6, 22, 38}, {54, 70, 86}})));
  CHECK(ferry::equal(ferry::sum(t, {-1, 0}), ferry::tensor_of<std::int64_t>({60, 92, 124})));
  CHECK(ferry::sum(t, {1}, true).shape() == ferry::dims{2, 1, 4});
  CHECK(ferry::equal(ferry::sum(t, {0, 1, 2}), ferry::sum(t)));
  CHECK(ferry::equal(ferry::sum(t.to(dtype::i32), {}), t));
  CHECK(ferry::equal(ferry::sum(t.transpose(0, 2).slice(0, 1, 3), {0}),
                     ferry::sum(t.slice(2, 1, 3), {2}).transpose(0, 1)));
  CHECK(ferry::equal(ferry::sum(ferry::zeros({2, 0}), {1}), ferry::zeros({2})));
  CHECK(ferry::sum(ferry::zeros({0, 2}), {1}).shape() == ferry::dims{0});
  CHECK(ferry::equal(ferry::sum(t.select(0, 0).select(0, 0).unsqueeze(0).expand({3, 4}), {0}),
                     ferry::tensor_of<std::int64_t>({0, 3, 6, 9})));
  expect_error(errc::bad_shape, "one comes twice", [&] { (void)ferry::sum(t, {1, -2}); });
  expect_error(errc::bad_shape, "", [&] { (void)ferry::sum(t, {3}); });
}

TEST_CASE("sum") {
  CHECK(ferry::sum(ferry::ones({3, 4})).item<float>() == 12.F);
  CHECK(ferry::sum(ferry::ones({3, 4})).rank() == 0);
  CHECK(ferry::sum(ferry::full({100}, std::numeric_limits<std::int32_t>::max(), dtype::i32)).item<std::int64_t>() ==
        std::int64_t{100} * std::numeric_limits<std::int32_t>::max());
  CHECK(ferry::sum(ferry::zeros({0})).item<float>() == 0.F);
  CHECK(ferry::sum(ferry::full({1 << 25}, 1)).item<float>() ==
        0x1p25F);  // beyond the integers that floats count exactly
  CHECK(ferry::sum(ferry::arange(4).expand({3, 4})).item<std::int64_t>() == 18);
}

TEST_CASE("matmul") {
  const tensor a = tensor_of({{1., 2., 3.}, {4., 5., 6.}});
  const tensor b = tensor_of({{1., 0.}, {0., 1.}, {2., 2.}});
  CHECK(equal(ferry::matmul(a, b), tensor_of({{7., 8.}, {16., 17.}})));
  CHECK(equal(ferry::matmul(b.transpose(0, 1), a.transpose(0, 1)), ferry::matmul(a, b).transpose(0, 1)));
  CHECK(equal(ferry::matmul(ferry::zeros({2, 0}), ferry::zeros({0, 3})), ferry::zeros({2, 3})));
  const tensor eye = ferry::zeros({200, 200}, dtype::i32);
  eye.as_strided({200}, {201}, 0).fill_(1);
  const tensor big = ferry::arange(40000).view({200, 200}).to(dtype::i32);
  CHECK(equal(ferry::matmul(big, eye), big));
  expect_error(errc::bad_shape, "matmul needs [n, k] and [k, m]; the shapes are [2, 3] and [2, 3]",
               [&] { (void)ferry::matmul(a, a); });
}

}  // namespace arithmetic_test
