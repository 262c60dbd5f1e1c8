// Times that devices measure: the rules of the double, and intervals.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <device/cuda/cuda_runtime.hpp>
#include <device/device_interval.hpp>
#include <ferry/device/cuda.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/device/stream.hpp>

#include "fake_cuda.hpp"

namespace timing_test {

using fake_cuda::call;
using ferry::device;
using ferry::device_kind;
using ferry::device_memory;
using ferry::stream;
using ferry::detail::cuda_runtime_in_use;
using ferry::detail::device_interval;
using ferry::detail::device_time_pending;
using ferry::detail::device_time_unknown;
using traits = ferry::device_traits<ferry::cuda>;
using interval = std::shared_ptr<device_interval>;
namespace cuda_error = ferry::detail::cuda_error;

constexpr std::size_t size = 1000;
// Not one that other tests of this program measure on.
constexpr device gpu(int index) { return {device_kind::cuda, index}; }

// Timed, or one of those that order streams.
class raw_event {
 public:
  explicit raw_event(device where, bool timed = true) : where_(where) {
    const ferry::device_guard current(where);
    handle_ = timed ? nullptr : traits::create_event(where);
    if (timed) REQUIRE(cuda_runtime_in_use()->event_create_timed(&handle_) == cuda_error::success);
  }
  raw_event(const raw_event&) = delete;
  raw_event& operator=(const raw_event&) = delete;
  ~raw_event() { traits::destroy_event(where_, handle_); }
  void record(const stream& on) const { traits::record_event(where_, handle_, on.native<ferry::cuda>()); }
  [[nodiscard]] CUevent_st* get() const { return handle_; }

