#include "stream_connection_impl.hpp"

#include <algorithm>
#include <cerrno>
#include <span>
#include <system_error>

#include <sys/socket.h>
#include <sys/uio.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/tensor/pack.hpp>

#include "../../base/peer_log.hpp"
#include "../reactor/held_output.hpp"
#include "../reactor/pending_copy.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t small_message = 8 * 1024;      // smaller ones are copied into one write
constexpr std::size_t accumulate_until = 64 * 1024;  // bytes of one such write
constexpr std::size_t flush_at = 16 * 1024;  // held-back bytes that are written without waiting for a batch's end
constexpr std::size_t flush_ring_at = 1024;  // the same over a ring, to a reader that is awake
constexpr std::size_t vectors_per_write = 64;
constexpr std::chrono::microseconds burst_gap{30};       // one-way messages sent closer than this are a burst
constexpr int burst_from = 8;                            // this many of which are written at once
constexpr std::chrono::microseconds next_gap{50};        // a message that is sent within this follows at once
constexpr int with_next_from = 4;                        // so many must have been followed before one is held back
constexpr std::size_t hold_back_from = 4;                // messages expected, apart from answers to held-back ones
constexpr std::chrono::microseconds high_rate_gap{100};  // messages that arrive closer than this do so at a high rate

// A message without tensors that reports why they could not be read.
outgoing_message void_message(outgoing_message&& message, const std::exception_ptr& failure) {
  message.become_void();
  transfer_status outcome{errc::device_failure, {}};
  try {
    std::rethrow_exception(failure);
  } catch (const error& e) {
    outcome = {e.kind(), std::string(e.message())};
  } catch (const std::exception& e) {
    outcome.text = e.what();
  }
  outcome.encode(message.bytes.extend(transfer_status::encoded_size));
  return std::move(message);
}

}  // namespace

