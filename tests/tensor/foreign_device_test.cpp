// Tensors on user-defined kinds of devices: one with streams and no kernels, one in host memory.

#include <cstddef>
#include <string_view>

#include <doctest/doctest.h>

#include <ferry/device/cpu_pool.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/traits.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/dlpack.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/tensor.hpp>

#include "../device/queue_device.hpp"
#include "expect_error.hpp"

namespace foreign_device_test {

using ferry::device;
using ferry::dtype;
using ferry::errc;
using ferry::tensor;

namespace {
struct scratch {};
}  // namespace

}  // namespace foreign_device_test

template <>
struct ferry::device_traits<foreign_device_test::scratch> : ferry::immediate_device {
  static constexpr std::string_view name = "scratch";
  static constexpr device_kind kind = static_cast<device_kind>(150);
  static int count() noexcept { return 2; }
  static void* allocate(device, std::size_t bytes, stream_handle) { return cpu_allocate(bytes); }
  static void deallocate(device, void* memory, std::size_t bytes, stream_handle) noexcept {
    cpu_deallocate(memory, bytes);
  }
};

namespace foreign_device_test {

TEST_CASE("tensors work on any kind of device") {
  ferry::register_devices<queue_device, scratch>();
  for (const char* name : {"queue:1", "scratch:1"}) {
    CAPTURE(name);
    const device there = ferry::parse_device(name);
    const device other = ferry::parse_device(name[0] == 'q' ? "queue:2" : "scratch:0");
    const tensor cpu = ferry::arange(0, 24).view({4, 6});
    const tensor t = cpu.to(there);
    CHECK(t.device() == there);
    CHECK(ferry::equal(t.to(device{}), cpu));
    CHECK(ferry::equal(t.transpose(0, 1).clone().to(device{}), cpu.transpose(0, 1)));
    CHECK(ferry::equal(t.slice(1, 0, 6, 2).to(dtype::f32).to(device{}), cpu.slice(1, 0, 6, 2).to(dtype::f32)));
    CHECK(ferry::equal(t.transpose(0, 1).to(other).to(device{}), cpu.transpose(0, 1)));
    CHECK(ferry::equal(ferry::full({3, 2}, 2.5, dtype::f64, there).to(device{}), ferry::full({3, 2}, 2.5, dtype::f64)));
    CHECK(ferry::equal(ferry::zeros({3}, dtype::i8, there).to(device{}), ferry::zeros({3}, dtype::i8)));
    // Into a view: the memory between its elements is unchanged.
    const tensor target = ferry::full({6, 8}, -1, dtype::f32, there);
    const tensor expected = ferry::full({6, 8}, -1);
    for (const tensor& source : {cpu, t, cpu.to(other)}) {
      target.transpose(0, 1).slice(0, 0, 8, 2).copy_(source);
      target.select(0, 1).fill_(7);
      expected.transpose(0, 1).slice(0, 0, 8, 2).copy_(cpu);
      expected.select(0, 1).fill_(7);
      CHECK(ferry::equal(target.to(device{}), expected));
    }
    expect_error(errc::bad_device,
                 "add works on tensors of the CPU and of CUDA devices; this one is on " + to_string(there),
                 [&] { (void)(t + t); });
    expect_error(errc::bad_device, "cannot be reached from the host", [&] { (void)t.at<std::int64_t>(0, 0); });
    expect_error(errc::bad_device, "DLPack has no number for devices like " + to_string(there),
                 [&] { (void)ferry::to_dlpack(t); });
  }
  // Kinds without a common copy operation.
  const tensor numbers = ferry::arange(0, 10);
  const tensor queued = numbers.to(ferry::parse_device("queue:0"));
  CHECK(ferry::equal(queued.to(ferry::parse_device("scratch:0")).to(ferry::parse_device("queue:2")).to(device{}),
                     numbers));
}

}  // namespace foreign_device_test