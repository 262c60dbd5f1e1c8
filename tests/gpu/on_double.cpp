// What the tests of this folder need, on the double.

#include <device/cuda/cuda_runtime.hpp>

#include <stdexcept>
#include <thread>

#include "graph_capture.hpp"
#include "held_stream.hpp"

namespace gpu_test {
namespace {

struct until {
  const volatile std::uint32_t* flag;
  std::uint32_t ticket;
};

}  // namespace

int start_hold(CUstream_st* stream, const volatile std::uint32_t* flag, std::uint32_t ticket) {
  const auto spin = [](void* argument) {
    auto* const what = static_cast<until*>(argument);
    while (__atomic_load_n(what->flag, __ATOMIC_ACQUIRE) < what->ticket) std::this_thread::yield();
    delete what;
  };
  return ferry::detail::cuda_runtime_in_use()->launch_host_func(stream, spin, new until{flag, ticket});
}

bool can_capture() { return false; }
void begin_capture(CUstream_st*) { throw std::logic_error("the double does not capture"); }
int end_capture(CUstream_st*) { throw std::logic_error("the double does not capture"); }

}  // namespace gpu_test
