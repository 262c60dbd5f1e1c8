#pragma once

// How each operation of tensors themselves is used.

#include <optional>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/operations.hpp>
#include <ferry/tensor/pack.hpp>
#include <ferry/tensor/tensor.hpp>

#include "tests/tensor/operation_slots.hpp"

namespace ferry_test {

namespace op = ferry::op;
using tensors = std::vector<ferry::tensor>;

template <>
struct operation_sample<op::slice> {
  static tensors inputs(ferry::device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].slice(-1, 1, ferry::to_end, 2)}; }
  static void check(const op::slice::parameters& with) {
    CHECK(with.axis == 1);
    CHECK(with.start == 1);
    CHECK(with.stop == 4);
    CHECK(with.step == 2);
  }
};

template <>
struct operation_sample<op::select> {
  static tensors inputs(ferry::device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].select(-1, -1)}; }
  static void check(const op::select::parameters& with) {
    CHECK(with.axis == 1);
    CHECK(with.index == 3);
  }
};

template <>
struct operation_sample<op::transpose> {
  static tensors inputs(ferry::device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].transpose(0, -1)}; }
  static void check(const op::transpose::parameters& with) {
    CHECK(with.first == 0);
    CHECK(with.second == 1);
  }
};

template <>
struct operation_sample<op::permute> {
  static tensors inputs(ferry::device where) { return {matrix(where).unsqueeze(0)}; }
  static tensors run(const tensors& in) { return {in[0].permute({-1, 0, 1})}; }
  static void check(const op::permute::parameters& with) { CHECK(with.order == ferry::dims{2, 0, 1}); }
};

template <>
struct operation_sample<op::view> {
  static tensors inputs(ferry::device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].view({2, -1})}; }
  static void check(const op::view::parameters& with) { CHECK(with.shape == ferry::dims{2, 6}); }
};

template <>
struct operation_sample<op::unsqueeze> {
  static tensors inputs(ferry::device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].unsqueeze(-1)}; }
  static void check(const op::unsqueeze::parameters& with) { CHECK(with.axis == 2); }
};

template <>
struct operation_sample<op::squeeze> {
  static tensors inputs(ferry::device where) { return {matrix(where).view({3, 1, 4})}; }
  static tensors run(const tensors& in) { return {in[0].squeeze(-2)}; }
  static void check(const op::squeeze::parameters& with) { CHECK(with.axis == 1); }
};

template <>
struct operation_sample<op::expand> {
  static tensors inputs(ferry::device where) { return {matrix(where).select(0, 0)}; }
  static tensors run(const tensors& in) { return {in[0].expand({5, -1})}; }
  static void check(const op::expand::parameters& with) { CHECK(with.shape == ferry::dims{5, 4}); }
};

template <>
struct operation_sample<op::as_strided> {
  static tensors inputs(ferry::device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].as_strided({2, 2}, {1, 5}, 3)}; }
  static void check(const op::as_strided::parameters& with) {
    CHECK(with.shape == ferry::dims{2, 2});
    CHECK(with.strides == ferry::dims{1, 5});
    CHECK(with.offset == 3);
  }
};

template <>
struct operation_sample<op::clone> {
  static tensors inputs(ferry::device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].clone()}; }
  static void check(const op::clone::parameters&) {}
};

template <>
struct operation_sample<op::to_dtype> {
  static tensors inputs(ferry::device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].to(ferry::dtype::f64)}; }
  static void check(const op::to_dtype::parameters& with) { CHECK(with.type == ferry::dtype::f64); }
};

template <>
struct operation_sample<op::to_device> {
  static tensors inputs(ferry::device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].to(ferry::device{ferry::device_kind::cuda, 2})}; }
  static void check(const op::to_device::parameters& with) {
    CHECK(with.where == ferry::device{ferry::device_kind::cuda, 2});
  }
};

template <>
struct operation_sample<op::pack> {
  static tensors inputs(ferry::device where) { return {matrix(where).slice(1, 0, 4, 2)}; }
  static tensors run(const tensors& in) { return {ferry::pack(in[0])}; }
  static void check(const op::pack::parameters&) {}
};

template <>
struct operation_sample<op::copy_> {
  static tensors inputs(ferry::device where) { return {matrix(where), ferry::ones({4}, ferry::dtype::f64, where)}; }
  static tensors run(const tensors& in) { return {in[0].copy_(in[1])}; }
  static void check(const op::copy_::parameters&) {}
};

template <>
struct operation_sample<op::fill_> {
  static tensors inputs(ferry::device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].fill_(2.5)}; }
  static void check(const op::fill_::parameters& with) { CHECK(with.value.real() == 2.5); }
};

}  // namespace ferry_test
