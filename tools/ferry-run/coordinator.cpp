// Node 0, which serves the rendezvous of the other nodes.

#include <algorithm>
#include <cerrno>

#include <unistd.h>

#include "line_connection.hpp"
#include "meeting.hpp"

namespace ferry_run {
namespace {

using namespace std::chrono_literals;

class coordinator final : public meeting {
 public:
  coordinator(const options& chosen, int listener) : options_(chosen), listener_(listener) {
    own_.rank = chosen.node_rank ? 0 : -1;
    own_.workers = chosen.workers;
    own_.host = host_name();
  }
  ~coordinator() override { close(listener_); }

  void add_polled(std::vector<pollfd>& polled) const override {
    polled.push_back({listener_, static_cast<short>(accepting() ? POLLIN : 0), 0});
    for (const auto& each : peers_) polled.push_back({each->lines.descriptor(), each->lines.events(), 0});
  }

  void on_polled(const pollfd* first) override {
    const bool knock = first->revents != 0;
    for (const auto& each : peers_) {
      if ((++first)->revents != 0) each->open = each->lines.advance();
      while (const auto line = each->lines.next_line()) take(*each, *line);
      if (each->refused || (!each->greeted && clock::now() - each->since > 10s)) each->open = false;
      if (!each->open && each->greeted && placed_) {
        conclude({125, "lost node " + std::to_string(each->who.rank) + " (" + each->who.host +
                           "): its ferry-run has ended before the job"});
      }
    }
    const auto before = came();
    std::erase_if(peers_, [&](const auto& each) { return !each->open; });
    if (!placed_ && !concluded_ && before != came()) tell_progress();
    while (knock && accepting()) {
      const int descriptor = accept_from(listener_);
      if (descriptor < 0) break;
      peers_.push_back(std::make_unique<peer>(descriptor));
    }
  }

  void report(const outcome& own) override {
    if (own.status != 0) {
      conclude(own);
    } else {
      own_done_ = true;
      end_if_done();
    }
  }

  [[nodiscard]] std::string progress() const override {
    return "waiting at " + options_.meet_at.text() + ": " + came_of_all() + " nodes have come";
  }
  [[nodiscard]] meeting_error timed_out(const std::string& waited) override {
    std::string text = "only " + came_of_all() + " nodes came to " + options_.meet_at.text() + " within " + waited;
    if (options_.node_rank) {
      std::string missing;
      for (int rank = 1, named = 0; rank < options_.nodes && named < 20; ++rank) {
        if (find(rank)) continue;
        missing += (named++ == 0 ? " " : ", ") + std::to_string(rank);
      }
      text += "; missing: node" + missing;
    }
    conclude({125, text});
    return {125, text};
  }

 private:
  struct node {
    int rank = -1;  // -1: to be numbered
    int workers = 0;
    std::string host;
  };
  struct peer {
    explicit peer(int descriptor) : lines(descriptor) {}
    line_connection lines;
    clock::time_point since = clock::now();
    bool open = true;      // lines received before the end of the connection still count
    bool refused = false;  // to be closed, whatever else it sends
    bool greeted = false;  // a node of this job
    bool done = false;
    node who;
  };

  // Some connections beyond the nodes are accepted until they are identified.
  [[nodiscard]] bool accepting() const { return peers_.size() < static_cast<std::size_t>(options_.nodes) + 64; }
  [[nodiscard]] int came() const {
    return 1 + static_cast<int>(
                   std::count_if(peers_.begin(), peers_.end(), [](const auto& each) { return each->greeted; }));
  }
  [[nodiscard]] std::string came_of_all() const {
    return std::to_string(came()) + " of " + std::to_string(options_.nodes);
  }
  [[nodiscard]] const node* find(int rank) const {
    if (rank == own_.rank) return &own_;
    for (const auto& each : peers_) {
      if (each->greeted && each->who.rank == rank) return &each->who;
    }
    return nullptr;
  }

  void take(peer& from, const std::string& line) {
    if (from.refused) return;
    const std::string word = line.substr(0, line.find(' '));
    if (!from.greeted) {
      greet(from, line);
    } else if (word == "done" && placed_) {
      from.done = true;
      end_if_done();
    } else if (word == "failed") {
      conclude(outcome_of(line));
    } else {
      from.refused = true;
    }
  }

