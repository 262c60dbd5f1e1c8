#pragma once

// What is done to elements on devices, as functions of one index that device and host compilers accept, and the table of
// them. They are started through one interface, Launcher::launch(stream, count, function): kernels.cu starts them on a
// GPU, the tests' fake CUDA runtime calls them on the host. Those of arithmetic are in ops/kernels.hpp.

#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <ferry/tensor/dtype.hpp>

#include "convert.hpp"
#include "launch_walk.hpp"
#include "walk.hpp"

struct CUstream_st;

namespace ferry::inline v0::detail {

/// The bytes of one element.
struct kernel_element {
  alignas(16) unsigned char bytes[16];
};

/// Each starts a kernel on the stream, of the current device, and returns a cudaError_t.
struct tensor_kernels {
  /// Elements of `size` bytes from operand 1 to operand 0.
  int (*copy)(CUstream_st* stream, const walk<2>& plan, std::size_t size);
  int (*convert)(CUstream_st* stream, const walk<2>& plan, dtype to, dtype from);
  int (*fill)(CUstream_st* stream, const walk<1>& plan, const kernel_element& value, std::size_t size);
};

// ---------------------------------------------------------------- functions of one index

/// The address of element `index` in each operand. An Index of 32 bits is several times as fast on a GPU, which has no
/// instruction that divides 64; it must be able to count the elements.
template <std::size_t N, class Index>
FERRY_KERNEL std::array<std::byte*, N> locate(const walk<N>& plan, Index index) {
  std::array<std::byte*, N> at = plan.start;
  if (plan.rank == 0) return at;
  for (std::size_t axis = plan.rank - 1; axis != 0; --axis) {
    const auto extent = static_cast<Index>(plan.shape[axis]);
    const Index rest = index / extent;
    const auto here = static_cast<std::int64_t>(index - rest * extent);
    for (std::size_t n = 0; n != N; ++n) at[n] += here * plan.steps[axis][n];
    index = rest;
  }
  for (std::size_t n = 0; n != N; ++n) at[n] += static_cast<std::int64_t>(index) * plan.steps[0][n];
  return at;
}

template <class T>
FERRY_KERNEL T& element_at(std::byte* memory) {
  return *reinterpret_cast<T*>(memory);
}

/// A bit pattern of 16 bytes, anywhere that one of 8 may be.
struct sixteen_bytes {
  std::uint64_t low, high;
};
/// One that a GPU moves with one instruction.
struct alignas(16) aligned_sixteen_bytes {
  std::uint64_t low, high;
};

template <class T>
struct copy_kernel {
  walk<2> plan;
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    const auto at = locate(plan, index);
    element_at<T>(at[0]) = element_at<T>(at[1]);
  }
};

template <class T>
struct fill_kernel {
  walk<1> plan;
  T value;
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    element_at<T>(locate(plan, index)[0]) = value;
  }
};

/// An element in the widest type of its family.
struct wide_element {
  enum family : unsigned char { integer, real, complex } is = integer;
  std::int64_t i = 0;
  double re = 0;
  double im = 0;
};

template <class T>
FERRY_KERNEL wide_element load_wide(std::byte* from) {
  wide_element result;
  if constexpr (std::is_same_v<T, bool>) {
    result.i = element_at<unsigned char>(from) != 0 ? 1 : 0;
  } else if constexpr (is_complex_v<T>) {
    using part = typename T::value_type;
    result.is = wide_element::complex;
    result.re = element_at<part>(from);
    result.im = element_at<part>(from + sizeof(part));
  } else if constexpr (std::is_integral_v<T>) {
    result.i = widen<T>(element_at<T>(from));
  } else {
    result.is = wide_element::real;
    result.re = widen<T>(element_at<T>(from));
  }
  return result;
}

template <class T>
FERRY_KERNEL void store_wide(std::byte* to, const wide_element& value) {
  if constexpr (is_complex_v<T>) {
    using part = typename T::value_type;
    element_at<part>(to) =
        static_cast<part>(value.is == wide_element::integer ? static_cast<double>(value.i) : value.re);
    element_at<part>(to + sizeof(part)) = static_cast<part>(value.im);
  } else {
    T result{};
    switch (value.is) {
      case wide_element::integer: result = narrow_to<T>(value.i); break;
      case wide_element::real: result = narrow_to<T>(value.re); break;
      case wide_element::complex:
        if constexpr (std::is_same_v<T, bool>) {
          result = value.re != 0 || value.im != 0;
        } else {
          result = narrow_to<T>(value.re);
        }
        break;
    }
    element_at<T>(to) = result;
  }
}

struct convert_kernel {
  walk<2> plan;
  dtype to;
  dtype from;

