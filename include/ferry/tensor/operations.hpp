#pragma once

// The descriptors of what tensors themselves do: views, copies, writes. The functions are the members of tensor, and
// pack(). Those that are not here are made of these: narrow() is a slice, contiguous() a clone where it copies, reshape()
// and flatten() a view, or a clone and a view of it.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include <ferry/tensor/operation.hpp>

namespace ferry::inline v0 {
namespace detail {

struct view_descriptor {
  static constexpr operation_kind kind = operation_kind::view;
  static constexpr std::size_t inputs = 1;
  static constexpr operation_needs needs{};
};
struct copy_descriptor {
  static constexpr operation_kind kind = operation_kind::new_result;
  static constexpr std::size_t inputs = 1;
  static constexpr operation_needs needs{};
};

}  // namespace detail

namespace op {

struct slice : detail::view_descriptor {
  static constexpr std::string_view name = "slice";
  struct parameters {
    std::int64_t axis;
    std::int64_t start;
    std::int64_t stop;
    std::int64_t step;
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t);
};

struct select : detail::view_descriptor {
  static constexpr std::string_view name = "select";
  struct parameters {
    std::int64_t axis;
    std::int64_t index;
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t);
};

struct transpose : detail::view_descriptor {
  static constexpr std::string_view name = "transpose";
  struct parameters {
    std::int64_t first;
    std::int64_t second;
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t);
};

struct permute : detail::view_descriptor {
  static constexpr std::string_view name = "permute";
  struct parameters {
    dims order;
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t);
};

struct view : detail::view_descriptor {
  static constexpr std::string_view name = "view";
  struct parameters {
    dims shape;
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t);
};

struct unsqueeze : detail::view_descriptor {
  static constexpr std::string_view name = "unsqueeze";
  struct parameters {
    std::int64_t axis;
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t);
};

struct squeeze : detail::view_descriptor {
  static constexpr std::string_view name = "squeeze";
  struct parameters {
    std::optional<std::int64_t> axis;  // all, if there is none
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t);
};

struct expand : detail::view_descriptor {
  static constexpr std::string_view name = "expand";
  struct parameters {
    dims shape;
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t);
};

struct as_strided : detail::view_descriptor {
  static constexpr std::string_view name = "as_strided";
  struct parameters {
    dims shape;
    dims strides;
    std::int64_t offset;
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t);
};

struct clone : detail::copy_descriptor {
  static constexpr std::string_view name = "clone";
  struct parameters {};

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t);
};

/// tensor::to(dtype) where it converts.
struct to_dtype : detail::copy_descriptor {
  static constexpr std::string_view name = "to_dtype";
  struct parameters {
    ferry::dtype type;
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t);
};

/// tensor::to(device) where it copies.
struct to_device : detail::copy_descriptor {
  static constexpr std::string_view name = "to_device";
  struct parameters {
    ferry::device where;
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t);
};

/// pack() where it copies.
struct pack : detail::copy_descriptor {
  static constexpr std::string_view name = "pack";
  struct parameters {};

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t);
};

struct copy_ {
  static constexpr std::string_view name = "copy_";
  static constexpr operation_kind kind = operation_kind::in_place;
  static constexpr std::size_t inputs = 2;  // the target and the source
  static constexpr operation_needs needs{};
  struct parameters {};

 private:
  friend struct ferry::operation_access;
  static void check(const parameters& with, const tensor& target, const tensor& source);
  static void compute(const parameters& with, const tensor& target, const tensor& source);
};

struct fill_ {
  static constexpr std::string_view name = "fill_";
  static constexpr operation_kind kind = operation_kind::in_place;
  static constexpr std::size_t inputs = 1;
  static constexpr operation_needs needs{};
  struct parameters {
    scalar value;
  };

 private:
  friend struct ferry::operation_access;
  static void compute(const parameters& with, const tensor& target);
};

/// What tensor::mark_written() reports. It computes nothing: the elements are written through data() or at().
struct external_write {
  static constexpr std::string_view name = "external_write";
  static constexpr operation_kind kind = operation_kind::in_place;
  static constexpr std::size_t inputs = 1;
  static constexpr operation_needs needs{};
  struct parameters {};
};

}  // namespace op

/// All that run_operation() runs for tensors themselves.
using tensor_operations =
    operation_list<op::slice, op::select, op::transpose, op::permute, op::view, op::unsqueeze, op::squeeze, op::expand,
                   op::as_strided, op::clone, op::to_dtype, op::to_device, op::pack, op::copy_, op::fill_>;

}  // namespace ferry::inline v0
