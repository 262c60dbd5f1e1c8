#include "kernel_modules.hpp"

#include <mutex>
#include <new>
#include <vector>

#include "cuda_scope.hpp"

namespace ferry::inline v0::detail {
namespace {

struct noted_kernels {
  std::mutex mutex;
  std::vector<const void*> entries;
};

// Made when the first is noted, which may be before the statics of this file are initialised; never destroyed.
noted_kernels& all_noted_kernels() {
  static auto* const all = new noted_kernels;
  return *all;
}

}  // namespace

bool note_kernel(const void* entry) noexcept {
  try {
    noted_kernels& all = all_noted_kernels();
    const std::lock_guard lock(all.mutex);
    all.entries.push_back(entry);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the kernel is loaded when it is first started
  }
  return true;
}

void load_kernels(device where) {
  std::vector<const void*> entries;
  {
    noted_kernels& all = all_noted_kernels();
    const std::lock_guard lock(all.mutex);
    entries = all.entries;
  }
  const cuda_scope scope(where);
  for (const void* each : entries) check_cuda(scope->load_kernel(each), where, "load a kernel");
}

}  // namespace ferry::inline v0::detail
