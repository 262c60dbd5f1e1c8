#pragma once

// What the slot of a tensor learns of an operation, checked for each descriptor of a list, whatever its inputs and device.

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/base/error.hpp>
#include <ferry/base/type_name.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/hooks.hpp>
#include <ferry/tensor/operation.hpp>
#include <ferry/tensor/tensor.hpp>

#include "expect_error.hpp"

namespace ferry_test {

/// Writes down what it is told, and becomes the slot of views and results.
class recording_slot final : public ferry::tensor_hooks, public std::enable_shared_from_this<recording_slot> {
 public:
  struct event {
    std::string function;
    std::string operation;
    std::vector<ferry::tensor> inputs;
    std::vector<ferry::tensor> outputs;
    ferry::tensor old_elements;  // of the target, when it is about to be written
    std::uint64_t old_version = 0;
  };

  void viewed(const ferry::operation& what, const ferry::tensor& base, ferry::tensor& view) override {
    CHECK(!view.has_slot());
    add({"viewed", std::string(what.name()), {base}, {view}, {}, 0}, what);
    view.set_slot(shared_from_this());
  }
  void mutated(const ferry::operation& what, const ferry::tensor& target,
               std::span<const ferry::tensor> inputs) override {
    CHECK(target.same_as(inputs.front()));
    add({"mutated", std::string(what.name()), {inputs.begin(), inputs.end()}, {}, target.clone(), target.version()},
        what);
    if (refuses) ferry::throw_error(ferry::errc::invalid_argument, "a leaf must not be written in place");
  }
  void computed(const ferry::operation& what, std::span<const ferry::tensor> inputs,
                std::span<ferry::tensor> outputs) override {
    add({"computed", std::string(what.name()), {inputs.begin(), inputs.end()}, {outputs.begin(), outputs.end()}, {}, 0},
        what);
    if (refuses) ferry::throw_error(ferry::errc::invalid_argument, "nothing may be computed from a secret");
    for (ferry::tensor& each : outputs) each.set_slot(shared_from_this());
  }
  [[nodiscard]] bool requires_grad(const ferry::tensor&) const noexcept override { return true; }

  std::vector<event> events;
  bool refuses = false;
  /// Called with each run.
  void (*inspect)(const ferry::operation&) = nullptr;

 private:
  void add(event what, const ferry::operation& run) {
    events.push_back(std::move(what));
    if (inspect) inspect(run);
  }
};

/// Owns a recording_slot. What it has written down is in a circle with it (tensors whose slot it is), which ends here.
class recording {
 public:
  recording() = default;
  recording(recording&&) noexcept = default;
  recording& operator=(recording&&) = delete;
  ~recording() {
    if (slot_) slot_->events.clear();
  }
  [[nodiscard]] recording_slot* operator->() const noexcept { return slot_.get(); }
  void attach_to(const ferry::tensor& t) const { t.set_slot(slot_); }
  [[nodiscard]] bool is_slot_of(const ferry::tensor& t) const { return t.slot() == slot_; }

 private:
  std::shared_ptr<recording_slot> slot_ = std::make_shared<recording_slot>();
};

/// [3, 4]
inline ferry::tensor matrix(ferry::device where) {
  return ferry::arange(0, 12, 1, ferry::dtype::f32, where).view({3, 4});
}

constexpr ferry::device gpu{ferry::device_kind::cuda, 1};
constexpr ferry::device host{};

/// How an operation is used. Specialise it for each descriptor of the lists: a new operation is tested when it has one,
/// and nothing compiles before.
///   static std::vector<tensor> inputs(device where);                    what it may take there
///   static std::vector<tensor> run(const std::vector<tensor>& inputs);  calls the function of its name
///   static void check(const Op::parameters& with);                      that these are the parameters of run()
template <class Op>
struct operation_sample;

inline bool same_tensors(const std::vector<ferry::tensor>& a, const std::vector<ferry::tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i != a.size(); ++i) {
    if (!a[i].same_as(b[i])) return false;
  }
  return true;
}

/// The elements on the host, without telling hooks.
inline ferry::tensor on_host(const ferry::tensor& t) {
  const auto slot = t.slot();
  t.set_slot(nullptr);
  ferry::tensor result = t.to(ferry::device{}).clone();
  t.set_slot(slot);
  return result;
}

template <class Op>
std::vector<ferry::tensor> expected_values(ferry::device where) {
  std::vector<ferry::tensor> values;
  for (const ferry::tensor& each : operation_sample<Op>::run(operation_sample<Op>::inputs(where))) {
    CHECK(!each.has_slot());
    values.push_back(on_host(each));
  }
  return values;
}

