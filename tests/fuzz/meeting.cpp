// What the ferry-run of node 0 says to those of other nodes, and the other way round. Input: u8 (odd: to node 0), then the
// bytes that arrive.

#include <array>
#include <vector>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../tools/ferry-run/line_connection.hpp"
#include "../../tools/ferry-run/meeting.hpp"
#include "targets.hpp"

namespace fuzz {
namespace meeting_target {
namespace {

ferry_run::options options_of_node(int rank) {
  ferry_run::options chosen;
  chosen.workers = 2;
  chosen.nodes = 2;
  chosen.node_rank = rank;
  chosen.meet_at = {"host", 1};
  chosen.port = 2;
  chosen.job_id = "job";
  return chosen;
}

// Lets a node that is not 0 hear all of it.
void hear(bytes said) {
  std::array<int, 2> ends{};
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0, "there are sockets");
  (void)!::send(ends[1], said.data(), said.size(), MSG_NOSIGNAL);
  ::shutdown(ends[1], SHUT_WR);
  const auto node = ferry_run::make_member(options_of_node(1), ends[0]);
  std::vector<pollfd> polled;
  node->add_polled(polled);
  for (pollfd& each : polled) each.revents = POLLIN;
  node->on_polled(polled.data());
  require(node->concluded().has_value(), "the end of the connection ends the meeting");
  require(node->concluded()->status >= 0 && node->concluded()->status <= 255, "an exit status");
  if (const auto& placed = node->placed()) {
    require(placed->node_rank >= 0 && placed->node_rank < 2 && placed->world_size >= 1 && placed->port != 0 &&
                !placed->address.empty() && placed->first_rank < placed->world_size,
            "a place is one of the job");
  }
  ::close(ends[1]);
}

// What both ends read lines with.
void read_lines(bytes said) {
  const std::string all(text_of(said));
  for (const char* name : {"nodes", "rank", "workers"}) {
    if (const auto value = ferry_run::number_field(all, name, -1, 1023)) {
      require(*value >= -1 && *value <= 1023, "numbers are in their range");
    }
  }
  const auto outcome = ferry_run::outcome_of(all);
  require(outcome.status >= 0 && outcome.status <= 255, "an exit status");
  std::array<int, 2> ends{};
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0, "there are sockets");
  ferry_run::line_connection from(ends[0]);
  ferry_run::line_connection to(ends[1]);
  from.send(all);
  (void)to.advance();
  const auto line = to.next_line();
  require(line && line->size() <= ferry_run::line_connection::longest_line, "a line arrives as one");
}

void run(bytes input) {
  source from(input);
  if ((from.number<std::uint8_t>() & 1U) != 0) {
    read_lines(from.rest());
  } else {
    hear(from.rest());
  }
}

void seeds(const seed_sink& sink) {
  const auto add = [&](std::string_view name, std::uint8_t which, std::string_view text) {
    sink(name, seed().number(which).add(text));
  };
  add("go", 0, "waiting came=1\nwaiting came=2\ngo node=1 first=2 world=4 port=29500 address=-\nend 0 \n");
  add("refuse", 0, "refuse this is another job\n");
  add("failed", 0, "go node=1 first=2 world=4 port=29500 address=10.0.0.1\nend 3 worker 1 failed\n");
  add("hello", 1, "hello ferry-run/1 nodes=2 rank=1 workers=2 id=job host=other");
  add("report", 1, "failed 3 worker 1 failed");
}

}  // namespace
}  // namespace meeting_target

const target meeting{"meeting", &meeting_target::run, &meeting_target::seeds};

}  // namespace fuzz
