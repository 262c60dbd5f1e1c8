#pragma once

// From what a user calls to the functions of updates.hpp: checks, the tensors that an algorithm keeps, the walk over elements
// on the CPU or the kernel on a device.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/autograd/grad_mode.hpp>
#include <ferry/tensor/tensor.hpp>

#include "../tensor/layout.hpp"
#include "kernels.hpp"

namespace ferry::inline v0::detail {

/// Throws errc::invalid_argument that names the option unless the condition holds.
void need_option(bool holds, std::string_view algorithm, std::string_view option, double value, std::string_view range);
/// The same unless it is at least 0; it may be infinite.
void need_bound(std::string_view algorithm, std::string_view option, double value);

/// "adam: parameter 2".
std::string name_of_parameter(std::string_view algorithm, std::size_t index);

/// Throws unless the tensor can be updated: defined, of f32 or f64, on the CPU or a device with kernels, each element in memory
/// of its own.
void need_parameter(std::string_view algorithm, std::size_t index, const tensor& parameter);
/// Throws unless there are as many gradients and states as parameters, all parameters can be updated, and each gradient that is
/// defined looks like its parameter.
void need_update(std::string_view algorithm, std::span<const tensor> parameters, std::span<const tensor> gradients,
                 std::size_t states);

/// Throws unless what is kept looks like the parameter, with that shape; an undefined tensor becomes one full of `value`.
void need_kept(std::string_view algorithm, std::size_t index, std::string_view name, tensor& kept,
               const tensor& parameter, const dims& shape, double value = 0);

/// The gradient, or a copy where it lies in the memory of the parameter.
tensor apart_from(const tensor& gradient, const tensor& parameter);

/// Whether kernels do the work. The CPU's loops do not.
inline bool by_kernel(const tensor& parameter) { return !parameter.device().is_cpu(); }

/// What an update works on: parameter, gradient, kept tensors. Absent ones are the parameter.
using update_operands = std::array<const tensor*, 5>;
inline update_operands operands_of(const tensor& parameter, const tensor& gradient, const tensor& first = {},
                                   const tensor& second = {}, const tensor& third = {}) {
  const auto present = [&](const tensor& each) { return each.defined() ? &each : &parameter; };
  return {&parameter, &gradient, present(first), present(second), present(third)};
}

template <class Update>
void start_update(const update_operands& on, const Update& update);  // kernels; in device_updates.cpp
template <class Update>
void start_rows(const update_operands& on, const update_rows_plan& plan, const tensor& lists, const Update& update);

// The memory of the operands does not overlap, which the compiler is told: it vectorises these loops.
template <class T, class Update>
void update_run(const std::array<std::byte*, 5>& at, std::int64_t count, const Update& update) {
  T* __restrict parameter = &element_at<T>(at[0]);
  const T* __restrict gradient = &element_at<T>(at[1]);
  T* __restrict first = &element_at<T>(at[2]);
  T* __restrict second = &element_at<T>(at[3]);
  T* __restrict third = &element_at<T>(at[4]);
  for (std::int64_t i = 0; i != count; ++i) update(parameter[i], gradient[i], first[i], second[i], third[i]);
}

template <class T, class Update>
void update_on_host(const update_walk& plan, const Update& update) {
  run_walk(plan, [&](const auto& at, const auto& step, std::int64_t count) {
    constexpr auto size = static_cast<std::int64_t>(sizeof(T));
    if (step == std::array<std::int64_t, 5>{size, size, size, size, size}) {
      update_run<T>(at, count, update);
      return;
    }
    for (std::int64_t i = 0; i != count; ++i) {
      auto here = at;
      for (std::size_t n = 0; n != 5; ++n) here[n] += i * step[n];
      update_at<T>(here, update);
    }
  });
}

/// Writes the parameter (and its version) and what is kept of it, outside of the graph.
template <class Update>
void apply_update(const update_operands& on, const Update& update) {
  const tensor& parameter = *on[0];
  const no_grad outside;
  parameter.mark_written();
  if (by_kernel(parameter)) return start_update(on, update);
  const update_walk plan = plan_walk<5>(on);
  if (parameter.dtype() == dtype::f32) return update_on_host<float>(plan, update);
  update_on_host<double>(plan, update);
}

/// The steps of an algorithm's update(): checks everything, completes what is kept with keep(index, parameter, state), and lets
/// step(parameter, gradient, state) write each parameter that has a gradient.
template <class State, class Keep, class Step>
void update_all(std::string_view algorithm, std::span<const tensor> parameters, std::span<const tensor> gradients,
                std::span<State> states, Keep keep, Step step) {
  need_update(algorithm, parameters, gradients, states.size());
  for (std::size_t i = 0; i != parameters.size(); ++i) {
    if (gradients[i].defined()) keep(i, parameters[i], states[i]);
  }
  for (std::size_t i = 0; i != parameters.size(); ++i) {
    if (gradients[i].defined()) step(parameters[i], apart_from(gradients[i], parameters[i]), states[i]);
  }
}

}  // namespace ferry::inline v0::detail
