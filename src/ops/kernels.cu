// The kernels of arithmetic on a GPU.

#include "../tensor/gpu_launcher.cuh"
#include "kernels.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr arithmetic_kernels arithmetic_kernels_on_gpu = make_arithmetic_kernels<gpu_launcher>();

}  // namespace

const arithmetic_kernels* linked_arithmetic_kernels() noexcept { return &arithmetic_kernels_on_gpu; }

}  // namespace ferry::inline v0::detail
