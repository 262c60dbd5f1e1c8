#include <ferry/ops/matmul.hpp>

#include <algorithm>
#include <array>
#include <cstdint>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/ops/arithmetic.hpp>
#include <ferry/tensor/factories.hpp>

#include "../tensor/layout.hpp"
#include "matrices.hpp"
#include "numbers.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

dims leading_axes(const tensor& t) { return {t.shape().begin(), t.rank() - 2}; }

dims joined(const dims& front, std::int64_t rows, std::int64_t columns) {
  dims all(front.size() + 2, std::int64_t{0});
  std::copy(front.begin(), front.end(), all.begin());
  all[front.size()] = rows;
  all[front.size() + 1] = columns;
  return all;
}

[[noreturn]] void refuse_matmul(const tensor& a, const tensor& b) {
  throw_error(errc::bad_shape, fmt::format("matmul needs [n, k] and [k, m]; the shapes are {} and {}",
                                           to_string(a.shape()), to_string(b.shape())));
}

bool axes_fit(const dims& a, const dims& b) {
  for (std::size_t i = 0; i != std::min(a.size(), b.size()); ++i) {
    const std::int64_t left = a[a.size() - 1 - i];
    const std::int64_t right = b[b.size() - 1 - i];
    if (left != right && left != 1 && right != 1) return false;
  }
  return true;
}

std::int64_t count_of(const dims& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

// One product for each index of the leading axes; a and b have those of the dense result, of stride 0 where they were broadcast.
template <class T>
void multiply_each(gemm_call<T> call, const tensor& a, const tensor& b, const tensor& out) {
  const std::size_t axes = out.rank() - 2;
  const std::int64_t step = call.rows * call.columns;
  std::array<std::int64_t, max_rank> index{};
  for (std::int64_t left = count_of(leading_axes(out)); left != 0; --left) {
    multiply_matrices(call, out, a, b);
    call.out += step;
    for (std::size_t axis = axes; axis-- != 0;) {
      call.a += a.strides()[axis];
      call.b += b.strides()[axis];
      if (++index[axis] != out.shape()[axis]) break;
      call.a -= a.strides()[axis] * out.shape()[axis];
      call.b -= b.strides()[axis] * out.shape()[axis];
      index[axis] = 0;
    }
  }
}

// Over matrices, whose leading axes fit together.
tensor product_of(const tensor& a, const tensor& b) {
  const dims front = broadcast_shapes(leading_axes(a), leading_axes(b));
  const std::int64_t rows = a.size(-2);
  const std::int64_t columns = b.size(-1);
  tensor result = empty(joined(front, rows, columns), a.dtype(), a.device());
  if (result.numel() == 0) return result;
  if (a.size(-1) == 0) {  // sums of nothing; there is no memory to point to
    fill_anywhere(result, 0);
    return result;
  }
  const matrices right(b);
  // With one matrix on the right, the rows of all on the left are those of one.
  const bool fold = a.rank() > 2 && count_of(leading_axes(b)) == 1 && leading_axes(a) == front && a.is_contiguous();
  const matrices left(fold ? a.view({result.numel() / columns, a.size(-1)}) : a);
  visit_arithmetic(a.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    gemm_call<T> call{.rows = left.t.size(-2),
                      .columns = columns,
                      .inner = a.size(-1),
                      .a = left.t.data<T>(),
                      .a_leading = left.layout.leading,
                      .a_transposed = left.layout.transposed,
                      .b = right.t.data<T>(),
                      .b_leading = right.layout.leading,
                      .b_transposed = right.layout.transposed,
                      .out = result.data<T>(),
                      .out_leading = columns};
    if (fold || result.rank() == 2) return multiply_matrices(call, result, left.t, right.t);
    multiply_each(call, expanded(left.t, joined(front, rows, a.size(-1))),
                  expanded(right.t, joined(front, a.size(-1), columns)), result);
  });
  return result;
}

}  // namespace
}  // namespace detail

tensor op::matmul::compute(const parameters&, const tensor& a, const tensor& b) {
  if (a.rank() == 0 || b.rank() == 0) detail::refuse_matmul(a, b);
  const tensor left = a.rank() == 1 ? a.unsqueeze(0) : a;
  const tensor right = b.rank() == 1 ? b.unsqueeze(1) : b;
  if (left.size(-1) != right.size(-2) || !detail::axes_fit(detail::leading_axes(left), detail::leading_axes(right)))
    detail::refuse_matmul(a, b);
  tensor result = detail::product_of(left, right);
  if (a.rank() != 1 && b.rank() != 1) return result;
  // The axis of size 1 that was put in is not part of the result.
  const dims front = detail::leading_axes(result);
  dims shape(front.size() + (a.rank() == 1 ? 0 : 1) + (b.rank() == 1 ? 0 : 1), std::int64_t{0});
  std::copy(front.begin(), front.end(), shape.begin());
  if (a.rank() != 1) shape[front.size()] = result.size(-2);
  if (b.rank() != 1) shape[front.size()] = result.size(-1);
  return result.view(shape);
}
tensor matmul(const tensor& a, const tensor& b) { return run_operation<op::matmul>({}, a, b); }

}  // namespace ferry::inline v0
