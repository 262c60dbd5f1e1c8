#pragma once

// One pass back through a graph, on the calling thread.

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include <ferry/autograd/node.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/ops/sparse.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::detail {

class accumulator;

/// Numbers the nodes that it reaches, counts for each how many gradients will arrive, and runs a node when they have: no
/// recursion, and no look-up of nodes unless another pass has numbered them.
class backward_pass {
 public:
  explicit backward_pass(bool keeps_graph) noexcept : keeps_graph_(keeps_graph) {}
  ~backward_pass();
  backward_pass(const backward_pass&) = delete;
  backward_pass& operator=(const backward_pass&) = delete;

  /// `gradient` has arrived at `root` when the pass begins. It is valid on the current stream of its device.
  void add_root(graph_edge root, tensor gradient);
  /// The pass finds the gradient that arrives there, and runs only nodes that lead to such places; leaves keep theirs. Call
  /// after the roots. Returns the number of the result.
  std::size_t add_target(const graph_edge& target);
  /// Throws what nodes and hooks throw. Leaves that it has numbered hear of that, unless it only finds gradients.
  void run();
  /// The number of the pass that runs on the calling thread, the outermost one, unique in the process; 0: none does.
  [[nodiscard]] static std::uint64_t running_here() noexcept;
  /// After run(): undefined if none arrived.
  [[nodiscard]] tensor result(std::size_t number) { return std::move(targets_[number].found); }

 private:
  struct entry {
    graph_node* what;
    std::uint32_t missing = 0;  // gradients that have not arrived
    std::uint32_t first = 0;    // of its values in gradients_
    bool wanted = true;         // its gradient is
    bool runs = true;
  };
  struct target {
    graph_edge at;
    tensor found;
  };

  void run_nodes();
  void tell_leaves() const noexcept;  // in a catch block
  std::uint32_t number_of(graph_node& what);
  [[nodiscard]] std::uint32_t known_number(const graph_node& what) const noexcept;
  void discover();
  void find_wanted();
  void run_node(std::uint32_t number);
  void call_hooks(graph_node& what, std::span<tensor> gradients);
  void arrive(std::uint32_t number, std::uint32_t value, tensor&& gradient, const stream& from);
  /// The same for the rows of a leaf.
  void arrive_rows(std::uint32_t number, sparse_tensor&& rows, const stream& from);
  static void wait_for(const tensor& gradient, const stream& from, const stream& to);
  [[nodiscard]] bool gives_rows(const graph_node& what) const noexcept;
  /// Runs a leaf, for which rows have arrived.
  void run_leaf(accumulator& leaf, std::span<tensor> gradients, std::vector<sparse_tensor>&& rows);
  void one_arrived(std::uint32_t number) {
    if (--nodes_[number].missing == 0) ready_.push_back(number);
  }

  const bool keeps_graph_;
  mutable std::uint64_t unique_ = 0;  // once it was asked for
  std::vector<graph_edge> roots_;
  std::vector<tensor> root_gradients_;
  std::vector<entry> nodes_;
  std::vector<tensor> gradients_;                                   // those that have arrived
  std::unordered_map<const graph_node*, std::uint32_t> elsewhere_;  // nodes that another pass has numbered
  std::vector<std::uint32_t> ready_;
  std::vector<tensor> results_;                                         // of the node that runs
  std::unordered_map<std::uint32_t, std::vector<sparse_tensor>> rows_;  // that have arrived, of leaves
  std::vector<target> targets_;
  std::vector<stream> streams_;  // of devices, on which gradients were computed
};

}  // namespace ferry::inline v0::detail
