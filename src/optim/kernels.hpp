#pragma once

// The kernels of optimizers; see tensor/kernels.hpp.

#include <array>
#include <cstddef>
#include <cstdint>

#include <ferry/tensor/dtype.hpp>

#include "../tensor/kernels.hpp"
#include "updates.hpp"

namespace ferry::inline v0::detail {

/// Parameter, gradient, and up to three tensors that the algorithm keeps.
using update_walk = walk<5>;

/// Rows of the operands: an index along their first axis, at which the others are walked.
struct update_rows_plan {
  update_walk inner;                     // over row 0
  std::array<std::int64_t, 5> row_step;  // from row to row, in bytes
  std::int64_t count;                    // of rows that are updated
  std::int64_t width;                    // elements of a row
  // Row n of the update is row rows[n] of the parameter; its gradient is the sum of the rows gradients[begins[n]], ...,
  // gradients[begins[n + 1] - 1]. Null: row n has gradient n.
  const std::int64_t* rows;
  const std::int64_t* begins;
  const std::int64_t* gradients;
};

struct row_wise_update {
  double lr, eps, weight_decay;
};

/// Starts a kernel on the stream, of the current device, and returns a cudaError_t; f32 and f64.
template <class Update>
struct update_kernel_of {
  int (*start)(CUstream_st* stream, const update_walk& plan, dtype type, const Update& update);
};
template <class Update>
struct rows_kernel_of {
  int (*start)(CUstream_st* stream, const update_rows_plan& plan, dtype type, const Update& update);
};

/// How many partial sums square_sums makes of a tensor.
inline constexpr std::int64_t square_sum_parts = 1024;

struct optimizer_kernels : update_kernel_of<sgd_update>,
                           update_kernel_of<adam_update>,
                           update_kernel_of<adagrad_update>,
                           update_kernel_of<ftrl_update>,
                           update_kernel_of<rmsprop_update>,
                           update_kernel_of<adadelta_update>,
                           update_kernel_of<adamax_update>,
                           update_kernel_of<rprop_update>,
                           update_kernel_of<clip_update>,
                           update_kernel_of<rescale_update>,
                           rows_kernel_of<sgd_update>,
                           rows_kernel_of<adam_update>,
                           rows_kernel_of<adagrad_update>,
                           rows_kernel_of<row_wise_update> {
  /// parts[i] = the sum of the squares of some of the elements, square_sum_parts of them.
  int (*square_sums)(CUstream_st* stream, const walk<1>& plan, dtype type, double* parts);
  /// *norm = the root of the sum of `count` parts.
  int (*norm)(CUstream_st* stream, const double* parts, std::int64_t count, double* norm);
};

// ---------------------------------------------------------------- functions of one index

template <class T, class Update>
FERRY_KERNEL void update_at(const std::array<std::byte*, 5>& at, const Update& update) {
  update(element_at<T>(at[0]), element_at<T>(at[1]), element_at<T>(at[2]), element_at<T>(at[3]), element_at<T>(at[4]));
}

template <class T, class Update>
struct update_kernel {
  update_walk plan;
  Update update;
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    update_at<T>(locate(plan, index), update);
  }
};

/// Element `column` of row 0 of an operand.
FERRY_KERNEL inline std::byte* column_of(const update_rows_plan& plan, std::size_t operand, std::int64_t column) {
  if (plan.inner.rank != 1) return locate(plan.inner, column)[operand];
  return plan.inner.start[operand] + column * plan.inner.steps[0][operand];
}

/// The gradient of row `n` at the column whose gradient in row 0 is at `first`.
template <class T>
FERRY_KERNEL T gradient_of_row(const update_rows_plan& plan, std::int64_t n, std::byte* first) {
  if (!plan.rows) return element_at<T>(first + n * plan.row_step[1]);
  T sum = 0;
  for (std::int64_t i = plan.begins[n]; i != plan.begins[n + 1]; ++i) {
    sum += element_at<T>(first + plan.gradients[i] * plan.row_step[1]);
  }
  return sum;
}

/// One index is one element of the rows.
template <class T, class Update>
struct rows_kernel {
  update_rows_plan plan;
  Update update;

  FERRY_KERNEL void apply(std::int64_t n, std::int64_t column) const {
    const std::int64_t row = plan.rows ? plan.rows[n] : n;
    update(at(0, row, column), gradient_of_row<T>(plan, n, column_of(plan, 1, column)), at(2, row, column),
           at(3, row, column), at(4, row, column));
  }
  FERRY_KERNEL void operator()(std::int64_t index) const {
    const std::int64_t n = index / plan.width;
    apply(n, index - n * plan.width);
  }

 private:
  FERRY_KERNEL T& at(std::size_t operand, std::int64_t row, std::int64_t column) const {
    return element_at<T>(column_of(plan, operand, column) + row * plan.row_step[operand]);
  }
};

/// One index is one row; operand 2 has one element for each.
template <class T>
struct row_wise_kernel {
  update_rows_plan plan;
  row_wise_update update;

