#pragma once

// Loops over the elements of tensors of one shape on the CPU. Where the elements lie close together, the compiler vectorises them.

#include <cstddef>
#include <cstdint>

#include <ferry/tensor/tensor.hpp>

#include "../tensor/kernels.hpp"
#include "../tensor/layout.hpp"

namespace ferry::inline v0::detail {

/// to = f(a).
template <class T, class F, class Result = T>
void each_element(const tensor& to, const tensor& a, F f) {
  run_walk(plan_walk<2>({&to, &a}), [&](const auto& at, const auto& step, std::int64_t count) {
    if (step[0] == static_cast<std::int64_t>(sizeof(Result)) && step[1] == static_cast<std::int64_t>(sizeof(T))) {
      Result* out = &element_at<Result>(at[0]);
      const T* in = &element_at<T>(at[1]);
      for (std::int64_t i = 0; i != count; ++i) out[i] = f(in[i]);
      return;
    }
    for (std::int64_t i = 0; i != count; ++i)
      element_at<Result>(at[0] + i * step[0]) = f(element_at<T>(at[1] + i * step[1]));
  });
}

/// to = f(a, b).
template <class T, class F, class Result = T>
void each_pair(const tensor& to, const tensor& a, const tensor& b, F f) {
  run_walk(plan_walk<3>({&to, &a, &b}), [&](const auto& at, const auto& step, std::int64_t count) {
    constexpr auto size = static_cast<std::int64_t>(sizeof(T));
    if (step[0] == static_cast<std::int64_t>(sizeof(Result)) && step[1] == size && step[2] == size) {
      Result* out = &element_at<Result>(at[0]);
      const T* left = &element_at<T>(at[1]);
      const T* right = &element_at<T>(at[2]);
      if (static_cast<const void*>(out) == left) {  // in place: said so that the compiler vectorises this loop, too
        for (std::int64_t i = 0; i != count; ++i) out[i] = f(static_cast<T>(out[i]), right[i]);
      } else {
        for (std::int64_t i = 0; i != count; ++i) out[i] = f(left[i], right[i]);
      }
      return;
    }
    for (std::int64_t i = 0; i != count; ++i) {
      element_at<Result>(at[0] + i * step[0]) =
          f(element_at<T>(at[1] + i * step[1]), element_at<T>(at[2] + i * step[2]));
    }
  });
}

/// to = f(a, b, c).
template <class T, class F>
void each_triple(const tensor& to, const tensor& a, const tensor& b, const tensor& c, F f) {
  run_walk(plan_walk<4>({&to, &a, &b, &c}), [&](const auto& at, const auto& step, std::int64_t count) {
    for (std::int64_t i = 0; i != count; ++i) {
      element_at<T>(at[0] + i * step[0]) =
          f(element_at<T>(at[1] + i * step[1]), element_at<T>(at[2] + i * step[2]), element_at<T>(at[3] + i * step[3]));
    }
  });
}

}  // namespace ferry::inline v0::detail
