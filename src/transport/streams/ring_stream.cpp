// A connection whose messages go through rings in shared memory. The socket beside them carries wake-ups, one byte each,
// and its end is the end of the peer; what a peer wrote to the ring before it ended is still read.

#include "stream_connection_impl.hpp"

#include <array>
#include <cerrno>

#include <sys/socket.h>

namespace ferry::inline v0::detail {

std::string_view stream_connection::why_not_direct(device from, device to) const noexcept {
  if (direct_) return direct_->why_not(from, to);
  if (!over_rings_) return connection::why_not_direct(from, to);
  return from.is_cpu() && to.is_cpu() ? no_host_memory : no_gpu_memory;
}

// A socket that is full of wake-ups needs no other; one that is broken has an event for its watch.
void stream_connection::wake_peer() noexcept {
  const char any = 1;
  (void)!::send(descriptor_, &any, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// From any thread: memory has been given back to the peer, which looks for that before it sleeps.
void stream_connection::wake_lender() noexcept {
  const std::lock_guard lock(out_mutex_);
  if (!released_ && rings_->out().take_reader_sleep()) wake_peer();
}

// After announcing that this end sleeps: what is given back from now on wakes it. Not with arm_mutex_ held.
void stream_connection::collect_lent() noexcept {
  if (direct_) direct_->lent()->collect();
}

// Whether memory of this message's tensors is lent: then they are written as those of devices are.
bool stream_connection::lends_memory_of(const outgoing_message& message) noexcept {
  if (!direct_ || message.tensors.empty()) return false;
  const auto may_be_lent = [&](std::size_t i) {
    return message.tensors[i].device().is_cpu() &&
           direct_->can_lend(message.tensors[i], message.targets.empty() ? device() : message.targets[i]);
  };
  for (std::size_t i = 0; i != message.tensors.size(); ++i) {
    if (!may_be_lent(i)) continue;
    if (direct_->lent()->watched() == lent_blocks::watch_state::not_yet) {
      const std::lock_guard lock(out_mutex_);
      if (released_) return false;
      direct_->lent()->watch(descriptor_);
    }
    return may_be_lent(i);
  }
  return false;
}

ssize_t stream_connection::send_to_ring(std::span<const iovec> from) noexcept {
  bool wake = false;
  const ssize_t written = write_to_ring(from, wake);
  if (wake) wake_peer();  // then something was written
  return written;
}

ssize_t stream_connection::write_to_ring(std::span<const iovec> from, bool& wake) noexcept {
  ring_writer& ring = rings_->out();
  const std::size_t written = ring.write(from, wake);
  if (written != 0) return static_cast<ssize_t>(written);
  errno = ring.broken() ? EPROTO : EAGAIN;
  return -1;
}

ssize_t stream_connection::receive_from_ring(std::span<const iovec> into, bool sleep) noexcept {
  ring_reader& ring = rings_->in();
  int sleeps = sleep ? 2 : 0;  // a wake-up may be left over from an earlier message
  for (;;) {
    const bool ended = hung_up_.load();  // before the ring is read: then there is nothing after that
    bool wake = false;
    const std::size_t got = ring.read(into, wake);
    if (wake) wake_peer();
    if (got != 0) {
      collect_lent();  // an answer follows the end of what was lent for its request
      return static_cast<ssize_t>(got);
    }
    if (ring.broken()) {
      errno = EPROTO;
      return -1;
    }
    if (ended) return 0;
    if (sleeps == 0) {
      errno = EAGAIN;
      return -1;
    }
    const bool input = ring.announce_sleep();
    collect_lent();
    if (!input && !take_wake_ups(true)) sleeps = 0;
    if (sleeps != 0) --sleeps;
  }
}

// Empties the socket; with `sleep` it waits up to plain_wait for something to be there. False if nothing was. The caller
// is the reader.
bool stream_connection::take_wake_ups(bool sleep) noexcept {
  std::array<char, 64> ignored;
  ssize_t got = ::recv(descriptor_, ignored.data(), ignored.size(), sleep ? 0 : MSG_DONTWAIT);
  const bool any = got > 0;
  // All of them: a socket that is full of them would report none that comes later.
  while (got == static_cast<ssize_t>(ignored.size()))
    got = ::recv(descriptor_, ignored.data(), ignored.size(), MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
    hung_up_.store(true);
  }
  if (any) {
    collect_lent();
    write_if_blocked();  // the reactor does not see a byte that is taken here
  }
  return any;
}

// With arm_mutex_ held. A wake-up, of the reader as of the writer, makes the socket readable.
void stream_connection::watch_socket(bool on) noexcept {
  if (std::exchange(socket_watched_, on) != on) loop_->rewatch(watch_, on, false);
}

// Before the reader sleeps until the socket is readable: no thread of the reactor is woken for that, too.
void stream_connection::poll_socket_here() noexcept {
  const std::lock_guard lock(arm_mutex_);
  if (watch_ == watch_id::none || closed_.load() || armed_.load() || want_writable_.load()) return;
  watch_socket(false);
}

// Before the reader stops reading while the descriptor is watched, or polls it: true if there is input by now.
bool stream_connection::announce_reader_sleep() noexcept {
  if (paused() || reader_state_.stalled()) {
    collect_lent();
    return false;
  }
  const bool input = rings_->in().announce_sleep();
  collect_lent();
  return input;
}

void stream_connection::arm_ring() noexcept {
  {
    std::lock_guard lock(arm_mutex_);
    if (watch_ == watch_id::none || closed_.load()) return;
    armed_.store(true);
    watch_socket(true);
    if (rings_->in().announce_sleep() && !paused()) read_later();  // resume_reading() does so otherwise
  }
  collect_lent();
}

// For a connection that is armed while no thread reads it.
void stream_connection::watch_ring() noexcept {
  {
    std::lock_guard lock(arm_mutex_);
    if (watch_ == watch_id::none || closed_.load() || !armed_.load()) return;
    if (rings_->in().announce_sleep() && !paused()) read_later();
  }
  collect_lent();
}

// As long as the peer reads, it frees room sooner than a thread could be woken. The caller is the writer.
bool stream_connection::spin_for_room() noexcept {
  if (direct_ && direct_->asks_for_pace()) room_spin_.probe_now();
  const auto budget = room_spin_.budget();
  if (budget.count() == 0) return false;
  ring_writer& ring = rings_->out();
  const auto started = clock::now();
  do {
    if (ring.room() >= ring.capacity() / 4) {
      room_spin_.succeeded();
      return true;
    }
  } while (!ring.broken() && !closed_.load(std::memory_order_relaxed) && clock::now() - started < budget);
  room_spin_.failed();
  return false;
}

}  // namespace ferry::inline v0::detail
