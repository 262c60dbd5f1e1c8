#pragma once

#include <cstdint>

#include "../../src/ops/cpu_kernels.hpp"
#include "../../src/tensor/walk.hpp"

namespace sample {

// Each starts the kernel of that name; a cudaError_t.
int copy(const ferry::detail::walk<2>& plan);
int copy_wide(const ferry::detail::walk<2>& plan);
int combine(const ferry::detail::walk<3>& plan);
int combine_packs(const ferry::detail::walk<3>& plan);
int update(const ferry::detail::walk<5>& plan);
int product(const ferry::detail::gemm_call<float>& call);
int launch_nothing(std::int64_t count);

}  // namespace sample