 private:
  device where_;
  CUevent_st* handle_ = nullptr;
};

int elapsed(const raw_event& from, const raw_event& to, float& milliseconds) {
  const int status = cuda_runtime_in_use()->event_elapsed_time(&milliseconds, from.get(), to.get());
  (void)cuda_runtime_in_use()->get_last_error();
  return status;
}

void fill(const stream& on, const device_memory& block) {
  traits::fill(on.device(), block.data(), 1, size, on.native<ferry::cuda>());
}
interval measure(const stream& on, const device_memory& block) {
  interval made = device_interval::begin(on);
  REQUIRE(made);
  fill(on, block);
  made->end();
  return made;
}

struct mended {
  ~mended() {
    fake_cuda::fail_nothing();
    fake_cuda::mend();
  }
};

TEST_CASE("the double: the time between two events is that between what their streams did") {
  const stream on = ferry::pool_stream(gpu(4));
  const device_memory block(on, size);
  const raw_event first(gpu(4));
  const raw_event last(gpu(4));
  float milliseconds = -1;
  CHECK(elapsed(first, last, milliseconds) == cuda_error::invalid_resource_handle);  // never recorded
  using clock = std::chrono::steady_clock;
  const auto before = clock::now();
  {
    const fake_cuda::pause still;
    first.record(on);
    fill(on, block);
    last.record(on);
    CHECK(elapsed(first, last, milliseconds) == cuda_error::not_ready);
  }
  on.synchronize();
  const std::chrono::duration<float, std::milli> most = clock::now() - before;
  REQUIRE(elapsed(first, last, milliseconds) == cuda_error::success);
  CHECK(milliseconds > 0);
  CHECK(milliseconds < most.count());
  REQUIRE(elapsed(last, first, milliseconds) == cuda_error::success);
  CHECK(milliseconds < 0);
  CHECK(milliseconds > -most.count());
}

TEST_CASE("the double: events without times, and of two devices, have no time between them") {
  const stream on = ferry::pool_stream(gpu(4));
  const stream other = ferry::pool_stream(gpu(5));
  const raw_event timed(gpu(4));
  const raw_event plain(gpu(4), false);
  const raw_event elsewhere(gpu(5));
  timed.record(on);
  plain.record(on);
  elsewhere.record(other);
  on.synchronize();
  other.synchronize();
  float milliseconds = 0;
  CHECK(elapsed(timed, plain, milliseconds) == cuda_error::invalid_resource_handle);
  CHECK(elapsed(plain, timed, milliseconds) == cuda_error::invalid_resource_handle);
  CHECK(elapsed(timed, elsewhere, milliseconds) == cuda_error::invalid_resource_handle);
  CHECK(elapsed(timed, timed, milliseconds) == cuda_error::success);
}

TEST_CASE("an interval is known when its work is done, and the host does not wait for it") {
  const stream on = ferry::pool_stream(gpu(5));
  const device_memory block(on, size);
  on.synchronize();
  const auto waits = fake_cuda::host_synchronizations();
  interval work;
  {
    const fake_cuda::pause still;
    work = measure(on, block);
    CHECK(work->device() == gpu(5));
    CHECK(work->length_ns() == device_time_pending);
  }
  while (work->length_ns() == device_time_pending) {
  }
  CHECK(work->length_ns() > 0);
  CHECK(fake_cuda::host_synchronizations() == waits);
}

TEST_CASE("what another stream does is no part of an interval") {
  const stream on = ferry::pool_stream(gpu(5));
  const stream other = ferry::pool_stream(gpu(5));
  REQUIRE(on != other);
  const device_memory block(on, size);
  const interval first = measure(on, block);
  on.synchronize();
  const std::int64_t length = first->length_ns();
  CHECK(length > 0);
  const device_memory more(other, size);
  fill(other, more);
  other.synchronize();
  CHECK(first->length_ns() == length);
}

TEST_CASE("devices that do not measure have no intervals") {
  CHECK_FALSE(device_interval::begin(stream()));
  CHECK_FALSE(ferry::detail::timing_of(ferry::first_foreign_kind));
}

TEST_CASE("events of intervals are used again, and there is a limit") {
  const device where = gpu(6);
  const stream on = ferry::pool_stream(where);
  const device_memory block(on, size);
  on.synchronize();
  for (int i = 0; i != 100; ++i) {
    const interval work = measure(on, block);
    on.synchronize();
    if (i % 2 == 0) CHECK(work->length_ns() > 0);  // those of the others return when they are needed
  }
  CHECK(ferry::detail::interval_events_made(where) <= 2);
  std::vector<interval> held;
  {
    const fake_cuda::pause still;
    while (interval work = device_interval::begin(on)) {
      work->end();
      held.push_back(std::move(work));
      REQUIRE(held.size() <= device_interval::most_intervals);
    }
    CHECK(held.size() == device_interval::most_intervals);
    CHECK(ferry::detail::interval_events_made(where) == device_interval::most_intervals);
  }
  on.synchronize();
  const interval after = measure(on, block);  // the oldest ones are asked
  CHECK(held.front()->length_ns() >= 0);
  CHECK(held.back()->length_ns() >= 0);
  CHECK(ferry::detail::interval_events_made(where) == device_interval::most_intervals);
  held.clear();
  on.synchronize();
  CHECK(after->length_ns() > 0);
}

TEST_CASE("an interval that is given up, or never ends, returns its events") {
  const device where = gpu(7);
  const stream on = ferry::pool_stream(where);
  const device_memory block(on, size);
  {
    const fake_cuda::pause still;
    for (int i = 0; i != 20; ++i) (void)device_interval::begin(on);
    CHECK(ferry::detail::interval_events_made(where) == 1);
    for (int i = 0; i != 20; ++i) (void)measure(on, block);
    CHECK(ferry::detail::interval_events_made(where) == 1);
  }
  on.synchronize();
}

TEST_CASE("a stream that is captured has no intervals, and its capture goes on") {
  const device where = gpu(5);
  CUstream_st* const handle = traits::create_stream(where);
  const stream captured = stream::from_native<ferry::cuda>(handle, where.index);
  const stream other = ferry::pool_stream(where);
  std::optional<device_memory> block(std::in_place, captured, size);
  const device_memory more(other, size);
  captured.synchronize();
  const interval before = measure(other, more);
  const interval cut_off = device_interval::begin(captured);
  REQUIRE(fake_cuda::begin_capture(handle) == cuda_error::success);
  CHECK_FALSE(device_interval::begin(captured));
  fill(captured, *block);
  cut_off->end();  // its stream has been captured since
  CHECK(cut_off->length_ns() == device_time_unknown);
  const interval meanwhile = measure(other, more);
  while (meanwhile->length_ns() == device_time_pending) {
  }
  CHECK(meanwhile->length_ns() > 0);
  CHECK(before->length_ns() > 0);
  const fake_cuda::captured_graph graph = fake_cuda::end_capture(handle);
  CHECK(graph.status == cuda_error::success);
  CHECK(graph.nodes == 1);
  block.reset();
  captured.synchronize();
  traits::destroy_stream(where, handle);
}

TEST_CASE("a call that fails leaves an interval without time, and nothing behind") {
  const mended restore;
  const stream on = ferry::pool_stream(gpu(5));
  const device_memory block(on, size);
  on.synchronize();
  constexpr int invalid = 1;
  CHECK(measure(on, block));
  for (const call which : {call::stream_is_capturing, call::event_record, call::get_device}) {
    CAPTURE(which);
    fake_cuda::fail(which, invalid);
    CHECK_FALSE(device_interval::begin(on));
    CHECK(fake_cuda::last_error() == cuda_error::success);
  }
  for (const call which : {call::event_query, call::event_elapsed_time}) {
    CAPTURE(which);
    const interval work = measure(on, block);
    on.synchronize();
    fake_cuda::fail(which, invalid);
    CHECK(work->length_ns() == device_time_unknown);
    CHECK(work->length_ns() == device_time_unknown);
    CHECK(fake_cuda::last_error() == cuda_error::success);
  }
  const interval work = device_interval::begin(on);
  fake_cuda::fail(call::event_record, invalid);
  work->end();
  CHECK(work->length_ns() == device_time_unknown);
  std::vector<interval> held;
  const std::size_t made = ferry::detail::interval_events_made(gpu(5));
  const fake_cuda::pause still;
  for (;;) {  // until one has to be made
    fake_cuda::fail_nothing();
    fake_cuda::fail(call::event_create_timed, invalid, 2);
    interval next = device_interval::begin(on);
    if (!next) break;
    next->end();
    held.push_back(std::move(next));
    REQUIRE(held.size() <= made);
  }
  CHECK(ferry::detail::interval_events_made(gpu(5)) == made);
}

TEST_CASE("an interval of a device that fails has no time") {
  const mended restore;
  const stream on = ferry::pool_stream(gpu(5));
  const device_memory block(on, size);
  on.synchronize();
  std::optional<fake_cuda::pause> still(std::in_place);
  const interval work = measure(on, block);
  const interval open = device_interval::begin(on);
  fake_cuda::break_device(gpu(5).index, cuda_error::launch_failure);
  still.reset();
  CHECK(work->length_ns() == device_time_unknown);
  open->end();
  CHECK(open->length_ns() == device_time_unknown);
  CHECK_FALSE(device_interval::begin(on));
}

}  // namespace timing_test
