#pragma once

// One collective under way at one member: follows its schedule piece by piece as messages come.

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include <ferry/base/time.hpp>
#include <ferry/base/traced_range.hpp>
#include <ferry/rpc/promise.hpp>
#include <ferry/tensor/tensor.hpp>
#include <ferry/transport/reactor.hpp>

#include "group_buffers.hpp"
#include "group_messages.hpp"
#include "nccl_agreement.hpp"
#include "schedule.hpp"
#include "segment_queue.hpp"

namespace ferry::inline v0::detail {

class group_core;
class staged_pieces;
class time_limit;

/// A message that came before its piece began. Its sender waits for the answer.
struct early_message {
  group_message what;
  tensor bytes;
  promise<void> taken;
};

struct collective_start {
  std::int32_t channel = collective_key::all;
  collective_signature signature;
  bool shared = false;  ///< goes through the shared segment, as long as all members' do; else by the schedule
  std::vector<group_step> schedule;
  group_buffers buffers;
  std::shared_ptr<staged_pieces> staging;  ///< of tensors on devices
  bool by_nccl = false;  ///< the members agree first whether NCCL makes it; without it the same as else
  std::string refusal;   ///< not empty: it ends with that on every member, before it begins
  timeout limit;
  deadline until;
  /// Called once, on any thread, when no tensor is read or written any more, by messages on their way neither; null: success.
  std::function<void(std::exception_ptr)> finish;
};

/// Thread-safe. A piece is a lane: its steps run in order, on whatever thread brings what the next one waits for; several
/// lanes run at once.
class group_collective final : public std::enable_shared_from_this<group_collective>, public segment_user {
 public:
  group_collective(std::shared_ptr<group_core> group, collective_key key, collective_start start);
  ~group_collective();

  /// Takes the messages that came before. Call once.
  void start(std::deque<early_message> early);
  future<void> deliver(const group_message& message, const tensor& bytes);
  /// Ends it with an error, unless it has ended. Returns whether it has done so. Calls `first`, which must not throw, before the
  /// caller of the collective hears of the end.
  bool end(std::exception_ptr error, const std::function<void()>& first = {}) noexcept;
  /// Whether it cannot succeed without that member.
  [[nodiscard]] bool needs(int rank) const;
  [[nodiscard]] const collective_key& key() const noexcept { return key_; }
  [[nodiscard]] clock::time_point began() const noexcept { return began_; }
  [[nodiscard]] deadline until() const noexcept { return start_.until; }

  // For NCCL. enter() and leave() around what it does with the tensors.
  [[nodiscard]] bool wants_nccl() const noexcept { return start_.by_nccl; }
  [[nodiscard]] const staged_pieces* pieces() const noexcept { return start_.staging.get(); }
  /// The second question of the agreement: whether this member has a communicator.
  void ask_again(bool yes) noexcept;
  /// Another member has said no to it.
  [[nodiscard]] bool is_refused() const;
  /// Not all members have one.
  void go_staged() noexcept;
  /// Whether the device makes it, or is about to. It may be done soon, without a member that has left since: calls `late` if it is not.
  [[nodiscard]] bool ends_on_device(std::function<void()> late);

  // For the shared segment.
  [[nodiscard]] const collective_signature& signature() const noexcept override { return start_.signature; }
  [[nodiscard]] bool wants_segment() const noexcept { return start_.shared; }
  [[nodiscard]] bool is_staged() const noexcept { return start_.staging != nullptr; }
  /// Whether it is in the queue of the segment. Set before start().
  void set_in_segment(bool in) noexcept { in_segment_.store(in); }
  [[nodiscard]] bool enter() noexcept override;
  void leave() noexcept override;
  [[nodiscard]] bool is_over() const noexcept override { return over_.load(); }
  [[nodiscard]] segment_job job() const override;
  void succeed() noexcept override { end(nullptr); }
  void fail_by(int member, const collective_signature* theirs) noexcept override;
  void go_by_messages() noexcept override;

