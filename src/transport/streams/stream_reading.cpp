#include "stream_connection_impl.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/tensor/shared_allocator.hpp>

#include "../../base/pause_processor.hpp"
#include "../../base/peer_log.hpp"
#include "../reactor/held_output.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t read_round = 1024 * 1024;               // bytes read before queued work gets a turn
constexpr std::chrono::microseconds driver_yield_after{200};  // a driver that slept longer must yield to a new one
// How long a connection may stay unwatched after the last drive, on average one and a half times: more often the monitor
// of a process that makes one call after another would wake up for nothing.
constexpr std::chrono::milliseconds watched_after_drives{16};
// A thread that goes through its futures, or makes one call after the other while others are under way, drives again so soon after
// the last bytes that it has read, or the last call of many that it has made since. Watching the connection in between costs two
// system calls each time, and wakes another thread.
constexpr std::chrono::microseconds drives_again_within{100};
constexpr int most_drives_for_trust = 4096;
constexpr int sends_on_trust = 1024;
constexpr int kept_trusts_for_more = 4096;  // after so many, fewer drives are asked for again
// So many events of other descriptors, from one message of a connection to its next, leave its thread free to sleep on
// this connection alone. With more, the thread is wanted in the epoll.
constexpr std::int32_t few_events = 2;

}  // namespace

// The connection may already be closed.
void stream_connection::start(std::shared_ptr<connection_receiver> receiver) {
  arriving_.news = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->continue_reading();
  };
  if (const auto borrowed = direct_ ? direct_->borrowed() : nullptr) {
    borrowed->set_news([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->wake_lender();
    });
  }
  receiver_ = std::move(receiver);
  try {
    std::lock_guard lock(arm_mutex_);
    if (!closed_.load()) {
      armed_.store(true);
      watch_ = loop_->watch(descriptor_, shared_from_this(), true, false);
    }
  } catch (...) {
    receiver_.reset();
    leave_reader();
    throw;
  }
  leave_reader();
}

// Becomes the reader, or makes the present one read again.
bool stream_connection::take_reader() noexcept {
  int value = reader_.load();
  for (;;) {
    if (value == not_read) {
      if (reader_.compare_exchange_weak(value, being_read)) return true;
    } else if (value == being_read || value == being_driven) {
      if (reader_.compare_exchange_weak(value, value == being_read ? read_again : driven_again)) return false;
    } else {
      return false;
    }
  }
}

// Stops being the reader. If another thread requested a further read meanwhile, the descriptor is armed; arming reports
// pending input.
void stream_connection::leave_reader() noexcept {
  for (;;) {
    if (closed_.load()) return notify_closed();  // and stays the reader for ever
    const bool stalled = reader_state_.stalled();
    const int before = reader_.exchange(not_read);
    if (closed_.load()) {
      if (!take_reader()) return;
      continue;
    }
    if (before == read_again || before == driven_again) {
      set_armed(true);
      // Input already in the block is not reported, and with rings the reactor does not report again what it has seen.
      if (stalled || over_rings_) read_later();
    } else if (over_rings_ && !stalled && armed_.load()) {
      watch_ring();  // the peer's last wake-up may have come while this thread read
    }
    return;
  }
}

// After a pause. The thread that reads at the moment may or may not have observed that the pause ended.
void stream_connection::read_later() noexcept {
  if (later_posted_.exchange(true)) return;  // the posted read has yet to run
  later_.of = shared_from_this();
  later_.run = [](work* self) noexcept {
    const auto of = std::move(static_cast<turn*>(self)->of);
    of->later_posted_.exchange(false);  // acquires the changes of threads that then found it set
    if (of->take_reader()) of->read_all(true);
  };
  loop_->post_elsewhere(&later_);
}

// A device has made room for further input.
void stream_connection::continue_reading() noexcept {
  interrupt_drive();
  read_later();
}