// Returns whether the connection is left unwatched until this thread sends again or waits: see send_with_next().
bool stream_connection::send_message(outgoing_message&& message, pace when) noexcept {
  if (message.header.kind == frame_kind::request) held_output::release_other(*this);
  try {
    if (lends_memory_of(message)) {
      send_from_devices(std::move(message), when);
      return false;
    }
    if (message.on_devices()) {
      const bool from_device = std::any_of(message.tensors.begin(), message.tensors.end(),
                                           [](const tensor& each) { return !each.device().is_cpu(); });
      if (from_device) {
        send_from_devices(std::move(message), when);
        return false;
      }
    }
  } catch (const std::exception& e) {
    fail(make_error(errc::resource_exhausted, "sending over " + description_ + ": " + e.what()));
    return false;
  }
  std::shared_ptr<awaited_message> unsent;
  std::vector<tensor> unread;
  std::unique_lock lock(out_mutex_);
  if (closed_.load(std::memory_order_relaxed) || closing_) return false;
  note_sent(message.header, when);
  const bool next_follows = when == pace::with_next && followed_ == with_next_from && message.tensors.empty() &&
                            queued_bytes_ + message.bytes.size() <= small_message;
  try {
    if (!awaited_.empty() && message.header.kind == frame_kind::cancel) {
      const auto given_up = std::find_if(awaited_.begin(), awaited_.end(), [&](const auto& each) {
        return each->message.header.kind == frame_kind::request &&
               each->message.header.call_id == message.header.call_id;
      });
      if (given_up != awaited_.end()) {
        unsent = *given_up;
        awaited_.erase(given_up);
        queue_void(*unsent, unread,
                   make_error(errc::call_cancelled, "the caller cancelled the call before its tensors were read"));
      }
    }
    if (writing_) {
      enqueue(std::move(message));
      return false;
    }
    if (may_wait(message) && loop_->has_more_work()) {
      enqueue(std::move(message));
      if (!corked_) corked_ = loop_->flush_later(shared_from_this());
      if (corked_) return false;
    } else if (when != pace::at_once && may_hold_back(message)) {
      hold_back(std::move(message));
      lock.unlock();
      note_held_back();
      return false;
    } else if (next_follows && !peer_reads_at_once()) {
      hold_back(std::move(message));
      await_next(lock);
      return true;
    } else if (queue_.empty() && message.tensors.empty()) {
      const iovec all{message.bytes.data(), message.bytes.size()};
      ssize_t count = 0;
      bool wake = false;
      const bool with_mutex = over_rings_ && message.bytes.size() <= small_message;
      if (with_mutex) {  // takes less time than to release the mutex and take it again, unless the reader sleeps
        count = write_to_ring({&all, 1}, wake);
        if (count == static_cast<ssize_t>(all.iov_len) && !wake) {
          if (!next_follows) return false;
          held_back_.store(held_back_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
          await_next(lock);
          return true;
        }
      }
      writing_ = true;
      lock.unlock();
      if (wake) wake_peer();
      if (!with_mutex) count = write_some({&all, 1});
      lock.lock();
      const bool whole = count == static_cast<ssize_t>(message.bytes.size());
      if (!whole) {
        active_at_ = count > 0 ? static_cast<std::size_t>(count) : 0;  // a persistent error recurs at the next write
        took(message.bytes.size() - active_at_);
        active_.push_back({std::move(message.bytes), {}});
      } else if (queue_.empty() && !closing_) {
        end_writing();
        return false;
      }
      write_queued(lock);
      return false;
    } else {
      enqueue(std::move(message));
    }
    writing_ = true;
    write_queued(lock);
  } catch (const std::exception& e) {
    if (lock.owns_lock()) lock.unlock();
    fail(make_error(errc::resource_exhausted, "sending over " + description_ + ": " + e.what()));
  }
  return false;
}

// With out_mutex_ held. Learns whether messages of send_with_next() are followed at once by a request, so that it pays to
// hold them back.
void stream_connection::note_sent(const frame_header& header, pace when) noexcept {
  // Who sends a request reads, or has the connection watched.
  if (header.kind == frame_kind::request) {
    held_output::forget(*this);
    if (queue_.empty() && std::exchange(awaits_next_, false)) held_back_.store(0, std::memory_order_relaxed);
  }
  const bool open = last_with_next_ != clock::time_point();
  if (when == pace::with_next) {
    if (open) followed_ = 0;
    last_with_next_ = clock::now();
  } else if (open && header.kind == frame_kind::request) {
    followed_ = clock::now() - last_with_next_ < next_gap ? std::min(followed_ + 1, with_next_from) : 0;
    last_with_next_ = {};
  }
}

// A message is queued for writing only once its tensors are ready: pending work of the sender's device must not delay
// other messages. A device error ends this call, not the connection.
void stream_connection::send_from_devices(outgoing_message&& message, pace when) {
  const auto next = std::make_shared<awaited_message>();  // before the lock: tensors may run deleters of users
  bool ready = true;
  try {
    channel_context context{loop_,
                            [weak = weak_from_this()] {
                              if (const auto self = weak.lock()) self->continue_writing();
                            },
                            outgoing_copies_, direct_};
    next->staged = std::make_shared<staged_send>(message, std::move(context), prefetched_);
    ready = next->staged->begun();
    const std::vector<std::byte>& ways = next->staged->ways();
    message.header.flags |= static_cast<std::uint8_t>(ways.empty() ? frame_outcome : frame_outcome | frame_direct);
    message.header.encode(message.bytes.data());
    message.bytes.append(ways.data(), ways.size());
  } catch (const error&) {
    next->staged.reset();
    message = void_message(std::move(message), std::current_exception());
  }
  next->message = std::move(message);
  {
    std::unique_lock lock(out_mutex_);
    if (closed_.load(std::memory_order_relaxed) || closing_) return;
    note_sent(next->message.header, when);
    took(next->message.bytes.size() + (next->staged ? next->staged->bytes() : 0));
    if (ready) {
      queue_staged(*next);
      return write_or_leave(lock);
    }
    awaited_.push_back(next);
  }
  pending_copy::watch(loop_, next->staged->streams(), [self = shared_from_this(), next](std::exception_ptr failure) {
    self->tensors_ready(next, failure);
  });
}

void stream_connection::tensors_ready(const std::shared_ptr<awaited_message>& which,
                                      std::exception_ptr failure) noexcept {
  std::vector<tensor> unread;
  std::unique_lock lock(out_mutex_);
  const auto found = std::find(awaited_.begin(), awaited_.end(), which);
  if (found == awaited_.end()) return;  // closed meanwhile
  awaited_.erase(found);
  try {
    if (failure) {
      queue_void(*which, unread, failure);
    } else {
      queue_staged(*which);
    }
    write_or_leave(lock);
  } catch (const std::exception& e) {
    if (lock.owns_lock()) lock.unlock();
    fail(make_error(errc::resource_exhausted, "sending over " + description_ + ": " + e.what()));
  }
}

// With out_mutex_ held: sends the reason in place of the tensors. The caller destroys them, and `which`, later.
void stream_connection::queue_void(awaited_message& which, std::vector<tensor>& unread, const std::exception_ptr& why) {
  outgoing_message& message = which.message;
  const std::uint64_t before = message.bytes.size() + which.staged->bytes();
  unread = message.tensors;
  message = void_message(std::move(message), why);
  taken_.store(taken_.load(std::memory_order_relaxed) + message.bytes.size() - before, std::memory_order_relaxed);
  queue_.push_back({std::move(message.bytes), {}, {}});
}

// With out_mutex_ held, after queueing: writes unless another thread does.
void stream_connection::write_or_leave(std::unique_lock<std::mutex>& lock) noexcept {
  if (std::exchange(writing_, true)) return;
  write_queued(lock);
}

// A device has fetched more.
void stream_connection::continue_writing() noexcept {
  std::unique_lock lock(out_mutex_);
  if (std::exchange(parked_, false)) write_queued(lock);
}

// With out_mutex_ held. The peer handles what is written now while the caller prepares its next message.
bool stream_connection::peer_reads_at_once() const noexcept {
  return over_rings_ && queue_.empty() && !rings_->out().reader_sleeps();
}

// With out_mutex_ held. Over a ring a write costs no system call while the reader is awake, and has it work beside this end instead of
// after it.
bool stream_connection::may_wait(const outgoing_message& message) const noexcept {
  if (!over_rings_ || rings_->out().reader_sleeps()) return queued_bytes_ < flush_at;
  return queued_bytes_ + message.bytes.size() + message.header.tensor_bytes <= flush_ring_at;
}

// With out_mutex_ held. A message that expects an answer is held back only while at least one message is expected that
// does not answer a held-back one: the thread that reads that one flushes afterwards, under the same mutex, and so also
// writes this one.
bool stream_connection::may_hold_back(const outgoing_message& message) noexcept {
  if ((message.header.flags & frame_one_way) != 0) {
    // No answer will trigger the write: later messages or the monitor do.
    const auto now = clock::now();
    burst_ = now - std::exchange(last_one_way_, now) < burst_gap ? std::min(burst_ + 1, burst_from) : 0;
    return burst_ == burst_from && may_wait(message);
  }
  if (!may_wait(message)) return false;
  const std::size_t held =
      held_back_.load(std::memory_order_relaxed) + 1;  // the new one is expected to be answered, too
  if (receiver_->expected_messages() < held + hold_back_from) return false;
  const clock::rep now = clock::now().time_since_epoch().count();
  last_added_.store(now, std::memory_order_relaxed);
  return std::chrono::nanoseconds(now - last_read_.load(std::memory_order_relaxed)) < high_rate_gap;
}

// With out_mutex_ held.
void stream_connection::hold_back(outgoing_message&& message) {
  enqueue(std::move(message));
  held_back_.store(held_back_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  awaits_next_ = false;  // the sender of this one watches the connection
}

// With out_mutex_ held, which it releases, after a message of send_with_next() that was held back or is being read already.
void stream_connection::await_next(std::unique_lock<std::mutex>& lock) noexcept {
  awaits_next_ = true;
  lock.unlock();
  held_output::keep(shared_from_this());
  note_held_back();
}

void stream_connection::enqueue(outgoing_message&& message) {
  queued_bytes_ += message.bytes.size();
  took(message.bytes.size() + message.header.tensor_bytes);
  if (message.tensors.empty() && message.bytes.size() <= small_message && !queue_.empty()) {
    segment& last = queue_.back();
    if (last.tensors.empty() && !last.staged && last.bytes.size() + message.bytes.size() <= accumulate_until) {
      last.bytes.append(message.bytes.data(), message.bytes.size());
      return;
    }
  }
  // Without memory for it, the tensors stay with the caller, who destroys them without the mutex.
  segment& last = queue_.emplace_back();
  last.bytes = std::move(message.bytes);
  last.tensors = std::move(message.tensors);
}

// As enqueue().
void stream_connection::queue_staged(awaited_message& message) {
  segment& last = queue_.emplace_back();
  last.bytes = std::move(message.message.bytes);
  last.staged = std::move(message.staged);
}

void stream_connection::flush() noexcept {
  std::unique_lock lock(out_mutex_);
  corked_ = false;
  held_back_.store(0, std::memory_order_relaxed);
  if (writing_ || closed_.load(std::memory_order_relaxed)) return;
  const bool not_followed = std::exchange(awaits_next_, false);
  if (not_followed) followed_ = 0;
  if (!queue_.empty()) {
    writing_ = true;
    write_queued(lock);
  }
  if (not_followed) {
    if (lock.owns_lock()) lock.unlock();
    watch_again();
  }
}

// With out_mutex_ held.
void stream_connection::end_writing() noexcept {
  writing_ = false;
  release_descriptor();
}

// A remaining handle on an ended connection, in a future for example, must not keep the descriptor open. With
// out_mutex_ held.
void stream_connection::release_descriptor() noexcept {
  if (!failed_ || !reader_gone_ || writing_ || std::exchange(released_, true)) return;
  ::close(descriptor_);
  rings_.reset();
  if (direct_) direct_->close();
  kept_.reset();
}

bool stream_connection::tell_when_written(std::uint64_t bytes) noexcept {
  std::lock_guard lock(out_mutex_);
  notify_at_ = no_threshold;
  if (closed_.load(std::memory_order_relaxed) || unwritten_bytes() <= bytes) return false;
  notify_at_ = bytes;  // some bytes are being written, held back or corked: their writer checks notify_at_ afterwards
  return true;
}

// Called by the writer whenever it finishes, with the lock held; true if the receiver was notified, without the lock.
bool stream_connection::notify_written(std::unique_lock<std::mutex>& lock) noexcept {
  if (notify_at_ == no_threshold || unwritten_bytes() > notify_at_) return false;
  notify_at_ = no_threshold;
  const auto receiver = receiver_;
  lock.unlock();
  if (receiver) receiver->on_written(*this);
  lock.lock();
  return true;
}

// The caller has set writing_ and holds the lock. Dropped messages are destroyed without it: tensors may run deleters
// of users.
void stream_connection::write_queued(std::unique_lock<std::mutex>& lock) noexcept {
  const auto drop_active = [&] {
    std::deque<segment> dropped;
    dropped.swap(active_);
    end_writing();
    lock.unlock();
  };
  for (;;) {
    if (active_.empty()) {
      if (queue_.empty()) {
        if (notify_written(lock)) continue;
        end_writing();
        if (!closing_ || !awaited_.empty()) return;
        std::exception_ptr reason = reason_;
        lock.unlock();
        return fail(reason);
      }
      active_.swap(queue_);
      active_at_ = 0;
      queued_bytes_ = 0;
      held_back_.store(0, std::memory_order_relaxed);
      awaits_next_ = false;
    }
    if (closed_.load(std::memory_order_relaxed)) return drop_active();
    lock.unlock();
    int reason = 0;
    const outcome result = write_active(reason);
    if (result == outcome::more) {
      const bool waited = over_rings_ && spin_for_room();
      if (direct_ && (waited || room_spin_.has_given_up())) direct_->reader_keeps_pace(waited);
      lock.lock();
      (void)notify_written(lock);
      if (waited) continue;
      want_writable_ = true;  // before blocked_, which on_ready() clears together with it
      if (closed_.load(std::memory_order_relaxed)) return drop_active();
      if (over_rings_ && rings_->out().announce_sleep()) {
        want_writable_ = false;
        continue;
      }
      blocked_ = true;
      lock.unlock();
      {
        std::lock_guard arm(arm_mutex_);
        if (over_rings_) {
          watch_socket(true);
        } else {
          loop_->rewatch(watch_, armed_.load(), true);
        }
      }
      return;  // writing_ stays set: on_ready() continues
    }
    if (result == outcome::awaiting_device) {
      lock.lock();
      (void)notify_written(lock);
      if (closed_.load(std::memory_order_relaxed)) return drop_active();
      if (active_.front().staged->ready()) continue;  // became ready meanwhile
      parked_ = true;
      return;  // writing_ stays set: continue_writing() continues
    }
    if (result == outcome::ended) {
      if (reason == EPROTO) {
        log_about("connections", log_level::warning,
                  [&] { return "closing " + description_ + ", whose ring has an index that is out of range"; });
      }
      fail(make_error(reason == EPROTO ? errc::protocol_error : errc::connection_lost,
                      "writing to " + description_ + ": " + std::generic_category().message(reason)));
      lock.lock();
      return drop_active();
    }
    lock.lock();
  }
}

ssize_t stream_connection::send_to_socket(std::span<const iovec> from) noexcept {
  if (from.size() == 1) return ::send(descriptor_, from[0].iov_base, from[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
  msghdr header{};
  header.msg_iov = const_cast<iovec*>(from.data());
  header.msg_iovlen = from.size();
  return ::sendmsg(descriptor_, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Writes active_ until it is empty (drained), the socket is full (more) or broken (ended), or the next bytes are still
// on a device.
stream_connection::outcome stream_connection::write_active(int& reason) noexcept {
  while (!active_.empty()) {
    std::array<iovec, vectors_per_write> vectors;
    std::size_t count = 0;
    std::size_t skip = active_at_;
    const auto add = [&](const std::byte* at, std::size_t size) {
      if (skip >= size) {
        skip -= size;
      } else {
        vectors[count++] = {const_cast<std::byte*>(at) + skip, size - skip};
        skip = 0;
      }
      return count != vectors_per_write;
    };
    for (const segment& part : active_) {
      bool room = add(part.bytes.data(), part.bytes.size());
      for (std::size_t i = 0; room && i != part.tensors.size(); ++i) {
        const auto bytes = packed_bytes(part.tensors[i]);
        room = add(bytes.data(), bytes.size());
      }
      if (room && part.staged) {  // active_at_ does not count what was consumed here; later segments have to wait
        count += part.staged->collect(std::span(vectors).subspan(count));
        room = false;
      }
      if (!room) break;
    }
    if (count == 0) return outcome::awaiting_device;
    const ssize_t written = write_some({vectors.data(), count});
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return outcome::more;
      reason = errno;
      return outcome::ended;
    }
    active_at_ += static_cast<std::size_t>(written);
    written_.store(written_.load(std::memory_order_relaxed) + static_cast<std::uint64_t>(written),
                   std::memory_order_release);
    while (!active_.empty()) {
      std::size_t size = active_.front().bytes.size();
      if (staged_send* const staged = active_.front().staged.get()) {
        if (active_at_ > size) staged->consume(std::exchange(active_at_, size) - size);
        if (!staged->finished()) break;
      }
      for (const tensor& t : active_.front().tensors) size += packed_bytes(t).size();
      if (active_at_ < size) break;
      active_at_ -= size;
      active_.pop_front();
    }
  }
  return outcome::drained;
}

void stream_connection::close(std::exception_ptr reason) noexcept {
  {
    std::unique_lock lock(out_mutex_);
    if (closed_.load()) return;
    if (!closing_) {
      closing_ = true;
      reason_ = reason;
      if (writing_) return;                             // the writer closes
      if (!awaited_.empty() && queue_.empty()) return;  // the writer of these closes
      if (!queue_.empty()) {
        writing_ = true;
        return write_queued(lock);
      }
    }
  }
  fail(std::move(reason));
}

// Marks the connection closed and ensures that the receiver is notified once no thread reads.
void stream_connection::fail(std::exception_ptr reason) noexcept {
  std::deque<segment> dropped;
  std::deque<segment> half_written;
  std::vector<std::shared_ptr<awaited_message>> unwanted;
  {
    std::lock_guard lock(out_mutex_);
    if (closed_.load()) return;
    reason_ = std::move(reason);
    closed_.store(true);
    dropped.swap(queue_);
    unwanted.swap(awaited_);
    if (std::exchange(blocked_, false) || std::exchange(parked_, false)) {  // no thread is inside the writer
      half_written.swap(active_);
      writing_ = false;
    }
  }
  {
    std::lock_guard lock(arm_mutex_);
    armed_.store(false);
    loop_->unwatch(std::exchange(watch_, watch_id::none));
  }
  {
    std::lock_guard lock(out_mutex_);
    ::shutdown(descriptor_, SHUT_RDWR);
    failed_ = true;
    release_descriptor();
  }
  interrupt_drive();
  if (take_reader()) leave_reader();
}

}  // namespace ferry::inline v0::detail
