#pragma once

// Memory of this process that another one of the machine has for itself, for as long as it likes.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace ferry::inline v0::detail {

/// How much one connection has of what is handed over.
struct handed_over_share {
  /// So that tensors that are lent find room in the table of loans, and what is under way is bounded like what rings would hold; but one
  /// block may be larger.
  static constexpr std::size_t most_blocks = 64;
  static constexpr std::size_t most_bytes = std::size_t{256} << 20U;
  std::atomic<std::size_t> blocks{0};
  std::atomic<std::size_t> bytes{0};
};

/// A block of the process's arena for a message of ordinary memory, which another process has from when it is told of it until this is
/// destroyed. Readers decide how long that is: all of them together have no more than cpu_pool_set_limit() allows, nor than half of the
/// arena.
class handed_over_block {
 public:
  /// Null: the readers have too much, or there is no memory. Throws std::bad_alloc.
  static std::shared_ptr<const handed_over_block> make(std::size_t bytes,
                                                       const std::shared_ptr<handed_over_share>& share);
  handed_over_block(std::size_t bytes, std::shared_ptr<handed_over_share> share) noexcept;
  ~handed_over_block();
  handed_over_block(const handed_over_block&) = delete;
  handed_over_block& operator=(const handed_over_block&) = delete;

  [[nodiscard]] std::byte* memory() const noexcept { return memory_; }
  /// Of all there are, in whole granules.
  [[nodiscard]] static std::uint64_t bytes_of_process() noexcept;

 private:
  const std::size_t bytes_;
  const std::shared_ptr<handed_over_share> share_;
  std::byte* memory_ = nullptr;
};

}  // namespace ferry::inline v0::detail
