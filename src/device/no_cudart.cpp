// A build without the CUDA Toolkit.

#include "cuda_runtime.hpp"

namespace ferry::inline v0::detail {

const cuda_runtime* linked_cuda_runtime() noexcept { return nullptr; }

}  // namespace ferry::inline v0::detail
