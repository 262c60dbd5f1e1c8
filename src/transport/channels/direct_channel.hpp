#pragma once

// What the channels have in common that send the name of a tensor's memory in the place of its bytes: cuda_ipc and shm.

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include <ferry/transport/channel.hpp>

#include "direct_memory.hpp"

namespace ferry::inline v0::detail {

/// Lends the tensor's memory, and sends its name. Null: it cannot be lent, or too much is lent.
std::unique_ptr<tensor_source> open_lending_source(const tensor& packed, const channel_context& context);

/// Receives the name of a tensor's memory.
class note_sink : public tensor_sink {
 public:
  explicit note_sink(channel_context context) : context_(std::move(context)) {}
  std::span<std::byte> room() final { return std::span<std::byte>(note_).subspan(filled_); }
  void commit(std::size_t bytes) final;

 protected:
  /// It is complete. Sees to it that the memory is given back. Throws errc::device_failure, errc::malformed.
  virtual void take(const loan_note& note, const std::shared_ptr<borrowed_blocks>& borrowed) = 0;
  [[nodiscard]] const channel_context& context() const noexcept { return context_; }

 private:
  const channel_context context_;
  std::array<std::byte, loan_note::encoded_size> note_{};
  std::size_t filled_ = 0;
};

/// For a tensor that is not wanted: receives the name of its memory, and gives it back unread.
std::unique_ptr<tensor_sink> open_giving_back_sink(const channel_context& context);

}  // namespace ferry::inline v0::detail
