#pragma once

// Several ferry-runs, one per node, that run one job: they rendezvous, agree on ranks, and report to each other how it
// ends.
//
// Each has one connection to the ferry-run of node 0, over which they send lines:
//   to node 0     hello ferry-run/1 nodes=N rank=R workers=COUNT id=ID host=NAME   rank -1: assign one
//                 done                                          all workers of the node succeeded
//                 failed STATUS TEXT
//   from node 0   waiting came=COUNT                            after hello, and at every change
//                 go node=R first=RANK world=SIZE port=PORT address=HOST           all nodes present; -: the known host
//                 refuse TEXT                                   to this node only
//                 end STATUS TEXT                               to all: status 0 when all are done, else a failure
// The connection is kept until the end, so that each detects the end of another.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <poll.h>

#include "options.hpp"

namespace ferry_run {

/// The part of one node in the job.
struct placement {
  int node_rank = 0;
  int nodes = 1;
  int first_rank = 0;
  int world_size = 0;
  std::string address;  ///< MASTER_ADDR
  std::uint16_t port = 0;
};

/// How a job, or the part of it on one node, ended.
struct outcome {
  int status = 0;  ///< exit status; 0: well
  std::string text;
};

/// The rendezvous failed; what() gives the reason.
struct meeting_error : std::runtime_error {
  meeting_error(int exit_status, const std::string& text) : std::runtime_error(text), status(exit_status) {}
  int status;
};

class meeting {
 public:
  using clock = std::chrono::steady_clock;

  meeting() = default;
  meeting(const meeting&) = delete;
  meeting& operator=(const meeting&) = delete;
  virtual ~meeting() = default;

  /// Adds the descriptors to poll; on_polled() handles poll()'s results for them.
  virtual void add_polled(std::vector<pollfd>& polled) const = 0;
  virtual void on_polled(const pollfd* first) = 0;
  /// Reports to the others how the workers of this node ended. Call once.
  virtual void report(const outcome& own) = 0;
  /// How many nodes have joined so far, as text.
  [[nodiscard]] virtual std::string progress() const = 0;
  /// Stops waiting for the others: notifies them, and what() of the error lists the missing nodes.
  [[nodiscard]] virtual meeting_error timed_out(const std::string& waited) = 0;

  [[nodiscard]] const std::optional<placement>& placed() const noexcept { return placed_; }
  /// Set once the job as a whole has ended, or failed somewhere.
  [[nodiscard]] const std::optional<outcome>& concluded() const noexcept { return concluded_; }

 protected:
  std::optional<placement> placed_;
  std::optional<outcome> concluded_;
};

/// Joins the other nodes: blocks until all are present and placed() is set. Throws meeting_error.
std::unique_ptr<meeting> meet(const options& chosen);

/// For meet().
std::unique_ptr<meeting> make_coordinator(const options& chosen, int listener);
std::unique_ptr<meeting> make_member(const options& chosen, int connection);

/// This machine's name, without spaces.
std::string host_name();
/// The value of " name=value " in a line; empty if it is not there.
std::string field(const std::string& line, const std::string& name);
/// The same as a number in the range, else empty.
std::optional<int> number_field(const std::string& line, const std::string& name, int least, int most);
/// "STATUS TEXT" after the first word of a line; a failure of ferry-run itself if it is something else.
outcome outcome_of(const std::string& line);
std::string seconds(std::chrono::milliseconds duration);

}  // namespace ferry_run
