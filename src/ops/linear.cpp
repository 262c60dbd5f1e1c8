#include <ferry/ops/linear.hpp>

#include <array>
#include <cstdint>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>

#include "../tensor/layout.hpp"
#include "device_arithmetic.hpp"
#include "matrices.hpp"
#include "numbers.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

[[noreturn]] void refuse_linear(std::span<const tensor> inputs) {
  throw_error(errc::bad_shape,
              fmt::format("linear needs x [..., in], weight [out, in] and bias [out]; the shapes are {}, {}{}{}",
                          to_string(inputs[0].shape()), to_string(inputs[1].shape()), inputs.size() > 2 ? ", " : "",
                          inputs.size() > 2 ? to_string(inputs[2].shape()) : ""));
}

}  // namespace
}  // namespace detail

tensor op::linear::compute(const parameters&, std::span<const tensor> inputs) {
  if (inputs.size() != 2 && inputs.size() != 3) {
    throw_error(errc::invalid_argument,
                fmt::format("linear takes x, weight and perhaps a bias: 2 or 3 tensors, not {}", inputs.size()));
  }
  const tensor& x = inputs[0];
  const tensor& weight = inputs[1];
  if (x.rank() == 0 || weight.rank() != 2 || x.size(-1) != weight.size(1)) detail::refuse_linear(inputs);
  const std::int64_t columns = weight.size(0);
  if (inputs.size() == 3 && (inputs[2].rank() != 1 || inputs[2].size(0) != columns)) detail::refuse_linear(inputs);
  dims shape = x.shape();
  shape[shape.size() - 1] = columns;
  tensor result = empty(shape, x.dtype(), x.device());
  if (result.numel() == 0) return result;
  const std::int64_t rows = result.numel() / columns;
  const detail::matrices left(x.rank() == 2 ? x : x.reshape({rows, x.size(-1)}));
  const detail::matrices right(weight);
  const tensor bias = inputs.size() == 3 ? inputs[2].contiguous() : tensor();
  const bool fused = x.device().is_cpu();
  detail::visit_arithmetic(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const detail::gemm_call<T> call{.rows = rows,
                                    .columns = columns,
                                    .inner = weight.size(1),
                                    .a = left.t.data<T>(),
                                    .a_leading = left.layout.leading,
                                    .a_transposed = left.layout.transposed,
                                    .b = right.t.data<T>(),
                                    .b_leading = right.layout.leading,
                                    .b_transposed = !right.layout.transposed,
                                    .out = result.data<T>(),
                                    .out_leading = columns,
                                    .bias = bias.defined() && fused ? bias.data<T>() : nullptr};
    detail::multiply_matrices(call, result, left.t, right.t);
  });
  if (bias.defined() && !fused) {
    detail::combine_by_kernel(result, result, detail::expanded(bias, shape), detail::kernel_operation::add,
                              {.integer = 1, .real = 1});
  }
  return result;
}

tensor linear(const tensor& x, const tensor& weight, const tensor& bias) {
  const std::array<tensor, 3> inputs{x, weight, bias};
  return run_operation<op::linear>({}, std::span<const tensor>(inputs).first(bias.defined() ? 3 : 2));
}

}  // namespace ferry::inline v0
