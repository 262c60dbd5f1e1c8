#include "cublas.hpp"

#include <array>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>

#include <dlfcn.h>
#include <fmt/format.h>

#include <ferry/base/log.hpp>

#include "../base/replaceable_table.hpp"

namespace ferry::inline v0::detail {
namespace {

constinit replaceable_table<cublas_functions, &linked_cublas> cublas_table;

template <class Function>
bool find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

// Whether the library has all functions; else `failure` says why not. It stays open.
bool open_cublas(const char* name, cublas_functions& functions, std::string& failure) {
  void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* const why = ::dlerror();
    failure = why ? why : "dlopen gives no reason";
    return false;
  }
  if (find_function(library, "cublasCreate_v2", functions.create) &&
      find_function(library, "cublasSetStream_v2", functions.set_stream) &&
      find_function(library, "cublasSgemm_v2", functions.f32) &&
      find_function(library, "cublasDgemm_v2", functions.f64))
    return true;
  failure = std::string(name) + " lacks a function of cuBLAS";
  ::dlclose(library);
  return false;
}

struct opened_cublas {
  cublas_functions functions{};
  bool usable = false;
};

opened_cublas choose_cublas() noexcept {
  opened_cublas result;
  try {
    std::string failure;
    if (const char* const named = std::getenv("FERRY_CUBLAS"); named && *named != '\0') {
      if (std::string_view(named) == "none") return result;
      result.usable = open_cublas(named, result.functions, failure);
      if (!result.usable) {
        log(log_level::warning,
            fmt::format("FERRY_CUBLAS='{}' is not used, products on devices are slow: {}", named, failure));
      }
      return result;
    }
    for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"}) {
      result.usable = open_cublas(name, result.functions, failure);
      if (result.usable) return result;
    }
    log(log_level::info, fmt::format("no cuBLAS is installed, products on devices are slow: {}", failure));
  } catch (const std::exception&) {  // out of memory: a kernel computes the products
    result.usable = false;
  }
  return result;
}

// One for each device, for the rest of the process: the driver may be gone when statics are destroyed.
struct cublas_handle {
  std::mutex mutex;
  void* handle = nullptr;
};
cublas_handle& cublas_handle_of(device where) {
  static std::array<cublas_handle, 64> all;
  return all.at(static_cast<std::size_t>(where.index));
}

constexpr int cuda_out_of_memory = 2;
constexpr int cuda_unknown_error = 999;
constexpr int cublas_alloc_failed = 3;

int as_cuda_error(int status) {
  return status == 0 ? 0 : status == cublas_alloc_failed ? cuda_out_of_memory : cuda_unknown_error;
}

}  // namespace

const cublas_functions* linked_cublas() noexcept {
  static const opened_cublas opened = choose_cublas();
  return opened.usable ? &opened.functions : nullptr;
}

void use_cublas(const cublas_functions* functions) noexcept { cublas_table.replace(functions); }

template <class T>
bool cublas_takes(const gemm_call<T>& call) noexcept {
  for (const std::int64_t size :
       {call.rows, call.columns, call.inner, call.a_leading, call.b_leading, call.out_leading}) {
    if (size > std::numeric_limits<int>::max()) return false;
  }
  return cublas_table.in_use() != nullptr;
}

template <class T>
int start_cublas_gemm(device where, CUstream_st* stream, const gemm_call<T>& call) {
  const cublas_functions& library = *cublas_table.in_use();
  cublas_handle& own = cublas_handle_of(where);
  const std::lock_guard lock(own.mutex);
  if (!own.handle) {
    if (const int status = library.create(&own.handle); status != 0) return as_cuda_error(status);
  }
  if (const int status = library.set_stream(own.handle, stream); status != 0) return as_cuda_error(status);
  void* const handle = own.handle;
  const T one = 1;
  const T kept = call.accumulate ? T{1} : T{0};
  // Column-major, the memory of a matrix is that of its transpose: out^T = b^T * a^T.
  const auto start = [&](auto function) {
    return function(handle, call.b_transposed ? 1 : 0, call.a_transposed ? 1 : 0, static_cast<int>(call.columns),
                    static_cast<int>(call.rows), static_cast<int>(call.inner), &one, call.b,
                    static_cast<int>(call.b_leading), call.a, static_cast<int>(call.a_leading), &kept, call.out,
                    static_cast<int>(call.out_leading));
  };
  if constexpr (std::is_same_v<T, float>) {
    return as_cuda_error(start(library.f32));
  } else {
    return as_cuda_error(start(library.f64));
  }
}

template bool cublas_takes(const gemm_call<float>&) noexcept;
template bool cublas_takes(const gemm_call<double>&) noexcept;
template int start_cublas_gemm(device, CUstream_st*, const gemm_call<float>&);
template int start_cublas_gemm(device, CUstream_st*, const gemm_call<double>&);

}  // namespace ferry::inline v0::detail
