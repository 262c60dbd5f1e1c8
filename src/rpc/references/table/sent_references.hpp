#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ferry/backend/agent.hpp>
#include <ferry/rpc/detail/call_lifecycle.hpp>

#include "../protocol/reference_protocol.hpp"

namespace ferry::inline v0::detail {

class reference_state;
class reference_table;

/// The references that are sent in one message.
class sent_references final : public carried_handles {
 public:
  /// If `to` has no incarnation, the current incarnation of that worker in the group is used. Throws as
  /// reference_table::peer().
  sent_references(std::shared_ptr<reference_table> table, const call_target& to);
  /// Releases references that were not sent, and watches those that were and are not settled.
  ~sent_references() override;
  sent_references(const sent_references&) = delete;
  sent_references& operator=(const sent_references&) = delete;

  std::uint32_t put(const void* handle) override;
  void seal(outgoing_message& message) override;
  void sent() noexcept override { sent_ = true; }
  void settled(bool received) noexcept override;

 private:
  const std::shared_ptr<reference_table> table_;
  const peer_incarnation to_;
  std::vector<std::shared_ptr<const reference_state>> states_;  // kept alive, so that their addresses are not reused
  std::vector<handed_reference> references_;
  std::uint64_t call_ = 0;
  bool sent_ = false;
};

}  // namespace ferry::inline v0::detail
