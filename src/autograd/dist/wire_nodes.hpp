#pragma once

// The nodes at which a worker's graph of gradients leaves the worker, or ferry's graph another engine begins.

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/autograd/dist/engine.hpp>
#include <ferry/autograd/node.hpp>
#include <ferry/backend/worker_info.hpp>
#include <ferry/device/device.hpp>

#include "message_set.hpp"

namespace ferry::inline v0::detail {

class dist_context;

/// The tensors of one message that have gradients, at its receiver: their gradients go back to the sender. Has no edges.
class received_node final : public graph_node {
 public:
  struct origin {
    std::uint64_t context = 0;
    std::uint64_t message = 0;
    worker_info sender;
    std::vector<device> devices;  ///< those of the sender's tensors
    message_set upstream;         ///< the messages from which these tensors were computed at the sender
  };
  received_node(origin from, std::vector<value_facts> values);
  [[nodiscard]] std::string_view name() const noexcept override { return "receive"; }
  void apply(std::span<tensor> gradients, std::span<tensor> results) override;
  [[nodiscard]] const origin& from() const noexcept { return from_; }

 private:
  const origin from_;
};

/// A value whose gradient goes on to a node of another engine.
class leading_node final : public graph_node {
 public:
  leading_node(held_edge to, value_facts value);
  [[nodiscard]] std::string_view name() const noexcept override { return "lead"; }
  void apply(std::span<tensor> gradients, std::span<tensor> results) override;
  [[nodiscard]] const held_edge& to() const noexcept { return to_; }

 private:
  const held_edge to_;
};

/// Null unless it is such a node.
const received_node* as_received(const node_ref& node) noexcept;

/// The messages that lead to these places, each with all those that lead to it. Only messages of that context count.
/// `first_received`: the number of the oldest received_node of the context on this worker.
message_set messages_before(std::span<const held_edge> places, std::uint64_t context, std::uint64_t first_received);

}  // namespace ferry::inline v0::detail
