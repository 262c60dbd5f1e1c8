// The kernels on a GPU.

#include "gpu_launcher.cuh"
#include "kernels.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr tensor_kernels tensor_kernels_on_gpu = make_tensor_kernels<gpu_launcher>();

}  // namespace

const tensor_kernels* linked_tensor_kernels() noexcept { return &tensor_kernels_on_gpu; }

}  // namespace ferry::inline v0::detail
