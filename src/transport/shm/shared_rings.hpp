#pragma once

// The two rings of a connection over shared memory, in one segment of memory without a name, which is handed over as a
// descriptor. docs/protocol.md, section Shared memory, specifies every byte.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <sys/types.h>
#include <sys/uio.h>

#include <ferry/base/error.hpp>

#include "../../base/unique_fd.hpp"
#include "ring.hpp"

namespace ferry::inline v0::detail {

/// The two indices and flags of both rings, what says which memory of GPUs is no longer read, then the bytes of one and of the
/// other ring.
inline constexpr std::size_t ring_controls_bytes = 4096;
inline constexpr std::size_t smallest_ring = 4096;
inline constexpr std::size_t largest_ring = std::size_t{64} << 20U;

/// A size that both ends accept for a ring.
[[nodiscard]] constexpr bool is_ring_size(std::uint64_t bytes) noexcept {
  return bytes >= smallest_ring && bytes <= largest_ring && (bytes & (bytes - 1)) == 0;
}

/// For transport_options::shm_ring_bytes = 0.
[[nodiscard]] std::size_t default_ring_bytes() noexcept;

/// Memory that both processes have mapped.
class shared_segment {
 public:
  /// Maps it. Throws errc::system_failure.
  shared_segment(int descriptor, std::size_t bytes);
  ~shared_segment();
  shared_segment(const shared_segment&) = delete;
  shared_segment& operator=(const shared_segment&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  /// The same for all mappings of the segment, and for those of no other that exists.
  [[nodiscard]] std::uint64_t identity() const noexcept { return identity_; }

 private:
  std::span<std::byte> bytes_;
  std::uint64_t identity_ = 0;
};

/// What each end tells the other of the other's memory, which it reads directly. Both processes change it only as said here, but
/// the other may write anything: a lender that believes it reuses its own memory too early, and harms the reader alone.
struct loan_control {
  static constexpr std::size_t slots = 128;
  /// Not 0: the reader has no connection any more and reads no memory of the lender.
  alignas(128) std::uint32_t reader_gone = 0;
  /// Not 0: the reader has mapped the host memory of the lender; takes_over: so that it may write to what is handed over, too.
  std::uint32_t reads_host = 0;
  static constexpr std::uint32_t takes_over = 2;
  /// By slot: the number of the last loan that the reader has given back.
  alignas(128) std::array<std::uint32_t, slots> given_back{};
};

/// One end of a connection: the ring that it writes and the ring that it reads. The writing and the reading half are
/// independent of each other; each belongs to one thread at a time.
class shared_rings {
 public:
  enum class side : std::uint8_t { connecting, accepting };

  /// A fresh segment, sealed against changes of its size, and its descriptor for the other end. Throws
  /// errc::system_failure.
  static std::pair<std::unique_ptr<shared_rings>, unique_fd> create(std::size_t ring_bytes);
  /// The segment of a peer. Throws errc::handshake_failed unless it is memory of exactly the size of two such rings
  /// whose size cannot change: then no access to it can fail, whatever the peer does.
  static std::unique_ptr<shared_rings> adopt(const unique_fd& descriptor, std::uint64_t ring_bytes);

  shared_rings(int descriptor, std::size_t ring_bytes, side which);

  ring_writer& out() noexcept { return out_; }
  ring_reader& in() noexcept { return in_; }
  /// The memory, to be kept longer than this.
  [[nodiscard]] const std::shared_ptr<shared_segment>& memory() const noexcept { return memory_; }
  /// What the other end says of this end's memory, and what this end says of the other's. Valid as long as memory().
  [[nodiscard]] loan_control& lent() const noexcept { return loans(which_ == side::connecting ? 0 : 1); }
  [[nodiscard]] loan_control& borrowed() const noexcept { return loans(which_ == side::connecting ? 1 : 0); }

 private:
  [[nodiscard]] loan_control& loans(std::size_t index) const noexcept;

  std::shared_ptr<shared_segment> memory_;
  side which_;
  ring_writer out_;
  ring_reader in_;
};

/// What the connecting end sends together with the descriptor of its segment.
struct rings_offer {
  static constexpr std::size_t encoded_size = 24;
  std::uint64_t ring_bytes = 0;
  [[nodiscard]] std::array<std::byte, encoded_size> encode() const noexcept;
  /// Throws errc::handshake_failed.
  static rings_offer decode(std::span<const std::byte, encoded_size> in);
};

/// The accepting end's answer: eight bytes, and the reason as text if it refuses.
struct rings_verdict {
  static constexpr std::size_t encoded_size = 8;
  static constexpr std::size_t longest_text = 512;
  errc refused{};  ///< zero: accepted
  std::uint32_t text_bytes = 0;
  [[nodiscard]] bool accepted() const noexcept { return refused == errc{}; }
  static std::string encode_acceptance();
  /// The text is cut at longest_text bytes.
  static std::string encode_refusal(errc code, std::string_view why);
  /// Throws errc::handshake_failed.
  static rings_verdict decode(std::span<const std::byte, encoded_size> in);
};

/// Sends the offer over a unix socket, and with it the descriptor of this process's host memory, if there is one. Throws
/// errc::system_failure.
void send_offer(int socket, const rings_offer& offer, const unique_fd& segment, int host_memory = -1);
/// An offer, and the verdict on it, may come with the host memory of the end that sends it.
struct received_offer {
  std::unique_ptr<shared_rings> rings;  ///< null: the peer has closed the connection
  unique_fd host_memory;                ///< empty also if this process has no descriptor left for it
};
/// Reads an offer that has arrived and maps its segment. Throws errc::handshake_failed, also if it comes with another number of
/// descriptors, and errc::resource_exhausted if this process has none left for the segment.
received_offer receive_offer(int socket, bool with_host_memory = false);
/// Accepts an offer, and hands over host memory. Throws errc::system_failure.
void send_acceptance(int socket, int host_memory);
struct received_verdict {
  std::optional<rings_verdict> verdict;  ///< none: the peer has closed the connection
  unique_fd host_memory;
};
/// Reads a verdict that has arrived, but not the text of a refusal. Throws errc::handshake_failed.
received_verdict receive_verdict(int socket);

}  // namespace ferry::inline v0::detail
