#include "stream_connection.hpp"

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/tensor/pack.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "adaptive_spin.hpp"
#include "frame_reader.hpp"
#include "io_threads.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t small_message = 8 * 1024;      // smaller ones are copied behind each other into one write
constexpr std::size_t accumulate_until = 64 * 1024;  // bytes of one such write
constexpr std::size_t flush_at = 16 * 1024;      // held-back bytes that are written without waiting for a batch's end
constexpr std::size_t read_round = 1024 * 1024;  // bytes read before waiting work is given its turn
constexpr std::size_t vectors_per_write = 64;
// A thread that reads a connection itself sleeps in recv() this long, which is one system call where poll() and recv() are
// two, before it waits in a way that can be interrupted.
constexpr std::chrono::milliseconds plain_wait{4};
constexpr std::chrono::microseconds driver_patience{200};  // a driver that slept longer gives way to a new one
constexpr std::chrono::microseconds burst_gap{30};         // one-way messages sent closer than this are a burst
constexpr int burst_from = 8;                              // of which so many are written at once
constexpr std::size_t hold_back_from = 4;                  // messages expected, apart from answers to held-back ones
constexpr std::chrono::microseconds high_rate_gap{100};    // messages that arrive closer than this do so at a high rate

/// Messages that are written together: bytes, then tensors.
struct segment {
  byte_buffer bytes;
  std::vector<tensor> tensors;
};