void stream_connection::notify_closed() noexcept {
  if (std::exchange(closed_reported_, true)) return;
  std::exception_ptr reason;
  std::shared_ptr<connection_receiver> receiver;  // released here: it owns this connection, too
  {
    std::lock_guard lock(out_mutex_);
    reason = reason_;
    receiver = std::move(receiver_);
    reader_gone_ = true;
    release_descriptor();
  }
  reader_state_.abandon();  // remaining handles on this connection keep no memory, such as device memory
  {
    std::lock_guard lock(interrupt_mutex_);
    if (interrupt_ >= 0) ::close(interrupt_);
    interrupt_ = never_again;
  }
  if (receiver) receiver->on_closed(*this, reason);
}

bool stream_connection::stays_paused() noexcept {
  if (!paused()) return false;
  if (!hung_up_.load()) return true;
  reads_the_rest_.store(true);
  receiver_->on_ended_while_paused(*this);
  return false;
}

ssize_t stream_connection::receive_from_socket(std::span<const iovec> into, bool sleep) noexcept {
  if (into.size() == 1) return ::recv(descriptor_, into[0].iov_base, into[0].iov_len, sleep ? 0 : MSG_DONTWAIT);
  msghdr header{};
  header.msg_iov = const_cast<iovec*>(into.data());
  header.msg_iovlen = into.size();
  return ::recvmsg(descriptor_, &header, sleep ? 0 : MSG_DONTWAIT);
}

// For a thread that spins: returns when there is something to read, or after a few looks. With rings these cost less, and see a
// message sooner, than a vain receive() and a reading of the clock.
void stream_connection::look_for_input() const noexcept {
  if (!over_rings_) return;
  constexpr int looks = 16;
  for (int i = 0; i != looks && !rings_->in().has_input(); ++i) pause_processor();
}

// Reads once; the caller is the reader. With `sleep` it waits up to plain_wait for the first byte.
stream_connection::outcome stream_connection::receive(std::size_t& received, bool sleep) noexcept {
  received = 0;
  if (stays_paused()) return outcome::drained;
  try {
    if (reader_state_.stalled()) {
      read_at_ = arrived_ = clock::now();
      reader_state_.resume(*this);
      if (stays_paused()) return outcome::drained;
    }
    std::array<iovec, frame_reader::max_vectors> vectors;
    std::size_t total = 0;
    const std::size_t count = reader_state_.prepare(vectors, total);
    if (count == 0) return outcome::drained;  // until a device has made progress
    const std::span<const iovec> into(vectors.data(), count);
    const ssize_t got = over_rings_ ? receive_from_ring(into, sleep) : receive_from_socket(into, sleep);
    if (got > 0) {
      received = static_cast<std::size_t>(got);
      read_at_ = arrived_ = clock::now();
      last_read_.store(read_at_.time_since_epoch().count(), std::memory_order_relaxed);
      reader_state_.commit(received, *this);
      return received == total ? outcome::more : outcome::drained;
    }
    if (got == 0) {
      fail(make_error(
          errc::connection_lost,
          description_ + (reader_state_.mid_message() ? ": the peer closed the connection in the middle of a message"
                                                      : ": the peer closed the connection")));
      return outcome::ended;
    }
    if (errno == EINTR) return outcome::more;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return outcome::drained;
    if (errno == EPROTO) throw_error(errc::protocol_error, "its ring has an index that is out of range");
    fail(make_error(errc::connection_lost,
                    "reading from " + description_ + ": " + std::generic_category().message(errno)));
  } catch (const error& e) {
    // Without memory for what arrives the stream cannot go on: it is no fault of the peer's.
    const bool no_memory = e.kind() == errc::out_of_memory;
    log_about("connections", log_level::warning, [&] {
      return fmt::format("closing {}, {}: {}", description_,
                         no_memory ? "whose message finds no memory here" : "which broke the protocol", e.what());
    });
    fail(no_memory ? make_error(errc::resource_exhausted, "receiving from " + description_ + ": " + e.what())
                   : make_error(errc::protocol_error, description_ + " broke the protocol: " + e.what()));
  } catch (const std::exception& e) {
    log_about("connections", log_level::warning, [&] { return "closing " + description_ + ": " + e.what(); });
    fail(make_error(errc::resource_exhausted, "receiving from " + description_ + ": " + e.what()));
  }
  return outcome::ended;
}

