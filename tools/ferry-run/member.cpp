// A node other than the one that serves the rendezvous.

#include <algorithm>

#include "line_connection.hpp"
#include "meeting.hpp"

namespace ferry_run {
namespace {

using namespace std::chrono_literals;

class member final : public meeting {
 public:
  member(const options& chosen, int connection) : options_(chosen), connection_(connection) {
    connection_.send("hello ferry-run/1 nodes=" + std::to_string(chosen.nodes) +
                     " rank=" + std::to_string(chosen.node_rank.value_or(-1)) +
                     " workers=" + std::to_string(chosen.workers) + " id=" + chosen.job_id + " host=" + host_name());
  }

  void add_polled(std::vector<pollfd>& polled) const override {
    polled.push_back({open_ ? connection_.descriptor() : -1, connection_.events(), 0});
  }

  void on_polled(const pollfd* first) override {
    if (open_ && first->revents != 0) {
      open_ = connection_.advance();
      while (const auto line = connection_.next_line()) take(*line);
      if (!open_ && !concluded_) {
        concluded_ = {125, came_ == 0
                               ? "lost node 0: the listener at " + place() + " closed the connection without an answer"
                               : "lost node 0: its ferry-run at " + place() + " has ended"};
      }
    }
    if (came_ == 0 && !concluded_ && clock::now() - since_ > 10s) concluded_ = unexpected_answer();
  }

  void report(const outcome& own) override {
    connection_.send(own.status == 0 ? "done" : "failed " + std::to_string(own.status) + " " + own.text);
  }

  [[nodiscard]] std::string progress() const override {
    return "waiting: " + std::to_string(came_) + " of " + std::to_string(options_.nodes) + " nodes have come to " +
           place();
  }
  [[nodiscard]] meeting_error timed_out(const std::string& waited) override {
    return {125, "only " + std::to_string(came_) + " of " + std::to_string(options_.nodes) + " nodes came to " +
                     place() + " within " + waited};
  }

 private:
  [[nodiscard]] std::string place() const { return options_.meet_at.text(); }
  [[nodiscard]] outcome unexpected_answer() const {
    return {125, "the listener at " + place() + " does not answer like the ferry-run of node 0"};
  }

  void take(const std::string& line) {
    if (concluded_) return;
    const std::string word = line.substr(0, line.find(' '));
    if (word == "waiting") {
      came_ = number_field(line, "came", 1, largest_node_count).value_or(came_);
    } else if (word == "go") {
      go(line);
    } else if (word == "refuse") {
      came_ = 1;
      concluded_ = {
          2, "node 0 at " + place() + " refuses this node: " + line.substr(std::min(word.size() + 1, line.size()))};
    } else if (word == "end") {
      came_ = 1;
      concluded_ = outcome_of(line);
    } else {
      concluded_ = unexpected_answer();
    }
  }

  void go(const std::string& line) {
    constexpr int most = 32768;
    const auto node = number_field(line, "node", 0, options_.nodes - 1);
    const auto first_rank = number_field(line, "first", 0, most);
    const auto world_size = number_field(line, "world", 1, most);
    const auto port = number_field(line, "port", 1, 65535);
    const std::string address = field(line, "address");
    if (!node || !first_rank || !world_size || !port || address.empty() || *first_rank >= *world_size) {
      concluded_ = unexpected_answer();
      return;
    }
    placed_ = {*node,
               options_.nodes,
               *first_rank,
               *world_size,
               address == "-" ? options_.meet_at.host : address,
               static_cast<std::uint16_t>(*port)};
  }

  options options_;
  line_connection connection_;
  clock::time_point since_ = clock::now();
  bool open_ = true;
  int came_ = 0;  // nodes, this one included; 0: no answer yet
};

}  // namespace

std::unique_ptr<meeting> make_member(const options& chosen, int connection) {
  return std::make_unique<member>(chosen, connection);
}

}  // namespace ferry_run
