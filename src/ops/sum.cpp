#include <ferry/ops/sum.hpp>

#include <cstdint>
#include <type_traits>

#include <ferry/tensor/factories.hpp>

#include "../tensor/kernels.hpp"
#include "../tensor/layout.hpp"
#include "numbers.hpp"

namespace ferry::inline v0 {

tensor op::sum::compute(const parameters&, const tensor& t) {
  return detail::visit_arithmetic(t.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using total_type = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
    total_type total = 0;
    detail::run_walk(detail::plan_walk<1>({&t}), [&](const auto& at, const auto& step, std::int64_t count) {
      for (std::int64_t i = 0; i != count; ++i) {
        total = detail::plus(total, static_cast<total_type>(detail::element_at<T>(at[0] + i * step[0])));
      }
    });
    using result_type = std::conditional_t<std::is_integral_v<T>, std::int64_t, T>;
    return tensor_of(static_cast<result_type>(total));
  });
}
tensor sum(const tensor& t) { return run_operation<op::sum>({}, t); }

}  // namespace ferry::inline v0