  FERRY_KERNEL static wide_element load(dtype type, std::byte* at) {
    switch (type) {
      case dtype::bool_: return load_wide<bool>(at);
      case dtype::u8: return load_wide<std::uint8_t>(at);
      case dtype::i8: return load_wide<std::int8_t>(at);
      case dtype::i16: return load_wide<std::int16_t>(at);
      case dtype::i32: return load_wide<std::int32_t>(at);
      case dtype::i64: return load_wide<std::int64_t>(at);
      case dtype::f16: return load_wide<float16>(at);
      case dtype::bf16: return load_wide<bfloat16>(at);
      case dtype::f32: return load_wide<float>(at);
      case dtype::f64: return load_wide<double>(at);
      case dtype::c64: return load_wide<std::complex<float>>(at);
      case dtype::c128: return load_wide<std::complex<double>>(at);
      case dtype::f8_e4m3: return load_wide<float8_e4m3>(at);
      case dtype::f8_e5m2: return load_wide<float8_e5m2>(at);
    }
    return {};
  }
  FERRY_KERNEL static void store(dtype type, std::byte* at, const wide_element& value) {
    switch (type) {
      case dtype::bool_: return store_wide<bool>(at, value);
      case dtype::u8: return store_wide<std::uint8_t>(at, value);
      case dtype::i8: return store_wide<std::int8_t>(at, value);
      case dtype::i16: return store_wide<std::int16_t>(at, value);
      case dtype::i32: return store_wide<std::int32_t>(at, value);
      case dtype::i64: return store_wide<std::int64_t>(at, value);
      case dtype::f16: return store_wide<float16>(at, value);
      case dtype::bf16: return store_wide<bfloat16>(at, value);
      case dtype::f32: return store_wide<float>(at, value);
      case dtype::f64: return store_wide<double>(at, value);
      case dtype::c64: return store_wide<std::complex<float>>(at, value);
      case dtype::c128: return store_wide<std::complex<double>>(at, value);
      case dtype::f8_e4m3: return store_wide<float8_e4m3>(at, value);
      case dtype::f8_e5m2: return store_wide<float8_e5m2>(at, value);
    }
  }
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    const auto at = locate(plan, index);
    store(to, at[0], load(from, at[1]));
  }
};

// ---------------------------------------------------------------- the table

template <class T>
T element_from(const kernel_element& value) {
  T result;
  auto* to = reinterpret_cast<unsigned char*>(&result);
  for (std::size_t i = 0; i != sizeof(T); ++i) to[i] = value.bytes[i];
  return result;
}

/// Calls f with the type whose elements have `size` bytes in this plan.
template <std::size_t N, class F>
int visit_width(const walk<N>& plan, std::size_t size, F f) {
  switch (size) {
    case 1: return f(std::type_identity<std::uint8_t>());
    case 2: return f(std::type_identity<std::uint16_t>());
    case 4: return f(std::type_identity<std::uint32_t>());
    case 8: return f(std::type_identity<std::uint64_t>());
    default:
      return is_aligned(plan, 16) ? f(std::type_identity<aligned_sixteen_bytes>())
                                  : f(std::type_identity<sixteen_bytes>());
  }
}

template <class Launcher>
constexpr tensor_kernels make_tensor_kernels() {
  return {
      .copy = [](CUstream_st* stream, const walk<2>& plan, std::size_t size) -> int {
        return launch_wide<2>(stream, plan, size, [](CUstream_st* on, const walk<2>& part, std::size_t wide) -> int {
          return visit_width(part, wide, [&]<class T>(std::type_identity<T>) {
            return launch_walk<Launcher>(on, copy_kernel<T>{part});
          });
        });
      },
      .convert = [](CUstream_st* stream, const walk<2>& plan, dtype to, dtype from) -> int {
        return launch_walk<Launcher>(stream, convert_kernel{plan, to, from});
      },
      .fill = [](CUstream_st* stream, const walk<1>& plan, const kernel_element& value, std::size_t size) -> int {
        kernel_element repeated{};
        for (std::size_t i = 0; i != sizeof(repeated.bytes); ++i) repeated.bytes[i] = value.bytes[i % size];
        return launch_wide<1>(stream, plan, size, [&](CUstream_st* on, const walk<1>& part, std::size_t wide) -> int {
          return visit_width(part, wide, [&]<class T>(std::type_identity<T>) {
            return launch_walk<Launcher>(on, fill_kernel<T>{part, element_from<T>(repeated)});
          });
        });
      },
  };
}

/// The table of kernels.cu; null in a build without a compiler for CUDA.
const tensor_kernels* linked_tensor_kernels() noexcept;

/// Replaces the table, for tests: call it before any other use of ferry. Cannot be undone.
void use_tensor_kernels(const tensor_kernels* kernels) noexcept;

}  // namespace ferry::inline v0::detail
