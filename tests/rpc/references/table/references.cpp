#include "references.hpp"

#include <chrono>
#include <stdexcept>

#include <doctest/doctest.h>

namespace references_test {

int add(int a, int b) { return a + b; }
int plus(const int& object, int more) { return object + more; }
int refuse(const std::string& why) { throw std::invalid_argument(why); }
int fetch(const ferry::rref<int>& ref) {
  if (!ref.confirmed_by_owner()) throw std::logic_error("the reference is not confirmed");
  return ref.to_here();
}
ferry::rref<int> make_there(const std::string& where, int value) { return ferry::remote<add>(where, value, 0); }

ferry::task<std::vector<int>> counter::later(int) { co_return std::vector<int>{}; }
int twice(const counter& c) { return 2 * c.value(); }

std::atomic<int>& tracked::count() {
  static std::atomic<int> instances{0};
  return instances;
}
int touch(const ferry::rref<tracked>& ref) { return ref.rpc_sync<&tracked::value>(); }

void await_figure(const ferry::worker& worker, const char* name, const std::string& value) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  std::string now;
  while ((now = worker.debug_info(name)) != value) {
    if (std::chrono::steady_clock::now() > limit) {
      throw std::runtime_error(std::string(name) + " of " + worker.name() + " is " + now + ", not " + value);
    }
    std::this_thread::yield();
  }
}

std::uint64_t calls_to(const ferry::worker& from, int to) {
  for (const auto& each : from.traffic()) {
    if (each.peer.id().value == to) return each.calls;
  }
  return 0;
}

faulty_cluster::faulty_cluster(int size, const std::function<void(ferry::worker_config&)>& configure)
    : workers_(static_cast<std::size_t>(size)) {
  for (int rank = 0; rank != size; ++rank) faults_.emplace_back(static_cast<std::uint64_t>(rank + 1));
  std::vector<std::function<void()>> actions;
  for (int rank = 0; rank != size; ++rank) {
    actions.emplace_back([&, rank] {
      using backend = ferry::faulty<ferry::native>;
      ferry::worker_config config;
      config.name = ferry_test::worker_name(rank);
      config.rank = rank;
      config.world_size = size;
      config.init_method = "file://" + directory_.file("store");
      if (configure) configure(config);
      auto options = ferry::construct_rpc_backend_options<backend>(config.options());
      options.faults = faults(rank);
      (*this)[rank] = ferry::init_rpc<backend>(config, options);
    });
  }
  ferry_test::run_together(actions);
}

faulty_cluster::~faulty_cluster() {
  for (ferry::fault_injector& each : faults_) each.clear();
  for (const std::exception_ptr& error : shut_down(*this, std::chrono::seconds(30))) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      FAIL_CHECK("a worker did not shut down: " << std::string(e.what()));
    }
  }
}

}  // namespace references_test