void stream_connection::read_all(bool to_the_end) noexcept {
  std::size_t round = 0;
  if (over_rings_) {
    take_wake_ups(false);
    to_the_end = to_the_end || hung_up_.load();
  }
  for (;;) {
    std::size_t received = 0;
    const outcome result = receive(received);
    round += received;
    if (result == outcome::ended) break;
    if (result == outcome::drained && (!to_the_end || received == 0)) {
      // A socket would report what has come meanwhile.
      if (!over_rings_ || received == 0 || loop_->has_more_work() || !announce_reader_sleep()) break;
    }
    if (round >= read_round && loop_->has_more_work()) {
      take_reader();  // so that leaving arms the descriptor again, which reports the rest
      break;
    }
  }
  leave_reader();
  // A thread that checked meanwhile whether to arm the descriptor, after one that lingered, found a reader and did
  // nothing.
  watch_again();
  flush_held_back();
}

void stream_connection::write_if_blocked() noexcept {
  std::unique_lock lock(out_mutex_);
  if (!std::exchange(blocked_, false)) return;
  want_writable_ = false;
  write_queued(lock);
}

void stream_connection::on_ready(readiness ready) noexcept {
  own_events_.fetch_add(1, std::memory_order_relaxed);
  if (ready.writable || over_rings_) write_if_blocked();
  // Reported although reading is paused, and remembered: the reader may pause before it comes to the end.
  if (ready.hung_up) hung_up_.store(true);
  if (ready.readable && take_reader()) read_all(ready.hung_up);
}

void stream_connection::set_armed(bool armed) noexcept {
  if (armed) trusted_.store(0);
  if (over_rings_ && armed) return arm_ring();
  std::lock_guard lock(arm_mutex_);
  if (watch_ == watch_id::none || closed_.load()) return;
  armed_.store(armed);
  if (!over_rings_) return loop_->rewatch(watch_, armed, want_writable_);
  // No wake-up comes any more; the socket stays watched until a thread sleeps on it: see poll_socket_here().
  rings_->in().withdraw_sleep();
}

// The descriptor stays disarmed although no thread reads: if that lasts, the monitor arms it.
void stream_connection::note_unwatched() noexcept {
  lingers_.fetch_add(1);
  tell_monitor();
}

// The same after a drive, when no message is expected.
void stream_connection::note_driven() noexcept {
  drives_.fetch_add(1);
  if (drives_noted_.load() || drives_noted_.exchange(true)) return;
  loop_->watch_later({shared_from_this(), &after_drives_}, watched_after_drives);
}

bool stream_connection::resume_after_drives() noexcept {
  const std::uint32_t drives = drives_.load();
  if (std::exchange(seen_drives_, drives) != drives && !closed_.load()) return false;
  driven_.store(false, std::memory_order_relaxed);
  drives_noted_.store(false);  // a thread in drive() notes it again when it leaves
  watch_again();
  // Another thread may have told the monitor in between and found it still registered.
  return drives_.load() == drives || drives_noted_.exchange(true);
}

// The monitor writes what is held back at its next tick. That is no reason to leave the descriptor disarmed for longer.
void stream_connection::note_held_back() noexcept {
  hold_backs_.fetch_add(1);
  tell_monitor();
}

void stream_connection::tell_monitor() noexcept {
  if (noted_.load() || noted_.exchange(true)) return;
  loop_->watch_later(shared_from_this(), io_threads::tick);
}

