// Tests of the fake CUDA runtime itself: it detects what it claims to detect.

#include "fake_cuda.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/base/error.hpp>
#include <ferry/device/cuda.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/device/stream.hpp>

#include "processes.hpp"

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
  CHECK((done.done() || !done.done()));
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
