#pragma once

// How each operation of ferry/ops is used.

#include <vector>

#include <doctest/doctest.h>

#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "tests/tensor/operation_slots.hpp"
#include "varied.hpp"

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
// Functions of elements.
template <class Op, ferry::tensor (*Function)(const ferry::tensor&)>
struct of_function : of_one {
  static tensors run(const tensors& in) { return {Function(in[0])}; }
  static void check(const typename Op::parameters&) {}
};
template <class Op, ferry::tensor (*Function)(const ferry::tensor&, const ferry::tensor&)>
struct of_pair : of_two {
  static tensors run(const tensors& in) { return {Function(in[0], in[1])}; }
  static void check(const typename Op::parameters&) {}
};
// Where the function has a slope.
struct of_positive {
  static tensors points() { return {varied({3, 4}, 0.5) + 1.5}; }
};
struct of_two_positive {
  static tensors points() { return {varied({3, 4}, 0.5) + 1.5, varied({4}, 1.5) + 2}; }
};

template <>
struct operation_sample<op::neg> : of_function<op::neg, &ferry::neg> {};
template <>
struct operation_sample<op::abs> : of_function<op::abs, &ferry::abs> {};
template <>
struct operation_sample<op::relu> : of_function<op::relu, &ferry::relu> {};
template <>
struct operation_sample<op::exp> : of_function<op::exp, &ferry::exp> {};
template <>
struct operation_sample<op::log> : of_function<op::log, &ferry::log>, of_positive {};
template <>
struct operation_sample<op::sqrt> : of_function<op::sqrt, &ferry::sqrt>, of_positive {};
template <>
struct operation_sample<op::tanh> : of_function<op::tanh, &ferry::tanh> {};
template <>
struct operation_sample<op::sigmoid> : of_function<op::sigmoid, &ferry::sigmoid> {};
template <>
struct operation_sample<op::silu> : of_function<op::silu, &ferry::silu> {};
template <>
struct operation_sample<op::gelu> : of_function<op::gelu, &ferry::gelu> {};
template <>
struct operation_sample<op::gelu_tanh> : of_function<op::gelu_tanh, &ferry::gelu_tanh> {};
template <>
struct operation_sample<op::minimum> : of_pair<op::minimum, &ferry::minimum> {};
template <>
struct operation_sample<op::maximum> : of_pair<op::maximum, &ferry::maximum> {};
template <>
struct operation_sample<op::pow> : of_pair<op::pow, &ferry::pow>, of_two_positive {};
template <>
struct operation_sample<op::div> : of_pair<op::div, &ferry::div>, of_two_positive {};
template <>
struct operation_sample<op::pow_scalar> : of_one, of_positive {
  static tensors run(const tensors& in) { return {ferry::pow(in[0], 2.5)}; }
  static void check(const op::pow_scalar::parameters& with) { CHECK(with.value == 2.5); }
};
template <>
struct operation_sample<op::div_scalar> : of_one {
  static tensors run(const tensors& in) { return {ferry::div(in[0], 2.5)}; }
  static void check(const op::div_scalar::parameters& with) { CHECK(with.value == 2.5); }
};
template <>
struct operation_sample<op::clamp> : of_one {
  static tensors run(const tensors& in) { return {ferry::clamp(in[0], -0.6, 0.55)}; }
  static void check(const op::clamp::parameters& with) {
    CHECK(with.low == -0.6);
    CHECK(with.high == 0.55);
  }
};
template <>
struct operation_sample<op::softplus> : of_one {
  static tensors run(const tensors& in) { return {ferry::softplus(in[0], 2, 1.5)}; }
  static void check(const op::softplus::parameters& with) {
    CHECK(with.beta == 2);
    CHECK(with.threshold == 1.5);
  }
};
template <>
struct operation_sample<op::eq> : of_pair<op::eq, &ferry::eq> {};
template <>
struct operation_sample<op::ne> : of_pair<op::ne, &ferry::ne> {};
template <>
struct operation_sample<op::lt> : of_pair<op::lt, &ferry::lt> {};
template <>
struct operation_sample<op::le> : of_pair<op::le, &ferry::le> {};
template <>
struct operation_sample<op::gt> : of_pair<op::gt, &ferry::gt> {};
template <>
struct operation_sample<op::ge> : of_pair<op::ge, &ferry::ge> {};