bool stream_connection::resume_watching(bool now) noexcept {
  if (now) {
    watch_again();
    return true;
  }
  const std::uint32_t held_back = hold_backs_.load();
  flush_held_back();
  // More will be held back soon: to stay registered costs less than to wake the monitor again.
  const bool more = std::exchange(seen_hold_backs_, held_back) != held_back && !closed_.load();
  const std::uint32_t lingers = lingers_.load();
  if (std::exchange(seen_lingers_, lingers) != lingers) {
    lingered_ = true;
    if (!closed_.load()) return false;
  }
  const bool lingered = std::exchange(lingered_, false);
  if (!more) noted_.store(false);
  if (trusted_.load() > 0 && reader_.load() == not_read) {  // in vain
    trust_less();
    trust_failed_.store(true);
  }
  if (lingered || !drives_noted_.load()) watch_again();
  if (more) return false;
  // Another thread may have told the monitor in between and found it still registered.
  return (lingers_.load() == lingers && hold_backs_.load() == held_back) || noted_.exchange(true);
}

// A thread that has found nothing for a while may go on with that. What it would otherwise look for before it sleeps, or be woken for:
// room for the writer, the end of the peer, and memory that the peer has given back.
bool stream_connection::keeps_polling() noexcept {
  if (busy_poll_ == 0 || paused() || reader_state_.stalled() || closed_.load(std::memory_order_relaxed)) return false;
  if (over_rings_) take_wake_ups(false);
  collect_lent();
  return true;
}

stream_connection::outcome stream_connection::spin_for_input(io_threads& on, std::chrono::nanoseconds budget,
                                                             std::size_t& received) noexcept {
  if (over_rings_) rings_->in().withdraw_sleep();
  outcome result = outcome::drained;
  const auto spin = [&] {
    const auto started = clock::now();
    do {
      look_for_input();
      result = receive(received);
    } while (received == 0 && result == outcome::drained && clock::now() - started < budget);
    received != 0 ? spin_.succeeded() : spin_.failed();
    return received == 0 && result == outcome::drained;
  };
  if (!spin() || !keeps_polling()) return result;
  std::uint32_t refused = on.busy_waits_refused();
  if (!on.begin_busy_wait(busy_poll_)) {
    // Those that have had no message since make room.
    if (!spin() || !keeps_polling()) return result;
    refused = on.busy_waits_refused();
    if (!on.begin_busy_wait(busy_poll_)) return result;
  }
  while (!driven_.load(std::memory_order_relaxed) && on.busy_waits_refused() == refused && !on.is_stopping() &&
         !on.has_more_work() && spin() && keeps_polling()) {
  }
  on.end_busy_wait();
  return result;
}

bool stream_connection::linger(io_threads& on) noexcept {
  if (paused() || !carries_calls_) return false;
  // A caller that waits for its reply can read the connection only if no other thread occupies it.
  if (driven_.load(std::memory_order_relaxed)) {
    watch_again();
    return false;
  }
  int expected = not_read;
  if (!reader_.compare_exchange_strong(expected, being_read)) return false;
  if (reader_state_.stalled()) {  // news() will follow
    leave_reader();
    watch_again();
    return false;
  }
  const auto budget = spin_.budget();
  const std::uint32_t others = on.events() - own_events_.load(std::memory_order_relaxed);
  const bool crowded = static_cast<std::int32_t>(others - std::exchange(seen_events_, others)) > few_events;
  // Many connections are in use: none of them gets a thread of its own, unless one that polls is free.
  if (crowded && (budget.count() == 0 || (busy_poll_ != 0 && on.busy_waits() >= busy_poll_))) {
    leave_reader();
    watch_again();
    return false;
  }
  if (armed_.load()) set_armed(false);
  std::size_t received = 0;
  outcome result = outcome::drained;
  const auto started = clock::now();
  if (budget.count() != 0) result = spin_for_input(on, budget, received);
  if (received == 0 && result == outcome::drained && !crowded && !driven_.load(std::memory_order_relaxed) &&
      !on.has_more_work() && on.begin_private_wait()) {
    if (over_rings_) poll_socket_here();
    result = receive(received, true);
    on.end_private_wait();
    if (received != 0) spin_.slept(clock::now() - started);
  }
  const bool got = received != 0;
  while (result == outcome::more) result = receive(received);
  if (got) {
    leave_reader();
    note_unwatched();  // after leaving: the monitor arms only a descriptor without reader
    flush_held_back();
    return true;
  }
  leave_reader();
  watch_again();
  return false;
}

