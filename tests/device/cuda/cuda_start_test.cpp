// What is made when a device is warmed up, why there may be no device, and how one that fails is fenced.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <device/cuda/cuda_memory.hpp>
#include <device/memory/pinned_memory.hpp>
#include <device/memory/staging.hpp>
#include <device/start/warm_up.hpp>
#include <ferry/device/cuda.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/device/stream.hpp>

#include "captured_log.hpp"
#include "expect_error.hpp"
#include "fake_cuda.hpp"
#include "launcher.hpp"
#include "processes.hpp"

namespace cuda_start_test {

using fake_cuda::call;
using ferry::device;
using ferry::device_kind;
using ferry::device_memory;
using ferry::errc;
using ferry::event;
using ferry::stream;
using traits = ferry::device_traits<ferry::cuda>;

namespace {

device gpu(int index) { return {device_kind::cuda, index}; }

void start_a_kernel(const stream& on) {
  const ferry::device_guard current(on.device());
  if (fake_cuda::host_launcher::launch(on.native<ferry::cuda>(), 1, [](std::int64_t) {}) != 0)
    throw std::runtime_error("a kernel has not been started");
}

// Everything that calls need of a device.
void work_on(device where) {
  const stream on = ferry::pool_stream(where);
  const stream side = ferry::pool_stream(where);
  std::vector<unsigned char> bytes(100'000, 3);
  device_memory block(on, bytes.size());
  ferry::detail::upload(on, block.data(), bytes.data(), bytes.size());
  side.wait(on);
  start_a_kernel(side);
  block.record_use(side);
  ferry::detail::download(side, bytes.data(), block.data(), bytes.size());
  const ferry::detail::pinned_block small(where, 100);
  on.synchronize();
}

const ferry_test::role warm_a_device("warm_a_device", [](const std::vector<std::string>& arguments) {
  const device where = gpu(2);
  ferry_test::captured_log log(ferry::log_level::info);
  if (arguments.at(0) == "warm") {
    ferry::detail::warm_up_devices(std::vector{gpu(1), where, device(), gpu(99)}, "worker7");
    const auto made = fake_cuda::creations();
    ferry::detail::warm_up_devices(std::vector{where}, "worker8");  // is warm
    ferry_test::tell_parent(fake_cuda::creations() == made ? "once" : "twice");
    ferry_test::tell_parent(log.has("worker7: warmed up cuda:1, cuda:2 in ") && !log.has("worker8") ? "told"
                                                                                                    : "untold");
    ferry_test::tell_parent(fake_cuda::peer_access_enabled(1, 2) && fake_cuda::peer_access_enabled(2, 1) ? "peers"
                                                                                                         : "apart");
  }
  const auto before = fake_cuda::creations();
  for (int i = 0; i != 100; ++i) work_on(where);
  ferry_test::tell_parent(fake_cuda::creations() == before ? "nothing made" : "something made");
  return 0;
});

const ferry_test::role ask_for_a_device("ask_for_a_device", [](const std::vector<std::string>& arguments) {
  fake_cuda::set_versions(std::stoi(arguments.at(1)), 12040);
  fake_cuda::fail(call::get_device_count, std::stoi(arguments.at(0)));
  try {
    ferry::check_device(gpu(0));
  } catch (const ferry::error& problem) {
    ferry_test::tell_parent(std::string(problem.message()));
  }
  return 0;
});

const ferry_test::role size_of_pool("size_of_pool", [](const std::vector<std::string>&) {
  ferry::set_stream_pool_size(3);
  std::vector<stream> all;
  for (int i = 0; i != 12; ++i) {
    const stream one = ferry::pool_stream(gpu(0));
    if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
  }
  ferry_test::tell_parent(std::to_string(all.size()));
  return 0;
});

std::string sort_of_pool(int device_number) {
  const device where = gpu(device_number);
  if (ferry::detail::exportable_cuda_pool(where)) return "exportable before it exists";
  work_on(where);
  return ferry::detail::exportable_cuda_pool(where) ? "exportable" : "private";
}

const ferry_test::role pools_of_devices("pools_of_devices", [](const std::vector<std::string>&) {
  constexpr int not_supported = 801;
  constexpr int launch_failure = 719;
  ferry_test::tell_parent(sort_of_pool(1));
  fake_cuda::set_exportable_pools(false);
  ferry_test::tell_parent(sort_of_pool(2));
  fake_cuda::set_exportable_pools(true);
  fake_cuda::fail(call::device_has_exportable_pools, not_supported);
  ferry_test::tell_parent(sort_of_pool(3));
  fake_cuda::fail(call::mem_pool_create, not_supported, 2);
  ferry_test::tell_parent(sort_of_pool(4));
  // The second pool fails, in each of the ways it can: the first one goes, and the next use makes both.
  fake_cuda::fail(call::mem_pool_set_release_threshold, launch_failure, 2);
  const auto created = fake_cuda::calls(call::mem_pool_create);
  const auto destroyed = fake_cuda::calls(call::mem_pool_destroy);
  try {
    ferry_test::tell_parent(sort_of_pool(5));
  } catch (const ferry::error& problem) {
    ferry_test::tell_parent(std::string(problem.message()));
  }
  ferry_test::tell_parent(std::to_string(fake_cuda::calls(call::mem_pool_create) - created) + " made, " +
                          std::to_string(fake_cuda::calls(call::mem_pool_destroy) - destroyed) + " destroyed");
  ferry_test::tell_parent(sort_of_pool(5));
  ferry_test::tell_parent(fake_cuda::last_error() == 0 ? "no error left" : "an error left");
  return 0;
});

struct mended {
  ~mended() { fake_cuda::mend(); }
};

}  // namespace

TEST_CASE("after a device has been warmed up, work makes nothing that the device has to stand still for") {
  for (const std::string how : {"warm", "cold"}) {
    CAPTURE(how);
    ferry_test::child_process child(
        {.role = "warm_a_device", .arguments = {how}, .environment = {{"FERRY_FAKE_CUDA_CREATIONS_BLOCK", "1"}}});
    if (how == "warm") {
      CHECK(child.read_line() == "once");
      CHECK(child.read_line() == "told");
      CHECK(child.read_line() == "peers");
    }
    CHECK(child.read_line() == (how == "warm" ? "nothing made" : "something made"));
    CHECK(child.wait() == 0);
  }
}

TEST_CASE("where there is no device, the error says which call failed, and why") {
  const auto ask = [](const std::string& error, const std::string& driver) {
    ferry_test::child_process child({.role = "ask_for_a_device", .arguments = {error, driver}});
    std::string line = child.read_line();
    CHECK(child.wait() == 0);
    return line;
  };
  CHECK(ask("35", "11040") ==
        "there is no device cuda:0; this process has 0 of the kind 'cuda': cudaGetDeviceCount failed: CUDA driver "
        "version is "
        "insufficient for CUDA runtime version (CUDA error 35); the driver supports CUDA 11.4, ferry was built with "
        "12.4");
  CHECK(ask("35", "0").ends_with("(CUDA error 35); no driver is installed"));
  CHECK(ask("100", "12040").find("cudaGetDeviceCount failed: no CUDA-capable device is detected (CUDA error 100)") !=
        std::string::npos);
}

TEST_CASE("large blocks come from a pool that can be exported where there may be one; what cannot be made is retried") {
  ferry_test::child_process child({.role = "pools_of_devices"});
  CHECK(child.read_line() == "exportable");
  CHECK(child.read_line() == "private");
  CHECK(child.read_line() == "private");
  CHECK(child.read_line() == "private");
  CHECK(child.read_line() == "cannot configure the memory pool on cuda:5: unspecified launch failure (CUDA error 719)");
  CHECK(child.read_line() == "2 made, 2 destroyed");
  CHECK(child.read_line() == "exportable");
  CHECK(child.read_line() == "no error left");
  CHECK(child.wait() == 0);
}

TEST_CASE("the size of the pool of streams is an option") {
  ferry_test::child_process child({.role = "size_of_pool"});
  CHECK(child.read_line() == "3");
  CHECK(child.wait() == 0);
  expect_error(errc::invalid_argument, "a pool has from 1 to 1024 streams, not 0",
               [] { ferry::set_stream_pool_size(0); });
  expect_error(errc::invalid_argument, "not 2000", [] { ferry::set_stream_pool_size(2000); });
  CHECK(ferry::stream_pool_size() == 32);
}

TEST_CASE("the pool prefers a stream that has nothing left to do") {
  const device where = gpu(3);
  std::vector<stream> all;
  for (std::size_t i = 0; i != ferry::stream_pool_size(); ++i) all.push_back(ferry::pool_stream(where));
  fake_cuda::drain();
  const stream next = ferry::pool_stream(where);
  const auto at = static_cast<std::size_t>(std::find(all.begin(), all.end(), next) - all.begin());
  const auto after = [&](std::size_t places) { return all[(at + places) % all.size()]; };
  {
    const fake_cuda::pause nothing_runs;
    for (std::size_t i = 1; i != 5; ++i) after(i).call_on_host([](void*) {}, nullptr);
    CHECK(ferry::pool_stream(where) == after(5));
    CHECK(ferry::pool_stream(where) == after(6));
  }
  fake_cuda::drain();
}

TEST_CASE("a stream that is another one in each thread is refused, the legacy one is the default stream") {
  expect_error(errc::invalid_argument, "cudaStreamPerThread of cuda:1 cannot be a ferry::stream",
               [] { (void)stream::from_native<ferry::cuda>(reinterpret_cast<CUstream_st*>(std::uintptr_t{2}), 1); });
  CHECK(stream::from_native<ferry::cuda>(reinterpret_cast<CUstream_st*>(std::uintptr_t{1}), 1) ==
        ferry::default_stream(gpu(1)));
}

TEST_CASE("a failed device is fenced: one line in the log, and later calls fail without asking it again") {
  const mended restore;
  const device where = gpu(7);
  const stream on = ferry::pool_stream(where);
  const event mark = on.record();
  ferry_test::captured_log log(ferry::log_level::info);
  fake_cuda::break_device(7, 719);
  for (int i = 0; i != 20; ++i) {
    expect_error(errc::device_failure, "unspecified launch failure (CUDA error 719)", [&] { (void)on.record(); });
    traits::deallocate(where, reinterpret_cast<void*>(std::uintptr_t{64}), 64, on.native<ferry::cuda>());
  }
  CHECK(log.size() == 1);
  CHECK(log.has("cuda:7 has failed, and this process cannot use it any more"));
  const auto asked = fake_cuda::calls(call::event_query) + fake_cuda::calls(call::set_device);
  expect_error(errc::device_failure, "cannot use cuda:7, which has failed earlier: unspecified launch failure",
               [&] { (void)mark.done(); });
  CHECK(fake_cuda::calls(call::event_query) + fake_cuda::calls(call::set_device) == asked);
  ferry::pool_stream(gpu(6)).synchronize();  // others go on
}

TEST_CASE("an error that the device recovers from fences nothing") {
  const stream on = ferry::pool_stream(gpu(7));
  fake_cuda::fail(call::event_record, 719);
  expect_error(errc::device_failure, "unspecified launch failure", [&] { (void)on.record(); });
  (void)on.record();
}

TEST_CASE("a device that fails drops what it was given, and calls no function of the host") {
  const mended restore;
  const stream on = ferry::pool_stream(gpu(7));
  std::atomic<bool> called = false;
  {
    const fake_cuda::pause nothing_runs;
    on.call_on_host([](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &called);
    fake_cuda::break_device(7, 719);
  }
  fake_cuda::drain();
  CHECK_FALSE(called);
}

TEST_CASE("a program's own last error is not taken away") {
  const stream on = ferry::pool_stream(gpu(1));
  {
    const fake_cuda::pause nothing_runs;
    on.call_on_host([](void*) {}, nullptr);
    const event mark = on.record();
    fake_cuda::set_last_error(98);
    CHECK_FALSE(mark.done());
    CHECK_FALSE(on.done());
    (void)ferry::pool_stream(gpu(1));
  }
  CHECK(fake_cuda::last_error() == 98);
  fake_cuda::set_last_error(0);
  fake_cuda::drain();
}

TEST_CASE("a thread that waits for a device sleeps") {
  const stream on = ferry::pool_stream(gpu(1));
  const device_memory block(on, 100'000);
  std::vector<unsigned char> bytes(block.size());
  fake_cuda::set_delay(3000);  // so that there is something to wait for
  const auto spun = fake_cuda::busy_waits();
  const auto waited = fake_cuda::calls(call::event_synchronize);
  for (int i = 0; i != 5; ++i) {
    traits::fill(gpu(1), block.data(), 1, block.size(), on.native<ferry::cuda>());
    ferry::detail::download(on, bytes.data(), block.data(), bytes.size());
    traits::fill(gpu(1), block.data(), 1, block.size(), on.native<ferry::cuda>());
    on.synchronize();
  }
  fake_cuda::set_delay(200);
  CHECK(fake_cuda::calls(call::event_synchronize) >= waited + 5);
  CHECK(fake_cuda::busy_waits() == spun);
}

TEST_CASE("the second of two threads that open a pair of devices copies when the access is there") {
  const stream there = ferry::pool_stream(gpu(2));
  const stream here = ferry::pool_stream(gpu(1));
  const device_memory a(here, 100);
  const device_memory b(there, 100);
  fake_cuda::drain();
  fake_cuda::set_creations_block(true);
  const auto copied = fake_cuda::calls(call::memcpy_peer_async);
  const auto opened = fake_cuda::calls(call::device_enable_peer_access);
  std::atomic<bool> trying = false;
  const auto copy = [&] { traits::copy(gpu(2), b.data(), gpu(1), a.data(), 100, gpu(2), there.native<ferry::cuda>()); };
  std::thread first;
  std::thread second;
  {
    const fake_cuda::pause nothing_runs;
    here.call_on_host([](void*) {}, nullptr);  // for which the creation waits
    first = std::thread(copy);
    while (fake_cuda::calls(call::device_enable_peer_access) == opened) std::this_thread::yield();
    second = std::thread([&] {
      trying = true;
      copy();
    });
    for (int looks = 0; looks < 2000 || !trying; ++looks) std::this_thread::yield();
    CHECK(fake_cuda::calls(call::memcpy_peer_async) == copied);
  }
  first.join();
  second.join();
  fake_cuda::set_creations_block(false);
  CHECK(fake_cuda::calls(call::memcpy_peer_async) == copied + 2);
  CHECK(fake_cuda::peer_access_enabled(1, 2));  // memory that comes from no pool, too
  CHECK(fake_cuda::peer_access_enabled(2, 1));
  fake_cuda::drain();
}

}  // namespace cuda_start_test