inline ferry::tensor mask(ferry::device where) { return ferry::tensor_of({true, false, true, true}).to(where); }
template <>
struct operation_sample<op::where> {
  static tensors inputs(ferry::device where) {
    return {mask(where), matrix(where), ferry::full({4}, 3, ferry::dtype::f32, where)};
  }
  static tensors points() { return {mask({}), varied({3, 4}, 0.5), varied({4}, 1.5)}; }
  static tensors run(const tensors& in) { return {ferry::where(in[0], in[1], in[2])}; }
  static void check(const op::where::parameters&) {}
};
template <>
struct operation_sample<op::masked_fill> {
  static tensors inputs(ferry::device where) { return {matrix(where), mask(where)}; }
  static tensors points() { return {varied({3, 4}, 0.5), mask({})}; }
  static tensors run(const tensors& in) { return {ferry::masked_fill(in[0], in[1], 2)}; }
  static void check(const op::masked_fill::parameters& with) { CHECK(with.value.integer() == 2); }
};
template <>
struct operation_sample<op::softmax> : of_one {
  static tensors run(const tensors& in) { return {ferry::softmax(in[0], -1)}; }
  static void check(const op::softmax::parameters& with) { CHECK(with.axis == 1); }
};
template <>
struct operation_sample<op::log_softmax> : of_one {
  static tensors run(const tensors& in) { return {ferry::log_softmax(in[0], 0)}; }
  static void check(const op::log_softmax::parameters& with) { CHECK(with.axis == 0); }
};
template <>
struct operation_sample<op::logsumexp> : of_one {
  static tensors run(const tensors& in) { return {ferry::logsumexp(in[0], 1, true)}; }
  static void check(const op::logsumexp::parameters& with) { CHECK(with.axis == 1); }
};
template <>
struct operation_sample<op::extreme> : of_one {
  static tensors run(const tensors& in) {
    ferry::indexed_values found = ferry::max(in[0], 0, true);
    return {found.values, found.indices};
  }
  static void check(const op::extreme::parameters& with) {
    CHECK(with.axis == 0);
    CHECK(with.largest);
  }
};
template <>
struct operation_sample<op::topk> : of_one {
  static tensors run(const tensors& in) {
    ferry::indexed_values found = ferry::topk(in[0], 2);
    return {found.values, found.indices};
  }
  static void check(const op::topk::parameters& with) {
    CHECK(with.axis == 1);
    CHECK(with.count == 2);
  }
};

// Of [3, 4]: one index twice.
inline ferry::tensor places(ferry::device where) {
  return ferry::from_vector<std::int64_t>({2, 0, 2, 1, 0, 0, 1, 2}, {2, 4}).to(where);
}
template <>
struct operation_sample<op::gather> {
  static tensors inputs(ferry::device where) { return {matrix(where), places(where)}; }
  static tensors points() { return {varied({3, 4}, 0.5), places({})}; }
  static tensors run(const tensors& in) { return {ferry::gather(in[0], 0, in[1])}; }
  static void check(const op::gather::parameters& with) { CHECK(with.axis == 0); }
};
template <>
struct operation_sample<op::scatter_add> {
  static tensors inputs(ferry::device where) { return {matrix(where), places(where), matrix(where).slice(0, 0, 2)}; }
  static tensors points() { return {varied({3, 4}, 0.5), places({}), varied({2, 4}, 1.5)}; }
  static tensors run(const tensors& in) { return {ferry::scatter_add(in[0], 0, in[1], in[2])}; }
  static void check(const op::scatter_add::parameters& with) { CHECK(with.axis == 0); }
};
template <>
struct operation_sample<op::scatter_add_> {
  static tensors inputs(ferry::device where) { return operation_sample<op::scatter_add>::inputs(where); }
  static tensors points() { return operation_sample<op::scatter_add>::points(); }
  static tensors run(const tensors& in) {
    ferry::run_operation<op::scatter_add_>({.axis = 0}, in[0], in[1], in[2]);
    return {in[0]};
  }
  static void check(const op::scatter_add_::parameters& with) { CHECK(with.axis == 0); }
};
template <>
struct operation_sample<op::embedding> {
  static ferry::tensor rows(ferry::device where) { return ferry::tensor_of<std::int64_t>({2, 0, 2}).to(where); }
  static tensors inputs(ferry::device where) { return {matrix(where), rows(where)}; }
  static tensors points() { return {varied({3, 4}, 0.5), rows({})}; }
  static tensors run(const tensors& in) { return {ferry::run_operation<op::embedding>({}, in[0], in[1])}; }
  static void check(const op::embedding::parameters&) {}
};
template <>
struct operation_sample<op::cat> {
  static tensors inputs(ferry::device where) { return {matrix(where), matrix(where).slice(1, 1, 3), matrix(where)}; }
  static tensors run(const tensors& in) { return {ferry::cat(in, -1)}; }
  static void check(const op::cat::parameters& with) {
    CHECK(with.axis == 1);
    CHECK(with.sizes == std::vector<std::int64_t>{4, 2, 4});
  }
};
template <>
struct operation_sample<op::bce_with_logits> {
  static tensors inputs(ferry::device where) { return {matrix(where), matrix(where)}; }
  // At a logit of 0, too.
  static tensors points() {
    return {ferry::masked_fill(varied({3, 4}, 0.5), mask({}), 0), varied({3, 4}, 1.5) * 0.5 + 0.5};
  }
  static tensors run(const tensors& in) { return {ferry::bce_with_logits(in[0], in[1], ferry::reduction::none)}; }
  static void check(const op::bce_with_logits::parameters&) {}
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