  FERRY_KERNEL void operator()(std::int64_t n) const {
    const std::int64_t row = plan.rows ? plan.rows[n] : n;
    double squares = 0;
    for (std::int64_t column = 0; column != plan.width; ++column) {
      const auto value = static_cast<double>(gradient(n, column, parameter(row, column)));
      squares += value * value;
    }
    T& sum = element_at<T>(plan.inner.start[2] + row * plan.row_step[2]);
    sum += static_cast<T>(squares / static_cast<double>(plan.width));
    const T rate = static_cast<T>(update.lr) / (std::sqrt(sum) + static_cast<T>(update.eps));
    for (std::int64_t column = 0; column != plan.width; ++column) {
      T& written = parameter(row, column);
      written -= rate * gradient(n, column, written);
    }
  }

 private:
  FERRY_KERNEL T& parameter(std::int64_t row, std::int64_t column) const {
    return element_at<T>(column_of(plan, 0, column) + row * plan.row_step[0]);
  }
  FERRY_KERNEL T gradient(std::int64_t n, std::int64_t column, T value) const {
    return decayed(gradient_of_row<T>(plan, n, column_of(plan, 1, column)), value, update.weight_decay);
  }
};

/// One index adds every square_sum_parts-th element.
template <class T>
struct square_sum_kernel {
  walk<1> plan;
  std::int64_t count;
  double* parts;

  FERRY_KERNEL void operator()(std::int64_t index) const {
    double sum = 0;
    for (std::int64_t i = index; i < count; i += square_sum_parts) {
      const double value = static_cast<double>(element_at<T>(locate(plan, i)[0]));
      sum += value * value;
    }
    parts[index] = sum;
  }
};

struct norm_kernel {
  const double* parts;
  std::int64_t count;
  double* norm;

  FERRY_KERNEL void operator()(std::int64_t) const {
    double sum = 0;
    for (std::int64_t i = 0; i != count; ++i) sum += parts[i];
    *norm = std::sqrt(sum);
  }
};

// ---------------------------------------------------------------- the table

template <class Launcher, class Update>
constexpr update_kernel_of<Update> make_update_kernel() {
  return {.start = [](CUstream_st* stream, const update_walk& plan, dtype type, const Update& update) -> int {
    if (type == dtype::f32) return launch_walk<Launcher>(stream, update_kernel<float, Update>{plan, update});
    return launch_walk<Launcher>(stream, update_kernel<double, Update>{plan, update});
  }};
}

template <class Launcher, class Update>
constexpr rows_kernel_of<Update> make_rows_kernel() {
  return {.start = [](CUstream_st* stream, const update_rows_plan& plan, dtype type, const Update& update) -> int {
    const std::int64_t count = plan.count * plan.width;
    if (type == dtype::f32) return Launcher::launch(stream, count, rows_kernel<float, Update>{plan, update});
    return Launcher::launch(stream, count, rows_kernel<double, Update>{plan, update});
  }};
}

template <class Launcher>
constexpr rows_kernel_of<row_wise_update> make_row_wise_kernel() {
  return {
      .start = [](CUstream_st* stream, const update_rows_plan& plan, dtype type, const row_wise_update& update) -> int {
        if (type == dtype::f32) return Launcher::launch(stream, plan.count, row_wise_kernel<float>{plan, update});
        return Launcher::launch(stream, plan.count, row_wise_kernel<double>{plan, update});
      }};
}

template <class Launcher>
constexpr optimizer_kernels make_optimizer_kernels() {
  return {
      make_update_kernel<Launcher, sgd_update>(),
      make_update_kernel<Launcher, adam_update>(),
      make_update_kernel<Launcher, adagrad_update>(),
      make_update_kernel<Launcher, ftrl_update>(),
      make_update_kernel<Launcher, rmsprop_update>(),
      make_update_kernel<Launcher, adadelta_update>(),
      make_update_kernel<Launcher, adamax_update>(),
      make_update_kernel<Launcher, rprop_update>(),
      make_update_kernel<Launcher, clip_update>(),
      make_update_kernel<Launcher, rescale_update>(),
      make_rows_kernel<Launcher, sgd_update>(),
      make_rows_kernel<Launcher, adam_update>(),
      make_rows_kernel<Launcher, adagrad_update>(),
      make_row_wise_kernel<Launcher>(),
      [](CUstream_st* stream, const walk<1>& plan, dtype type, double* parts) -> int {
        const std::int64_t count = plan.empty ? 0 : element_count(plan);
        if (type == dtype::f32) {
          return Launcher::launch(stream, square_sum_parts, square_sum_kernel<float>{plan, count, parts});
        }
        return Launcher::launch(stream, square_sum_parts, square_sum_kernel<double>{plan, count, parts});
      },
      [](CUstream_st* stream, const double* parts, std::int64_t count, double* norm) -> int {
        return Launcher::launch(stream, std::int64_t{1}, norm_kernel{parts, count, norm});
      },
  };
}

/// The table of kernels.cu; null in a build without a compiler for CUDA.
const optimizer_kernels* linked_optimizer_kernels() noexcept;

/// Replaces the table, for tests: call it before any other use of ferry. Cannot be undone.
void use_optimizer_kernels(const optimizer_kernels* kernels) noexcept;

}  // namespace ferry::inline v0::detail
