#pragma once

// Tensors and their parts through fmt: fmt::print("{}", t). The text is that of the to_string functions. Separate from
// tensor.hpp because fmt is a heavy header.

#include <string_view>

#include <fmt/format.h>  // fmt 9 defines there what core.h declares

#include <ferry/tensor/tensor.hpp>

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
