#include "segment_queue.hpp"

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "../base/pause_processor.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::uint64_t never_left = std::numeric_limits<std::uint64_t>::max();
// What the thread that begins a collective does of it by itself.
constexpr std::size_t most_bytes_of_caller = std::size_t{2} << 20U;

}  // namespace

segment_queue::segment_queue(std::shared_ptr<group_segment> memory, int rank, std::chrono::nanoseconds longest_spin,
                             outside calls)
    : memory_(std::move(memory)),
      rank_(rank),
      calls_(std::move(calls)),
      spin_(std::thread::hardware_concurrency() > 1 ? longest_spin : std::chrono::nanoseconds(0)),
      left_from_(never_left) {}

template <class F>
void segment_queue::later(F what) noexcept {
  try {
    calls_.later(what);
  } catch (...) {
    what();
  }
}

bool segment_queue::add(std::uint64_t sequence, const std::shared_ptr<segment_user>& what) {
  const std::lock_guard lock(mutex_);
  if (left_from_ != never_left) return false;
  auto fresh = std::make_shared<item>();
  fresh->sequence = sequence;
  fresh->what = what;
  const segment_job job = what->job();  // it cannot have ended yet
  fresh->bytes = static_cast<std::size_t>(job.elements) * dtype_size(job.type);
  items_.push_back(std::move(fresh));
  return true;
}

bool segment_queue::skip(std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  if (left_from_ != never_left) return false;
  if (items_.empty()) {
    publish_number(memory_->flags(rank_).skipped, sequence + 1);
    return true;
  }
  auto fresh = std::make_shared<item>();  // after those before it
  fresh->sequence = sequence;
  items_.push_back(std::move(fresh));
  return false;
}

bool segment_queue::begin(std::uint64_t sequence) {
  const segment_user* own = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(items_.begin(), items_.end(), [&](const auto& each) { return each->sequence == sequence; });
    if (found == items_.end()) return false;
    item& here = **found;
    here.begun = true;
    if (found == items_.begin() && here.bytes <= most_bytes_of_caller) own = here.what.get();
  }
  if (own) {
    drive(own);
  } else {
    later([this] { drive(); });
  }
  return true;
}

void segment_queue::ask_to_leave(std::uint64_t sequence) {
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(items_.begin(), items_.end(), [&](const auto& each) { return each->sequence == sequence; });
    if (found == items_.end()) return;
    (*found)->asked_to_leave = true;
  }
  later([this] { drive(); });
}

void segment_queue::note_failed(std::uint64_t sequence) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (sequence < next_) return;  // it is complete in the segment
    std::uint64_t& failed = memory_->flags(rank_).failed;
    if (first_failed_ == 0 || sequence + 1 < first_failed_) {
      first_failed_ = sequence + 1;
      publish_number(failed, first_failed_);
    }
    leave_from(sequence + 1);
  }
  later([this] { drive(); });
}

// One thread at a time; what comes meanwhile makes it look again.
void segment_queue::drive(const segment_user* own) noexcept {
  if (kicks_.fetch_add(1) != 0) return;
  std::uint32_t seen = 1;
  std::uint32_t left = 0;
  do {
    withdraw_sleep(memory_->flags(rank_));
    const bool has_own = own != nullptr;
    while (work(own)) {
      if (!has_own || own) continue;
      // The caller's is complete: others are not its work.
      later([this] { drive(); });
      break;
    }
    left = kicks_.fetch_sub(seen) - seen;
    seen = left;
  } while (left != 0);
}

// Another member will not come to it here. It says so before it could come to anything later.
bool segment_queue::must_leave(const item& head) const noexcept {
  for (int each = 0; each != memory_->members(); ++each) {
    if (each == rank_) continue;
    member_flags& theirs = memory_->flags(each);
    const std::uint64_t left = look_again_at(theirs.left);
    const bool is_left = left != 0 && left - 1 <= head.sequence;
    if ((is_left || look_again_at(theirs.skipped) > head.sequence) && !head.run->has_come(each)) return true;
  }
  return false;
}

void segment_queue::leave_from(std::uint64_t sequence) noexcept {
  left_from_ = std::min(left_from_, sequence);
  publish_number(memory_->flags(rank_).left, left_from_ + 1);
}

void segment_queue::wake_all() noexcept {
  for (int each = 0; each != memory_->members(); ++each) {
    if (each != rank_ && take_sleep(memory_->flags(each))) calls_.wake(each);
  }
}

