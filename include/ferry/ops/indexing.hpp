#pragma once

// Elements by their indices, on the CPU and on CUDA devices in the order of the calling thread's current stream. Indices are of i64 and
// on the device of the elements; they count from 0. On the CPU, one out of range is errc::invalid_argument; on a device, which the host
// does not wait for, it reads zeros and writes nothing. Axes count from the end if negative.
//
// Errors of all: errc::bad_shape, errc::bad_dtype, errc::bad_device.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <ferry/tensor/operation.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// result[i][j] = t[index[i][j]][j] for axis 0, and so on; of the shape of `index`, which has as many axes as `t` and is nowhere longer,
/// but along the axis. Any dtype.
[[nodiscard]] tensor gather(const tensor& t, std::int64_t axis, const tensor& index);
/// `t` with source[i][j] added at [index[i][j]][j] for axis 0, and so on. The same index may come several times. `source` and `index`
/// have one shape, which is nowhere longer than that of `t`, but along the axis. i32, i64, f32, f64.
[[nodiscard]] tensor scatter_add(const tensor& t, std::int64_t axis, const tensor& index, const tensor& source);

/// The slices of `t` at the indices, of one axis, along an axis.
[[nodiscard]] tensor index_select(const tensor& t, std::int64_t axis, const tensor& index);
/// `t` with the slices of alpha * source added at the indices, of one axis.
[[nodiscard]] tensor index_add(const tensor& t, std::int64_t axis, const tensor& index, const tensor& source,
                               const scalar& alpha = 1);
/// The same in place; `t`, which is returned, has its version raised. Only the slices at the indices are touched.
const tensor& index_add_(const tensor& t, std::int64_t axis, const tensor& index, const tensor& source,
                         const scalar& alpha = 1);

struct embedding_options {
  /// The gradient of a weight that is a leaf is kept as the rows that were looked up: ferry::sparse_grad()
  /// (<ferry/autograd/gradient.hpp>). That of another weight is dense.
  bool sparse_gradient = false;
};
/// The rows of `weight`, [count, width], at the indices: [..., width] for indices [...].
[[nodiscard]] tensor embedding(const tensor& weight, const tensor& indices, const embedding_options& with = {});
/// How the rows of a bag become one.
enum class bag_mode : std::uint8_t { sum, mean, max };
/// One row, [width], of the rows of `weight`, [count, width], for each bag of indices: [bags, size], or [indices] that lie one bag after the
/// other from `offsets`, of i64 on the CPU, [bags], ascending from 0. An empty bag is zeros.
[[nodiscard]] tensor embedding_bag(const tensor& weight, const tensor& indices, bag_mode mode = bag_mode::mean,
                                   const embedding_options& with = {});
[[nodiscard]] tensor embedding_bag(const tensor& weight, const tensor& indices, const tensor& offsets,
                                   bag_mode mode = bag_mode::mean, const embedding_options& with = {});
/// 1 at the index along a new last axis, of i64, else 0.
[[nodiscard]] tensor one_hot(const tensor& indices, std::int64_t classes);

namespace op {

struct gather {
  static constexpr std::string_view name = "gather";
  static constexpr operation_kind kind = operation_kind::new_result;
  static constexpr std::size_t inputs = 2;
  static constexpr operation_needs needs{.devices = device_set::with_kernels};
  struct parameters {
    std::int64_t axis = 0;
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t, const tensor& index);
};

struct scatter_add {
  static constexpr std::string_view name = "scatter_add";
  static constexpr operation_kind kind = operation_kind::new_result;
  static constexpr std::size_t inputs = 3;  // the elements, the indices, what is added
  static constexpr operation_needs needs{.devices = device_set::with_kernels};
  struct parameters {
    std::int64_t axis = 0;
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t, const tensor& index, const tensor& source);
};

/// The same in place.
struct scatter_add_ {
  static constexpr std::string_view name = "scatter_add_";
  static constexpr operation_kind kind = operation_kind::in_place;
  static constexpr std::size_t inputs = 3;
  static constexpr operation_needs needs{.devices = device_set::with_kernels};
  using parameters = scatter_add::parameters;

 private:
  friend struct ferry::operation_access;
  static void check(const parameters& with, const tensor& t, const tensor& index, const tensor& source);
  static void compute(const parameters& with, const tensor& t, const tensor& index, const tensor& source);
};

/// ferry::embedding() with a sparse gradient: the rows of the first input at the indices of one axis. Without, it is a gather.
struct embedding {
  static constexpr std::string_view name = "embedding";
  static constexpr operation_kind kind = operation_kind::new_result;
  static constexpr std::size_t inputs = 2;
  static constexpr operation_needs needs{.devices = device_set::with_kernels};
  struct parameters {};

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& weight, const tensor& index);
};

}  // namespace op
}  // namespace ferry::inline v0
