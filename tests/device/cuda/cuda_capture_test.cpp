// Graphs that the program captures: what ferry does meanwhile disturbs no capture, and nothing of it becomes part of a graph.

#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <device/cuda/cuda_runtime.hpp>
#include <device/memory/foreign_memory.hpp>
#include <device/memory/staging.hpp>
#include <device/start/warm_up.hpp>
#include <ferry/device/cuda.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/device/stream.hpp>

#include "expect_error.hpp"
#include "fake_cuda.hpp"

namespace cuda_capture_test {

using fake_cuda::call;
using fake_cuda::capture_mode;
using ferry::device;
using ferry::device_kind;
using ferry::device_memory;
using ferry::errc;
using ferry::event;
using ferry::stream;
using traits = ferry::device_traits<ferry::cuda>;

namespace {

constexpr std::size_t size = 4000;
const device gpu{device_kind::cuda, 2};
constexpr int success = 0;

// A stream of the program's, captured for as long as this lives, unless end() is called.
class captured_stream {
 public:
  explicit captured_stream(capture_mode mode = capture_mode::global, device where = gpu)
      : where_(where),
        handle_(traits::create_stream(where)),
        on_(stream::from_native<ferry::cuda>(handle_, where.index)) {
    REQUIRE(fake_cuda::begin_capture(handle_, mode) == success);
  }
  captured_stream(const captured_stream&) = delete;
  captured_stream& operator=(const captured_stream&) = delete;
  ~captured_stream() {
    if (capturing_) (void)end();
    traits::destroy_stream(where_, handle_);
  }
  fake_cuda::captured_graph end() {
    capturing_ = false;
    return fake_cuda::end_capture(handle_);
  }
  [[nodiscard]] const stream& on() const { return on_; }

