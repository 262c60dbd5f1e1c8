#pragma once

// What the tests of this folder have in common: the device, tensors on it, workers.

#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/device/current.hpp>
#include <ferry/ferry.hpp>
#include <ferry/ops/ops.hpp>

#include "cluster.hpp"
#include "processes.hpp"
#include "temporary_directory.hpp"
#include "watchdog.hpp"

namespace gpu_test {

constexpr ferry::device host;
constexpr ferry::device gpu{ferry::device_kind::cuda, 0};

using native_options = ferry::backend_traits<ferry::native>::options_type;

/// A tensor of n times the value, on the device.
inline ferry::tensor filled(std::int64_t n, int value) { return ferry::full({n}, value, ferry::dtype::i32, gpu); }

/// Whether all elements of a tensor are `value`; waits for the device.
inline bool is_filled(const ferry::tensor& t, int value) {
  return ferry::equal(t.to(host), ferry::full(t.shape(), value, ferry::dtype::i32));
}

/// Worker `rank` of `size`, whose tensors go to the same device of all others, over `transport`.
inline ferry::worker joined(const std::string& meeting, int rank, int size, const std::string& transport) {
  native_options options;
  options.transports = {transport};
  options.heartbeat_interval = std::chrono::milliseconds(500);
  options.lease = std::chrono::seconds(20);
  for (int other = 0; other != size; ++other) {
    if (other != rank) options.set_device_map(ferry_test::worker_name(other), {{"cuda:0", "cuda:0"}});
  }
  return ferry::init_rpc<ferry::native>(
      {.name = ferry_test::worker_name(rank), .rank = rank, .world_size = size, .init_method = meeting}, options);
}

/// Two workers of this process.
class worker_pair {
 public:
  explicit worker_pair(const std::string& transport) : workers_(2) {
    const std::string meeting = "file://" + directory_.file("store");
    ferry_test::run_together({[&] { workers_[0] = joined(meeting, 0, 2, transport); },
                              [&] { workers_[1] = joined(meeting, 1, 2, transport); }});
  }
  ~worker_pair() {
    ferry_test::run_together({[&] { workers_[0].shutdown(); }, [&] { workers_[1].shutdown(); }});
  }
  worker_pair(const worker_pair&) = delete;
  worker_pair& operator=(const worker_pair&) = delete;
  ferry::worker& operator[](std::size_t rank) { return workers_.at(rank); }

 private:
  ferry_test::watchdog limit_{"a test on a GPU"};
  ferry_test::temporary_directory directory_;
  std::vector<ferry::worker> workers_;
};

/// Does something that must not wait for a device; a watchdog names what does.
inline void without_waiting(const std::string& what, const std::function<void()>& action) {
  const ferry_test::watchdog limit("the host waits for a device that is held, in: " + what, std::chrono::seconds(30));
  INFO(what);
  action();
}

}  // namespace gpu_test
