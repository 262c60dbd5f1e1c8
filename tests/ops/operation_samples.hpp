#pragma once

// How each operation of ferry/ops is used.

#include <vector>

#include <doctest/doctest.h>

#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "tests/tensor/operation_slots.hpp"

namespace ferry_test {

namespace op = ferry::op;
using tensors = std::vector<ferry::tensor>;

// Of one tensor, or of two whose shapes broadcast.
struct of_one {
  static tensors inputs(ferry::device where) { return {matrix(where)}; }
};
struct of_two {
  static tensors inputs(ferry::device where) { return {matrix(where), ferry::full({4}, 3, ferry::dtype::f32, where)}; }
};

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
  static tensors inputs(ferry::device where) { return {matrix(where), matrix(where).transpose(0, 1)}; }
  static tensors run(const tensors& in) { return {ferry::matmul(in[0], in[1])}; }
  static void check(const op::matmul::parameters&) {}
};
template <>
struct operation_sample<op::linear> {
  static tensors inputs(ferry::device where) {
    return {matrix(where), matrix(where).slice(0, 1), ferry::full({2}, 3, ferry::dtype::f32, where)};
  }
  static tensors run(const tensors& in) { return {ferry::linear(in[0], in[1], in[2])}; }
  static void check(const op::linear::parameters&) {}
};

}  // namespace ferry_test
