#pragma once

// Arithmetic element by element, for examples, tests and parameter servers; on tensors of i32, i64, f32 and f64, on the
// CPU and on CUDA devices, in the order of the calling thread's current stream. Integers wrap. Results are new contiguous
// tensors unless the name ends in an underscore.
//
// Errors of all: errc::bad_shape (the text names both shapes), errc::bad_dtype for other or different dtypes (nothing
// is promoted: convert with to()) and for a real scalar with an integer tensor, errc::bad_device, and what the hooks of a
// tensor throw (ferry::tensor_hooks).

#include <cstddef>
#include <string_view>

#include <ferry/tensor/operation.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// The common shape: sizes are matched from the last axis, and a size of 1 or a missing one is stretched.
[[nodiscard]] dims broadcast_shapes(const dims& a, const dims& b);

// Over shapes that broadcast.

/// a + alpha * b
[[nodiscard]] tensor add(const tensor& a, const tensor& b, const scalar& alpha = 1);
[[nodiscard]] tensor add(const tensor& a, const scalar& b);
/// a - alpha * b
[[nodiscard]] tensor sub(const tensor& a, const tensor& b, const scalar& alpha = 1);
/// add(a, -b)
[[nodiscard]] tensor sub(const tensor& a, const scalar& b);
[[nodiscard]] tensor mul(const tensor& a, const tensor& b);
[[nodiscard]] tensor mul(const tensor& a, const scalar& b);

// In place; `b` broadcasts to the shape of `a`, which is returned. The version is raised.

/// a += alpha * b
const tensor& add_(const tensor& a, const tensor& b, const scalar& alpha = 1);
const tensor& add_(const tensor& a, const scalar& b);
/// a -= alpha * b
const tensor& sub_(const tensor& a, const tensor& b, const scalar& alpha = 1);
const tensor& mul_(const tensor& a, const tensor& b);
const tensor& mul_(const tensor& a, const scalar& b);

[[nodiscard]] inline tensor operator+(const tensor& a, const tensor& b) { return add(a, b); }
[[nodiscard]] inline tensor operator+(const tensor& a, const scalar& b) { return add(a, b); }
[[nodiscard]] inline tensor operator+(const scalar& a, const tensor& b) { return add(b, a); }
[[nodiscard]] inline tensor operator-(const tensor& a, const tensor& b) { return sub(a, b); }
[[nodiscard]] inline tensor operator-(const tensor& a, const scalar& b) { return sub(a, b); }
[[nodiscard]] inline tensor operator*(const tensor& a, const tensor& b) { return mul(a, b); }
[[nodiscard]] inline tensor operator*(const tensor& a, const scalar& b) { return mul(a, b); }
[[nodiscard]] inline tensor operator*(const scalar& a, const tensor& b) { return mul(b, a); }

namespace detail {

template <operation_kind Kind, std::size_t Inputs>
struct arithmetic_descriptor {
  static constexpr operation_kind kind = Kind;
  static constexpr std::size_t inputs = Inputs;
  static constexpr operation_needs needs{
      .elements = element_set::arithmetic, .devices = device_set::with_kernels, .alike = true};
};

}  // namespace detail

namespace op {

struct add : detail::arithmetic_descriptor<operation_kind::new_result, 2> {
  static constexpr std::string_view name = "add";
  struct parameters {
    scalar alpha = 1;
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& a, const tensor& b);
};

struct add_scalar : detail::arithmetic_descriptor<operation_kind::new_result, 1> {
  static constexpr std::string_view name = "add_scalar";
  struct parameters {
    scalar value;
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& a);
};

struct sub : detail::arithmetic_descriptor<operation_kind::new_result, 2> {
  static constexpr std::string_view name = "sub";
  struct parameters {
    scalar alpha = 1;
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& a, const tensor& b);
};

struct mul : detail::arithmetic_descriptor<operation_kind::new_result, 2> {
  static constexpr std::string_view name = "mul";
  struct parameters {};

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& a, const tensor& b);
};

struct mul_scalar : detail::arithmetic_descriptor<operation_kind::new_result, 1> {
  static constexpr std::string_view name = "mul_scalar";
  struct parameters {
    scalar value;
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& a);
};

struct add_ : detail::arithmetic_descriptor<operation_kind::in_place, 2> {
  static constexpr std::string_view name = "add_";
  struct parameters {
    scalar alpha = 1;
  };

 private:
  friend struct ferry::operation_access;
  static void check(const parameters& with, const tensor& a, const tensor& b);
  static void compute(const parameters& with, const tensor& a, const tensor& b);
};

struct add_scalar_ : detail::arithmetic_descriptor<operation_kind::in_place, 1> {
  static constexpr std::string_view name = "add_scalar_";
  struct parameters {
    scalar value;
  };

 private:
  friend struct ferry::operation_access;
  static void check(const parameters& with, const tensor& a);
  static void compute(const parameters& with, const tensor& a);
};

struct sub_ : detail::arithmetic_descriptor<operation_kind::in_place, 2> {
  static constexpr std::string_view name = "sub_";
  struct parameters {
    scalar alpha = 1;
  };

 private:
  friend struct ferry::operation_access;
  static void check(const parameters& with, const tensor& a, const tensor& b);
  static void compute(const parameters& with, const tensor& a, const tensor& b);
};

struct mul_ : detail::arithmetic_descriptor<operation_kind::in_place, 2> {
  static constexpr std::string_view name = "mul_";
  struct parameters {};

 private:
  friend struct ferry::operation_access;
  static void check(const parameters& with, const tensor& a, const tensor& b);
  static void compute(const parameters& with, const tensor& a, const tensor& b);
};

struct mul_scalar_ : detail::arithmetic_descriptor<operation_kind::in_place, 1> {
  static constexpr std::string_view name = "mul_scalar_";
  struct parameters {
    scalar value;
  };

 private:
  friend struct ferry::operation_access;
  static void check(const parameters& with, const tensor& a);
  static void compute(const parameters& with, const tensor& a);
};

}  // namespace op
}  // namespace ferry::inline v0
