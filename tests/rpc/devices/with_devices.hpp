#pragma once

// Workers that declare a number of CUDA devices independent of the machine's.

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "tensor/layout.hpp"

namespace device_maps_test {

struct with_devices {};

struct with_devices_options : ferry::rpc_options {
  using backend = with_devices;
  int count = 0;
};

/// A device with that index; it is never accessed.
constexpr ferry::device gpu(int index) { return {ferry::device_kind::cuda, index}; }

/// A tensor marked as being on a device; its bytes are host memory.
inline ferry::tensor tensor_on(ferry::device where, std::int64_t elements = 3) {
  auto memory = std::make_shared<std::vector<float>>(static_cast<std::size_t>(elements), 1.F);
  const std::size_t bytes = memory->size() * sizeof(float);
  void* const data = memory->data();
  return ferry::detail::make_tensor(ferry::storage::foreign(data, bytes, where, std::move(memory)), ferry::dtype::f32,
                                    {elements}, {1}, 0);
}

/// One worker to be started: `prepare` sets its maps, its devices and their count.
struct member {
  ferry::worker_config config;
  std::function<void(with_devices_options&)> prepare = nullptr;
};

ferry::worker start(const member& one);
/// Starts all concurrently, each on its own thread.
std::vector<ferry_test::started> start_all(const std::vector<member>& members);

}  // namespace device_maps_test

template <>
struct ferry::backend_traits<device_maps_test::with_devices> {
  static constexpr std::string_view name = "with_devices";
  using options_type = device_maps_test::with_devices_options;
  static options_type construct_options(ferry::rpc_options base) { return {std::move(base)}; }
  static std::unique_ptr<ferry::agent> init(std::shared_ptr<ferry::store> group_store,
                                            const ferry::worker_config& config, const options_type& options) {
    return ferry::detail::make_native_agent(std::move(group_store), config, options,
                                            ferry::default_transports::factories(),
                                            ferry::device_counts{{ferry::device_kind::cuda, options.count}});
  }
};

namespace device_maps_test {

inline ferry::worker start(const member& one) {
  with_devices_options options;
  if (one.prepare) one.prepare(options);
  return ferry::init_rpc(one.config, options);
}

inline std::vector<ferry_test::started> start_all(const std::vector<member>& members) {
  std::vector<ferry_test::started> results(members.size());
  std::vector<std::function<void()>> actions;
  for (std::size_t i = 0; i != members.size(); ++i) {
    actions.emplace_back([&results, &members, i] {
      try {
        results[i].worker = start(members[i]);
      } catch (...) {
        results[i].error = std::current_exception();
      }
    });
  }
  ferry_test::run_together(actions);
  return results;
}

}  // namespace device_maps_test
