#pragma once

// The memory, of GPUs and of the host, that the two ends of a connection between processes read from each other: what is lent, and
// until when. docs/decisions/devices_between_processes.md and docs/decisions/host_memory_in_place.md explain it.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/device/device.hpp>
#include <ferry/tensor/tensor.hpp>

#include "../../base/unique_fd.hpp"
#include "../../device/cuda/cuda_ipc.hpp"
#include "../../device/memory/handed_over_block.hpp"
#include "../shm/peer_memory.hpp"
#include "../shm/shared_rings.hpp"

namespace ferry::inline v0::detail {

/// A pidfd of the process at the other end of a unix socket. Empty: it is not known here (another namespace of processes), or ended.
[[nodiscard]] unique_fd process_at(int socket) noexcept;

/// One block that a process lets the other read, until the other gives it back.
struct loan {
  std::uint32_t slot = 0;
  std::uint32_t number = 0;  ///< of the loans of that slot; never 0
};

/// What travels in the place of a tensor's bytes (docs/protocol.md).
struct loan_note {
  static constexpr std::size_t encoded_size = 96;
  static constexpr std::uint32_t host_pool = 0xffffffff;
  static constexpr std::uint32_t handed_over_pool =
      0xfffffffe;          ///< of host memory that the lender does not look at meanwhile
  std::uint32_t pool = 0;  ///< which of those that the lender offered; or its host memory
  loan of;
  std::uint64_t offset = 0;  ///< in the block, or in the host memory
  std::uint64_t bytes = 0;
  cuda_block_name block{};
  [[nodiscard]] std::array<std::byte, encoded_size> encode() const noexcept;
  /// None if all bytes are zero, as where the sender's devices have failed. Throws errc::malformed.
  static std::optional<loan_note> decode(std::span<const std::byte, encoded_size> in);
};

/// The blocks that this process has lent over one connection. Kept until the other process has given them back, has let go of the
/// connection, or is dead, also beyond the end of the connection. Thread-safe.
class lent_blocks {
 public:
  /// `reader` is a pidfd of the other process, or empty until watch() was called.
  lent_blocks(std::shared_ptr<shared_segment> memory, loan_control& said, unique_fd reader) noexcept
      : memory_(std::move(memory)), said_(&said), reader_(std::move(reader)) {
    if (reader_) watch_ = watch_state::on;
  }

  enum class watch_state : std::uint8_t { not_yet, on, impossible };
  /// Before the first block is lent: watches the process at the other end of the socket.
  void watch(int socket) noexcept;
  /// Where it is impossible, blocks that the reader has when it dies would never come back.
  [[nodiscard]] watch_state watched() const noexcept { return watch_.load(std::memory_order_acquire); }
  /// Whether the reader has mapped the host memory of this process; and whether it takes over what is handed to it.
  [[nodiscard]] bool reader_has_host() const noexcept;
  [[nodiscard]] bool reader_takes_over() const noexcept;
  /// Keeps the block; none if too many are lent, or this one is and must not be twice.
  std::optional<loan> lend(storage block, bool once = false);
  /// The other process has not been told of it.
  void take_back(loan which) noexcept;
  /// Drops what has been given back. Cheap where nothing is lent.
  void collect() noexcept { collect(false); }
  [[nodiscard]] std::size_t count() const noexcept { return count_.load(std::memory_order_relaxed); }
  /// The connection has ended: looks after what is still lent, until nothing is.
  static void look_after(std::shared_ptr<lent_blocks> blocks) noexcept;

 private:
  friend class lent_blocks_of_ended_connections;
  void collect(bool connection_ended) noexcept;
  [[nodiscard]] bool reader_is_dead() const noexcept;

  const std::shared_ptr<shared_segment> memory_;
  loan_control* const said_;
  unique_fd reader_;
  std::atomic<watch_state> watch_{watch_state::not_yet};
  std::atomic<std::size_t> count_{0};
  std::mutex mutex_;
  std::array<storage, loan_control::slots> blocks_;
  std::array<std::uint32_t, loan_control::slots> numbers_{};
};

/// What this process reads of the other's. Destroyed when the connection has ended and so have all copies, which tells the other
/// process. Thread-safe.
class borrowed_blocks {
 public:
  borrowed_blocks(std::shared_ptr<shared_segment> memory, loan_control& say) noexcept
      : memory_(std::move(memory)), say_(&say) {}
  ~borrowed_blocks();
  borrowed_blocks(const borrowed_blocks&) = delete;
  borrowed_blocks& operator=(const borrowed_blocks&) = delete;
  /// The other process may reuse the block.
  void give_back(loan which) noexcept;
  /// Called after each give_back(), to wake the other end; may be empty.
  void set_news(std::function<void()> news);
  /// The lender may lend host memory, which is mapped, and hand it over or not; or may not any more.
  void announce_host(bool takes_over) noexcept;
  void withdraw_host() noexcept;

