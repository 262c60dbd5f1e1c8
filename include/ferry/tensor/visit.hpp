#pragma once

// From a dtype known at run time to a C++ type.

#include <complex>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <ferry/base/error.hpp>
#include <ferry/tensor/dtype.hpp>

namespace ferry::inline v0 {

/// Calls f(std::type_identity<T>{}) with the element type T of `type` and returns its result.
/// Throws errc::bad_dtype for a number that is not a dtype.
template <class F>
decltype(auto) visit_dtype(dtype type, F&& f) {
  switch (type) {
    case dtype::bool_: return f(std::type_identity<bool>{});
    case dtype::u8: return f(std::type_identity<std::uint8_t>{});
    case dtype::i8: return f(std::type_identity<std::int8_t>{});
    case dtype::i16: return f(std::type_identity<std::int16_t>{});
    case dtype::i32: return f(std::type_identity<std::int32_t>{});
    case dtype::i64: return f(std::type_identity<std::int64_t>{});
    case dtype::f16: return f(std::type_identity<float16>{});
    case dtype::bf16: return f(std::type_identity<bfloat16>{});
    case dtype::f32: return f(std::type_identity<float>{});
    case dtype::f64: return f(std::type_identity<double>{});
    case dtype::c64: return f(std::type_identity<std::complex<float>>{});
    case dtype::c128: return f(std::type_identity<std::complex<double>>{});
    case dtype::f8_e4m3: return f(std::type_identity<float8_e4m3>{});
    case dtype::f8_e5m2: return f(std::type_identity<float8_e5m2>{});
  }
  throw_error(errc::bad_dtype, std::to_string(static_cast<int>(type)) + " is not the number of a dtype");
}

}  // namespace ferry::inline v0
