#pragma once

// Tensors and their parts as text, also through fmt: fmt::print("{}", t).

#include <string>
#include <string_view>

#include <fmt/core.h>

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// The elements in nested brackets and aligned columns, with dtype (unless f32, i64 or bool) and device (unless cpu):
///   tensor([[1., 2.],
///           [3., 4.]], dtype=f64)
/// Of more than 1000 elements only the first and last three of each axis are shown. Floating-point numbers have four
/// digits after the point. Elements of tensors that are not on the CPU are not fetched; only the shape is shown.
[[nodiscard]] std::string to_string(const tensor& t);

}  // namespace ferry::inline v0

template <>
struct fmt::formatter<ferry::tensor> : fmt::formatter<fmt::string_view> {
  auto format(const ferry::tensor& t, fmt::format_context& context) const {
    return fmt::formatter<fmt::string_view>::format(ferry::to_string(t), context);
  }
};

template <>
struct fmt::formatter<ferry::dtype> : fmt::formatter<fmt::string_view> {
  auto format(ferry::dtype type, fmt::format_context& context) const {
    const std::string_view name = ferry::dtype_name(type);
    return fmt::formatter<fmt::string_view>::format({name.data(), name.size()}, context);
  }
};

template <>
struct fmt::formatter<ferry::device> : fmt::formatter<fmt::string_view> {
  auto format(ferry::device where, fmt::format_context& context) const {
    return fmt::formatter<fmt::string_view>::format(ferry::to_string(where), context);
  }
};

template <>
struct fmt::formatter<ferry::dims> : fmt::formatter<fmt::string_view> {
  auto format(const ferry::dims& values, fmt::format_context& context) const {
    return fmt::formatter<fmt::string_view>::format(ferry::to_string(values), context);
  }
};