bool segment_queue::spin(const item& head) noexcept {
  if (asleep_since_) {
    spin_.slept(std::chrono::steady_clock::now() - *asleep_since_);
    asleep_since_.reset();
  }
  const auto budget = spin_.budget();
  if (budget.count() == 0) return false;
  constexpr int pauses = 64;
  const auto until = std::chrono::steady_clock::now() + budget;
  for (int i = 0;; ++i) {
    if (head.run->could_advance()) {
      spin_.succeeded();
      return true;
    }
    if (head.what->is_over()) return true;
    if (i % 16 == 15 && std::chrono::steady_clock::now() > until) break;
    if (i < pauses) {
      pause_processor();
    } else {
      std::this_thread::yield();  // the others may need this processor
    }
  }
  spin_.failed();
  return false;
}

// The last one that has to go by messages; null: there is none.
std::shared_ptr<segment_queue::item> segment_queue::take_switched() noexcept {
  const std::lock_guard lock(mutex_);
  while (!items_.empty() && items_.back()->sequence >= left_from_) {
    std::shared_ptr<item> last = std::move(items_.back());
    items_.pop_back();
    if (last->what) return last;  // else it goes by messages already
  }
  return nullptr;
}

bool segment_queue::work(const segment_user*& own) {
  while (const std::shared_ptr<item> switched = take_switched()) {
    if (switched->what.get() == own) own = nullptr;
    if (switched->begun) later([what = switched->what] { what->go_by_messages(); });
  }
  std::shared_ptr<item> head;
  bool asked = false;
  {
    const std::lock_guard lock(mutex_);
    if (!items_.empty() && items_.front()->sequence < left_from_) {
      head = items_.front();
      if (!head->what) {
        items_.pop_front();
        publish_number(memory_->flags(rank_).skipped, head->sequence + 1);
      } else if (!head->begun && !head->what->is_over()) {
        head = nullptr;
      }
    }
    if (head) asked = head->asked_to_leave;
  }
  if (!head) return false;
  if (!head->what) {
    wake_all();
    return true;
  }
  segment_user& what = *head->what;
  if (!what.enter()) {
    {
      const std::lock_guard lock(mutex_);
      items_.pop_front();
      leave_from(head->sequence + 1);
    }
    if (&what == own) own = nullptr;
    wake_all();
    return true;
  }
  try {
    return advance(*head, own, asked);
  } catch (...) {  // no memory
    what.fail_here();
  }
  what.leave();
  return true;
}

// Between enter() and leave() of the head, which it calls unless it throws.
bool segment_queue::advance(item& head, const segment_user*& own, bool asked) {
  segment_user& what = *head.what;
  if (!head.run) {
    const std::lock_guard lock(mutex_);
    head.run.emplace(*memory_, rank_, what.job(), signature_block::encode(head.sequence, what.signature()), pieces_,
                     turn_);
  }
  segment_run& run = *head.run;
  const auto leave_here = [&] {
    {
      const std::lock_guard lock(mutex_);
      leave_from(head.sequence);
    }
    what.leave();
    wake_all();
    return true;
  };
  for (;;) {
    const segment_run::state state = run.advance(calls_.wake);
    if (state == segment_run::state::finished) {
      {
        const std::lock_guard lock(mutex_);
        items_.pop_front();
        pieces_ += run.pieces();
        next_ = head.sequence + 1;
        ++turn_;
      }
      what.leave();
      if (&what == own) {
        own = nullptr;
        what.succeed();
      } else {
        later([what = head.what] { what->succeed(); });
      }
      return true;
    }
    if (state == segment_run::state::apart) return leave_here();
    if (state != segment_run::state::blocked) {
      what.fail_by(run.culprit(), run.theirs() ? &*run.theirs() : nullptr);
      what.leave();
      return true;
    }
    if (what.is_over()) break;
    if (!run.all_have_come() && (asked || must_leave(head))) return leave_here();
    if (spin(head)) continue;
    announce_sleep(memory_->flags(rank_));
    if (!run.could_advance() && !what.is_over() && (run.all_have_come() || !must_leave(head))) {
      asleep_since_ = std::chrono::steady_clock::now();
      what.leave();
      return false;
    }
    withdraw_sleep(memory_->flags(rank_));
  }
  what.leave();
  return true;
}

bool segment_queue::needs(std::uint64_t sequence, int member) const noexcept {
  const std::lock_guard lock(mutex_);
  if (sequence < next_) return false;
  if (items_.empty() || items_.front()->sequence != sequence || !items_.front()->run) return true;
  return items_.front()->run->needs(member);
}

bool segment_queue::has_left() const noexcept {
  const std::lock_guard lock(mutex_);
  return left_from_ != never_left;
}

void segment_queue::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    leave_from(0);
  }
  wake_all();
}

}  // namespace ferry::inline v0::detail
