// What tensors themselves do, as their slots see it: on the CPU, and on the fake CUDA runtime.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/operations.hpp>
#include <ferry/tensor/pack.hpp>
#include <ferry/tensor/tensor.hpp>

#include "expect_error.hpp"
#include "fake_cuda.hpp"
#include "tests/tensor/operation_slots.hpp"

using ferry::device;
using ferry::device_kind;
using ferry::dims;
using ferry::dtype;
using ferry::errc;
using ferry::tensor;
using ferry_test::gpu;
using ferry_test::host;
using ferry_test::matrix;
using ferry_test::recording;

namespace op = ferry::op;

namespace {

using tensors = std::vector<tensor>;

}  // namespace

namespace ferry_test {

template <>
struct operation_sample<op::slice> {
  static tensors inputs(device where) { return {matrix(where)}; }
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
  static tensors inputs(device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].select(-1, -1)}; }
  static void check(const op::select::parameters& with) {
    CHECK(with.axis == 1);
    CHECK(with.index == 3);
  }
};

template <>
struct operation_sample<op::transpose> {
  static tensors inputs(device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].transpose(0, -1)}; }
  static void check(const op::transpose::parameters& with) {
    CHECK(with.first == 0);
    CHECK(with.second == 1);
  }
};

template <>
struct operation_sample<op::permute> {
  static tensors inputs(device where) { return {matrix(where).unsqueeze(0)}; }
  static tensors run(const tensors& in) { return {in[0].permute({-1, 0, 1})}; }
  static void check(const op::permute::parameters& with) { CHECK(with.order == dims{2, 0, 1}); }
};

template <>
struct operation_sample<op::view> {
  static tensors inputs(device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].view({2, -1})}; }
  static void check(const op::view::parameters& with) { CHECK(with.shape == dims{2, 6}); }
};

template <>
struct operation_sample<op::unsqueeze> {
  static tensors inputs(device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].unsqueeze(-1)}; }
  static void check(const op::unsqueeze::parameters& with) { CHECK(with.axis == 2); }
};

template <>
struct operation_sample<op::squeeze> {
  static tensors inputs(device where) { return {matrix(where).view({3, 1, 4})}; }
  static tensors run(const tensors& in) { return {in[0].squeeze(-2)}; }
  static void check(const op::squeeze::parameters& with) { CHECK(with.axis == 1); }
};

template <>
struct operation_sample<op::expand> {
  static tensors inputs(device where) { return {matrix(where).select(0, 0)}; }
  static tensors run(const tensors& in) { return {in[0].expand({5, -1})}; }
  static void check(const op::expand::parameters& with) { CHECK(with.shape == dims{5, 4}); }
};

template <>
struct operation_sample<op::as_strided> {
  static tensors inputs(device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].as_strided({2, 2}, {1, 5}, 3)}; }
  static void check(const op::as_strided::parameters& with) {
    CHECK(with.shape == dims{2, 2});
    CHECK(with.strides == dims{1, 5});
    CHECK(with.offset == 3);
  }
};

template <>
struct operation_sample<op::clone> {
  static tensors inputs(device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].clone()}; }
  static void check(const op::clone::parameters&) {}
};

template <>
struct operation_sample<op::to_dtype> {
  static tensors inputs(device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].to(dtype::f64)}; }
  static void check(const op::to_dtype::parameters& with) { CHECK(with.type == dtype::f64); }
};

template <>
struct operation_sample<op::to_device> {
  static tensors inputs(device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].to(device{device_kind::cuda, 2})}; }
  static void check(const op::to_device::parameters& with) { CHECK(with.where == device{device_kind::cuda, 2}); }
};

template <>
struct operation_sample<op::pack> {
  static tensors inputs(device where) { return {matrix(where).slice(1, 0, 4, 2)}; }
  static tensors run(const tensors& in) { return {ferry::pack(in[0])}; }
  static void check(const op::pack::parameters&) {}
};

template <>
struct operation_sample<op::copy_> {
  static tensors inputs(device where) { return {matrix(where), ferry::ones({4}, dtype::f64, where)}; }
  static tensors run(const tensors& in) { return {in[0].copy_(in[1])}; }
  static void check(const op::copy_::parameters&) {}
};

template <>
struct operation_sample<op::fill_> {
  static tensors inputs(device where) { return {matrix(where)}; }
  static tensors run(const tensors& in) { return {in[0].fill_(2.5)}; }
  static void check(const op::fill_::parameters& with) { CHECK(with.value.real() == 2.5); }
};

}  // namespace ferry_test

TEST_CASE("a slot sees each operation of a tensor on the CPU") {
  ferry_test::check_operations<ferry::tensor_operations>(host);
}

TEST_CASE("a slot sees each operation of a tensor on a device") {
  ferry_test::check_operations<ferry::tensor_operations>(gpu);
}

