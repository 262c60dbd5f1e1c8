#pragma once

// The receiving end of the channel shm where the memory of the tensor is the transport's to choose.

#include <ferry/transport/channel.hpp>
#include <ferry/wire/message.hpp>

#include "direct_channel.hpp"

namespace ferry::inline v0::detail {

/// Receives the name of a tensor's memory in another process, and makes a tensor over it.
class adopting_sink final : public note_sink {
 public:
  /// The description outlives it.
  adopting_sink(const tensor_description& what, channel_context context) : note_sink(std::move(context)), what_(what) {}
  /// Once all has been received: the tensor.
  [[nodiscard]] tensor adopted() { return std::move(adopted_); }

 private:
  void take(const loan_note& note, const std::shared_ptr<borrowed_blocks>& borrowed) override;

  const tensor_description& what_;
  tensor adopted_;
};

}  // namespace ferry::inline v0::detail
