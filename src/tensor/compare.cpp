#include <cmath>
#include <cstring>

#include <ferry/tensor/operation.hpp>
#include <ferry/tensor/tensor.hpp>
#include <ferry/tensor/visit.hpp>

#include "layout.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// Visits pairs of elements as type T until `same` returns false.
template <class T, class Same>
bool all_pairs(const tensor& a, const tensor& b, Same same) {
  bool result = true;
  detail::run_walk(detail::plan_walk<2>({&a, &b}), [&](const auto& at, const auto& step, std::int64_t count) {
    for (std::int64_t i = 0; result && i != count; ++i) {
      T x;
      T y;
      std::memcpy(&x, at[0] + i * step[0], sizeof(T));
      std::memcpy(&y, at[1] + i * step[1], sizeof(T));
      result = same(x, y);
    }
  });
  return result;
}

bool is_nan(double value) { return std::isnan(value); }
bool is_nan(const std::complex<double>& value) { return std::isnan(value.real()) || std::isnan(value.imag()); }

}  // namespace
}  // namespace detail

bool equal(const tensor& a, const tensor& b) {
  detail::need_cpu(a, "equal");
  detail::need_cpu(b, "equal");
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  if (a.dtype() == dtype::bool_) {
    return detail::all_pairs<std::uint8_t>(a, b, [](std::uint8_t x, std::uint8_t y) { return (x != 0) == (y != 0); });
  }
  return visit_dtype(a.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return detail::all_pairs<T>(a, b, [](const T& x, const T& y) { return x == y; });
  });
}

bool allclose(const tensor& a, const tensor& b, double relative, double absolute, bool equal_nan) {
  if (a.shape() != b.shape()) return false;
  const auto close = [=](const auto& x, const auto& y) {
    if (detail::is_nan(x) || detail::is_nan(y)) return equal_nan && detail::is_nan(x) && detail::is_nan(y);
    const double distance = std::abs(x - y);
    return x == y || (std::isfinite(distance) && distance <= absolute + relative * std::abs(y));
  };
  const dtype common = is_complex(a.dtype()) || is_complex(b.dtype()) ? dtype::c128 : dtype::f64;
  const detail::unreported parts;  // a comparison has no tensor as its result
  const tensor x = a.to(common);
  const tensor y = b.to(common);
  return common == dtype::f64 ? detail::all_pairs<double>(x, y, close)
                              : detail::all_pairs<std::complex<double>>(x, y, close);
}

}  // namespace ferry::inline v0