TEST_CASE("functions made of operations lose no slot") {
  const std::vector<std::pair<std::string, tensor (*)(const tensor&)>> functions{
      {"slice", [](const tensor& t) { return t.narrow(0, 1, 2); }},
      {"clone", [](const tensor& t) { return t.transpose(0, 1).contiguous(); }},
      {"view", [](const tensor& t) { return t.reshape({12}); }},
      {"view", [](const tensor& t) { return t.transpose(0, 1).reshape({12}); }},
      {"view", [](const tensor& t) { return t.flatten(); }},
      {"view", [](const tensor& t) { return t.transpose(0, 1).flatten(); }},
      {"squeeze", [](const tensor& t) { return t.unsqueeze(0).squeeze(); }},
      {"squeeze", [](const tensor& t) { return t.squeeze(0); }},
      {"expand",
       [](const tensor& t) {
         return t.expand({3, 4});
       }},
      {"to_device",
       [](const tensor& t) {
         return t.to(device{device_kind::cuda, 3});
       }},
  };
  for (const device where : {host, gpu}) {
    for (const auto& [last, function] : functions) {
      CAPTURE(last);
      const tensor t = matrix(where);
      const recording slot;
      slot.attach_to(t);
      const tensor result = function(t);
      CHECK(!result.same_as(t));
      CHECK(slot.is_slot_of(result));
      REQUIRE(!slot->events.empty());
      CHECK(slot->events.back().operation == last);
      CHECK(slot->events.back().outputs.front().same_as(result));
    }
  }
}

TEST_CASE("what returns the tensor itself is no operation") {
  const tensor t = matrix(host);
  const recording slot;
  slot.attach_to(t);
  CHECK(t.contiguous().same_as(t));
  CHECK(t.to(dtype::f32).same_as(t));
  CHECK(t.to(host).same_as(t));
  CHECK(ferry::pack(t).same_as(t));
  CHECK(ferry::allclose(t, t.slot() ? t : t));
  CHECK(to_string(t) != "");
  CHECK(slot->events.empty());
}

TEST_CASE("a write through data() is reported as one that ferry did not do") {
  const tensor t = matrix(host);
  const recording slot;
  slot->inspect = [](const ferry::operation& what) { CHECK(what.is<op::external_write>()); };
  slot.attach_to(t);
  t.at<float>(0, 0) = 7;
  t.mark_written();
  REQUIRE(slot->events.size() == 1);
  CHECK(slot->events[0].function == "mutated");
  CHECK(t.version() == 1);
  slot->refuses = true;
  expect_error(errc::invalid_argument, "a leaf", [&] { t.mark_written(); });
  CHECK(t.version() == 1);
}

TEST_CASE("arguments that do not fit are refused before a slot is told") {
  const tensor t = matrix(host);
  const recording slot;
  slot.attach_to(t);
  expect_error(errc::bad_shape, "does not expand", [&] { t.copy_(ferry::zeros({5})); });
  expect_error(errc::bad_shape, "no view", [&] {
    const tensor turned = t.transpose(0, 1);
    slot->events.clear();
    (void)turned.view({12});
  });
  expect_error(errc::bad_shape, "more than once", [&] {
    const tensor repeated = t.select(0, 0).expand({2, 4});
    slot->events.clear();
    repeated.fill_(0);
  });
  CHECK(slot->events.empty());
  CHECK(t.version() == 0);
}

TEST_CASE("parameters are given as those of the right operation alone") {
  const op::select::parameters with{1, 2};
  const ferry::operation what(std::type_identity<op::select>{}, with);
  CHECK(what.name() == "select");
  CHECK(what.kind() == ferry::operation_kind::view);
  CHECK(what.parameters<op::select>().index == 2);
  expect_error(errc::invalid_argument, "the parameters of clone were asked for, but the operation is select",
               [&] { (void)what.parameters<op::clone>(); });
}

namespace {

// An operation of a program's own, on any number of tensors and with several results.
struct split_sum {
  static constexpr std::string_view name = "test.split_sum";
  static constexpr ferry::operation_kind kind = ferry::operation_kind::new_result;
  static constexpr std::size_t inputs = ferry::any_number;
  static constexpr ferry::operation_needs needs{.elements = ferry::element_set::arithmetic, .alike = true};
  struct parameters {
    int factor = 1;
  };

 private:
  friend struct ferry::operation_access;
  static std::vector<tensor> compute(const parameters& with, std::span<const tensor> all) {
    std::int64_t total = 0;
    for (const tensor& each : all) total += each.clone().item<std::int64_t>() * with.factor;
    return {ferry::tensor_of(total / 2), ferry::tensor_of(total - total / 2)};
  }
};

}  // namespace

TEST_CASE("a program declares operations of its own") {
  const tensors in{ferry::tensor_of(1), ferry::tensor_of(2), ferry::tensor_of(4)};
  CHECK(ferry::run_operation<split_sum>({.factor = 3}, in)[0].item<std::int64_t>() == 10);
  const recording slot;
  slot.attach_to(in[2]);
  const tensors out = ferry::run_operation<split_sum>({.factor = 3}, in);
  REQUIRE(slot->events.size() == 1);  // the clone() inside is part of it
  CHECK(slot->events[0].operation == "test.split_sum");
  CHECK(ferry_test::same_tensors(slot->events[0].inputs, in));
  CHECK(ferry_test::same_tensors(slot->events[0].outputs, out));
  CHECK(slot.is_slot_of(out[1]));
  expect_error(errc::bad_dtype, "test.split_sum of i32 and f32", [&] {
    const tensors mixed{in[0], ferry::tensor_of(1.F)};
    (void)ferry::run_operation<split_sum>({}, mixed);
  });
  expect_error(errc::bad_dtype, "test.split_sum works on i32, i64, f32 and f64, not on u8", [] {
    const tensors bytes{ferry::zeros({}, dtype::u8)};
    (void)ferry::run_operation<split_sum>({}, bytes);
  });
  CHECK(ferry::run_operation<split_sum>({}, std::span<const tensor>())[0].item<std::int64_t>() == 0);
}
