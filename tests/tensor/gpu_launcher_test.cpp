// How kernels are started on a GPU: the functions of the runtime that nvcc's code calls are defined here, and note what they are asked.

#include <cstdint>

#include <doctest/doctest.h>

#include "sample_kernels.hpp"

namespace {

struct grid {
  unsigned x, y, z;
};

struct noted {
  int launches = 0;
  grid blocks{};
  grid threads{};
  std::uint32_t count = 0;  // the kernel's second argument
  int result = 0;
  int last_error_taken = 0;
};
noted now;  // NOLINT(cert-err58-cpp)

}  // namespace

extern "C" {

int cudaLaunchKernel(const void*, grid blocks, grid threads, void** arguments, std::size_t, void*) {
  ++now.launches;
  now.blocks = blocks;
  now.threads = threads;
  now.count = *static_cast<std::uint32_t*>(arguments[1]);
  return now.result;
}
int cudaGetLastError() {
  ++now.last_error_taken;
  return 0;
}
int cudaPeekAtLastError() { return 0; }

// What registers the kernels when the program starts, and the other way to start one.
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
unsigned __cudaPushCallConfiguration(grid, grid, std::size_t, void*) { return 0; }
int __cudaPopCallConfiguration(grid*, grid*, std::size_t*, void*) { return 0; }
int __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return 0;
}
int __cudaLaunchKernel(void* kernel, grid blocks, grid threads, void** arguments, std::size_t bytes, void* stream) {
  return cudaLaunchKernel(kernel, blocks, threads, arguments, bytes, stream);
}
}

TEST_CASE("a launch reports its own error, and leaves the program's last one alone") {
  now = {};
  now.result = 719;
  CHECK(sample::launch_nothing(1000) == 719);
  now.result = 0;
  CHECK(sample::launch_nothing(1000) == 0);
  CHECK(now.last_error_taken == 0);
}

TEST_CASE("a grid has a block for 256 elements, and no more than it may") {
  for (const auto& [count, blocks] : {std::pair<std::int64_t, unsigned>{1, 1},
                                      {256, 1},
                                      {257, 2},
                                      {std::int64_t{1} << 24, 1U << 16},
                                      {(std::int64_t{1} << 24) + 1, 1U << 16},
                                      {std::int64_t{1} << 62, 1U << 16}}) {
    CAPTURE(count);
    now = {};
    CHECK(sample::launch_nothing(count) == 0);
    CHECK(now.launches == 1);
    CHECK(now.blocks.x == blocks);
    CHECK(now.blocks.y == 1);
    CHECK(now.threads.x == 256);
  }
  for (const std::int64_t none : {std::int64_t{0}, std::int64_t{-1}}) {
    now = {};
    CHECK(sample::launch_nothing(none) == 0);
    CHECK(now.launches == 0);
  }
}

TEST_CASE("a walk that 32 bits cannot count is started in parts") {
  ferry::detail::walk<2> plan{};
  plan.rank = 2;
  plan.shape[0] = 3;
  plan.shape[1] = std::int64_t{1} << 30;
  plan.steps[0] = {4, 4};
  plan.steps[1] = {12, 12};
  now = {};
  CHECK(sample::copy(plan) == 0);
  CHECK(now.launches == 2);
  CHECK(now.count == 3U << 29);
}
