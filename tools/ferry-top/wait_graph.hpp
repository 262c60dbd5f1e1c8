#pragma once

// What waits for what: calls for those that their handlers make, collectives for the members that have not called them.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis.hpp"
#include "group_index.hpp"

namespace ferry_top {

/// Where the calls that begin with one lead: each next one is the oldest that the handler of the one before may have made.
struct chain {
  std::vector<std::string> steps;  ///< texts
  std::string end;                 ///< the last worker
  bool computes = false;           ///< a handler runs there
  bool circular = false;
};
[[nodiscard]] chain follow(const group_index& of, const std::string& caller, const ferry::pending_call_info& first);

/// A call or a collective in which a worker waits.
struct waiting_node {
  std::string worker;
  std::string text;  ///< "worker1 for worker2 ('f' for 3 s)"
  std::chrono::nanoseconds age{};
};

/// Nodes that wait for each other, each for the next.
struct cycle_of_waits {
  std::vector<const waiting_node*> nodes;
  bool running = false;      ///< it leads through handlers that run
  bool collectives = false;  ///< it leads through collectives
};

class wait_graph {
 public:
  /// Of the oldest calls and collectives. Both must outlive it.
  wait_graph(const std::vector<waiting_call>& waiting, const group_index& of, std::chrono::nanoseconds older_than);
  wait_graph(const wait_graph&) = delete;
  wait_graph& operator=(const wait_graph&) = delete;

  /// The shortest, of two workers at least; without nodes: there is none.
  [[nodiscard]] cycle_of_waits shortest_cycle(bool only_certain) const;

 private:
  using node_list = std::vector<std::size_t>;
  // What the handler of a call waits for: the call or collective that it has made, or perhaps any of the calls of its worker. A handler
  // that runs may wait for a lock that another one there holds, which waits in a call. A member that has not called a collective may
  // wait in any call or collective of its own before it does.
  struct blocked_by {
    std::optional<std::size_t> one;
    std::vector<const node_list*> any_of;  // one list for each worker
    bool running = false;
    bool collective = false;
  };
  using call_key = std::pair<std::string, std::uint64_t>;  // caller, call
  using member_key = std::pair<std::string, const ferry::pending_collective_info*>;
  void add_call(const waiting_call& call);
  void add_collective(const std::string& member, const ferry::pending_collective_info& what,
                      const waiting_collective& all);
  void connect_call(std::size_t node, const waiting_call& call);
  void connect_missing(std::size_t node, const waiting_collective& of);
  [[nodiscard]] std::optional<std::size_t> first_made(const std::string& worker, std::chrono::nanoseconds within) const;

  const group_index& of_;
  std::vector<waiting_node> nodes_;  // those of calls first
  std::size_t call_nodes_ = 0;
  std::vector<blocked_by> edges_;  // by node
  std::map<call_key, std::size_t> calls_;
  std::map<member_key, std::size_t> collectives_;
  std::map<std::string, node_list> by_worker_;
  std::map<std::string, node_list> calls_of_;  // the same, of calls only
};

}  // namespace ferry_top
