#include <ferry/ops/matmul.hpp>

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>

#include "numbers.hpp"

namespace ferry::inline v0 {

tensor op::matmul::compute(const parameters&, const tensor& a, const tensor& b) {
  if (a.rank() != 2 || b.rank() != 2 || a.size(1) != b.size(0)) {
    throw_error(errc::bad_shape, fmt::format("matmul needs [n, k] and [k, m]; the shapes are {} and {}",
                                             to_string(a.shape()), to_string(b.shape())));
  }
  const tensor left = a.contiguous();
  const tensor right = b.contiguous();
  return detail::visit_arithmetic(a.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t rows = a.size(0);
    const std::int64_t inner = a.size(1);
    const std::int64_t columns = b.size(1);
    tensor result = zeros({rows, columns}, a.dtype());
    const T* x = left.data<T>();
    const T* y = right.data<T>();
    T* out = result.data<T>();
    constexpr std::int64_t block = 64;  // rows of `b` that stay in the cache while all rows of `a` are processed
    for (std::int64_t from = 0; from < inner; from += block) {
      const std::int64_t to = std::min(inner, from + block);
      for (std::int64_t i = 0; i != rows; ++i) {
        T* row = out + i * columns;
        for (std::int64_t k = from; k != to; ++k) {
          const T factor = x[i * inner + k];
          const T* other = y + k * columns;
          for (std::int64_t j = 0; j != columns; ++j) row[j] = detail::plus(row[j], detail::times(factor, other[j]));
        }
      }
    }
    return result;
  });
}
tensor matmul(const tensor& a, const tensor& b) { return run_operation<op::matmul>({}, a, b); }

}  // namespace ferry::inline v0
