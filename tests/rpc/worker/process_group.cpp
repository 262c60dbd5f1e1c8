#include "process_group.hpp"

#include <chrono>
#include <cstring>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "gate.hpp"

using ferry_test::child_process;
using ferry_test::worker_name;

namespace rpc_test {

std::string (*obey_also)(const ferry::worker& self, const std::string& line) = nullptr;

ferry_test::gate mebibytes;
std::string send_mebibyte(int) {
  mebibytes.pass();
  return std::string(std::size_t{1} << 20, 'x');
}

namespace {

ferry::timeout milliseconds(const std::string& text) {
  return text == "never" ? ferry::timeout(ferry::no_timeout)
                         : ferry::timeout(std::chrono::milliseconds(std::stoll(text)));
}
std::string text_of(ferry::timeout value) {
  if (value.is_never()) return "never";
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(value.duration()).count());
}

// Arguments: init method, rank, size, heartbeat interval, lease, transport if any, and, if not as usual, microseconds of spinning and
// how many threads poll.
ferry::worker joined(const std::vector<std::string>& arguments) {
  const int rank = std::stoi(arguments.at(1));
  ferry::worker_config config{.name = worker_name(rank),
                              .rank = rank,
                              .world_size = std::stoi(arguments.at(2)),
                              .init_method = arguments.at(0),
                              .rpc_timeout = std::chrono::seconds(100),
                              .heartbeat_interval = milliseconds(arguments.at(3)),
                              .lease = milliseconds(arguments.at(4))};
  if (!arguments.at(5).empty()) config.transports = {arguments.at(5)};
  if (arguments.size() > 6) config.transport.max_spin = std::chrono::microseconds(std::stoll(arguments.at(6)));
  if (arguments.size() > 7) config.transport.busy_poll = std::stoi(arguments.at(7));
  return ferry::init_rpc(config);
}

const ferry_test::role member("member", [](const std::vector<std::string>& arguments) {
  ferry::worker self = joined(arguments);
  self.shutdown();
  return 0;
});

const ferry_test::role member_alone("member that leaves alone", [](const std::vector<std::string>& arguments) {
  ferry::worker self = joined(arguments);
  ferry_test::tell_parent("joined");
  (void)ferry_test::ask_parent();
  self.shutdown(false);
  return 0;
});

int nothing() { return 0; }

// "flood <n>": calls send_mebibyte() of worker0 n times at once, and waits for all results.
// "call <name>": calls it, and answers "done" or with the kind of the error.
// "losses": answers with the names of those it was told to be lost, once there is one.
// "shutdown", "leave": ends, gracefully or not, and answers as for a call.
const ferry_test::role obedient("member that obeys", [](const std::vector<std::string>& arguments) {
  ferry::worker self = joined(arguments);
  ferry::promise<std::string> lost;
  const auto loss = lost.get_future();
  self.on_peer_lost([&](const ferry::worker_info& who, const std::string&) {
    if (!loss.ready()) lost.set_value(who.name());
  });
  ferry_test::tell_parent("joined");
  for (;;) {
    const std::string line = ferry_test::ask_parent();
    std::string answer = "done";
    try {
      if (line.starts_with("call ")) (void)self.rpc_sync<nothing>(line.substr(5));
      if (line.starts_with("flood ")) {
        std::vector<ferry::future<std::string>> results;
        for (int i = std::stoi(line.substr(6)); i != 0; --i)
          results.push_back(self.rpc_async<send_mebibyte>("worker0", i));
        for (const auto& each : results) {
          if (each.get().size() != std::size_t{1} << 20) answer = "wrong size";
        }
      }
      if (obey_also) {
        if (std::string more = obey_also(self, line); !more.empty()) answer = std::move(more);
      }
      if (line == "losses") answer = loss.get();
      if (line == "shutdown") self.shutdown();
      if (line == "leave") self.shutdown(false);
    } catch (const ferry::error& e) {
      answer = ferry::errc_name(e.kind());
    }
    ferry_test::tell_parent(answer);
    if (line == "shutdown" || line == "leave") return 0;
  }
});

}  // namespace

process_group::process_group(int size, const group_options& options) {
  for (int rank = 1; rank != size; ++rank) {
    children.push_back(std::make_unique<child_process>(ferry_test::child_options{
        .role = options.role,
        .arguments = {meeting(), std::to_string(rank), std::to_string(size), text_of(options.heartbeat_interval),
                      text_of(options.lease), options.transport, std::to_string(options.max_spin.count()),
                      std::to_string(options.busy_poll)}}));
  }
  ferry::worker_config config{.name = "worker0",
                              .rank = 0,
                              .world_size = size,
                              .init_method = meeting(),
                              .rpc_timeout = std::chrono::seconds(100),
                              .flow = options.flow,
                              .heartbeat_interval = options.heartbeat_interval,
                              .lease = options.lease};
  if (!options.transport.empty()) config.transports = {options.transport};
  config.transport.handshake_timeout = options.handshake_timeout;
  config.transport.max_spin = options.max_spin;
  config.transport.busy_poll = options.busy_poll;
  self = ferry::init_rpc(config);
}

void process_group::leave() {
  self.shutdown();
  for (const auto& each : children) CHECK(each->wait() == 0);
}

}  // namespace rpc_test
