#include <ferry/device/stream.hpp>

#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/device/cuda.hpp>
#include <ferry/device/current.hpp>

#include "expect_error.hpp"
#include "fake_cuda.hpp"

namespace stream_test {

using fake_cuda::call;
using ferry::device;
using ferry::device_kind;
using ferry::event;
using ferry::stream;

namespace {
const device gpu{device_kind::cuda, 1};
}

TEST_CASE("a pool has 32 streams, each created on first use") {
  const device where{device_kind::cuda, 2};
  const auto before = fake_cuda::calls(call::stream_create);
  const stream first = ferry::pool_stream(where);
  CHECK(fake_cuda::calls(call::stream_create) <= before + 1);
  std::vector<stream> all{first};
  for (int i = 1; i != 32; ++i) all.push_back(ferry::pool_stream(where));
  const auto made = fake_cuda::calls(call::stream_create);
  CHECK(made <= before + 32);
  for (const stream& each : all) each.synchronize();
  for (const stream& each : all) CHECK(ferry::pool_stream(where) == each);
  CHECK(fake_cuda::calls(call::stream_create) == made);
}

TEST_CASE("a stream that cannot be created is retried by the next caller") {
  const device where{device_kind::cuda, 7};
  fake_cuda::fail(call::stream_create, 2);
  expect_error(ferry::errc::device_failure, "cannot create a stream on cuda:7: out of memory",
               [&] { (void)ferry::pool_stream(where); });
  const stream on = ferry::pool_stream(where);
  on.synchronize();
}

TEST_CASE("handles of events are reused") {
  const stream on = ferry::pool_stream(gpu);
  { const event mark = on.record(); }
  const auto made = fake_cuda::calls(call::event_create);
  const auto destroyed = fake_cuda::calls(call::event_destroy);
  for (int i = 0; i != 20; ++i) (void)on.record();
  CHECK(fake_cuda::calls(call::event_create) == made);
  std::vector<event> many;
  for (int i = 0; i != 5; ++i) many.push_back(on.record());
  CHECK(fake_cuda::calls(call::event_create) <= made + 4);
  CHECK(fake_cuda::calls(call::event_destroy) == destroyed);
}

TEST_CASE("an event can be recorded on different devices") {
  event mark;
  for (const int index : {1, 2, 1, 3}) {
    const device where{device_kind::cuda, index};
    const stream on = ferry::pool_stream(where);
    mark.record(on);
    CHECK(mark.device() == where);
    mark.synchronize();
  }
  mark.record(ferry::stream());  // of the CPU
  CHECK(mark.device() == device{});
  CHECK(mark.done());
}

TEST_CASE("CUDA handles can be imported and exported") {
  CUstream_st* made = ferry::device_traits<ferry::cuda>::create_stream(gpu);
  const stream mine = stream::from_native<ferry::cuda>(made, 1);
  CHECK(mine.device() == gpu);
  CHECK(mine.native<ferry::cuda>() == made);
  {
    const ferry::stream_guard current(mine);
    CHECK(ferry::current_stream(gpu).native<ferry::cuda>() == made);
  }
  CUevent_st* native = ferry::device_traits<ferry::cuda>::create_event(gpu);
  event taken = event::from_native<ferry::cuda>(native, 1);
  CHECK(taken.native<ferry::cuda>() == native);
  taken.record(mine);
  ferry::pool_stream(gpu).wait(taken);
  taken.synchronize();
  mine.synchronize();
  ferry::device_traits<ferry::cuda>::destroy_stream(gpu, made);
  expect_error(ferry::errc::device_failure, "invalid resource handle", [&] { mine.synchronize(); });
}

TEST_CASE("a stream does not wait for itself") {
  const stream on = ferry::pool_stream(gpu);
  const auto records = fake_cuda::calls(call::event_record);
  on.wait(on);
  ferry::pool_stream(gpu).wait(ferry::stream());
  CHECK(fake_cuda::calls(call::event_record) == records);
}

TEST_CASE("guards restore the former state") {
  for (int round = 0; round != 20; ++round) {
    for (int index = 0; index != 8; ++index) {
      const device where{device_kind::cuda, index};
      const ferry::stream_guard guard(ferry::pool_stream(where));
      const ferry::stream_guard again(ferry::pool_stream(where));
      CHECK(ferry::current_stream(where) != ferry::default_stream(where));
    }
  }
  for (int index = 0; index != 8; ++index) {
    const device where{device_kind::cuda, index};
    CHECK(ferry::current_stream(where) == ferry::default_stream(where));
  }
}

}  // namespace stream_test
