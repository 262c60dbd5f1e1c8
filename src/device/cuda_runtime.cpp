#include "cuda_runtime.hpp"

#include <atomic>

namespace ferry::inline v0::detail {
namespace {

constinit std::atomic<bool> replaced{false};
constinit std::atomic<const cuda_runtime*> replacement{nullptr};

}  // namespace

void use_cuda_runtime(const cuda_runtime* runtime) noexcept {
  replacement.store(runtime, std::memory_order_relaxed);
  replaced.store(true, std::memory_order_release);
}

const cuda_runtime* cuda_runtime_in_use() noexcept {
  return replaced.load(std::memory_order_acquire) ? replacement.load(std::memory_order_relaxed) : linked_cuda_runtime();
}

}  // namespace ferry::inline v0::detail