// Reading is done by one thread at a time, whoever holds `reader_`:
//   a reactor thread after an event (the descriptor is "armed": watched by the epoll),
//   a thread inside drive() that waits for its own reply, or
//   a reactor thread that lingers after it served a message.
// The latter two disarm the descriptor, once for a whole series of messages: it is armed again when messages are expected
// that nobody drives, or by the monitor when it was left alone for a tick.
class stream_connection final : public connection,
                                public lingering_handler,
                                private message_sink,
                                public std::enable_shared_from_this<stream_connection> {
 public:
  stream_connection(std::shared_ptr<io_threads> loop, int descriptor, std::string_view name, std::string description,
                    const transport_options& options, std::shared_ptr<void> kept)
      : loop_(std::move(loop)),
        kept_(std::move(kept)),
        descriptor_(descriptor),
        name_(name),
        description_(std::move(description)),
        reader_state_(options.limits),
        spin_(options.max_spin) {}

  ~stream_connection() override {
    if (!released_) ::close(descriptor_);
    if (interrupt_ >= 0) ::close(interrupt_);
  }

  // ---- connection
  void start(std::shared_ptr<connection_receiver> receiver) override {
    receiver_ = std::move(receiver);
    std::lock_guard lock(arm_mutex_);
    armed_.store(true);
    watch_ = loop_->watch(descriptor_, shared_from_this(), true, false);
  }
  void send(outgoing_message&& message) noexcept override { send_message(std::move(message), false); }
  void send_soon(outgoing_message&& message) noexcept override { send_message(std::move(message), true); }
  bool drive(const drive_condition& condition, deadline until) noexcept override;
  void keep_watched() noexcept override {
    if (!armed_.load() && reader_.load() == not_read) set_armed(true);
  }
  void interrupt_drive() noexcept override {
    std::lock_guard lock(interrupt_mutex_);
    if (interrupt_ >= 0) {
      std::uint64_t one = 1;
      (void)!::write(interrupt_, &one, sizeof one);
    }
  }
  void close(std::exception_ptr reason) noexcept override;
  [[nodiscard]] std::uint64_t unwritten_bytes() const noexcept override {
    if (closed_.load(std::memory_order_relaxed)) return 0;
    const std::uint64_t written = written_.load(std::memory_order_acquire);
    return taken_.load(std::memory_order_relaxed) - written;
  }
  bool tell_when_written(std::uint64_t bytes) noexcept override;
  void pause_reading() noexcept override { paused_.store(true); }
  void resume_reading() noexcept override {
    if (paused_.exchange(false)) read_later();
  }
  [[nodiscard]] std::string_view transport_name() const noexcept override { return name_; }
  [[nodiscard]] std::string description() const override { return description_; }

  // ---- reactor
  void on_ready(readiness ready) noexcept override;
  bool linger() noexcept override;
  void flush() noexcept override;
  bool resume_watching(bool now) noexcept override;

 private:
  static constexpr int no_descriptor = -1;
  static constexpr int never_again = -2;
  static constexpr std::uint64_t never_told = ~std::uint64_t{0};
  enum reader_value : int { not_read = 0, being_read = 1, read_again = 2 };
  enum class outcome { drained, more, ended };

  void on_frame(inbound_message&& message) override { receiver_->on_message(*this, std::move(message)); }
  [[nodiscard]] bool paused() const noexcept override { return paused_.load(std::memory_order_relaxed); }

  outcome receive(std::size_t& received, bool sleep = false) noexcept;
  bool take_reader() noexcept;
  void leave_reader() noexcept;
  void read_later() noexcept;
  void tell_closed() noexcept;
  void read_all(bool to_the_end) noexcept;
  void note_unwatched() noexcept;
  void set_armed(bool armed) noexcept;

  void send_message(outgoing_message&& message, bool soon) noexcept;
  [[nodiscard]] bool may_hold_back(bool one_way) noexcept;
  void flush_held_back() noexcept;
  void enqueue(outgoing_message&& message);
  void took(std::uint64_t bytes) noexcept {  // with out_mutex_ held
    taken_.store(taken_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  }
  void write_queued(std::unique_lock<std::mutex>& lock) noexcept;
  outcome write_active(int& reason) noexcept;
  void end_writing() noexcept;
  bool tell_written(std::unique_lock<std::mutex>& lock) noexcept;
  void release_descriptor() noexcept;
  void fail(std::exception_ptr reason) noexcept;
  int interrupt_descriptor() noexcept;

  const std::shared_ptr<io_threads> loop_;
  std::shared_ptr<void> kept_;  // until the descriptor is closed
  const int descriptor_;
  const std::string_view name_;
  const std::string description_;
  std::shared_ptr<connection_receiver> receiver_;

  std::mutex arm_mutex_;  // guards watch_ and changes of what is watched
  watch_id watch_ = watch_id::none;
  std::atomic<bool> armed_{false};
  std::atomic<bool> want_writable_{false};

  std::atomic<int> reader_{not_read};
  frame_reader reader_state_;  // this and the next belong to the thread that reads
  adaptive_spin spin_;
  bool told_ = false;
  std::atomic<bool> paused_{false};  // the reader leaves everything where it is
  std::mutex interrupt_mutex_;       // guards the next
  int interrupt_ = no_descriptor;
  std::atomic<bool> driven_{false};                 // drive() was called before
  std::atomic<clock::rep> driver_asleep_since_{0};  // zero: no thread sleeps inside drive()
  std::atomic<bool> give_way_{false};               // it shall leave
  std::atomic<std::uint32_t> touched_{0};           // counts drives and lingers
  std::uint32_t seen_touched_ = 0;                  // of the monitor
  std::atomic<bool> noted_{false};                  // the monitor has it
  std::atomic<clock::rep> last_read_{0};            // when the last bytes came

  std::mutex out_mutex_;      // guards what follows, except that active_ and active_at_ belong to the writer
  bool writing_ = false;      // some thread writes, or waits for the descriptor to become writable
  bool blocked_ = false;      // the latter
  bool corked_ = false;       // some thread will call flush()
  bool closing_ = false;      // close once everything is written
  bool failed_ = false;       // fail() needs the descriptor no more
  bool reader_gone_ = false;  // nobody reads any more
  bool released_ = false;     // the descriptor is closed
  std::atomic<bool> closed_{false};
  std::exception_ptr reason_;
  std::deque<segment> queue_;
  std::size_t queued_bytes_ = 0;
  std::uint64_t tell_at_ = never_told;  // the receiver wants to know when no more is unwritten
  // Bytes of the messages that were not written at once; differ by what queue_ and active_ hold.
  std::atomic<std::uint64_t> taken_{0};    // changed under the mutex
  std::atomic<std::uint64_t> written_{0};  // changed by the writer
  std::atomic<std::size_t> held_back_{0};  // messages queued by send_soon; written under the mutex
  clock::time_point last_one_way_;
  int burst_ = 0;  // one-way messages in quick succession
  std::deque<segment> active_;
  std::size_t active_at_ = 0;  // bytes of the first segment that are written
};

// ---------------------------------------------------------------- writing

void stream_connection::send_message(outgoing_message&& message, bool soon) noexcept {
  std::unique_lock lock(out_mutex_);
  if (closed_.load(std::memory_order_relaxed) || closing_) return;
  try {
    if (writing_) return enqueue(std::move(message));
    if (queued_bytes_ < flush_at && io_threads::has_more_work()) {
      enqueue(std::move(message));
      if (!corked_) corked_ = loop_->flush_later(shared_from_this());
      if (corked_) return;
    } else if (soon && may_hold_back((message.header.flags & frame_one_way) != 0)) {
      enqueue(std::move(message));
      held_back_.store(held_back_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      lock.unlock();
      return note_unwatched();
    } else if (queue_.empty() && message.tensors.empty()) {
      writing_ = true;
      lock.unlock();
      const ssize_t count =
          ::send(descriptor_, message.bytes.data(), message.bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      lock.lock();
      const bool whole = count == static_cast<ssize_t>(message.bytes.size());
      if (!whole) {
        active_at_ = count > 0 ? static_cast<std::size_t>(count) : 0;  // an error shows again at the next write
        took(message.bytes.size() - active_at_);
        active_.push_back({std::move(message.bytes), {}});
      } else if (queue_.empty() && !closing_) {
        return end_writing();
      }
      return write_queued(lock);
    } else {
      enqueue(std::move(message));
    }
    writing_ = true;
    write_queued(lock);
  } catch (const std::exception& e) {
    if (lock.owns_lock()) lock.unlock();
    fail(make_error(errc::resource_exhausted, "sending over " + description_ + ": " + e.what()));
  }
}

// With out_mutex_ held. A message that is answered is held back only while at least one is expected that does not answer a
// held-back one: whoever reads that one flushes afterwards, under the same mutex, and so finds what is queued now.
bool stream_connection::may_hold_back(bool one_way) noexcept {
  if (queued_bytes_ >= flush_at) return false;
  if (one_way) {
    // No answer will come after which it would be written: the next messages or the monitor see to that.
    const auto now = clock::now();
    burst_ = now - std::exchange(last_one_way_, now) < burst_gap ? std::min(burst_ + 1, burst_from) : 0;
    return burst_ == burst_from;
  }
  const std::size_t held =
      held_back_.load(std::memory_order_relaxed) + 1;  // the new one is expected to be answered, too
  if (receiver_->expected_messages() < held + hold_back_from) return false;
  const auto since = clock::now().time_since_epoch().count() - last_read_.load(std::memory_order_relaxed);
  return std::chrono::nanoseconds(since) < high_rate_gap;
}

void stream_connection::flush_held_back() noexcept {
  if (held_back_.load(std::memory_order_relaxed) != 0) flush();
}

void stream_connection::enqueue(outgoing_message&& message) {
  queued_bytes_ += message.bytes.size();
  took(message.bytes.size() + message.header.tensor_bytes);
  if (message.tensors.empty() && message.bytes.size() <= small_message && !queue_.empty()) {
    segment& last = queue_.back();
    if (last.tensors.empty() && last.bytes.size() + message.bytes.size() <= accumulate_until) {
      last.bytes.append(message.bytes.data(), message.bytes.size());
      return;
    }
  }
  queue_.push_back({std::move(message.bytes), std::move(message.tensors)});
}

void stream_connection::flush() noexcept {
  std::unique_lock lock(out_mutex_);
  corked_ = false;
  held_back_.store(0, std::memory_order_relaxed);
  if (writing_ || queue_.empty() || closed_.load(std::memory_order_relaxed)) return;
  writing_ = true;
  write_queued(lock);
}

// With out_mutex_ held.
void stream_connection::end_writing() noexcept {
  writing_ = false;
  release_descriptor();
}

// Whoever keeps a handle on a connection that has ended, in a future for example, keeps no descriptor. With out_mutex_ held.
void stream_connection::release_descriptor() noexcept {
  if (!failed_ || !reader_gone_ || writing_ || std::exchange(released_, true)) return;
  ::close(descriptor_);
  kept_.reset();
}

bool stream_connection::tell_when_written(std::uint64_t bytes) noexcept {
  std::lock_guard lock(out_mutex_);
  tell_at_ = never_told;
  if (closed_.load(std::memory_order_relaxed) || unwritten_bytes() <= bytes) return false;
  tell_at_ = bytes;  // something is written, held back or corked: whoever writes it looks here afterwards
  return true;
}

// The writer does this whenever it comes to an end, with the lock held; true if the receiver was told, without it.
bool stream_connection::tell_written(std::unique_lock<std::mutex>& lock) noexcept {
  if (tell_at_ == never_told || unwritten_bytes() > tell_at_) return false;
  tell_at_ = never_told;
  const auto receiver = receiver_;
  lock.unlock();
  if (receiver) receiver->on_written(*this);
  lock.lock();
  return true;
}

// The caller has set writing_ and holds the lock. What is dropped is destroyed without it: tensors may run deleters of users.
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
        if (tell_written(lock)) continue;
        end_writing();
        if (!closing_) return;
        std::exception_ptr reason = reason_;
        lock.unlock();
        return fail(reason);
      }
      active_.swap(queue_);
      active_at_ = 0;
      queued_bytes_ = 0;
      held_back_.store(0, std::memory_order_relaxed);
    }
    if (closed_.load(std::memory_order_relaxed)) return drop_active();
    lock.unlock();
    int reason = 0;
    const outcome result = write_active(reason);
    if (result == outcome::more) {
      lock.lock();
      (void)tell_written(lock);
      want_writable_ = true;  // before blocked_, which on_ready() ends together with it
      if (closed_.load(std::memory_order_relaxed)) return drop_active();
      blocked_ = true;
      lock.unlock();
      {
        std::lock_guard arm(arm_mutex_);
        loop_->rewatch(watch_, armed_.load(), true);
      }
      return;  // writing_ stays set: on_ready goes on
    }
    if (result == outcome::ended) {
      fail(make_error(errc::connection_lost,
                      "writing to " + description_ + ": " + std::generic_category().message(reason)));
      lock.lock();
      return drop_active();
    }
    lock.lock();
  }
}

