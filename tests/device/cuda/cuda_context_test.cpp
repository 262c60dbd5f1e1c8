// Which devices get a context, and how a thread's current device changes.

#include <algorithm>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/device/cuda.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/device/stream.hpp>

#include "expect_error.hpp"
#include "fake_cuda.hpp"
#include "processes.hpp"

namespace cuda_context_test {

using ferry::device;
using ferry::device_kind;
using ferry::device_memory;
using ferry::stream;
using traits = ferry::device_traits<ferry::cuda>;

namespace {

device gpu(int index) { return {device_kind::cuda, index}; }

std::string contexts() {
  std::string text = "contexts:";
  for (const int each : fake_cuda::contexts()) text += " " + std::to_string(each);
  return text;
}

// Uses everything in src/device on one device; reports which contexts exist after each step.
const ferry_test::role use_one_device("use_one_device", [](const std::vector<std::string>& arguments) {
  const device where = ferry::parse_device(arguments.at(0));
  const auto tell = [](const std::string& step) { ferry_test::tell_parent(step + ", " + contexts()); };
  (void)traits::count();
  ferry::check_device(where);
  (void)ferry::current_device(device_kind::cuda);
  (void)ferry::default_stream(where);
  (void)ferry::current_stream(where);
  (void)traits::peer_access(where, gpu(5));
  (void)ferry::get_device_memory_stats(where);
  ferry::device_memory_trim(where);
  const device_memory none(ferry::current_stream(where), 0);
  tell("asked");
  {
    const device_memory first(ferry::current_stream(where), 100);  // the default stream is that of the current device
    const stream on = ferry::pool_stream(where);
    on.wait(ferry::default_stream(where));
    device_memory block(on, 1000);
    const device_memory other(on, 1000);
    traits::fill(where, block.data(), 1, 1000, on.native<ferry::cuda>());
    traits::copy(where, other.data(), where, block.data(), 1000, where, on.native<ferry::cuda>());
    block.record_use(ferry::pool_stream(where));
    on.call_on_host([](void*) {}, nullptr);
    ferry::event mark = on.record();
    ferry::default_stream(where).wait(mark);
    (void)mark.done();
    (void)on.done();
    mark.synchronize();
    on.synchronize();
    ferry::default_stream(where).synchronize();
    const ferry::device_guard guard(where);
  }
  (void)ferry::get_device_memory_stats(where);
  ferry::device_memory_trim(where);
  tell("used");
  std::thread([&] {
    // A thread that has used no device yet, and whose current device is still 0.
    ferry::pool_stream(where).synchronize();
    tell("in a thread");
  }).join();
  return 0;
});

// Held until after main(), and freed when the driver has been unloaded.
struct late {
  device_memory block;
  ferry::event mark;
  stream on;
};
late* held_late = nullptr;
struct at_the_end {
  ~at_the_end() {
    if (!held_late) return;
    fake_cuda::unload();
    held_late->block = device_memory();
    held_late->mark = ferry::event();
    delete held_late;
    ferry_test::tell_parent("all gone");
  }
};
const at_the_end last_words;

const ferry_test::role outlive_the_driver("outlive_the_driver", [](const std::vector<std::string>&) {
  static late kept{{}, {}, ferry::pool_stream(gpu(1))};
  kept.block = device_memory(kept.on, 1000);
  kept.block.record_use(ferry::pool_stream(gpu(1)));
  kept.mark = kept.on.record();
  held_late = new late{device_memory(kept.on, 1000), kept.on.record(), kept.on};
  return 0;
});

}  // namespace

TEST_CASE("only devices that were named get a context") {
  for (const std::string name : {"cuda:3", "cuda:0"}) {
    ferry_test::child_process child({.role = "use_one_device", .arguments = {name}});
    const std::string number = name.substr(5);
    CHECK(child.read_line() == "asked, contexts:");
    CHECK(child.read_line() == "used, contexts: " + number);
    CHECK(child.read_line() == "in a thread, contexts: " + number);
    CHECK(child.wait() == 0);
  }
}

TEST_CASE("the current device is the same after every call") {
  const stream on = ferry::pool_stream(gpu(1));
  const ferry::device_guard current(gpu(2));
  const device_memory block(on, 100);
  traits::fill(gpu(1), block.data(), 1, 100, on.native<ferry::cuda>());
  on.record().synchronize();
  CHECK(ferry::current_device(device_kind::cuda) == gpu(2));
  CHECK_THROWS_AS(traits::fill(gpu(1), block.data(), 1, 1'000'000, on.native<ferry::cuda>()), ferry::error);
  CHECK(ferry::current_device(device_kind::cuda) == gpu(2));
}

TEST_CASE("default streams belong to the named device, whatever the current one is") {
  const ferry::device_guard current(gpu(2));
  const stream base = ferry::default_stream(gpu(1));
  const device_memory block(base, 100);
  traits::fill(gpu(1), block.data(), 9, 100, base.native<ferry::cuda>());
  base.synchronize();
  CHECK(fake_cuda::peek(block.data(), 1)[0] == 9);
}

TEST_CASE("objects that outlive the driver are destroyed without errors") {
  ferry_test::child_process child({.role = "outlive_the_driver", .environment = {{"FERRY_LOG", "warning"}}});
  CHECK(child.read_line() == "all gone");
  CHECK(child.wait() == 0);
}

}  // namespace cuda_context_test
