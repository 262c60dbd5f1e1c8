#include "cuda_runtime.hpp"

#include "../../base/replaceable_table.hpp"

namespace ferry::inline v0::detail {
namespace {

constinit replaceable_table<cuda_runtime, &linked_cuda_runtime> runtime_table;

}  // namespace

void use_cuda_runtime(const cuda_runtime* runtime) noexcept { runtime_table.replace(runtime); }

const cuda_runtime* cuda_runtime_in_use() noexcept { return runtime_table.in_use(); }

}  // namespace ferry::inline v0::detail
