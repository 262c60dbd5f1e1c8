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
#include "tests/tensor/operation_samples.hpp"

namespace slot_test {

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
using ferry_test::tensors;

}  // namespace slot_test

namespace op = ferry::op;

namespace slot_test {

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

}  // namespace slot_test
