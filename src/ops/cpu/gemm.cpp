#include "../gemm.hpp"

#include <cstdlib>

#include "../../base/replaceable_table.hpp"
#include "blas_library.hpp"

namespace ferry::inline v0::detail {
namespace {

constinit replaceable_table<gemm_functions, &linked_gemm> gemm_table;

const gemm_functions& gemm_in_use() noexcept {
  const gemm_functions* const found = gemm_table.in_use();
  return found ? *found : *linked_gemm();
}

gemm_functions choose_gemm() noexcept {
  const char* const library = std::getenv("FERRY_BLAS");
  if (library && *library != '\0') return blas_library_gemm(library);
  return {cpu_kernels_in_use().gemm_f32, cpu_kernels_in_use().gemm_f64};
}

}  // namespace

const gemm_functions* linked_gemm() noexcept {
  static const gemm_functions chosen = choose_gemm();
  return &chosen;
}

void use_gemm(const gemm_functions* functions) noexcept { gemm_table.replace(functions); }

void gemm(const gemm_call<float>& call) { gemm_in_use().f32(call); }
void gemm(const gemm_call<double>& call) { gemm_in_use().f64(call); }

}  // namespace ferry::inline v0::detail
