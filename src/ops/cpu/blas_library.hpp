#pragma once

// Products of matrices by an installed library with the C interface of BLAS, opened at run time: OpenBLAS, BLIS, MKL.

#include "../gemm.hpp"

namespace ferry::inline v0::detail {

/// Opens the library, a path or a name that the loader knows, for the rest of the process. It must have cblas_sgemm and
/// cblas_dgemm with sizes of type int (LP64). Where it cannot be opened or lacks one of them, the functions throw
/// errc::missing_environment with the reason. Calls with sizes that an int does not hold are computed by the kernels in use.
/// Called once.
gemm_functions blas_library_gemm(const char* library) noexcept;

}  // namespace ferry::inline v0::detail
