#include "cuda_scope.hpp"

#include <array>
#include <atomic>
#include <new>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

namespace ferry::inline v0::detail {
namespace {

// Devices known to have a context; contexts are never destroyed.
constinit std::array<std::atomic<bool>, 64> seen_context{};

bool has_context(const cuda_runtime& runtime, int index) noexcept {
  const auto place = static_cast<std::size_t>(index);
  if (place < seen_context.size() && seen_context[place].load(std::memory_order_relaxed)) return true;
  int has = 0;
  if (runtime.device_has_context(&has, index) != cuda_error::success || has == 0) return false;
  if (place < seen_context.size()) seen_context[place].store(true, std::memory_order_relaxed);
  return true;
}

}  // namespace

const cuda_runtime& need_cuda_runtime() {
  const cuda_runtime* runtime = cuda_runtime_in_use();
  if (!runtime) {
    throw_error(errc::bad_device,
                "this ferry was built without CUDA devices; build it with the CUDA Toolkit (Meson: -Dcuda=enabled; "
                "src/ferry.cpp: -DFERRY_WITH_CUDA=1 and -lcudart_static)");
  }
  return *runtime;
}

void check_cuda(cuda_status status, device where, std::string_view attempt) {
  if (status == cuda_error::success) return;
  const cuda_runtime& runtime = need_cuda_runtime();
  static_cast<void>(runtime.get_last_error());
  throw_error(errc::device_failure, fmt::format("cannot {} on {}: {} (CUDA error {})", attempt, to_string(where),
                                                runtime.get_error_string(status), status));
}

cuda_scope::cuda_scope(device where) : runtime_(&need_cuda_runtime()) {
  check_cuda(enter(where.index), where, "make the device current");
}

cuda_scope::cuda_scope(device where, std::nothrow_t) noexcept : runtime_(cuda_runtime_in_use()) {
  if (runtime_ && enter(where.index) != cuda_error::success) {
    static_cast<void>(runtime_->get_last_error());
    runtime_ = nullptr;
  }
}

cuda_status cuda_scope::enter(int index) noexcept {
  int now = 0;
  if (const cuda_status status = runtime_->get_device(&now); status != cuda_error::success) return status;
  if (now == index) return cuda_error::success;
  const cuda_status status = runtime_->set_device(index);
  if (status == cuda_error::success) former_ = now;
  return status;
}

cuda_scope::~cuda_scope() {
  if (former_ >= 0) restore_cuda_device(*runtime_, former_);
}

void restore_cuda_device(const cuda_runtime& runtime, int former) noexcept {
  if (!has_context(runtime, former)) return;
  if (runtime.set_device(former) != cuda_error::success) static_cast<void>(runtime.get_last_error());
}

}  // namespace ferry::inline v0::detail
