// The kernels of one instruction set. src/meson.build compiles this file once for each, with the compiler's flags for it and with
// FERRY_INSTRUCTION_SET as its name. It is not part of ferry.cpp: there are no flags for a part of a file.
//
// The linker takes one copy of an inline function of several objects. If two objects of different instruction sets had one in
// common, a CPU without the wider instructions could be given the copy that uses them. So Eigen's namespace is renamed for each
// instruction set, everything else has internal linkage, and no template of the standard library is used where it might not be
// inlined. tests/ops/shared_symbols_test.py looks into the objects.

#define FERRY_JOIN_(a, b) a##b
#define FERRY_JOIN(a, b) FERRY_JOIN_(a, b)
#define FERRY_TEXT_(a) #a
#define FERRY_TEXT(a) FERRY_TEXT_(a)

#define Eigen FERRY_JOIN(ferry_eigen_, FERRY_INSTRUCTION_SET)
#define EIGEN_DONT_PARALLELIZE
#define EIGEN_NO_DEBUG
#define EIGEN_NO_IO

#include <Eigen/Core>

#include <cstdint>

#include "../cpu_kernels.hpp"

namespace ferry::inline v0::detail {
namespace {

#include "array_functions.hpp"
#include "small_gemm.hpp"

template <class T, bool Transposed>
using layout_of = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Transposed ? Eigen::ColMajor : Eigen::RowMajor>;
template <class T, bool Transposed>
using operand = Eigen::Map<const layout_of<T, Transposed>, Eigen::Unaligned, Eigen::OuterStride<>>;

template <class T, bool A, bool B>
void add_product(const gemm_call<T>& call) {
  const operand<T, A> a(call.a, call.rows, call.inner, Eigen::OuterStride<>(call.a_leading));
  const operand<T, B> b(call.b, call.inner, call.columns, Eigen::OuterStride<>(call.b_leading));
  Eigen::Map<layout_of<T, false>, Eigen::Unaligned, Eigen::OuterStride<>> out(call.out, call.rows, call.columns,
                                                                              Eigen::OuterStride<>(call.out_leading));
  out.noalias() += a * b;
}

template <class T>
void start_rows(const gemm_call<T>& call) {
  for (std::int64_t row = 0; row != call.rows; ++row) {
    T* const out = call.out + row * call.out_leading;
    if (call.accumulate && call.bias) {
      for (std::int64_t i = 0; i != call.columns; ++i) out[i] += call.bias[i];
    } else if (call.bias) {
      for (std::int64_t i = 0; i != call.columns; ++i) out[i] = call.bias[i];
    } else if (!call.accumulate) {
      for (std::int64_t i = 0; i != call.columns; ++i) out[i] = T{0};
    }
  }
}

template <class T>
void general_product(const gemm_call<T>& call) {
  start_rows(call);
  if (call.a_transposed) {
    call.b_transposed ? add_product<T, true, true>(call) : add_product<T, true, false>(call);
  } else {
    call.b_transposed ? add_product<T, false, true>(call) : add_product<T, false, false>(call);
  }
}

template <class T>
void gemm(const gemm_call<T>& call) {
  // Operands without elements may have no memory to point to.
  if (call.rows == 0 || call.columns == 0) return;
  if (call.inner == 0) return start_rows(call);
  // Where the special product was faster than Eigen's, measured for layers of 512-256-128-64-32-8 (docs/performance.md).
  constexpr std::int64_t few = 16;
  constexpr std::int64_t few_along_inner = 12;
  constexpr std::int64_t narrow = 8;
  const bool vectors = call.rows == 1 || call.columns < narrow;  // Eigen has products with vectors of its own
  if (!vectors && !call.b_transposed && (call.rows <= few || call.inner <= few)) return small_product<T, false>(call);
  if (!vectors && call.b_transposed && !call.a_transposed && call.rows <= few_along_inner)
    return small_product<T, true>(call);
  general_product(call);
}

}  // namespace

extern const cpu_kernels FERRY_JOIN(cpu_kernels_, FERRY_INSTRUCTION_SET);
const cpu_kernels FERRY_JOIN(cpu_kernels_, FERRY_INSTRUCTION_SET) = {
    FERRY_TEXT(FERRY_INSTRUCTION_SET), &gemm<float>, &gemm<double>, &array<float>, &array<double>,
};

}  // namespace ferry::inline v0::detail
