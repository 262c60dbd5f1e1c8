#include "cuda_scope.hpp"

#include <array>
#include <atomic>
#include <exception>
#include <new>
#include <string_view>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

namespace ferry::inline v0::detail {
namespace {

// Devices known to have a context; contexts are never destroyed.
constinit std::array<std::atomic<bool>, 64> seen_context{};

// The errors of devices that have failed for good.
constinit std::array<std::atomic<cuda_status>, 64> fences{};

bool has_context(const cuda_runtime& runtime, int index) noexcept {
  const auto place = static_cast<std::size_t>(index);
  if (place < seen_context.size() && seen_context[place].load(std::memory_order_relaxed)) return true;
  int has = 0;
  if (runtime.device_has_context(&has, index) != cuda_error::success || has == 0) return false;
  if (place < seen_context.size()) seen_context[place].store(true, std::memory_order_relaxed);
  return true;
}

// Errors of kernels and of the hardware, after which a context answers every call with the same error.
bool may_be_final(cuda_status status) noexcept {
  switch (status) {
    case cuda_error::ecc_uncorrectable:
    case cuda_error::illegal_address:
    case cuda_error::launch_timeout:
    case cuda_error::device_assert:
    case cuda_error::hardware_stack_error:
    case cuda_error::illegal_instruction:
    case cuda_error::misaligned_address:
    case cuda_error::invalid_address_space:
    case cuda_error::invalid_program_counter:
    case cuda_error::launch_failure: return true;
    default: return false;
  }
}

// Whether a call that changes nothing gets the error, too.
bool is_final(const cuda_runtime& runtime, cuda_status status, int index) noexcept {
  if (!may_be_final(status)) return false;
  const relaxed_captures relaxed(&runtime);
  static_cast<void>(runtime.get_last_error());
  int former = 0;
  cuda_status again = runtime.get_device(&former);
  if (again == cuda_error::success && former != index) again = runtime.set_device(index);
  std::size_t free = 0;
  std::size_t total = 0;
  if (again == cuda_error::success) again = runtime.mem_get_info(&free, &total);
  if (former != index) restore_cuda_device(runtime, former);
  static_cast<void>(runtime.get_last_error());
  return again == status;
}

// What the program can do about an error, where its text does not say.
std::string_view hint_for(cuda_status status) noexcept {
  return status == cuda_error::invalid_resource_handle
             ? "; was a stream or an event destroyed that ferry, or a tensor, still needs?"
             : "";
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

cuda_status cuda_fence_of(device where) noexcept {
  const auto place = static_cast<std::size_t>(where.index);
  return place < fences.size() ? fences[place].load(std::memory_order_relaxed) : cuda_error::success;
}

void lift_cuda_fences() noexcept {
  for (auto& each : fences) each.store(cuda_error::success, std::memory_order_relaxed);
}

void note_cuda_failure(cuda_status status, device where, std::string_view attempt) noexcept {
  const cuda_runtime* runtime = cuda_runtime_in_use();
  const auto place = static_cast<std::size_t>(where.index);
  if (!runtime || place >= fences.size() || !is_final(*runtime, status, where.index)) return;
  cuda_status none = cuda_error::success;
  if (!fences[place].compare_exchange_strong(none, status)) return;
  if (!log_enabled(log_level::error)) return;
  try {
    log(log_level::error,
        fmt::format(
            "{} has failed, and this process cannot use it any more: {} (CUDA error {}), when ferry was about to "
            "{}; what needs the device fails with device_failure from now on",
            to_string(where), runtime->get_error_string(status), status, attempt));
  } catch (const std::exception&) {  // no memory for more
    log(log_level::error, "a CUDA device has failed, and this process cannot use it any more");
  }
}

void check_cuda(cuda_status status, device where, std::string_view attempt) {
  if (status == cuda_error::success) return;
  const cuda_runtime& runtime = need_cuda_runtime();
  static_cast<void>(runtime.get_last_error());
  note_cuda_failure(status, where, attempt);
  throw_error(errc::device_failure, fmt::format("cannot {} on {}: {} (CUDA error {}){}", attempt, to_string(where),
                                                runtime.get_error_string(status), status, hint_for(status)));
}

cuda_scope::cuda_scope(device where) : runtime_(&need_cuda_runtime()), relaxed_(runtime_) {
  if (const cuda_status fence = cuda_fence_of(where); fence != cuda_error::success) {
    throw_error(errc::device_failure, fmt::format("cannot use {}, which has failed earlier: {} (CUDA error {})",
                                                  to_string(where), runtime_->get_error_string(fence), fence));
  }
  check_cuda(enter(where.index), where, "make the device current");
}

cuda_scope::cuda_scope(device where, std::nothrow_t) noexcept
    : runtime_(cuda_fence_of(where) == cuda_error::success ? cuda_runtime_in_use() : nullptr), relaxed_(runtime_) {
  if (!runtime_) return;
  if (const cuda_status status = enter(where.index); status != cuda_error::success) {
    static_cast<void>(runtime_->get_last_error());
    note_cuda_failure(status, where, "make the device current");
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