int stream_connection::interrupt_descriptor() noexcept {
  if (const int made = interrupt_.load(std::memory_order_acquire); made >= 0) return made;
  std::lock_guard lock(interrupt_mutex_);
  if (interrupt_ == no_descriptor) interrupt_ = std::max(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), no_descriptor);
  return interrupt_;
}

// The thread that was expected has not come, or too late.
void stream_connection::trust_less() noexcept {
  drives_for_trust_.store(std::min(2 * drives_for_trust_.load(), most_drives_for_trust));
}

// Whether a drive that begins follows the last one at once, no other thread having read meanwhile. As long as the connection is
// watched in between, some do not, even of a thread that does nothing else: most have to.
bool stream_connection::follows_last_drive(clock::time_point now, bool was_trusted) noexcept {
  const clock::time_point added{clock::duration(last_added_.load(std::memory_order_relaxed))};
  const bool follows = read_at_ == driven_until_ && now - std::max(read_at_, added) < drives_again_within;
  if (trust_failed_.load(std::memory_order_relaxed) && trust_failed_.exchange(false)) drives_at_once_ = 0;
  drives_at_once_ = std::clamp(drives_at_once_ + (follows ? 1 : -1), 0, most_drives_for_trust);
  if (!was_trusted) return follows;
  if (!follows) {
    trust_less();
    drives_at_once_ = 0;
  } else if (++kept_trusts_ == kept_trusts_for_more) {
    kept_trusts_ = 0;
    drives_for_trust_.store(std::max(drives_for_trust_.load() / 2, fewest_drives_for_trust));
  }
  return follows;
}

