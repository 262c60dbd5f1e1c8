// The kernels of optimizers on a GPU.

#include "../tensor/gpu_launcher.cuh"
#include "kernels.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr optimizer_kernels optimizer_kernels_on_gpu = make_optimizer_kernels<gpu_launcher>();

}  // namespace

const optimizer_kernels* linked_optimizer_kernels() noexcept { return &optimizer_kernels_on_gpu; }

}  // namespace ferry::inline v0::detail