 private:
  struct arrival {
    int from = 0;
    std::uint32_t tag = 0;
    tensor bytes;
  };
  struct lane {
    std::int64_t piece = 0;
    std::size_t next = 0;  // step; written by the thread that runs the lane, with the mutex held
    std::atomic<std::uint32_t> kicks{0};
    std::vector<arrival> mail;  // these five are guarded by the mutex
    std::vector<int> unread;    // by part: sends whose bytes may still be read
    bool waits_for_reads = false;
    bool finished = false;
    bool taken = false;  // the message of the step `next` is out of the mail: its sender may be done, and leave
  };

  class read_hold;
  using message_key = std::tuple<std::uint32_t, int, std::uint32_t>;  // piece, sender, tag

  /// In messages, or by NCCL if all agree.
  void begin();
  void agree() noexcept;
  void on_agreed(const nccl_agreement::word& all);
  future<void> take_word(const group_message& message, const tensor& bytes);
  [[nodiscard]] std::string malformed_word(const group_message& message) const;
  void tell_nccl(const std::exception_ptr& error) noexcept;
  void send_word(const nccl_agreement::outgoing& what);
  void begin_lanes();
  /// It has ended, and no thread runs a lane: lets go of all messages.
  void settle() noexcept;
  void tell() noexcept;
  void end_recorded() noexcept;
  void on_read() noexcept;
  /// "a calls barrier, b all_reduce(sum) of f32 [2]"
  [[nodiscard]] std::string calls_of_both(int member, const collective_signature& theirs) const;
  /// Why it is no message of the schedule that is still to come; empty: it is one. With the mutex held.
  [[nodiscard]] std::string why_unexpected(const group_message& message) const;
  std::shared_ptr<lane> begin_lane();
  void kick(std::shared_ptr<lane> which);
  /// Runs the lane until it waits. True: it has finished now.
  bool advance(const std::shared_ptr<lane>& which);
  /// Takes the step. False: it has ended.
  bool send(const std::shared_ptr<lane>& which, const group_step& step);
  /// False: it waits.
  bool receive(lane& which, const group_step& step);
  bool may_write(lane& which, int part);
  void apply(const lane& which, const group_step& step);
  /// Notes a message that is on its way.
  void track(std::uint64_t number, int peer, const std::shared_ptr<lane>& which, int part, const future<void>& pending);
  void on_sent(const std::shared_ptr<lane>& which, std::uint64_t number, int peer, int part,
               const std::exception_ptr& error);
  /// Whose device it is belongs to what a device reports.
  void with_own_name(const std::function<void()>& copies) const;
  void continue_later(const std::shared_ptr<lane>& which) noexcept;
  void fail_here() noexcept override;  // in a catch block

  const std::shared_ptr<group_core> group_;
  const collective_key key_;
  const clock::time_point began_ = clock::now();
  std::unique_ptr<recorded_span> recorded_;  // null: nothing records it
  collective_start start_;
  std::atomic<bool> in_segment_{false};
  std::atomic<bool> over_{false};       // as ended_
  std::atomic<bool> on_device_{false};  // all members have agreed on NCCL
  std::atomic<bool> said_yes_{false};   // others may begin it by NCCL, or have
  mutable std::mutex mutex_;            // guards what follows
  std::vector<std::shared_ptr<lane>> lanes_;
  std::int64_t next_piece_ = 0;
  std::int64_t finished_pieces_ = 0;
  std::map<message_key, early_message> early_;   // of pieces that have not begun
  std::map<std::uint64_t, future<void>> sends_;  // that have not been answered
  std::uint64_t next_send_ = 0;
  std::unique_ptr<nccl_agreement> agreement_;  // null: none is needed
  bool says_yes_ = false;                      // to its first question
  bool agrees_ = false;                        // its words are on their way
  int questions_ = 0;                          // of it that have been answered
  std::unique_ptr<time_limit> limit_;
  std::unique_ptr<time_limit> soon_;
  int running_ = 0;
  int reads_ = 0;  // messages with the caller's elements that may still be read
  bool ended_ = false;
  bool settled_ = false;
  bool told_ = false;
  std::exception_ptr error_;
};

}  // namespace ferry::inline v0::detail