bool stream_connection::drive(const drive_condition& condition, deadline until) noexcept {
  const ordinary_memory_scope not_of_the_caller;
  if (paused()) return false;
  driven_.store(true, std::memory_order_relaxed);
  const int interrupt = interrupt_descriptor();
  if (interrupt < 0) {  // no descriptor left: another thread reads
    watch_again();
    return false;
  }
  int expected = not_read;
  if (!reader_.compare_exchange_strong(expected, being_driven)) {
    if (expected == being_driven ||
        expected == driven_again) {  // whose caller may not come back as soon as the answer for this one
      trust_failed_.store(true);
      watch_again();  // if it has left by now
    }
    // A thread that waits long for its own reply would cost every short call of others a thread switch: it yields, and
    // the next call becomes the reader.
    const clock::rep since = driver_asleep_since_.load(std::memory_order_relaxed);
    if (since != 0 && clock::now() - clock::time_point(clock::duration(since)) > driver_yield_after) {
      driver_must_yield_.store(true);
      interrupt_drive();
    }
    return false;
  }
  driver_must_yield_.store(false);
  const bool was_trusted = trusted_.load() > 0 && trusted_.exchange(0) > 0;
  bool yielded = false;
  // The caller keeps the receiver alive; only the reader releases it, in notify_closed().
  connection_receiver* const receiver = receiver_.get();
  if (armed_.load()) set_armed(false);
  bool to_the_end = false;
  const auto read_available = [&](bool sleep) {
    std::size_t received = 0;
    std::size_t total = 0;
    outcome result = receive(received, sleep);
    for (total = received; result == outcome::more || (to_the_end && result == outcome::drained && received != 0);
         total += received) {
      result = receive(received);
    }
    return total != 0 || result == outcome::ended;
  };
  const auto finished = [&] { return condition.done() || closed_.load(); };

  flush_held_back();
  bool plain = true;
  bool again = false;
  bool first = true;
  while (!finished()) {
    held_output::release();  // of a continuation that ran while this thread read
    const auto budget = spin_.budget();
    const auto started = clock::now();
    if (std::exchange(first, false)) again = follows_last_drive(started, was_trusted);
    if (started >= until.at()) break;
    if (budget.count() != 0) {
      bool got = false;
      if (over_rings_) rings_->in().withdraw_sleep();
      do {
        look_for_input();
      } while (!(got = read_available(false)) && !finished() && clock::now() - started < budget);
      got ? spin_.succeeded() : spin_.failed();
      flush_held_back();
      if (got && busy_poll_ != 0) driver_asleep_since_.store(0, std::memory_order_relaxed);
      if (got || finished()) continue;
      if (keeps_polling()) {
        if (driver_must_yield_.exchange(false)) {
          yielded = !finished();
          break;
        }
        if (driver_asleep_since_.load(std::memory_order_relaxed) == 0)
          driver_asleep_since_.store(started.time_since_epoch().count(), std::memory_order_relaxed);
        continue;
      }
    }
    if (over_rings_) poll_socket_here();
    if (std::exchange(plain, false) && until.remaining() > 2 * plain_wait) {
      if (read_available(true)) {
        spin_.slept(clock::now() - started);
        flush_held_back();
      }
      continue;
    }
    const bool no_room = reader_state_.stalled() && !paused();  // pending input has to wait for a device
    if (over_rings_ && !no_room) {
      if (paused()) {  // input stays in the ring, of which the descriptor says nothing
        yielded = true;
        break;
      }
      if (announce_reader_sleep()) {
        read_available(false);
        flush_held_back();
        continue;
      }
    }
    std::array<pollfd, 2> waiting{{{no_room ? -1 : descriptor_, POLLIN | POLLRDHUP, 0}, {interrupt, POLLIN, 0}}};
    timespec limit{};
    if (!until.is_never()) {
      const auto left = until.remaining();
      limit.tv_sec = static_cast<time_t>(left.count() / 1'000'000'000);
      limit.tv_nsec = static_cast<long>(left.count() % 1'000'000'000);
    }
    driver_asleep_since_.store(started.time_since_epoch().count(), std::memory_order_relaxed);
    const int ready = ::ppoll(waiting.data(), waiting.size(), until.is_never() ? nullptr : &limit, nullptr);
    driver_asleep_since_.store(0, std::memory_order_relaxed);
    if (ready < 0 && errno != EINTR) {
      yielded = true;
      break;
    }
    if (waiting[1].revents != 0) {
      std::uint64_t ignored = 0;
      (void)!::read(interrupt, &ignored, sizeof ignored);
    }
    if (waiting[0].revents != 0 || no_room) {
      to_the_end = (waiting[0].revents & (POLLHUP | POLLERR | POLLRDHUP)) != 0;
      if (over_rings_) take_wake_ups(false);
      spin_.slept(clock::now() - started);
      read_available(false);
      flush_held_back();
    }
    if (driver_must_yield_.exchange(false)) {
      yielded = !finished();
      break;
    }
  }
  if (busy_poll_ != 0) driver_asleep_since_.store(0, std::memory_order_relaxed);
  driven_.store(true, std::memory_order_relaxed);  // the monitor may have cleared it
  driven_until_ = read_at_;
  const bool comes_back = again && !yielded && drives_at_once_ >= drives_for_trust_.load(std::memory_order_relaxed) &&
                          receiver && receiver->expected_messages() != 0 && !trust_failed_.load();
  if (comes_back) trusted_.store(sends_on_trust);
  leave_reader();
  if (comes_back) note_unwatched();
  flush_held_back();
  // A thread that sends after this check finds no reader and reads itself, calls keep_watched(), or has time: see
  // note_driven().
  if (closed_.load()) return !yielded;
  if (receiver && receiver->expected_messages() != 0) {
    if (!comes_back || trust_failed_.load()) watch_again();
  } else if (comes_back) {
    trusted_.store(0);
    if (receiver && receiver->expected_messages() != 0) watch_again();  // its sender may have trusted, too
  }
  note_driven();
  return !yielded;
}

}  // namespace ferry::inline v0::detail
