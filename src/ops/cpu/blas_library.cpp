#include "blas_library.hpp"

#include <limits>
#include <new>
#include <string>
#include <type_traits>

#include <dlfcn.h>

#include <ferry/base/error.hpp>

namespace ferry::inline v0::detail {
namespace {

// The values of the enumerations in cblas.h, which are parts of its binary interface.
constexpr int blas_row_major = 101;
constexpr int blas_plain = 111;
constexpr int blas_transposed = 112;

template <class T>
using blas_gemm_function = void (*)(int order, int transposed_a, int transposed_b, int rows, int columns, int inner,
                                    T alpha, const T* a, int a_leading, const T* b, int b_leading, T beta, T* out,
                                    int out_leading);

struct blas_library {
  blas_gemm_function<float> f32 = nullptr;
  blas_gemm_function<double> f64 = nullptr;
  std::string failure;
};

blas_library open_blas(const char* name) {
  blas_library library;
  const std::string setting = "FERRY_BLAS='" + std::string(name) + "'";
  void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* const why = ::dlerror();
    library.failure = setting + ": the library cannot be loaded: " + (why ? why : "dlopen gives no reason");
    return library;
  }
  library.f32 = reinterpret_cast<blas_gemm_function<float>>(::dlsym(handle, "cblas_sgemm"));
  library.f64 = reinterpret_cast<blas_gemm_function<double>>(::dlsym(handle, "cblas_dgemm"));
  if (!library.f32 || !library.f64) {
    library.failure = setting + ": the library has no function " + (library.f32 ? "cblas_dgemm" : "cblas_sgemm") +
                      "; name one with the C interface of BLAS, or unset the variable";
    ::dlclose(handle);
  }
  return library;
}

// Empty until the library is opened, before the first product.
blas_library& opened_blas() noexcept {
  static blas_library library;
  return library;
}

bool fits_int(std::int64_t value) noexcept { return value <= std::numeric_limits<int>::max(); }

template <class T>
void blas_gemm(const gemm_call<T>& call) {
  constexpr bool single = std::is_same_v<T, float>;
  if (!fits_int(call.rows) || !fits_int(call.columns) || !fits_int(call.inner) || !fits_int(call.a_leading) ||
      !fits_int(call.b_leading) || !fits_int(call.out_leading)) {
    if constexpr (single) {
      return cpu_kernels_in_use().gemm_f32(call);
    } else {
      return cpu_kernels_in_use().gemm_f64(call);
    }
  }
  // A bias is in the result before the product is added to it.
  if (call.bias) {
    for (std::int64_t i = 0; i != call.rows; ++i) {
      T* const row = call.out + i * call.out_leading;
      for (std::int64_t j = 0; j != call.columns; ++j) row[j] = call.accumulate ? row[j] + call.bias[j] : call.bias[j];
    }
  }
  const T beta = call.accumulate || call.bias ? T{1} : T{0};
  const auto product = [&] {
    if constexpr (single) {
      return opened_blas().f32;
    } else {
      return opened_blas().f64;
    }
  }();
  product(blas_row_major, call.a_transposed ? blas_transposed : blas_plain,
          call.b_transposed ? blas_transposed : blas_plain, static_cast<int>(call.rows), static_cast<int>(call.columns),
          static_cast<int>(call.inner), T{1}, call.a, static_cast<int>(call.a_leading), call.b,
          static_cast<int>(call.b_leading), beta, call.out, static_cast<int>(call.out_leading));
}

template <class T>
void refuse_gemm(const gemm_call<T>&) {
  throw_error(errc::missing_environment, opened_blas().failure);
}

}  // namespace

gemm_functions blas_library_gemm(const char* library) noexcept {
  try {
    opened_blas() = open_blas(library);
  } catch (const std::bad_alloc&) {
    opened_blas().f32 = nullptr;
  }
  if (!opened_blas().f32 || !opened_blas().f64) return {&refuse_gemm<float>, &refuse_gemm<double>};
  return {&blas_gemm<float>, &blas_gemm<double>};
}

}  // namespace ferry::inline v0::detail
