#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ferry/ferry.hpp>

#include "gate.hpp"
#include "processes.hpp"
#include "temporary_directory.hpp"
#include "watchdog.hpp"

namespace rpc_test {

struct group_options {
  /// What the children do: "member" serves and shuts down with the rest; "member that leaves alone" says "joined", and
  /// leaves without the others once it is sent a line; "member that obeys" does what the lines say that it is sent
  /// (process_group.cpp).
  std::string role = "member";
  /// Empty: whatever there is.
  std::string transport = {};
  ferry::timeout heartbeat_interval = std::chrono::milliseconds(500);
  ferry::timeout lease = std::chrono::seconds(100);  ///< of processes that may be stopped
  std::chrono::microseconds max_spin = ferry::transport_options().max_spin;
  int busy_poll = 0;
  ferry::flow_limits flow = {};                                            ///< of worker0
  std::chrono::milliseconds handshake_timeout = std::chrono::seconds(60);  ///< of worker0
};

/// worker0 is this process, the others are children.
class process_group {
 public:
  explicit process_group(int size, const group_options& options = {});
  ferry_test::child_process& child(int rank) { return *children.at(static_cast<std::size_t>(rank - 1)); }
  [[nodiscard]] std::string meeting() const { return "file://" + directory_.file("store"); }
  /// All leave gracefully.
  void leave();

  std::vector<std::unique_ptr<ferry_test::child_process>> children;

 private:
  ferry_test::temporary_directory directory_;
  ferry_test::watchdog watchdog_{"a test with processes"};

 public:
  ferry::worker self;
};

/// What a child asks worker0 for that is told to "flood" it; its handlers wait here.
std::string send_mebibyte(int number);
extern ferry_test::gate mebibytes;

/// What else "member that obeys" does: a test may set it before main() begins. The answer to a line; empty: unknown.
extern std::string (*obey_also)(const ferry::worker& self, const std::string& line);

}  // namespace rpc_test
