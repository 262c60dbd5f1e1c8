#pragma once

// The collectives of a group that NCCL makes, at one member: its communicator, their order, and how they fail.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <ferry/base/error.hpp>
#include <ferry/device/device.hpp>

#include "../transport/reactor/time_limit.hpp"
#include "group_messages.hpp"
#include "nccl_agreement.hpp"
#include "nccl_communicator.hpp"
#include "nccl_library.hpp"

namespace ferry::inline v0::detail {

class group_collective;
class group_core;
class staged_pieces;
class worker_core;

/// NCCL needs the same collectives in the same order at every member, and waits on the device, for ever, for one that does not come. So
/// collectives that all members have agreed on are begun in the order of their numbers, each when it is known of those before
/// it how they are made; and when one of them fails at any member, every member gives the communicator up, which ends what waits on
/// devices. The group goes on without NCCL then. Thread-safe.
class nccl_group {
 public:
  /// A part of `group`. Null: there is no NCCL here.
  nccl_group(group_core& group, const nccl_functions* library);
  ~nccl_group();
  nccl_group(const nccl_group&) = delete;
  nccl_group& operator=(const nccl_group&) = delete;

  [[nodiscard]] const std::shared_ptr<reactor>& timers() const noexcept { return reactor_; }
  /// Why not, for a collective like this with tensors of CUDA devices; empty: it is possible here.
  [[nodiscard]] std::string why_not() const;

  // Of a collective, in this order.
  /// Call before the collective has a number, without a lock: NCCL may take its time.
  void prepare() noexcept;
  /// What this member says to it. `pieces`: null for tensors of the CPU.
  [[nodiscard]] nccl_agreement::word word_for(const collective_signature& what, const staged_pieces* pieces) noexcept;
  /// A collective has begun; in the order of the numbers.
  void expect(std::uint64_t sequence);
  /// All have agreed to it. `id`: from the first member, while there is no communicator.
  void agreed(const std::shared_ptr<group_collective>& which, const std::optional<nccl_unique_id>& id) noexcept;
  /// In one of all members' words there was a never: so it is made otherwise, and each after it.
  void refused_for_good(std::uint64_t sequence) noexcept;
  /// It is made otherwise, or has ended before that was known.
  void drop(std::uint64_t sequence) noexcept;
  /// Whether all members have made the communicator.
  void on_made_by_all(bool all) noexcept;

  /// Ends whatever waits on the device for another member, with that error. Returns at once.
  void give_up(errc code, const std::string& why) noexcept;

 private:
  enum class state : std::uint8_t {
    none,         // no collective has needed a communicator
    made,         // by all members
    unavailable,  // not by all members, or not wanted: none has used it
    given_up,
  };
  struct place {
    std::shared_ptr<group_collective> which;  // null: not known yet how it is made
    std::optional<nccl_unique_id> id;
    bool never = false;  // a member has said so with it
  };

  void drive() noexcept;
  void run(const place& head) noexcept;
  void make(const place& head) noexcept;
  void poll_making() noexcept;
  void on_making_ended(const std::string& why) noexcept;
  void launch(const std::shared_ptr<group_collective>& which) noexcept;
  void poll_launch(const std::shared_ptr<group_collective>& which) noexcept;
  void watch(const std::shared_ptr<group_collective>& which) noexcept;
  void on_device_done(const std::shared_ptr<group_collective>& which, const std::exception_ptr& failure) noexcept;
  static void give_back(const std::shared_ptr<worker_core>& worker, std::shared_ptr<owned_communicator> which) noexcept;
  /// The head of the queue is under way, or over.
  void next() noexcept;
  /// At all members: for a reason of this one's device, as errc::device_failure; or since NCCL was given up.
  void fail(group_collective& which, const std::string& why) noexcept;
  void fail_by_nccl(group_collective& which, const std::string& why) noexcept;
  void fail_given_up(group_collective& which) noexcept;
  [[nodiscard]] bool is_given_up() const noexcept;
  [[nodiscard]] int start(const collective_signature& what, const staged_pieces& pieces, nccl_communicator* among);

  group_core& group_;
  const nccl_functions* const library_;
  const std::shared_ptr<reactor> reactor_;            // of the worker, which may have been shut down
  std::shared_ptr<owned_communicator> communicator_;  // does not change; null without a library
  renewed_time_limit poll_;
  mutable std::mutex mutex_;  // guards what follows
  state state_ = state::none;
  std::string why_not_;
  errc code_ = errc::device_failure;  // given_up
  std::optional<device> where_;
  std::optional<nccl_unique_id> own_id_;
  std::map<std::uint64_t, place> queue_;
  bool busy_ = false;                         // its head is being begun
  std::shared_ptr<group_collective> making_;  // the head, while the communicator is made for it
};

}  // namespace ferry::inline v0::detail