/// One slot, on input number `at`.
template <class Op>
void check_reports(ferry::device where, std::size_t at, const std::vector<ferry::tensor>& expected) {
  using sample = operation_sample<Op>;
  constexpr bool in_place = Op::kind == ferry::operation_kind::in_place;
  const std::vector<ferry::tensor> inputs = sample::inputs(where);
  const recording slot;
  slot->inspect = [](const ferry::operation& what) {
    CHECK(what.is<Op>());
    CHECK(what.id() == ferry::fingerprint(Op::name));
    CHECK(what.info().inputs == Op::inputs);
    if (what.is<Op>()) sample::check(what.parameters<Op>());
  };
  const ferry::tensor old_elements = on_host(inputs[0]);
  const std::uint64_t old_version = inputs[0].version();
  slot.attach_to(inputs[at]);
  const std::vector<ferry::tensor> results = sample::run(inputs);

  REQUIRE(slot->events.size() == (in_place ? 2 : 1));
  for (const auto& event : slot->events) {
    CHECK(event.operation == Op::name);
    CHECK(same_tensors(event.inputs, inputs));
  }
  const auto& last = slot->events.back();
  CHECK(last.function == (Op::kind == ferry::operation_kind::view ? "viewed" : "computed"));
  CHECK(same_tensors(last.outputs, results));
  if (in_place) {
    const auto& first = slot->events.front();
    CHECK(first.function == "mutated");
    CHECK(ferry::equal(on_host(first.old_elements), old_elements));
    CHECK(first.old_version == old_version);
    CHECK(inputs[0].version() == old_version + 1);
    CHECK(results[0].same_as(inputs[0]));
  } else {
    CHECK(inputs[0].version() == old_version);
  }
  REQUIRE(results.size() == expected.size());
  for (std::size_t i = 0; i != results.size(); ++i) {
    CHECK(slot.is_slot_of(results[i]));
    CHECK(ferry::equal(on_host(results[i]), expected[i]));
  }
}

/// A slot that throws, on input number `at`.
template <class Op>
void check_refusal(ferry::device where, std::size_t at) {
  using sample = operation_sample<Op>;
  const std::vector<ferry::tensor> inputs = sample::inputs(where);
  const recording slot;
  slot->refuses = true;
  const ferry::tensor old_elements = on_host(inputs[0]);
  const std::uint64_t old_version = inputs[0].version();
  slot.attach_to(inputs[at]);
  const bool in_place = Op::kind == ferry::operation_kind::in_place;
  expect_error(ferry::errc::invalid_argument, in_place ? "a leaf must not be written" : "nothing may be computed",
               [&] { (void)sample::run(inputs); });
  CHECK(slot->events.size() == 1);
  CHECK(ferry::equal(on_host(inputs[0]), old_elements));
  CHECK(inputs[0].version() == old_version);
}

/// Several slots: the first input's is called, and finds the others.
template <class Op>
void check_first_slot(ferry::device where) {
  const std::vector<ferry::tensor> inputs = operation_sample<Op>::inputs(where);
  std::vector<recording> slots;
  for (const ferry::tensor& each : inputs) slots.emplace_back().attach_to(each);
  (void)operation_sample<Op>::run(inputs);
  CHECK(!slots[0]->events.empty());
  for (std::size_t i = 1; i < slots.size(); ++i) {
    CHECK(slots[i]->events.empty());
    CHECK(slots[i].is_slot_of(slots[0]->events[0].inputs[i]));
  }
}

template <class Op>
void check_operation(ferry::device where) {
  CAPTURE(std::string(Op::name));
  CAPTURE(to_string(where));
  if (Op::needs.devices == ferry::device_set::cpu && !where.is_cpu()) {
    expect_error(ferry::errc::bad_device, std::string(Op::name) + " works on CPU tensors",
                 [&] { (void)operation_sample<Op>::run(operation_sample<Op>::inputs(where)); });
    return;
  }
  const std::vector<ferry::tensor> expected = expected_values<Op>(where);
  for (std::size_t at = 0; at != operation_sample<Op>::inputs(where).size(); ++at) {
    CAPTURE(at);
    check_reports<Op>(where, at, expected);
    if (Op::kind != ferry::operation_kind::view) check_refusal<Op>(where, at);
  }
  check_first_slot<Op>(where);
}

/// Each operation of a list.
template <class List>
void check_operations(ferry::device where) {
  List::for_each([&](auto tag) { check_operation<typename decltype(tag)::type>(where); });
}

}  // namespace ferry_test
