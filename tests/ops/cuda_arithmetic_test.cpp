// Arithmetic on CUDA devices, on the fake CUDA runtime.

#include <doctest/doctest.h>

#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"
#include "fake_cuda.hpp"

namespace cuda_arithmetic_test {

using ferry::device;
using ferry::device_kind;
using ferry::dtype;
using ferry::errc;
using ferry::tensor;

namespace {

device gpu(int index) { return {device_kind::cuda, index}; }
constexpr device host{};

}  // namespace

TEST_CASE("arithmetic is done where the tensors are") {
  for (const dtype type : {dtype::i32, dtype::i64, dtype::f32, dtype::f64}) {
    const tensor a = ferry::arange(0, 12).to(type).view({3, 4});
    const tensor b = ferry::arange(5, 17).to(type).view({4, 3}).transpose(0, 1);
    const tensor x = a.to(gpu(1));
    const tensor y = b.to(gpu(1));
    const auto same = [](const tensor& there, const tensor& here) { return ferry::equal(there.to(host), here); };
    CHECK(same(x + y, a + b));
    CHECK(same(ferry::add(x, y, 3), ferry::add(a, b, 3)));
    CHECK(same(x - y, a - b));
    CHECK(same(x * y, a * b));
    CHECK(same(x * 3, a * 3));
    CHECK(same(x + 7, a + 7));
    CHECK(same(x - 7, a - 7));
    CHECK(same(x + y.select(0, 1), a + b.select(0, 1)));
    CHECK(same(ferry::sum(x), ferry::sum(a)));
    CHECK(same(ferry::sum(y, {0}, true), ferry::sum(b, {0}, true)));
    CHECK(same(ferry::sum(y.slice(1, 1, 3), {1}), ferry::sum(b.slice(1, 1, 3), {1})));
    CHECK(same(ferry::sum(x.slice(0, 0, 0), {0}), ferry::sum(a.slice(0, 0, 0), {0})));
    ferry::add_(x, y, 2);
    ferry::add_(a, b, 2);
    ferry::mul_(x, y);
    ferry::mul_(a, b);
    ferry::mul_(x, 2);
    ferry::mul_(a, 2);
    ferry::sub_(x.transpose(0, 1), y.transpose(0, 1));
    ferry::sub_(a.transpose(0, 1), b.transpose(0, 1));
    ferry::add_(x, 1);
    ferry::add_(a, 1);
    CHECK(same(x, a));
  }
  expect_error(errc::bad_device, "add of tensors on cuda:1 and on cpu: move one of them with to()",
               [] { (void)(ferry::ones({1}, dtype::f32, gpu(1)) + ferry::ones({1})); });
  expect_error(errc::bad_dtype, "add works on i32, i64, f32 and f64",
               [] { (void)(ferry::ones({1}, dtype::u8, gpu(1)) + ferry::ones({1}, dtype::u8, gpu(1))); });
}

}  // namespace cuda_arithmetic_test
