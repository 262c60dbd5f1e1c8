#include "worker_pair.hpp"

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <string_view>
#include <utility>

#include <poll.h>

#include <ferry/rpc/interceptor.hpp>
#include <ferry/store/tcp_store.hpp>

#include "handlers.hpp"

namespace ferry_bench {
namespace {

using namespace std::chrono_literals;

class idle_interceptor final : public ferry::interceptor {
 public:
  explicit idle_interceptor(int number) : name_("idle." + std::to_string(number)) {}
  [[nodiscard]] std::string_view name() const noexcept override { return name_; }

 private:
  const std::string name_;
};

// In the order of worker_pair's arguments.
ferry::worker start(const std::vector<std::string>& arguments) {
  ferry::worker_config config;
  config.name = arguments.at(0);
  config.rank = std::stoi(arguments.at(1));
  config.world_size = std::stoi(arguments.at(2));
  config.init_method = arguments.at(3);
  config.transports = {arguments.at(4)};
  if (arguments.at(5) == "sleeping") config.transport.max_spin = 0us;
  if (arguments.at(5) == "busy-poll") config.transport.busy_poll = 1;
  config.heartbeat_interval = std::chrono::milliseconds(std::stoll(arguments.at(6)));
  config.lease = std::chrono::milliseconds(std::stoll(arguments.at(7)));
  config.flight_events = std::stoi(arguments.at(8));
  for (int i = 0; i != std::stoi(arguments.at(9)); ++i)
    config.interceptors.push_back(std::make_shared<idle_interceptor>(i));
  config.transport.bind = "127.0.0.1";
  config.init_timeout = 20s;
  config.exit_timeout = 20s;
  return ferry::init_rpc(config);
}

std::string milliseconds(ferry::timeout value) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(value.duration()).count());
}

bool told_to_stop() {
  pollfd control{control_descriptor, POLLIN | POLLRDHUP, 0};
  return ::poll(&control, 1, 0) != 0;
}

int serve(const std::vector<std::string>& arguments) {
  ferry::worker self = start(arguments);
  char ignored = 0;
  read_all(control_descriptor, &ignored, 1);
  self.shutdown(true, 20s);
  return 0;
}

int block(const std::vector<std::string>& arguments) {
  ferry::worker self = start(arguments);
  while (!told_to_stop()) self.rpc_sync<remote::block_for>(callee, 100);
  self.shutdown(true, 20s);
  return 0;
}

}  // namespace

std::map<std::string, role> worker_roles() { return {{"callee", serve}, {"bystander", block}}; }

worker_pair::worker_pair(const pair_options& wanted, pin_mode pin) : pin_(pin), within_(wanted.transport == "inproc") {
  // The store must be served before a worker connects to it.
  const auto server = ferry::tcp_store_server::listen("127.0.0.1", free_port());
  const std::string init_method = "tcp://127.0.0.1:" + std::to_string(server->port());
  const std::string waiting = wanted.sleeping ? "sleeping" : wanted.busy_poll ? "busy-poll" : "spinning";
  const int world_size = 2 + (wanted.bystander ? 1 : 0) + (wanted.third ? 1 : 0);
  pin_process(0, pin, side::caller);
  const auto arguments = [&](const std::string& name, int rank) -> std::vector<std::string> {
    return {name,
            std::to_string(rank),
            std::to_string(world_size),
            init_method,
            wanted.transport,
            waiting,
            milliseconds(wanted.heartbeat_interval),
            milliseconds(wanted.lease),
            std::to_string(wanted.flight_events),
            std::to_string(wanted.idle_interceptors)};
  };
  std::future<ferry::worker> other;
  if (within_) {
    other = std::async(std::launch::async, [&] { return start(arguments(callee, 1)); });
  } else {
    callee_process_ = child_process("callee", arguments(callee, 1));
    pin_process(callee_process_.id(), pin, side::callee);
  }
  if (wanted.third) third_ = child_process("callee", arguments(third, world_size - 1));
  if (wanted.bystander) bystander_ = child_process("bystander", arguments("bystander", 2));
  caller_ = start(arguments("caller", 0));
  if (within_) callee_ = other.get();
  this->pin();
}

void worker_pair::pin() {
  if (within_ && pin_ == pin_mode::two_cores) {  // the calling thread, and those of the library
    pin_process(0, pin_, side::callee);
    pin_thread(0);
  } else {
    pin_process(0, pin_, side::caller);
  }
  if (!within_) pin_process(callee_process_.id(), pin_, side::callee);
  if (third_.id() > 0) pin_process(third_.id(), pin_, side::callee);
}

worker_pair::~worker_pair() {
  std::future<void> other;
  if (within_) {
    other = std::async(std::launch::async, [this] { callee_ = {}; });
  } else {
    callee_process_.ask_to_stop();
    bystander_.ask_to_stop();
    third_.ask_to_stop();
  }
  caller_ = {};  // gracefully
  if (within_) other.wait();
}

}  // namespace ferry_bench
