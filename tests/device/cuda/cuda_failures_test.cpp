// Errors of the runtime, one call at a time.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/device/cuda.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/device/stream.hpp>

#include "expect_error.hpp"
#include "fake_cuda.hpp"

namespace cuda_failures_test {

using fake_cuda::call;
using ferry::device;
using ferry::device_kind;
using ferry::device_memory;
using ferry::errc;
using ferry::stream;
using traits = ferry::device_traits<ferry::cuda>;

namespace {

constexpr int launch_failure = 719;
const device gpu{device_kind::cuda, 4};

struct nothing_fails {
  ~nothing_fails() {
    fake_cuda::fail_nothing();
    fake_cuda::mend();
  }
};

}  // namespace

TEST_CASE("an error of the runtime names the device, the attempt and the cause") {
  const nothing_fails restore;
  const stream on = ferry::pool_stream(gpu);
  const device_memory block(on, 100);
  const ferry::event mark = on.record();
  const std::vector<std::pair<call, std::function<void()>>> attempts{
      {call::stream_query, [&] { (void)on.done(); }},
      {call::stream_synchronize, [&] { traits::synchronize_stream(gpu, on.native<ferry::cuda>()); }},
      {call::stream_wait_event, [&] { on.wait(mark); }},
      {call::launch_host_func, [&] { on.call_on_host([](void*) {}, nullptr); }},
      {call::event_record, [&] { (void)on.record(); }},
      {call::event_query, [&] { (void)mark.done(); }},
      {call::event_synchronize, [&] { mark.synchronize(); }},
      {call::stream_create, [&] { (void)traits::create_stream(gpu); }},
      {call::event_create, [&] { (void)traits::create_event(gpu); }},
      {call::malloc_from_pool_async, [&] { (void)device_memory(on, 100); }},
      {call::mem_pool_usage, [&] { (void)ferry::get_device_memory_stats(gpu); }},
      {call::mem_pool_trim_to, [&] { ferry::device_memory_trim(gpu); }},
      {call::memset_async, [&] { traits::fill(gpu, block.data(), 1, 100, on.native<ferry::cuda>()); }},
      {call::memcpy_async,
       [&] { traits::copy(gpu, block.data(), gpu, block.data(), 100, gpu, on.native<ferry::cuda>()); }},
      {call::get_device, [&] { on.synchronize(); }},
      {call::set_device, [&] { on.synchronize(); }},
      {call::set_device, [&] { const ferry::device_guard guard(gpu); }},
  };
  for (const auto& [which, attempt] : attempts) {
    CAPTURE(static_cast<int>(which));
    fake_cuda::fail(which, launch_failure);
    expect_error(errc::device_failure, "on cuda:4: unspecified launch failure (CUDA error 719)", attempt);
    attempt();  // the failure was not persistent
  }
}

TEST_CASE("without memory pools a sentence says what is missing") {
  const nothing_fails restore;
  const device where{device_kind::cuda, 7};
  const stream on = ferry::pool_stream(where);
  fake_cuda::set_memory_pools(false);
  expect_error(
      errc::device_failure,
      "cuda:7 has no memory pools (cudaDevAttrMemoryPoolsSupported is 0), from which ferry allocates in the order of "
      "streams",
      [&] { (void)device_memory(on, 100); });
  fake_cuda::set_memory_pools(true);
  CHECK(device_memory(on, 100).data() != nullptr);
}

TEST_CASE("a pool that cannot be created is retried next time") {
  const nothing_fails restore;
  const device where{device_kind::cuda, 6};
  const stream on = ferry::pool_stream(where);
  fake_cuda::fail(call::mem_pool_set_release_threshold, launch_failure);
  expect_error(errc::device_failure, "cannot configure the memory pool on cuda:6",
               [&] { (void)device_memory(on, 100); });
  CHECK(device_memory(on, 100).data() != nullptr);
}

TEST_CASE("memory of a failed device is leaked, not reused early") {
  const nothing_fails restore;
  const stream on = ferry::pool_stream(gpu);
  const stream side = ferry::pool_stream(gpu);
  std::optional<device_memory> block(std::in_place, on, 100);
  block->record_use(side);
  const std::size_t in_use = fake_cuda::blocks_in_use(gpu.index);
  const ferry::device_memory_stats before = ferry::get_device_memory_stats(gpu);
  fake_cuda::break_device(gpu.index, launch_failure);
  expect_error(errc::device_failure, "unspecified launch failure", [&] { on.synchronize(); });
  block.reset();
  fake_cuda::mend();
  CHECK(fake_cuda::blocks_in_use(gpu.index) == in_use);
  CHECK(ferry::get_device_memory_stats(gpu).used_bytes == before.used_bytes - 100);
}

TEST_CASE("an event's handle is not lost when it cannot be recorded") {
  const nothing_fails restore;
  const stream on = ferry::pool_stream(gpu);
  (void)on.record();
  const auto made = fake_cuda::calls(call::event_create);
  for (int i = 0; i != 10; ++i) {
    fake_cuda::fail(call::event_record, launch_failure);
    expect_error(errc::device_failure, "cannot record an event", [&] { (void)on.record(); });
  }
  CHECK(fake_cuda::calls(call::event_create) == made);
}

TEST_CASE("streams cannot wait for events of another kind") {
  const stream on = ferry::pool_stream(gpu);
  const ferry::event mark = on.record();
  ferry::stream().wait(mark);  // the CPU itself waits
  CHECK(mark.done());
  expect_error(errc::bad_device, "a handle of the kind 'cuda' was asked for, but this belongs to cpu",
               [] { (void)ferry::stream().native<ferry::cuda>(); });
  expect_error(errc::bad_device, "a handle of the kind 'cpu' was asked for, but this belongs to cuda:4",
               [&] { (void)mark.native<ferry::cpu>(); });
}

}  // namespace cuda_failures_test
