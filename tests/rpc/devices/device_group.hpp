#pragma once

// Workers of one process with devices of the fake CUDA runtime, and tensors on them.

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/device/current.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/device/traits.hpp>
#include <ferry/ferry.hpp>
#include <ferry/tensor/pack.hpp>

#include "cluster.hpp"
#include "fake_cuda.hpp"

namespace device_calls {

using native_options = ferry::backend_traits<ferry::native>::options_type;
using prepare = std::function<void(native_options&)>;

constexpr ferry::device host;
constexpr ferry::device gpu(int index) { return {ferry::device_kind::cuda, index}; }

/// A tensor of `bytes` bytes of that value, written in the order of the current stream.
inline ferry::tensor filled(ferry::device where, unsigned char value, std::int64_t bytes = 1000) {
  const std::array<std::int64_t, 1> shape{bytes};
  const std::array<std::int64_t, 1> strides{1};
  ferry::tensor made = ferry::empty_packed(ferry::dtype::u8, shape, strides, where);
  const ferry::stream on = ferry::current_stream(where);
  ferry::operations_of(where.kind)
      .fill(where, ferry::writable_packed_bytes(made).data(), value, static_cast<std::size_t>(bytes), on.handle());
  return made;
}

/// The same elements on the same device, read in the order of the current stream.
inline ferry::tensor duplicate(const ferry::tensor& from) {
  const std::array<std::int64_t, 1> strides{1};
  ferry::tensor made = ferry::empty_packed(ferry::dtype::u8, from.shape(), strides, from.device());
  const auto bytes = ferry::packed_bytes(from);
  const ferry::stream on = ferry::current_stream(from.device());
  ferry::operations_of(from.device().kind)
      .copy(from.device(), ferry::writable_packed_bytes(made).data(), from.device(), bytes.data(), bytes.size(),
            from.device(), on.handle());
  return made;
}

/// Waits until the devices have nothing left to do, and looks again and again for memory that has been given up: where a mark is
/// missing, it is freed too early.
inline void settle() {
  while (fake_cuda::busy()) {
    for (int index = 0; index != fake_cuda::device_count(); ++index) (void)ferry::get_device_memory_stats(gpu(index));
  }
  for (int index = 0; index != fake_cuda::device_count(); ++index) (void)ferry::get_device_memory_stats(gpu(index));
  fake_cuda::drain();
}

/// Drains the devices; returns the value of all its bytes, -1 if they differ.
inline int value_of(const ferry::tensor& t) {
  const auto bytes = ferry::packed_bytes(t);
  std::vector<unsigned char> seen;
  if (t.device().is_cpu()) {
    for (const std::byte each : bytes) seen.push_back(static_cast<unsigned char>(each));
  } else {
    settle();
    seen = fake_cuda::peek(bytes.data(), bytes.size());
  }
  for (const unsigned char each : seen) {
    if (each != seen.front()) return -1;
  }
  return seen.empty() ? -1 : seen.front();
}
/// The value that a read queued now on the current stream gets.
inline int value_read(const ferry::tensor& t) { return value_of(t.device().is_cpu() ? t : duplicate(t)); }

/// Workers 0 to n - 1 in one process.
class device_group {
 public:
  explicit device_group(const std::vector<prepare>& members) : workers_(members.size()) {
    std::vector<std::function<void()>> actions;
    for (std::size_t i = 0; i != members.size(); ++i) {
      actions.emplace_back([this, &members, i] {
        native_options options;
        if (members[i]) members[i](options);
        const int rank = static_cast<int>(i);
        workers_[i] = ferry::init_rpc<ferry::native>({.name = ferry_test::worker_name(rank),
                                                      .rank = rank,
                                                      .world_size = static_cast<int>(members.size()),
                                                      .init_method = "file://" + directory_.file("store"),
                                                      .num_worker_threads = 4},
                                                     options);
      });
    }
    ferry_test::run_together(actions);
  }
  ~device_group() {
    std::vector<std::function<void()>> actions;
    for (auto& each : workers_) actions.emplace_back([&each] { each.shutdown(); });
    ferry_test::run_together(actions);
  }
  device_group(const device_group&) = delete;
  device_group& operator=(const device_group&) = delete;
  ferry::worker& operator[](std::size_t rank) { return workers_.at(rank); }

 private:
  ferry_test::watchdog limit_{"a test of calls with devices"};
  ferry_test::temporary_directory directory_;
  std::vector<ferry::worker> workers_;
};

inline prepare map_to(const std::string& worker, const ferry::device_map& map) {
  return [=](native_options& options) { options.set_device_map(worker, map); };
}

/// Whether the condition becomes true, within half a minute.
template <class Condition>
bool becomes(Condition condition) {
  for (const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
       std::chrono::steady_clock::now() < until;) {
    if (condition()) return true;
    std::this_thread::yield();
  }
  return false;
}

/// A blocking or an asynchronous call.
template <auto F, class... A>
auto call(ferry::worker& from, bool blocking, const ferry::to& destination, const A&... arguments) {
  return blocking ? from.rpc_sync<F>(destination, arguments...) : from.rpc_async<F>(destination, arguments...).get();
}

}  // namespace device_calls
