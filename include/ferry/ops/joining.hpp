#pragma once

// Tensors joined to one and divided into several, of any dtype, on any device. Axes count from the end if negative.
//
// Errors of all: errc::bad_shape, errc::bad_dtype and errc::bad_device for tensors that differ, errc::invalid_argument for none.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include <ferry/tensor/operation.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// One after the other along an axis; in the others they have the same sizes.
[[nodiscard]] tensor cat(std::span<const tensor> all, std::int64_t axis = 0);
[[nodiscard]] tensor cat(std::initializer_list<tensor> all, std::int64_t axis = 0);
/// Along a new axis; all of one shape.
[[nodiscard]] tensor stack(std::span<const tensor> all, std::int64_t axis = 0);
[[nodiscard]] tensor stack(std::initializer_list<tensor> all, std::int64_t axis = 0);
/// Views of these sizes along an axis, which they make up.
[[nodiscard]] std::vector<tensor> split(const tensor& t, const dims& sizes, std::int64_t axis = 0);
/// Views of this size along an axis; the last one may be smaller.
[[nodiscard]] std::vector<tensor> split(const tensor& t, std::int64_t size, std::int64_t axis = 0);

namespace op {

struct cat {
  static constexpr std::string_view name = "cat";
  static constexpr operation_kind kind = operation_kind::new_result;
  static constexpr std::size_t inputs = any_number;
  static constexpr operation_needs needs{.alike = true};
  struct parameters {
    std::int64_t axis = 0;
    std::vector<std::int64_t> sizes;  // of the tensors along it
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, std::span<const tensor> all);
};

}  // namespace op
}  // namespace ferry::inline v0