 private:
  const std::shared_ptr<shared_segment> memory_;
  loan_control* const say_;
  std::mutex mutex_;
  std::shared_ptr<const std::function<void()>> news_;
};

/// A pool of this process that the peer may read, and from which of the peer's devices: bit i for its cuda:i.
struct offered_pool {
  device where;
  std::uint64_t readers = 0;
};

/// What of the host's memory the ends have handed each other.
struct shared_host_memory {
  bool offered = false;                           ///< this process's
  std::shared_ptr<peer_memory> theirs = nullptr;  ///< null: the peer's is not used
};

/// Why no memory of GPUs is lent over a connection whose ends have not handed over any.
inline constexpr std::string_view no_gpu_memory =
    "an end of the connection shares no memory of GPUs: it used none that can be shared when the connection was made, "
    "or share_device_memory is false";

/// The same of host memory.
inline constexpr std::string_view no_host_memory =
    "an end of the connection shares no host memory: share_host_memory is false, FERRY_SHARED_MEMORY is 0, "
    "or it is of another ferry release";

/// Ordinary tensors of so many bytes and more may be handed over.
inline constexpr std::size_t least_handed_over = std::size_t{256} << 10U;

/// Both for one connection. Thread-safe.
class direct_memory {
 public:
  /// `theirs` has null where a pool of the peer is not used. `obstacle` is why no memory of GPUs is lent at all; a literal, or empty.
  direct_memory(const shared_rings& rings, unique_fd peer_process, std::vector<offered_pool> ours,
                std::vector<std::shared_ptr<imported_pool>> theirs, std::string_view obstacle = {},
                shared_host_memory host = {});
  ~direct_memory();
  direct_memory(const direct_memory&) = delete;
  direct_memory& operator=(const direct_memory&) = delete;

  /// Why the peer's device `to` cannot read memory of `from`; empty: it can. A literal.
  [[nodiscard]] std::string_view why_not(device from, device to) const noexcept;
  /// Whether that device can read this tensor, and it is large enough to be lent, or a copy of it to be handed over. It is packed.
  [[nodiscard]] bool can_lend(const tensor& packed, device to) const noexcept;
  /// Lends a tensor for which can_lend() is true, and which is complete before the note is sent, or hands a copy over; none if too many
  /// are lent, this one of the host is lent already (a reader that writes to one must not see it in the other), the memory has no name, or
  /// there is none for a copy.
  [[nodiscard]] std::optional<loan_note> lend(const tensor& packed) noexcept;
  /// Whether what is written to the rings is read meanwhile. While it is not, each fill of a ring costs a change of processes, and large
  /// tensors of ordinary memory are copied once and handed over.
  void reader_keeps_pace(bool is) noexcept { in_turns_.store(!is, std::memory_order_relaxed); }
  /// Whether that is to be found out now, for once.
  [[nodiscard]] bool asks_for_pace() noexcept {
    return ask_again_.load(std::memory_order_relaxed) && ask_again_.exchange(false, std::memory_order_relaxed);
  }

  [[nodiscard]] const std::shared_ptr<lent_blocks>& lent() const noexcept { return lent_; }
  /// Null after close().
  [[nodiscard]] std::shared_ptr<borrowed_blocks> borrowed() const;
  /// The peer's host memory; null if this process does not use it.
  [[nodiscard]] std::shared_ptr<peer_memory> host() const;
  /// A pool of the peer; null if this process does not use it, or if there is none of that number.
  [[nodiscard]] std::shared_ptr<imported_pool> pool(std::uint32_t number) const;
  /// The connection has ended: lends nothing more. What is under way ends by itself.
  void close() noexcept;

 private:
  [[nodiscard]] std::string_view why_not_host() const noexcept;
  [[nodiscard]] bool hands_over(const tensor& packed) const noexcept;
  [[nodiscard]] std::optional<loan_note> hand_over(std::span<const std::byte> bytes) noexcept;

  const std::string_view obstacle_;
  const std::vector<offered_pool> ours_;
  const bool host_offered_;
  const std::shared_ptr<lent_blocks> lent_;
  const std::shared_ptr<handed_over_share> share_ = std::make_shared<handed_over_share>();
  std::atomic<bool> in_turns_{false};
  std::atomic<bool> ask_again_{false};
  std::atomic<unsigned> handed_over_{0};
  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::shared_ptr<imported_pool>> theirs_;
  std::shared_ptr<peer_memory> host_;
  std::shared_ptr<borrowed_blocks> borrowed_;
  bool closed_ = false;
};

}  // namespace ferry::inline v0::detail
