// Tests of the fake CUDA runtime itself: it detects what it claims to detect.

#include "fake_cuda.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <device/cuda/cuda_runtime.hpp>
#include <ferry/base/error.hpp>
#include <ferry/device/cuda.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/device/stream.hpp>

#include "processes.hpp"

namespace fake_cuda_test {

using ferry::device;
using ferry::device_kind;
using ferry::device_memory;
using ferry::stream;
using traits = ferry::device_traits<ferry::cuda>;

namespace {

constexpr std::size_t size = 1000;
const device gpu{device_kind::cuda, 2};

std::vector<unsigned char> all(unsigned char value) { return std::vector<unsigned char>(size, value); }
void fill(const stream& on, const device_memory& block, unsigned char value) {
  traits::fill(on.device(), block.data(), value, size, on.native<ferry::cuda>());
}
void copy(const stream& on, const device_memory& to, const device_memory& from) {
  traits::copy(to.device(), to.data(), from.device(), from.data(), size, on.device(), on.native<ferry::cuda>());
}

struct chosen_schedule {
  explicit chosen_schedule(fake_cuda::schedule how) { fake_cuda::set_schedule(how); }
  ~chosen_schedule() { fake_cuda::set_schedule(fake_cuda::schedule::random); }
};

}  // namespace

TEST_CASE("no work is executed while the devices are paused") {
  const stream on = ferry::pool_stream(gpu);
  const device_memory block(on, size);
  on.synchronize();
  CHECK(fake_cuda::peek(block.data(), size) == all(fake_cuda::fresh_poison));
  {
    const fake_cuda::pause pause;
    fill(on, block, 7);
    CHECK(!on.done());
    CHECK(fake_cuda::peek(block.data(), size) == all(fake_cuda::fresh_poison));
  }
  on.synchronize();
  CHECK(fake_cuda::peek(block.data(), size) == all(7));
}

TEST_CASE("memory is poisoned when it is allocated and when it is freed") {
  const stream on = ferry::pool_stream(gpu);
  device_memory block(on, size);
  fill(on, block, 7);
  on.synchronize();
  const void* data = block.data();
  {
    const fake_cuda::pause pause;
    block = device_memory();
    CHECK(fake_cuda::peek(data, size) == all(7));  // its stream has not reached the free yet
  }
  on.synchronize();
  CHECK(fake_cuda::peek(data, size) == all(fake_cuda::freed_poison));
  // The same stream gets it again at once.
  const device_memory again(on, size);
  CHECK(again.data() == data);
  on.synchronize();
  CHECK(fake_cuda::peek(data, size) == all(fake_cuda::fresh_poison));
}

TEST_CASE("a missing wait is detected with the newest stream first") {
  const chosen_schedule newest(fake_cuda::schedule::newest_first);
  const stream writer = ferry::pool_stream(gpu);
  const stream reader = ferry::pool_stream(gpu);
  const device_memory from(writer, size);
  const device_memory to(reader, size);
  fill(writer, from, 1);
  writer.synchronize();
  for (const bool waits : {false, true}) {
    {
      const fake_cuda::pause pause;
      fill(writer, from, 2);
      if (waits) reader.wait(writer);
      copy(reader, to, from);
    }
    reader.synchronize();
    writer.synchronize();
    CHECK(fake_cuda::peek(to.data(), size) == all(waits ? 2 : 1));
    fill(writer, from, 1);
    writer.synchronize();
  }
}

TEST_CASE("the default stream and ferry's streams do not block each other") {
  const chosen_schedule newest(fake_cuda::schedule::newest_first);
  const stream base = ferry::default_stream(gpu);
  const stream side = ferry::pool_stream(gpu);
  const device_memory a(base, size);
  fill(base, a, 1);
  base.synchronize();
  side.synchronize();
  {
    const fake_cuda::pause pause;
    fill(base, a, 2);
    fill(side, a, 3);
  }
  fake_cuda::drain();
  CHECK(fake_cuda::peek(a.data(), size) == all(2));  // `side` was first
}

TEST_CASE("waits of the host are counted, and so are potential ones") {
  const stream on = ferry::pool_stream(gpu);
  const device_memory block(on, size);
  on.synchronize();
  const auto before = fake_cuda::host_synchronizations();
  fill(on, block, 1);
  const ferry::event done = on.record();
  static_cast<void>(done.done());  // either: the device goes on meanwhile
  CHECK(fake_cuda::host_synchronizations() == before);
  done.synchronize();
  CHECK(fake_cuda::host_synchronizations() == before + 1);
  std::vector<unsigned char> pageable(size);
  traits::copy({}, pageable.data(), gpu, block.data(), size, gpu, on.native<ferry::cuda>());
  CHECK(fake_cuda::host_synchronizations() == before + 2);
  CHECK(pageable == all(1));
}

TEST_CASE("a copy of memory that is not in use is refused") {
  const stream on = ferry::pool_stream(gpu);
  device_memory block(on, size);
  void* data = block.data();
  const device_memory other(on, size);
  std::vector<unsigned char> bytes(size);
  const auto upload = [&](void* to, std::size_t count) {
    traits::copy(gpu, to, {}, bytes.data(), count, gpu, on.native<ferry::cuda>());
  };
  upload(data, size);
  CHECK_THROWS_AS(upload(data, 100 * size), ferry::error);
  block = device_memory();
  CHECK_THROWS_AS(upload(data, size), ferry::error);
}

namespace {

const ferry_test::role touch_device_memory("touch_device_memory", [](const std::vector<std::string>&) {
  const stream on = ferry::pool_stream(gpu);
  const device_memory block(on, size);
  on.synchronize();
  ferry_test::tell_parent("now");
  static_cast<void>(static_cast<volatile unsigned char*>(block.data())[0]);
  return 0;
});

const ferry_test::role count_devices("count_devices", [](const std::vector<std::string>&) {
  ferry_test::tell_parent(std::to_string(traits::count()));
  return 0;
});

}  // namespace

TEST_CASE("a host access to device memory crashes, where the processor supports protection keys") {
  if (!fake_cuda::host_is_kept_out()) {
    MESSAGE("skipped: this processor has no protection keys");
    return;
  }
  ferry_test::child_process child({.role = "touch_device_memory"});
  CHECK(child.read_line() == "now");
  CHECK(child.wait() != 0);
}

TEST_CASE("the environment sets the number of devices, and there may be no driver") {
  for (const std::string number : {"0", "1", "8", "12"}) {
    ferry_test::child_process child({.role = "count_devices", .environment = {{"FERRY_FAKE_CUDA_DEVICES", number}}});
    CHECK(child.read_line() == number);
    CHECK(child.wait() == 0);
  }
}

namespace {

// Whether work of one stream goes on while another one, given work first, is held up.
const ferry_test::role share_a_queue("share_a_queue", [](const std::vector<std::string>&) {
  std::atomic<bool> begun = false;
  std::atomic<bool> free = false;
  struct gate {
    std::atomic<bool>* begun;
    std::atomic<bool>* free;
  } both{&begun, &free};
  const stream held = ferry::pool_stream(gpu);
  const stream behind = ferry::pool_stream(gpu);
  const stream elsewhere = ferry::pool_stream({device_kind::cuda, 3});
  held.call_on_host(
      [](void* argument) {
        const gate& one = *static_cast<gate*>(argument);
        *one.begun = true;
        while (!*one.free) std::this_thread::yield();
      },
      &both);
  while (!begun) std::this_thread::yield();
  const ferry::event mark = behind.record();
  for (int i = 0; i != 100; ++i) elsewhere.record().synchronize();  // as long as the work behind would take
  ferry_test::tell_parent(mark.done() ? "goes on" : "held up");
  free = true;
  mark.synchronize();
  held.synchronize();  // the function has done with what it was given
  return 0;
});

}  // namespace

TEST_CASE("streams that share a queue of the hardware hold each other up") {
  for (const std::string queues : {"0", "1"}) {
    ferry_test::child_process child({.role = "share_a_queue", .environment = {{"FERRY_FAKE_CUDA_QUEUES", queues}}});
    CHECK(child.read_line() == (queues == "1" ? "held up" : "goes on"));
    CHECK(child.wait() == 0);
  }
}

TEST_CASE("one thread calls all functions of the host") {
  std::vector<std::thread::id> threads;
  for (int i = 0; i != 8; ++i) {
    ferry::pool_stream({device_kind::cuda, i})
        .call_on_host(
            [](void* into) { static_cast<std::vector<std::thread::id>*>(into)->push_back(std::this_thread::get_id()); },
            &threads);
  }
  fake_cuda::drain();
  REQUIRE(threads.size() == 8);
  CHECK(std::count(threads.begin(), threads.end(), threads[0]) == 8);
}

TEST_CASE(
    "without opportunistic reuse a stream gets what another one freed if it waited for that, or the host has observed "
    "it") {
  const ferry::detail::cuda_runtime& runtime = *ferry::detail::cuda_runtime_in_use();
  const stream here = ferry::pool_stream(gpu);
  const stream there = ferry::pool_stream(gpu);
  static auto* const pools = new std::vector<CUmemPoolHandle_st*>;  // not destroyed: the arena knows them
  for (const bool opportunistic : {true, false}) {
    CAPTURE(opportunistic);
    CUmemPoolHandle_st* pool = nullptr;
    REQUIRE(runtime.mem_pool_create(&pool, gpu.index, false) == 0);
    REQUIRE(runtime.mem_pool_set_opportunistic_reuse(pool, opportunistic) == 0);
    pools->push_back(pool);
    const auto have = [&](const stream& on) {
      void* memory = nullptr;
      REQUIRE(runtime.malloc_from_pool_async(&memory, size, pool, on.native<ferry::cuda>()) == 0);
      return memory;
    };
    const auto give = [&](void* memory, const stream& on) {
      REQUIRE(runtime.free_async(memory, on.native<ferry::cuda>()) == 0);
      fake_cuda::drain();
      REQUIRE(runtime.stream_query(on.native<ferry::cuda>()) == 0);
    };
    void* const first = have(here);
    const ferry::event early = here.record();
    there.wait(early);
    give(first, here);
    void* const second = have(there);
    CHECK((second == first) == opportunistic);
    give(second, there);
    if (opportunistic) continue;
    here.wait(there.record());
    void* const third = have(here);  // the last one given back that it may have
    CHECK(third == second);
    give(third, here);
    REQUIRE(runtime.stream_synchronize(here.native<ferry::cuda>()) == 0);
    CHECK(have(there) == third);
  }
  fake_cuda::drain();
}

TEST_CASE("a pool gives back what the host has observed to be free, and memory is aligned to 256 bytes and no more") {
  const ferry::detail::cuda_runtime& runtime = *ferry::detail::cuda_runtime_in_use();
  const stream on = ferry::pool_stream(gpu);
  static auto* const pools = new std::vector<CUmemPoolHandle_st*>;  // not destroyed: the arena knows them
  for (const bool exportable : {true, false}) {
    CUmemPoolHandle_st* pool = nullptr;
    REQUIRE(runtime.mem_pool_create(&pool, gpu.index, exportable) == 0);
    pools->push_back(pool);
    void* memory = nullptr;
    REQUIRE(runtime.malloc_from_pool_async(&memory, size, pool, on.native<ferry::cuda>()) == 0);
    CHECK(reinterpret_cast<std::uintptr_t>(memory) % 512 == 256);
    REQUIRE(runtime.free_async(memory, on.native<ferry::cuda>()) == 0);
    fake_cuda::drain();
    const auto reserved_after_trim = [&] {
      REQUIRE(runtime.mem_pool_trim_to(pool, 0) == 0);
      std::uint64_t reserved = 0;
      std::uint64_t used = 0;
      REQUIRE(runtime.mem_pool_usage(pool, &reserved, &used) == 0);
      return reserved;
    };
    REQUIRE(runtime.stream_query(on.native<ferry::cuda>()) == 0);
    CHECK(reserved_after_trim() != 0);
    const stream other = ferry::pool_stream(gpu);
    REQUIRE(runtime.stream_synchronize(other.native<ferry::cuda>()) == 0);
    CHECK(reserved_after_trim() != 0);
    ferry::event later = on.record();
    fake_cuda::drain();
    CHECK(later.done());
    CHECK(reserved_after_trim() != 0);
    if (exportable) {
      REQUIRE(runtime.stream_synchronize(on.native<ferry::cuda>()) == 0);
    } else {
      REQUIRE(runtime.event_synchronize(later.native<ferry::cuda>()) == 0);
    }
    CHECK(reserved_after_trim() == 0);
  }
}

}  // namespace fake_cuda_test
