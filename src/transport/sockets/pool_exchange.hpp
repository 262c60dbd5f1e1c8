#pragma once

// How the two ends of a connection over shared memory hand each other the pools of their GPUs. docs/protocol.md, section Memory that
// is lent, specifies every byte.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ferry/transport/transport.hpp>

#include "../../device/cuda/cuda_ipc.hpp"
#include "../channels/direct_memory.hpp"
#include "../shm/shared_rings.hpp"

namespace ferry::inline v0::detail {

/// Both ends of one connection take the same steps, the connecting one first: it offers its pools, the other answers and offers
/// its own, and gets an answer. Not thread-safe; used on the control thread.
class pool_exchange {
 public:
  static constexpr std::size_t most_pools = 16;

  /// Whether to say feature_device_memory: GPUs are in use whose pools can be handed over.
  [[nodiscard]] static bool possible(const hello& self, const transport_options& options) noexcept;

  /// Offers the pools of this process. Throws errc::system_failure.
  void offer(int socket);
  /// Takes what the peer offers, as far as it can be used here. Throws errc::handshake_failed if that is no offer.
  void take_offer(int socket);
  /// What to answer: which devices of this process read each pool of the peer.
  [[nodiscard]] std::vector<std::byte> answer() const;
  /// The size of the peer's answer.
  [[nodiscard]] std::size_t answer_bytes() const noexcept { return ours_.size() * sizeof(std::uint64_t); }
  void take_answer(std::span<const std::byte> answer);
  /// All is said.
  [[nodiscard]] std::shared_ptr<direct_memory> finish(int socket, const shared_rings& rings,
                                                      shared_host_memory host = {});

 private:
  std::vector<offered_pool> ours_;
  std::vector<std::shared_ptr<imported_pool>> theirs_;  // null: not used
};

}  // namespace ferry::inline v0::detail