// Writes active_ until it is empty (drained), the socket is full (more) or broken (ended).
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
      if (!room) break;
    }
    msghdr header{};
    header.msg_iov = vectors.data();
    header.msg_iovlen = count;
    const ssize_t written = ::sendmsg(descriptor_, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
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
      if (writing_) return;  // the writer closes
      if (!queue_.empty()) {
        writing_ = true;
        return write_queued(lock);
      }
    }
  }
  fail(std::move(reason));
}

// Marks the connection closed and sees to it that the receiver is told, once nobody reads.
void stream_connection::fail(std::exception_ptr reason) noexcept {
  std::deque<segment> dropped;
  std::deque<segment> half_written;
  {
    std::lock_guard lock(out_mutex_);
    if (closed_.load()) return;
    reason_ = std::move(reason);
    closed_.store(true);
    dropped.swap(queue_);
    if (std::exchange(blocked_, false)) {  // no thread is inside the writer
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

// ---------------------------------------------------------------- reading

// Becomes the reader, or makes the present one look again.
bool stream_connection::take_reader() noexcept {
  int value = reader_.load();
  for (;;) {
    if (value == not_read) {
      if (reader_.compare_exchange_weak(value, being_read)) return true;
    } else if (value == being_read) {
      if (reader_.compare_exchange_weak(value, read_again)) return false;
    } else {
      return false;
    }
  }
}

// Stops being the reader. If somebody asked meanwhile to look again, the descriptor is armed, which reports what is there.
void stream_connection::leave_reader() noexcept {
  for (;;) {
    if (closed_.load()) return tell_closed();  // and stays the reader for ever
    const bool stalled = reader_state_.stalled();
    const int before = reader_.exchange(not_read);
    if (closed_.load()) {
      if (!take_reader()) return;
      continue;
    }
    if (before == read_again) {
      set_armed(true);
      if (stalled) read_later();  // what is here already is not reported
    }
    return;
  }
}

// After a pause. The thread that reads at the moment may have seen its end, or not.
void stream_connection::read_later() noexcept {
  struct turn : work {
    std::shared_ptr<stream_connection> of;
  };
  auto* item = new turn;
  item->of = shared_from_this();
  item->run = [](work* self) noexcept {
    const std::unique_ptr<turn> owned(static_cast<turn*>(self));
    if (owned->of->take_reader()) owned->of->read_all(true);
  };
  loop_->post_elsewhere(item);
}

void stream_connection::tell_closed() noexcept {
  if (std::exchange(told_, true)) return;
  std::exception_ptr reason;
  std::shared_ptr<connection_receiver> receiver;  // let go: it holds this connection, too
  {
    std::lock_guard lock(out_mutex_);
    reason = reason_;
    receiver = std::move(receiver_);
    reader_gone_ = true;
    release_descriptor();
  }
  {
    std::lock_guard lock(interrupt_mutex_);
    if (interrupt_ >= 0) ::close(interrupt_);
    interrupt_ = never_again;
  }
  if (receiver) receiver->on_closed(*this, reason);
}

// One recvmsg; the caller is the reader. With `sleep` it waits up to plain_wait for the first byte.
stream_connection::outcome stream_connection::receive(std::size_t& received, bool sleep) noexcept {
  received = 0;
  if (paused()) return outcome::drained;
  try {
    if (reader_state_.stalled()) {
      reader_state_.go_on(*this);
      if (paused()) return outcome::drained;
    }
    std::array<iovec, frame_reader::max_vectors> vectors;
    std::size_t total = 0;
    const std::size_t count = reader_state_.prepare(vectors, total);
    ssize_t got = 0;
    if (count == 1) {
      got = ::recv(descriptor_, vectors[0].iov_base, vectors[0].iov_len, sleep ? 0 : MSG_DONTWAIT);
    } else {
      msghdr header{};
      header.msg_iov = vectors.data();
      header.msg_iovlen = count;
      got = ::recvmsg(descriptor_, &header, sleep ? 0 : MSG_DONTWAIT);
    }
    if (got > 0) {
      received = static_cast<std::size_t>(got);
      last_read_.store(clock::now().time_since_epoch().count(), std::memory_order_relaxed);
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
    fail(make_error(errc::connection_lost,
                    "reading from " + description_ + ": " + std::generic_category().message(errno)));
  } catch (const error& e) {
    log(log_level::warning, "closing " + description_ + ", which broke the protocol: " + e.what());
    fail(make_error(errc::protocol_error, description_ + " broke the protocol: " + e.what()));
  } catch (const std::exception& e) {
    log(log_level::warning, "closing " + description_ + ": " + e.what());
    fail(make_error(errc::resource_exhausted, "receiving from " + description_ + ": " + e.what()));
  }
  return outcome::ended;
}

void stream_connection::read_all(bool to_the_end) noexcept {
  std::size_t round = 0;
  for (;;) {
    std::size_t received = 0;
    const outcome result = receive(received);
    round += received;
    if (result == outcome::ended) break;
    if (result == outcome::drained && (!to_the_end || received == 0)) break;
    if (round >= read_round && io_threads::has_more_work()) {
      take_reader();  // so that leaving arms the descriptor again, which reports the rest
      break;
    }
  }
  leave_reader();
  flush_held_back();
}

void stream_connection::on_ready(readiness ready) noexcept {
  if (ready.writable) {
    std::unique_lock lock(out_mutex_);
    if (std::exchange(blocked_, false)) {
      want_writable_ = false;
      write_queued(lock);
    }
  }
  if (ready.readable && take_reader()) read_all(ready.hung_up);
}

void stream_connection::set_armed(bool armed) noexcept {
  std::lock_guard lock(arm_mutex_);
  if (watch_ == watch_id::none || closed_.load()) return;
  armed_.store(armed);
  loop_->rewatch(watch_, armed, want_writable_);
}

// The descriptor stays disarmed although nobody reads, or messages are held back: the monitor arms it when that lasts,
// and writes them.
void stream_connection::note_unwatched() noexcept {
  touched_.fetch_add(1);
  if (noted_.load() || noted_.exchange(true)) return;
  loop_->watch_later(shared_from_this());
}

bool stream_connection::resume_watching(bool now) noexcept {
  if (now) {
    keep_watched();
    return true;
  }
  flush_held_back();
  const std::uint32_t touched = touched_.load();
  if (std::exchange(seen_touched_, touched) != touched && !closed_.load()) return false;
  noted_.store(false);  // a thread in drive() notes it again when it leaves
  keep_watched();
  // Somebody may have noted it in between, and have found it noted still.
  return touched_.load() == touched || noted_.exchange(true);
}

bool stream_connection::linger() noexcept {
  if (paused()) return false;
  // A caller that waits for its reply finds the connection free to read only if nobody else sits on it.
  if (driven_.load(std::memory_order_relaxed)) {
    keep_watched();
    return false;
  }
  int expected = not_read;
  if (!reader_.compare_exchange_strong(expected, being_read)) return false;
  if (armed_.load()) set_armed(false);
  const auto budget = spin_.budget();
  std::size_t received = 0;
  outcome result = outcome::drained;
  const auto started = clock::now();
  if (budget.count() != 0) {
    do {
      result = receive(received);
    } while (received == 0 && result == outcome::drained && clock::now() - started < budget);
    received != 0 ? spin_.succeeded() : spin_.failed();
  }
  if (received == 0 && result == outcome::drained && loop_->begin_private_wait()) {
    result = receive(received, true);
    loop_->end_private_wait();
    if (received != 0) spin_.slept(clock::now() - started);
  }
  const bool got = received != 0;
  while (result == outcome::more) result = receive(received);
  if (got) {
    leave_reader();
    note_unwatched();  // after leaving: the monitor arms only what nobody reads
    flush_held_back();
    return true;
  }
  leave_reader();
  keep_watched();
  return false;
}

int stream_connection::interrupt_descriptor() noexcept {
  std::lock_guard lock(interrupt_mutex_);
  if (interrupt_ == no_descriptor) interrupt_ = std::max(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), no_descriptor);
  return interrupt_;
}

bool stream_connection::drive(const drive_condition& condition, deadline until) noexcept {
  if (paused()) return false;
  driven_.store(true, std::memory_order_relaxed);
  const int interrupt = interrupt_descriptor();
  if (interrupt < 0) {  // no descriptor left: somebody else reads
    keep_watched();
    return false;
  }
  int expected = not_read;
  if (!reader_.compare_exchange_strong(expected, being_read)) {
    // A thread that waits long for its own reply would cost every short call of others a hand-over: it gives way, and the
    // next call finds the place free.
    const clock::rep since = driver_asleep_since_.load(std::memory_order_relaxed);
    if (since != 0 && clock::now() - clock::time_point(clock::duration(since)) > driver_patience) {
      give_way_.store(true);
      interrupt_drive();
    }
    return false;
  }
  give_way_.store(false);
  bool gave_way = false;
  // Whoever calls keeps the receiver alive; only the reader lets go of it, in tell_closed().
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
  while (!finished()) {
    const auto budget = spin_.budget();
    const auto started = clock::now();
    if (started >= until.at()) break;
    if (budget.count() != 0) {
      bool got = false;
      while (!(got = read_available(false)) && !finished() && clock::now() - started < budget) {
      }
      got ? spin_.succeeded() : spin_.failed();
      flush_held_back();
      if (got || finished()) continue;
    }
    if (std::exchange(plain, false) && until.remaining() > 2 * plain_wait) {
      if (read_available(true)) {
        spin_.slept(clock::now() - started);
        flush_held_back();
      }
      continue;
    }
    std::array<pollfd, 2> waiting{{{descriptor_, POLLIN | POLLRDHUP, 0}, {interrupt, POLLIN, 0}}};
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
      gave_way = true;
      break;
    }
    if (waiting[1].revents != 0) {
      std::uint64_t ignored = 0;
      (void)!::read(interrupt, &ignored, sizeof ignored);
    }
    if (waiting[0].revents != 0) {
      to_the_end = (waiting[0].revents & (POLLHUP | POLLERR | POLLRDHUP)) != 0;
      spin_.slept(clock::now() - started);
      read_available(false);
      flush_held_back();
    }
    if (give_way_.exchange(false)) {
      gave_way = !finished();
      break;
    }
  }
  leave_reader();
  flush_held_back();
  // Whoever sent after this check finds no reader and reads itself, or calls keep_watched().
  if (receiver && receiver->expected_messages() != 0) {
    keep_watched();
  } else if (!closed_.load()) {
    note_unwatched();
  }
  return !gave_way;
}

}  // namespace

std::shared_ptr<connection> make_stream_connection(reactor& loop, int descriptor, std::string_view transport_name,
                                                   std::string description, const transport_options& options,
                                                   std::shared_ptr<void> kept) {
  auto& threads = static_cast<io_threads&>(loop);
  // Blocking, with a bound: who must not wait says MSG_DONTWAIT.
  timeval bound{};
  bound.tv_usec = std::chrono::microseconds(plain_wait).count();
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor, F_SETFL, flags & ~O_NONBLOCK) < 0 ||
      ::setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound) != 0) {
    const int reason = errno;
    ::close(descriptor);
    throw_errno(errc::system_failure, "setting up a connection", reason);
  }
  try {
    return std::make_shared<stream_connection>(threads.shared_from_this(), descriptor, transport_name,
                                               std::move(description), options, std::move(kept));
  } catch (...) {
    ::close(descriptor);
    throw;
  }
}

}  // namespace ferry::inline v0::detail