 private:
  device where_;
  CUstream_st* handle_;
  stream on_;
  bool capturing_ = true;
};

// All that ferry asks of the runtime, on devices that are new to it, too.
void use_everything(device where) {
  ferry::detail::warm_up_devices(std::vector{where}, "a test");
  const stream on = ferry::pool_stream(where);
  const stream side = ferry::pool_stream(where);
  std::vector<unsigned char> bytes(size, 7);
  {
    device_memory block(on, size);
    ferry::detail::upload(on, block.data(), bytes.data(), size);
    side.wait(on);
    const device_memory other(side, size);
    traits::copy(where, other.data(), where, block.data(), size, where, side.native<ferry::cuda>());
    block.record_use(side);
    ferry::detail::download(side, bytes.data(), other.data(), size);
    event mark = side.record();
    (void)mark.done();
    mark.synchronize();
    (void)on.done();
    on.synchronize();
    on.call_on_host([](void*) {}, nullptr);
    const ferry::device_guard current(where);
  }
  traits::destroy_event(where, traits::create_event(where));
  traits::destroy_stream(where, traits::create_stream(where));
  (void)ferry::get_device_memory_stats(where);
  ferry::device_memory_trim(where);
  CHECK(bytes == std::vector<unsigned char>(size, 7));
}

}  // namespace

TEST_CASE("the double: an unsafe call invalidates the captures that its thread's mode does not protect") {
  CUevent_st* const mark = traits::create_event(gpu);
  const auto ask = [&] { return ferry::detail::cuda_runtime_in_use()->event_query(mark); };
  const auto ask_elsewhere = [&] {
    int result = 0;
    std::thread([&] { result = ask(); }).join();
    return result;
  };
  {
    captured_stream captured(capture_mode::global);
    CHECK(ask_elsewhere() == 900);
    CHECK(captured.end().status == 901);
  }
  {
    captured_stream captured(capture_mode::thread_local_);
    CHECK(ask_elsewhere() == success);
    CHECK(ask() == 900);
    CHECK(captured.end().status == 901);
  }
  {
    captured_stream captured(capture_mode::relaxed);
    CHECK(ask() == success);
    CHECK(captured.end().status == success);
  }
  traits::destroy_event(gpu, mark);
}

TEST_CASE("the double: streams join a capture by an event, and must be joined again") {
  const stream side = stream::from_native<ferry::cuda>(traits::create_stream(gpu), gpu.index);
  const device_memory block(ferry::pool_stream(gpu), size);
  const auto fill = [&](const stream& on) { traits::fill(gpu, block.data(), 1, size, on.native<ferry::cuda>()); };
  for (const bool join : {true, false}) {
    captured_stream captured(capture_mode::relaxed);
    fill(captured.on());
    side.wait(captured.on());
    CHECK(side.capturing());
    fill(side);
    if (join) captured.on().wait(side);
    const auto graph = captured.end();
    CHECK(graph.status == (join ? success : 904));
    CHECK(graph.nodes == 2);
    CHECK_FALSE(side.capturing());
  }
  captured_stream captured(capture_mode::relaxed);
  fill(side);
  CHECK_THROWS_AS(captured.on().wait(side), ferry::error);  // work that is not part of the graph
  CHECK(captured.end().status == 901);
  traits::destroy_stream(gpu, side.native<ferry::cuda>());
}

TEST_CASE("nothing that ferry does on other streams disturbs a capture, in whatever mode and thread") {
  int index = 0;
  for (const capture_mode mode : {capture_mode::global, capture_mode::thread_local_, capture_mode::relaxed}) {
    for (const bool same_thread : {true, false}) {
      CAPTURE(static_cast<int>(mode));
      CAPTURE(same_thread);
      captured_stream captured(mode);
      const device where{device_kind::cuda, index++ % 2};
      if (same_thread) {
        use_everything(where);
      } else {
        std::thread([&] { use_everything(where); }).join();
      }
      const auto graph = captured.end();
      CHECK(graph.status == success);
      CHECK(graph.nodes == 0);
    }
  }
}

TEST_CASE("a thread's own capture mode is restored") {
  captured_stream captured(capture_mode::global);
  (void)ferry::pool_stream(gpu).record();
  CHECK(fake_cuda::thread_capture_mode() == capture_mode::global);
  expect_error(errc::device_failure, "", [&] {
    fake_cuda::fail(call::event_record, 719);
    (void)ferry::pool_stream(gpu).record();
  });
  CHECK(fake_cuda::thread_capture_mode() == capture_mode::global);
}

TEST_CASE("ferry refuses to allocate, to copy through the host and to wait in a capture, and the capture goes on") {
  captured_stream captured;
  const stream& on = captured.on();
  const device_memory block(ferry::pool_stream(gpu), size);
  std::vector<unsigned char> bytes(size);
  const std::vector<std::pair<std::string, std::function<void()>>> attempts{
      {"cannot allocate memory", [&] { (void)device_memory(on, size); }},
      {"cannot copy elements from the host", [&] { ferry::detail::upload(on, block.data(), bytes.data(), size); }},
      {"cannot copy elements to the host", [&] { ferry::detail::download(on, bytes.data(), block.data(), size); }},
      {"cannot ask for completed work", [&] { (void)on.done(); }},
      {"cannot ask for completed work", [&] { on.synchronize(); }},
  };
  for (const auto& [text, attempt] : attempts) {
    expect_error(errc::device_failure,
                 text + " in the order of a stream of cuda:2 that is being captured: it would become part of the graph",
                 attempt);
  }
  // Work of the program's own is recorded.
  traits::fill(gpu, block.data(), 1, size, on.native<ferry::cuda>());
  const auto graph = captured.end();
  CHECK(graph.status == success);
  CHECK(graph.nodes == 1);
}

TEST_CASE("memory that a captured stream uses is given up when the capture has ended") {
  const stream home = ferry::pool_stream(gpu);
  const auto parked = [] { return ferry::get_device_memory_stats(gpu).parked_blocks; };
  captured_stream captured;
  std::optional<device_memory> block(std::in_place, home, size);
  block->record_use(captured.on());
  traits::fill(gpu, block->data(), 1, size, captured.on().native<ferry::cuda>());
  const auto before = parked();
  const std::size_t in_use = fake_cuda::blocks_in_use(gpu.index);
  block.reset();
  CHECK(parked() == before + 1);
  CHECK(fake_cuda::blocks_in_use(gpu.index) == in_use);
  CHECK(captured.end().status == success);
  (void)parked();  // the stream gets its mark
  fake_cuda::drain();
  CHECK(parked() == before);
  CHECK(fake_cuda::blocks_in_use(gpu.index) == in_use - 1);
}

TEST_CASE("the owner of foreign memory that a captured stream uses is released when the capture has ended") {
  captured_stream captured;
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = owner;
  {
    ferry::detail::foreign_memory memory(std::move(owner));
    memory.record_use(captured.on());
  }
  CHECK_FALSE(seen.expired());
  CHECK(captured.end().status == success);
  while (!seen.expired()) std::this_thread::yield();
}

TEST_CASE("the pool hands out no stream that is being captured") {
  const device where{device_kind::cuda, 5};
  const stream own = ferry::pool_stream(where);
  REQUIRE(fake_cuda::begin_capture(own.native<ferry::cuda>()) == success);
  for (std::size_t i = 0; i != 3 * ferry::stream_pool_size(); ++i) CHECK(ferry::pool_stream(where) != own);
  CHECK(fake_cuda::end_capture(own.native<ferry::cuda>()).status == success);
}

}  // namespace cuda_capture_test
