#pragma once

// The collectives of a group that go through its shared segment, at one member: one after the other, in the order of their
// numbers, on whatever thread begins one or is told that another member has gone on.
//
// A collective is made in the segment by all members or by none: it writes nothing but the segment until all have come to
// it there. A member that makes all of its collectives otherwise from one on, after one that has failed, says so first
// (member_flags::left) and never comes to it; all others then make that one and those after it by messages, too. A member whose
// tensor is on a device passes over that collective (member_flags::skipped): members that do the same go on using the segment for others,
// but those that have come to it here leave for good.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "../transport/reactor/adaptive_spin.hpp"
#include "group_messages.hpp"
#include "segment_run.hpp"

namespace ferry::inline v0::detail {

/// A collective as the queue sees it.
class segment_user {
 public:
  /// Between these two no other thread uses or lets go of the tensors. False: it has ended.
  [[nodiscard]] virtual bool enter() noexcept = 0;
  virtual void leave() noexcept = 0;
  /// Whether it has ended; it may be that no more than leave() is missing.
  [[nodiscard]] virtual bool is_over() const noexcept = 0;
  [[nodiscard]] virtual segment_job job() const = 0;
  [[nodiscard]] virtual const collective_signature& signature() const noexcept = 0;
  virtual void succeed() noexcept = 0;
  /// `theirs`: null if it cannot be read.
  virtual void fail_by(int member, const collective_signature* theirs) noexcept = 0;
  /// In a catch block.
  virtual void fail_here() noexcept = 0;
  virtual void go_by_messages() noexcept = 0;

 protected:
  ~segment_user() = default;
};

/// Thread-safe.
class segment_queue {
 public:
  struct outside {
    std::function<void(int)> wake;  ///< sends a member that sleeps a message, which calls drive() there
    std::function<void(std::function<void()>)> later;  ///< runs something on another thread, while the group lives
  };
  segment_queue(std::shared_ptr<group_segment> memory, int rank, std::chrono::nanoseconds longest_spin, outside calls);

  [[nodiscard]] const segment_layout& layout() const noexcept { return memory_->layout(); }
  /// In the order of the numbers. False: it does not go through the segment.
  bool add(std::uint64_t sequence, const std::shared_ptr<segment_user>& what);
  /// This member makes it by messages whatever the others do. True: wake_all() has to follow.
  [[nodiscard]] bool skip(std::uint64_t sequence);
  /// Members that sleep look at the flags again.
  void wake_all() noexcept;
  /// Its tensors may be used from here on. False: it does not go through the segment after all.
  bool begin(std::uint64_t sequence);
  /// Another member has sent a message of that collective, which it therefore does not make here.
  void ask_to_leave(std::uint64_t sequence);
  /// It has ended here with an error. Before that is told to the caller.
  void note_failed(std::uint64_t sequence) noexcept;
  /// Goes on as far as it can.
  void drive() noexcept { drive(nullptr); }
  [[nodiscard]] bool needs(std::uint64_t sequence, int member) const noexcept;
  /// Since a collective has failed, messages are used.
  [[nodiscard]] bool has_left() const noexcept;
  /// Tells the others that this member comes to no more.
  void close() noexcept;

 private:
  struct item {
    std::uint64_t sequence = 0;
    std::shared_ptr<segment_user> what;  // null: it is passed over
    std::size_t bytes = 0;
    bool begun = false;
    bool asked_to_leave = false;
    std::optional<segment_run> run;
  };

  void drive(const segment_user* own) noexcept;
  /// On another thread; on this one if there is no memory for that.
  template <class F>
  void later(F what) noexcept;
  /// False: nothing is left to do now. `own` is the only one that ends on this thread.
  bool work(const segment_user*& own);
  bool advance(item& head, const segment_user*& own, bool asked);
  [[nodiscard]] std::shared_ptr<item> take_switched() noexcept;
  [[nodiscard]] bool must_leave(const item& head) const noexcept;
  /// Waits for a little while. Whether it can go on.
  bool spin(const item& head) noexcept;
  void leave_from(std::uint64_t sequence) noexcept;  // with the mutex held

  const std::shared_ptr<group_segment> memory_;
  const int rank_;
  const outside calls_;
  adaptive_spin spin_;  // of the thread that drives, as the next two
  std::optional<std::chrono::steady_clock::time_point> asleep_since_;
  std::atomic<std::uint32_t> kicks_{0};
  mutable std::mutex mutex_;  // guards what follows
  std::deque<std::shared_ptr<item>> items_;
  std::uint64_t pieces_ = 0;  // of those that are complete
  std::uint64_t turn_ = 0;    // and how many those are
  std::uint64_t left_from_;   // the first that goes by messages
  std::uint64_t first_failed_ = 0;
  std::uint64_t next_ = 0;  // those before it do not need the segment any more
};

}  // namespace ferry::inline v0::detail
