// Memory of CUDA devices: pools, reuse, exhaustion.

#include <cstdint>
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

namespace cuda_memory_test {

using fake_cuda::call;
using ferry::device;
using ferry::device_kind;
using ferry::device_memory;
using ferry::errc;
using ferry::stream;
using traits = ferry::device_traits<ferry::cuda>;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;
constexpr std::size_t size = 4000;
device gpu(int index) { return {device_kind::cuda, index}; }

void fill(const stream& on, const device_memory& block, unsigned char value) {
  traits::fill(on.device(), block.data(), value, block.size(), on.native<ferry::cuda>());
}
std::vector<unsigned char> all(unsigned char value) { return std::vector<unsigned char>(size, value); }

struct newest_first {
  newest_first() { fake_cuda::set_schedule(fake_cuda::schedule::newest_first); }
  ~newest_first() { fake_cuda::set_schedule(fake_cuda::schedule::random); }
};

}  // namespace

TEST_CASE("memory is allocated and freed without a wait of the host") {
  const stream on = ferry::pool_stream(gpu(3));
  const stream side = ferry::pool_stream(gpu(3));
  (void)device_memory(on, size);
  const auto before = fake_cuda::host_synchronizations();
  {
    const fake_cuda::pause pause;
    for (int i = 0; i != 10; ++i) {
      device_memory block(on, size);
      side.wait(on);
      fill(side, block, 1);
      block.record_use(side);
    }
  }
  CHECK(fake_cuda::host_synchronizations() == before);
  CHECK(ferry::get_device_memory_stats(gpu(3)).used_bytes == 0);
  fake_cuda::drain();
}

TEST_CASE("a block that another stream uses is not reused while that stream has work left") {
  const newest_first schedule;
  const stream on = ferry::pool_stream(gpu(3));
  const stream side = ferry::pool_stream(gpu(3));
  const device_memory result(side, size);
  std::optional<device_memory> block(std::in_place, on, size);
  fill(on, *block, 5);
  fake_cuda::drain();
  const void* data = block->data();
  {
    const fake_cuda::pause pause;
    traits::copy(gpu(3), result.data(), gpu(3), data, size, gpu(3), side.native<ferry::cuda>());
    block->record_use(side);
    block.reset();
    // Neither the stream on which it was made nor any other gets it now, and none of them has to wait.
    const device_memory other(on, size);
    CHECK(other.data() != data);
    fill(on, other, 6);
  }
  fake_cuda::drain();
  CHECK(fake_cuda::peek(result.data(), size) == all(5));
  CHECK(fake_cuda::peek(data, 1)[0] == 5);  // parked until memory is asked for or given up
  CHECK(ferry::get_device_memory_stats(gpu(3)).parked_blocks == 0);
  fake_cuda::drain();
  CHECK(fake_cuda::peek(data, 1)[0] == fake_cuda::freed_poison);
}

TEST_CASE("a use by another device counts, too") {
  const newest_first schedule;
  const stream here = ferry::pool_stream(gpu(0));
  const stream there = ferry::pool_stream(gpu(1));
  const device_memory result(there, size);
  std::optional<device_memory> block(std::in_place, here, size);
  fill(here, *block, 5);
  fake_cuda::drain();
  {
    const fake_cuda::pause pause;
    traits::copy(gpu(1), result.data(), gpu(0), block->data(), size, gpu(1), there.native<ferry::cuda>());
    block->record_use(there);
    block.reset();
  }
  fake_cuda::drain();
  CHECK(fake_cuda::peek(result.data(), size) == all(5));
}

TEST_CASE("memory freed on a stream is reused by it at once") {
  const stream on = ferry::pool_stream(gpu(3));
  void* first = device_memory(on, size).data();
  for (int i = 0; i != 10; ++i) CHECK(device_memory(on, size).data() == first);
  const auto reserved = ferry::get_device_memory_stats(gpu(3)).reserved_bytes;
  CHECK(reserved >= size);
  on.synchronize();
  CHECK(ferry::get_device_memory_stats(gpu(3)).reserved_bytes == reserved);  // a wait releases nothing
  fake_cuda::drain();
  ferry::device_memory_trim(gpu(3));
  CHECK(ferry::get_device_memory_stats(gpu(3)).reserved_bytes == 0);
}

TEST_CASE("out of memory: cached memory is released first, then the error reports what is in use") {
  const stream on = ferry::pool_stream(gpu(5));
  fake_cuda::set_memory(64 * mebibyte);
  // Cached in pieces that are too small.
  {
    std::vector<device_memory> pieces;
    for (int i = 0; i != 6; ++i) pieces.emplace_back(on, 10 * mebibyte);
  }
  on.synchronize();
  const auto trims = fake_cuda::calls(call::mem_pool_trim_to);
  const device_memory large(on, 50 * mebibyte);
  CHECK(fake_cuda::calls(call::mem_pool_trim_to) == trims + 2);  // both pools
  expect_error(errc::out_of_memory,
               "cannot allocate 20971520 bytes on cuda:5 (52428800 bytes are in use by tensors of this process; of the "
               "device's 67108864 bytes, 14680064 are free)",
               [&] { (void)device_memory(on, 20 * mebibyte); });
  const device_memory small(on, 10 * mebibyte);
  CHECK(small.data() != nullptr);
  CHECK(ferry::get_device_memory_stats(gpu(5)).used_bytes == 60 * mebibyte);
}

TEST_CASE("copies between devices are direct where the machine supports it") {
  const auto accesses = fake_cuda::calls(call::mem_pool_set_access);
  const auto exchange = [](int first, int second) {
    const stream here = ferry::pool_stream(gpu(first));
    const stream there = ferry::pool_stream(gpu(second));
    const device_memory a(here, size);
    const device_memory b(there, size);
    fill(here, a, 3);
    there.wait(here);
    traits::copy(gpu(second), b.data(), gpu(first), a.data(), size, gpu(second), there.native<ferry::cuda>());
    there.synchronize();
    CHECK(fake_cuda::peek(b.data(), size) == all(3));
  };
  CHECK(traits::peer_access(gpu(2), gpu(3)));
  exchange(2, 3);
  CHECK(fake_cuda::calls(call::mem_pool_set_access) == accesses + 4);  // both pools, in both directions
  exchange(3, 2);
  CHECK(fake_cuda::calls(call::mem_pool_set_access) == accesses + 4);
  CHECK(!traits::peer_access(gpu(3), gpu(4)));
  exchange(3, 4);
  CHECK(fake_cuda::calls(call::mem_pool_set_access) == accesses + 4);
  fake_cuda::fail(call::mem_pool_set_access, 801);
  exchange(4, 5);  // then through the host
}

}  // namespace cuda_memory_test
