// A transport and a backend that are no part of ferry.   ferry-run -n 3 ./07_own_backend [BACKEND]

#include <ferry/ferry.hpp>

#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "packet_transport.hpp"

// A backend is a tag, its options, and a specialisation of ferry::backend_traits.
struct packet_backend {};

struct packet_options : ferry::rpc_options {
  using backend = packet_backend;  // lets init_rpc find the backend by its options
  bool other_machines = false;     // peers that packets do not reach are called over tcp
};

template <>
struct ferry::backend_traits<packet_backend> {
  static constexpr std::string_view name = "packet";
  using options_type = packet_options;
  static options_type construct_options(ferry::rpc_options base) { return {std::move(base)}; }
  static std::unique_ptr<ferry::agent> init(std::shared_ptr<ferry::store> store, const ferry::worker_config& config,
                                            const options_type& options) {
    using packets = ferry::native_over<ferry::transport_list<packet>>;
    using packets_and_tcp = ferry::native_over<ferry::transport_list<packet, ferry::tcp>>;
    // The native backend does the rest: joining, calls, replies, shutdown.
    const ferry::rpc_options& base = options;
    return options.other_machines ? ferry::backend_traits<packets_and_tcp>::init(std::move(store), config, {base})
                                  : ferry::backend_traits<packets>::init(std::move(store), config, {base});
  }
};

// What this program can be started with. Two backends of one name would not compile.
using backends = ferry::backend_list<ferry::native, packet_backend>;

ferry::tensor scale(const ferry::tensor& values, double by) {
  ferry::tensor result = values.clone();
  ferry::mul_(result, by);
  return result;
}

ferry::worker start(int count, char** arguments) {
  if (count > 1) return ferry::init_rpc(backends{}, arguments[1], {});  // picked by name
  packet_options options;
  options.num_worker_threads = 4;
  return ferry::init_rpc({}, options);  // the backend follows from the type of the options
}

int main(int count, char** arguments) try {
  ferry::worker self = start(count, arguments);
  const int next = (self.id().value + 1) % static_cast<int>(self.workers().size());
  // 8 MB there and 8 MB back, in packets of 64 KiB.
  const auto answer = self.rpc_sync<scale>(next, ferry::ones({1'000'000}), 3.0);
  const bool right = ferry::equal(answer, ferry::full({1'000'000}, 3.0));
  std::cout << "worker " << next << (right ? " scaled" : " broke") << " a tensor of " << answer.size(0)
            << " elements\n";
  self.shutdown();
  return right ? 0 : 1;
} catch (const ferry::error& problem) {
  std::cout << problem.what() << "\n";
  return 1;
}
