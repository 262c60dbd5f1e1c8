// The operations as slots see them: on the CPU, and on the fake CUDA runtime.

#include <complex>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "fake_cuda.hpp"
#include "tests/ops/operation_samples.hpp"

namespace slot_test {

using ferry::device;
using ferry::device_kind;
using ferry::dtype;
using ferry::tensor;
using ferry_test::gpu;
using ferry_test::host;
using ferry_test::matrix;
using ferry_test::recording;

}  // namespace slot_test

namespace op = ferry::op;

namespace slot_test {

TEST_CASE("a slot sees each operation on the CPU") { ferry_test::check_operations<ferry::operations>(host); }

TEST_CASE("a slot sees each operation on a device") { ferry_test::check_operations<ferry::operations>(gpu); }

TEST_CASE("operators lose no slot") {
  const std::vector<tensor (*)(const tensor&)> expressions{
      [](const tensor& t) { return t + t; },     [](const tensor& t) { return t + 1; },
      [](const tensor& t) { return 1 + t; },     [](const tensor& t) { return t - t; },
      [](const tensor& t) { return t - 1; },     [](const tensor& t) { return t * t; },
      [](const tensor& t) { return t * 2; },     [](const tensor& t) { return 2 * t; },
      [](const tensor& t) { return t * 2 + t; }, [](const tensor& t) { return ferry::sub(t, 1); },
  };
  for (const device where : {host, gpu}) {
    for (const auto expression : expressions) {
      const tensor t = matrix(where);
      const recording slot;
      slot.attach_to(t);
      CHECK(slot.is_slot_of(expression(t)));
    }
  }
}

TEST_CASE("arguments that do not fit are refused before a slot is told, and nothing is written") {
  const tensor t = matrix(host);
  const recording slot;
  slot.attach_to(t);
  expect_error(ferry::errc::bad_shape, "does not expand", [&] { ferry::add_(t, ferry::zeros({5})); });
  expect_error(ferry::errc::bad_dtype, "convert one", [&] { ferry::mul_(t, ferry::zeros({4}, dtype::f64)); });
  expect_error(ferry::errc::bad_dtype, "does not fit", [&] { ferry::add_(t, std::complex<float>(1, 1)); });
  CHECK(slot->events.empty());
  CHECK(t.version() == 0);
}

}  // namespace slot_test
