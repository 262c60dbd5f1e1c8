// The operations as slots see them: on the CPU, and on the fake CUDA runtime.

#include <complex>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "fake_cuda.hpp"
#include "tests/tensor/operation_slots.hpp"

using ferry::device;
using ferry::device_kind;
using ferry::dtype;
using ferry::tensor;
using ferry_test::gpu;
using ferry_test::host;
using ferry_test::matrix;
using ferry_test::recording;

namespace op = ferry::op;

namespace {

using tensors = std::vector<tensor>;

// Of one tensor, or of two whose shapes broadcast.
struct of_one {
  static tensors inputs(device where) { return {matrix(where)}; }
};
struct of_two {
  static tensors inputs(device where) { return {matrix(where), ferry::full({4}, 3, dtype::f32, where)}; }
};

}  // namespace

namespace ferry_test {

template <>
struct operation_sample<op::add> : of_two {
  static tensors run(const tensors& in) { return {ferry::add(in[0], in[1], 2)}; }
  static void check(const op::add::parameters& with) { CHECK(with.alpha.real() == 2); }
};
template <>
struct operation_sample<op::add_scalar> : of_one {
  static tensors run(const tensors& in) { return {ferry::add(in[0], 2.5)}; }
  static void check(const op::add_scalar::parameters& with) { CHECK(with.value.real() == 2.5); }
};
template <>
struct operation_sample<op::sub> : of_two {
  static tensors run(const tensors& in) { return {ferry::sub(in[0], in[1], 2)}; }
  static void check(const op::sub::parameters& with) { CHECK(with.alpha.real() == 2); }
};
template <>
struct operation_sample<op::mul> : of_two {
  static tensors run(const tensors& in) { return {ferry::mul(in[0], in[1])}; }
  static void check(const op::mul::parameters&) {}
};
template <>
struct operation_sample<op::mul_scalar> : of_one {
  static tensors run(const tensors& in) { return {ferry::mul(in[0], 2.5)}; }
  static void check(const op::mul_scalar::parameters& with) { CHECK(with.value.real() == 2.5); }
};
template <>
struct operation_sample<op::add_> : of_two {
  static tensors run(const tensors& in) { return {ferry::add_(in[0], in[1], 2)}; }
  static void check(const op::add_::parameters& with) { CHECK(with.alpha.real() == 2); }
};
template <>
struct operation_sample<op::add_scalar_> : of_one {
  static tensors run(const tensors& in) { return {ferry::add_(in[0], 2.5)}; }
  static void check(const op::add_scalar_::parameters& with) { CHECK(with.value.real() == 2.5); }
};
template <>
struct operation_sample<op::sub_> : of_two {
  static tensors run(const tensors& in) { return {ferry::sub_(in[0], in[1], 2)}; }
  static void check(const op::sub_::parameters& with) { CHECK(with.alpha.real() == 2); }
};
template <>
struct operation_sample<op::mul_> : of_two {
  static tensors run(const tensors& in) { return {ferry::mul_(in[0], in[1])}; }
  static void check(const op::mul_::parameters&) {}
};
template <>
struct operation_sample<op::mul_scalar_> : of_one {
  static tensors run(const tensors& in) { return {ferry::mul_(in[0], 2.5)}; }
  static void check(const op::mul_scalar_::parameters& with) { CHECK(with.value.real() == 2.5); }
};
template <>
struct operation_sample<op::sum> : of_one {
  static tensors run(const tensors& in) { return {ferry::sum(in[0])}; }
  static void check(const op::sum::parameters&) {}
};
template <>
struct operation_sample<op::matmul> {
  // Strided, so that it makes copies of its own.
  static tensors inputs(device where) { return {matrix(where), matrix(where).transpose(0, 1)}; }
  static tensors run(const tensors& in) { return {ferry::matmul(in[0], in[1])}; }
  static void check(const op::matmul::parameters&) {}
};

}  // namespace ferry_test

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
