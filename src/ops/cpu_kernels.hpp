#pragma once

// What the CPU computes with loops that depend on its instructions, as a table of functions. There is one table written by hand
// (cpu/plain_kernels.cpp), which every build has, and one for each instruction set (cpu/instruction_set_kernels.cpp), where the build has
// Eigen. docs/performance.md says which one is taken.
//
// This header holds nothing that a compiler emits as a shared inline symbol: it is included where wider instructions are allowed
// than the processor may have.

#include <cstdint>

namespace ferry::inline v0::detail {

/// out = a * b, or out += a * b, of row-major matrices: a is [rows, inner], b is [inner, columns], out is [rows, columns]. An
/// operand that is transposed lies in memory as its transpose. `leading` is the distance of two rows in memory, in elements, at
/// least 1 and the length of a row. The memory of `out` is not that of an operand. Sizes may be 0.
template <class T>
struct gemm_call {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t inner = 0;
  const T* a = nullptr;
  std::int64_t a_leading = 1;
  bool a_transposed = false;
  const T* b = nullptr;
  std::int64_t b_leading = 1;
  bool b_transposed = false;
  T* out = nullptr;
  std::int64_t out_leading = 1;
  bool accumulate = false;  // out += a * b
  const T* bias = nullptr;  // null, or `columns` elements that are added to each row
};

/// Functions of one number. Results below the smallest normal number may be 0; infinities and NaN are as in <cmath>. The logarithm
/// of a number below the smallest normal one may be that of the smallest.
enum class array_function : std::uint8_t { exp, log, tanh, sigmoid };

/// Functions are thread-safe, start no threads, and throw std::bad_alloc at most.
struct cpu_kernels {
  const char* name;
  void (*gemm_f32)(const gemm_call<float>& call);
  void (*gemm_f64)(const gemm_call<double>& call);
  /// out[i] = function(in[i]) for `count` elements; `out` may be `in`.
  void (*array_f32)(array_function function, const float* in, float* out, std::int64_t count);
  void (*array_f64)(array_function function, const double* in, double* out, std::int64_t count);
};

/// Written by hand, for any compiler flags.
extern const cpu_kernels plain_kernels;

/// The table of that name: "plain", "baseline", "v3" (AVX2 and FMA), "v4" (AVX-512). Null if this build has none of that name, or
/// this CPU lacks its instructions.
const cpu_kernels* find_cpu_kernels(const char* name) noexcept;

/// The table in use: the one that FERRY_CPU_KERNELS names, else the one for the widest instructions. The choice is made at the
/// first call. Thread-safe.
const cpu_kernels& cpu_kernels_in_use() noexcept;

}  // namespace ferry::inline v0::detail