  void greet(peer& from, const std::string& line) {
    if (!line.starts_with("hello ferry-run/1 ")) {
      refuse(from, line.starts_with("hello ferry-run/") ? "it is of another version of ferry-run"
                                                        : "this port serves the rendezvous of ferry-run nodes");
      return;
    }
    const auto nodes = number_field(line, "nodes", 1, largest_node_count);
    const auto rank = number_field(line, "rank", -1, largest_node_count - 1);
    const auto workers = number_field(line, "workers", 1, largest_worker_count);
    const std::string id = field(line, "id");
    if (!nodes || !rank || !workers) {
      refuse(from, "its hello is malformed");
    } else if (id != options_.job_id) {
      refuse(from, "this is job '" + options_.job_id + "', not '" + id + "' (--rdzv-id)");
    } else if (placed_) {
      refuse(from, "the job has started with all its " + std::to_string(options_.nodes) + " nodes");
    } else {
      const node* same = *rank < 0 ? nullptr : find(*rank);
      from.greeted = true;
      from.who = {*rank, *workers, field(line, "host")};
      const std::string both = own_.host + " and " + from.who.host;
      if (*nodes != options_.nodes) {
        conclude({2, "nodes have inconsistent options: " + own_.host + " has --nnodes " +
                         std::to_string(options_.nodes) + ", " + from.who.host + " has --nnodes " +
                         std::to_string(*nodes)});
      } else if ((*rank < 0) != (own_.rank < 0)) {
        conclude({2, "nodes have inconsistent options: of " + both + ", only " +
                         (*rank < 0 ? own_.host : from.who.host) +
                         " has --node-rank; give it on all nodes or on none"});
      } else if (same != nullptr) {
        conclude(
            {2, "two nodes have --node-rank " + std::to_string(*rank) + ": " + same->host + " and " + from.who.host});
      } else {
        tell_progress();
        if (came() == options_.nodes) go();
      }
    }
  }

  void refuse(peer& from, const std::string& why) {
    from.lines.send("refuse " + why);
    from.refused = true;
  }

  void tell_progress() {
    for (const auto& each : peers_) {
      if (each->greeted) each->lines.send("waiting came=" + std::to_string(came()));
    }
  }

  void go() {
    own_.rank = 0;
    std::vector<peer*> others;
    int next = 1;
    int world_size = own_.workers;
    for (const auto& each : peers_) {
      if (!each->greeted) continue;
      if (each->who.rank < 0) each->who.rank = next++;
      world_size += each->who.workers;
      others.push_back(each.get());
    }
    constexpr int most = 32768;
    if (world_size > most) {
      conclude({2, std::to_string(world_size) + " workers on all nodes are too many: a group has at most " +
                       std::to_string(most)});
      return;
    }
    std::sort(others.begin(), others.end(),
              [](const peer* one, const peer* two) { return one->who.rank < two->who.rank; });
    std::uint16_t port = options_.port;
    // The rendezvous port itself is in use, whatever the kernel reports for its addresses.
    while (port == 0 || port == options_.meet_at.port) port = free_port();
    const std::string shared = " world=" + std::to_string(world_size) + " port=" + std::to_string(port) +
                               " address=" + (options_.address.empty() ? "-" : options_.address);
    int first_rank = own_.workers;
    for (peer* each : others) {
      each->lines.send("go node=" + std::to_string(each->who.rank) + " first=" + std::to_string(first_rank) + shared);
      first_rank += each->who.workers;
    }
    placed_ = {0,   options_.nodes, 0, world_size, options_.address.empty() ? options_.meet_at.host : options_.address,
               port};
  }

  void conclude(const outcome& ended) {
    if (concluded_) return;
    concluded_ = ended;
    for (const auto& each : peers_) {
      if (each->greeted) each->lines.send("end " + std::to_string(ended.status) + " " + ended.text);
    }
  }

  void end_if_done() {
    if (own_done_ &&
        std::all_of(peers_.begin(), peers_.end(), [](const auto& each) { return each->done || !each->greeted; }))
      conclude({});
  }

  options options_;
  int listener_;
  node own_;
  bool own_done_ = false;
  std::vector<std::unique_ptr<peer>> peers_;
};

}  // namespace

std::unique_ptr<meeting> make_coordinator(const options& chosen, int listener) {
  return std::make_unique<coordinator>(chosen, listener);
}

}  // namespace ferry_run
