#pragma once

// What the members of a ddp::join() say to each other: before each pass, whether they make it, and whether one has left with an
// exception. Each says one thing in the place of each pass until the join is over, and then nothing more.

#include <cstdint>
#include <exception>
#include <utility>

#include <ferry/group/process_group.hpp>
#include <ferry/rpc/context_values.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::detail {

/// Not thread-safe. `values`, of its functions: those of ddp_averages for it.
class ddp_join {
 public:
  ddp_join(process_group group, timeout limit) : group_(std::move(group)), limit_(limit) {}

  /// Joins may be within each other.
  void begin() noexcept;
  void leave() noexcept;
  /// After all members have finished: what follows until leave() is no part of it.
  void finish() noexcept { state_ = state::outside; }
  [[nodiscard]] bool is_inside() const noexcept { return state_ == state::inside; }
  /// Throws why it is over, if it has ended with an error.
  void check() const;

  /// Returns whether any member makes a pass now. Throws errors of the group, errc::remote_exception if another member has left with an
  /// exception, errc::invalid_argument if one that makes a pass is not `synced`; that is the end for every member.
  bool announce(bool makes_pass, bool synced, const context_values& values);
  /// It ends with that error. Returns whether the others wait for what this member says: say_failed() has to follow.
  [[nodiscard]] bool end(const std::exception_ptr& error) noexcept;
  /// Waits for nothing.
  void say_failed(const context_values& values) const;

 private:
  enum class state : std::uint8_t { outside, inside, over };
  [[nodiscard]] future<void> give(const tensor& flags, const context_values& values) const;

  const process_group group_;
  const timeout limit_;
  state state_ = state::outside;
  int depth_ = 0;
  std::exception_ptr error_;
};

}  // namespace ferry::inline v0::detail
