#pragma once

// A connected stream socket, or rings in shared memory beside one: the class. stream_writing.cpp has its writing half,
// stream_reading.cpp its reading half, ring_stream.cpp what is different with rings.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <ferry/tensor/tensor.hpp>
#include <ferry/transport/connection.hpp>
#include <ferry/transport/transport.hpp>

#include "../channels/direct_memory.hpp"
#include "../channels/staged_channel.hpp"
#include "../channels/staged_send.hpp"
#include "../reactor/adaptive_spin.hpp"
#include "../reactor/io_threads.hpp"
#include "../shm/shared_rings.hpp"
#include "frame_reader.hpp"

namespace ferry::inline v0::detail {

/// A thread that reads a connection itself first sleeps this long in recv(), which is one system call where poll() and
/// recv() are two; only then does it wait interruptibly.
inline constexpr std::chrono::milliseconds plain_wait{4};
/// A thread that spins without end looks so often at what else may have happened.
inline constexpr std::chrono::microseconds busy_poll_step{50};

/// Messages that are written together: bytes, then tensors, or what devices fetch.
struct segment {
  byte_buffer bytes;
  std::vector<tensor> tensors;
  std::shared_ptr<staged_send> staged = {};
};

/// A message whose tensors are not ready yet on their devices.
struct awaited_message {
  outgoing_message message;
  std::shared_ptr<staged_send> staged;
};

// One thread at a time reads, the one that holds `reader_`:
//   a reactor thread after an event (the descriptor is "armed": watched by the epoll),
//   a thread inside drive() that waits for its own reply, or
//   a reactor thread that lingers after it served a message.
// No thread reads before start(), which is the first to hold it.
// With rings the descriptor brings only wake-ups: an armed connection has announced that its reader sleeps, so the peer
// writes a byte to the socket after the next message. The reader takes these bytes out of the socket, no other thread.
// The latter two disarm the descriptor, once for a whole series of messages: it is armed again when messages are
// expected but no thread is in drive(), or by the monitor when no thread has used it for a tick. Where drives have followed each
// other at once, it stays disarmed between them: see trusted_.
class stream_connection final : public connection,
                                public descriptor_handler,
                                public lingering_connection,
                                private message_sink,
                                public std::enable_shared_from_this<stream_connection> {
 public:
  stream_connection(std::shared_ptr<reactor> loop, int descriptor, std::string_view name, std::string description,
                    const transport_options& options, std::shared_ptr<void> kept, std::uint64_t features,
                    std::unique_ptr<shared_rings> rings, std::shared_ptr<direct_memory> direct)
      : loop_(std::move(loop)),
        kept_(std::move(kept)),
        descriptor_(descriptor),
        rings_(std::move(rings)),
        over_rings_(rings_ != nullptr),
        direct_(std::move(direct)),
        name_(name),
        description_(std::move(description)),
        device_tensors_((features & feature_device_tensors) != 0),
        carries_calls_((features & (feature_control | feature_observer)) == 0),
        arriving_{loop_,
                  {},
                  std::make_shared<staging_ring>(options.device_timeout, staging_ring::direction::to_device,
                                                 "tensors from " + description_),
                  direct_},
        busy_poll_(carries_calls_ && std::thread::hardware_concurrency() > 1 ? options.busy_poll : 0),
        reader_state_(options.limits),
        spin_(busy_poll_ == 0 ? options.max_spin : busy_poll_step, busy_poll_ != 0),
        outgoing_copies_(std::make_shared<staging_ring>(options.device_timeout, staging_ring::direction::from_device)),
        room_spin_(options.max_spin) {}

  ~stream_connection() override {
    if (!released_) ::close(descriptor_);
    if (interrupt_ >= 0) ::close(interrupt_);
  }

  // ---- connection
  void start(std::shared_ptr<connection_receiver> receiver) override;
  void send(outgoing_message&& message) noexcept override { (void)send_message(std::move(message), pace::at_once); }
  void send_soon(outgoing_message&& message) noexcept override { (void)send_message(std::move(message), pace::soon); }
  bool send_with_next(outgoing_message&& message) noexcept override {
    return send_message(std::move(message), pace::with_next);
  }
  bool drive(const drive_condition& condition, deadline until) noexcept override;
  void keep_watched() noexcept override {
    if (trusted_.load() > 0 && trusted_.fetch_sub(1) > 0) return;
    // After a linger() that disarmed it the monitor looks soon, should the thread not come back; after a drive() only much later.
    if (!armed_.load() && (driven_.load(std::memory_order_relaxed) || !loop_->reads_next(*this))) watch_again();
  }
  void interrupt_drive() noexcept override {
    // A thread that takes the reader's place later, in the order of changes of reader_, sees what was done before this.
    if (reader_.fetch_add(0) == not_read) return;
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
  [[nodiscard]] bool carries_device_tensors() const noexcept override { return device_tensors_; }
  [[nodiscard]] std::string_view why_no_device_tensors() const noexcept override {
    return "the ferry release of the peer moves tensors from CPU to CPU only";
  }
  [[nodiscard]] std::string_view why_not_direct(device from, device to) const noexcept override;
  [[nodiscard]] std::string_view transport_name() const noexcept override { return name_; }
  [[nodiscard]] std::string description() const override { return description_; }

  // ---- reactor
  void on_ready(readiness ready) noexcept override;
  bool linger(io_threads& on) noexcept override;
  void flush() noexcept override;
  bool resume_watching(bool now) noexcept override;

 private:
  /// Unless it is watched, or a thread reads.
  void watch_again() noexcept {
    if (!armed_.load() && reader_.load() == not_read) set_armed(true);
  }

  static constexpr int fewest_drives_for_trust = 8;
  static constexpr int no_descriptor = -1;
  static constexpr int never_again = -2;
  static constexpr std::uint64_t no_threshold = ~std::uint64_t{0};
  // The last two: by a thread in drive().
  enum reader_value : int { not_read = 0, being_read = 1, read_again = 2, being_driven = 3, driven_again = 4 };
  enum class outcome { drained, more, ended, awaiting_device };
  enum class pace { at_once, soon, with_next };

  void on_frame(inbound_message&& message) override {
    message.arrived = std::exchange(arrived_, {});
    receiver_->on_message(*this, std::move(message));
  }
  [[nodiscard]] bool paused() const noexcept override {
    return paused_.load(std::memory_order_relaxed) && !reads_the_rest_.load(std::memory_order_relaxed);
  }
  /// The same, by the reader, who reads on once the peer has ended the connection.
  [[nodiscard]] bool stays_paused() noexcept;
  [[nodiscard]] const channel_context* channels() const noexcept override { return &arriving_; }
  [[nodiscard]] bool takes_tensors_on(device where) const noexcept override {
    return receiver_->takes_tensors_on(where);
  }

  outcome receive(std::size_t& received, bool sleep = false) noexcept;
  void look_for_input() const noexcept;
  outcome spin_for_input(io_threads& on, std::chrono::nanoseconds budget, std::size_t& received) noexcept;
  [[nodiscard]] bool keeps_polling() noexcept;
  [[nodiscard]] ssize_t receive_from_socket(std::span<const iovec> into, bool sleep) noexcept;
  [[nodiscard]] ssize_t send_to_socket(std::span<const iovec> from) noexcept;
  // The same over rings, with the results of the system calls; EPROTO: the peer has broken the ring.
  [[nodiscard]] ssize_t receive_from_ring(std::span<const iovec> into, bool sleep) noexcept;
  [[nodiscard]] ssize_t send_to_ring(std::span<const iovec> from) noexcept;
  /// Without waking the peer.
  [[nodiscard]] ssize_t write_to_ring(std::span<const iovec> from, bool& wake) noexcept;
  [[nodiscard]] ssize_t write_some(std::span<const iovec> from) noexcept {
    return over_rings_ ? send_to_ring(from) : send_to_socket(from);
  }
  void wake_peer() noexcept;
  void wake_lender() noexcept;
  [[nodiscard]] bool lends_memory_of(const outgoing_message& message) noexcept;
  void collect_lent() noexcept;
  void arm_ring() noexcept;
  bool take_wake_ups(bool sleep) noexcept;
  [[nodiscard]] bool announce_reader_sleep() noexcept;
  void watch_ring() noexcept;
  void watch_socket(bool on) noexcept;
  void poll_socket_here() noexcept;
  [[nodiscard]] bool spin_for_room() noexcept;
  void write_if_blocked() noexcept;
  bool take_reader() noexcept;
  void leave_reader() noexcept;
  void read_later() noexcept;
  void continue_reading() noexcept;
  void notify_closed() noexcept;
  void read_all(bool to_the_end) noexcept;
  void note_unwatched() noexcept;
  void note_driven() noexcept;
  void note_held_back() noexcept;
  void await_next(std::unique_lock<std::mutex>& lock) noexcept;
  void tell_monitor() noexcept;
  [[nodiscard]] bool resume_after_drives() noexcept;
  void set_armed(bool armed) noexcept;
  [[nodiscard]] bool follows_last_drive(clock::time_point now, bool was_trusted) noexcept;
  void trust_less() noexcept;

  bool send_message(outgoing_message&& message, pace when) noexcept;
  void note_sent(const frame_header& header, pace when) noexcept;
  [[nodiscard]] bool peer_reads_at_once() const noexcept;
  [[nodiscard]] bool may_hold_back(const outgoing_message& message) noexcept;
  void flush_held_back() noexcept {
    if (held_back_.load(std::memory_order_relaxed) != 0) flush();
  }
  void send_from_devices(outgoing_message&& message, pace when);
  void tensors_ready(const std::shared_ptr<awaited_message>& which, std::exception_ptr failure) noexcept;
  void queue_void(awaited_message& which, std::vector<tensor>& unread, const std::exception_ptr& why);
  void continue_writing() noexcept;
  void write_or_leave(std::unique_lock<std::mutex>& lock) noexcept;
  void hold_back(outgoing_message&& message);
  [[nodiscard]] bool may_wait(const outgoing_message& message) const noexcept;
  void enqueue(outgoing_message&& message);
  void queue_staged(awaited_message& message);
  void took(std::uint64_t bytes) noexcept {  // with out_mutex_ held
    taken_.store(taken_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  }
  void write_queued(std::unique_lock<std::mutex>& lock) noexcept;
  outcome write_active(int& reason) noexcept;
  void end_writing() noexcept;
  bool notify_written(std::unique_lock<std::mutex>& lock) noexcept;
  void release_descriptor() noexcept;
  void fail(std::exception_ptr reason) noexcept;
  int interrupt_descriptor() noexcept;

  const std::shared_ptr<reactor> loop_;
  std::shared_ptr<void> kept_;  // until the descriptor is closed
  const int descriptor_;
  std::unique_ptr<shared_rings> rings_;          // until the descriptor is closed; then only over_rings_ may be asked
  const bool over_rings_;                        // messages go through rings_, not through the socket
  const std::shared_ptr<direct_memory> direct_;  // null: none
  const std::string_view name_;
  const std::string description_;
  const bool device_tensors_;  // the other end supports them
  const bool carries_calls_;   // not only control frames
  channel_context arriving_;   // its news is set by start()
  std::shared_ptr<connection_receiver> receiver_;

  std::mutex arm_mutex_;  // guards the next two and changes of the watched events
  watch_id watch_ = watch_id::none;
  bool socket_watched_ = true;  // with rings: the reactor reports wake-ups
  std::atomic<bool> armed_{false};
  std::atomic<bool> want_writable_{false};

  const int busy_poll_;
  std::atomic<int> reader_{being_read};  // until start() has ended
  // This and the next seven belong to the reading thread.
  frame_reader reader_state_;
  clock::time_point read_at_;  // when the last bytes were read
  clock::time_point arrived_;  // the same for the first message of them; further ones have waited for those before them
  // See trusted_.
  clock::time_point driven_until_;  // when the last bytes were read that a drive has read
  int drives_at_once_ = 0;
  int kept_trusts_ = 0;
  adaptive_spin spin_;
  bool closed_reported_ = false;
  struct turn : work {
    std::shared_ptr<stream_connection> of;  // while it is posted
  };
  turn later_;
  std::atomic<bool> later_posted_{false};
  std::atomic<bool> paused_{false};          // the reader leaves all input unread
  std::atomic<bool> hung_up_{false};         // the peer has ended the connection; input may be left
  std::atomic<bool> reads_the_rest_{false};  // although reading is paused; set by the reader
  std::mutex interrupt_mutex_;               // guards changes of interrupt_, and writing to it
  std::atomic<int> interrupt_{no_descriptor};
  std::atomic<bool> driven_{false};  // drive() was called lately
  // Between drives: the thread that drove last is expected back at once, since its drives have followed each other often
  // enough. Until then so many messages may be sent without the connection being watched for their answers. If it does
  // not come, the monitor watches the connection at its second look. If it comes late or not at all, more such drives are
  // asked for; if another caller was turned away meanwhile, none is expected.
  std::atomic<int> trusted_{0};
  std::atomic<int> drives_for_trust_{fewest_drives_for_trust};
  std::atomic<bool> trust_failed_{false};
  std::atomic<clock::rep> driver_asleep_since_{0};  // zero: no thread sleeps inside drive()
  std::atomic<bool> driver_must_yield_{false};      // the driver must yield
  std::atomic<std::uint32_t> lingers_{0};           // counts those that left the descriptor disarmed
  std::atomic<std::uint32_t> drives_{0};            // the same
  std::atomic<std::uint32_t> hold_backs_{0};        // counts messages that were held back
  std::atomic<std::uint32_t> own_events_{0};        // counts those of the descriptor
  std::uint32_t seen_events_ = 0;                   // those of all others, at the last linger; the reader's
  std::uint32_t seen_lingers_ = 0;                  // this and the next three belong to the monitor
  std::uint32_t seen_hold_backs_ = 0;
  std::uint32_t seen_drives_ = 0;
  bool lingered_ = false;           // since it last armed the descriptor
  std::atomic<bool> noted_{false};  // registered with the monitor, for its next tick
  // What the monitor asks after drives. Little depends on it: a thread that waits for a message drives again.
  struct driven_watch final : deferred_io {
    stream_connection& of;
    explicit driven_watch(stream_connection& which) noexcept : of(which) {}
    void flush() noexcept override {}
    bool resume_watching(bool) noexcept override { return of.resume_after_drives(); }
  };
  driven_watch after_drives_{*this};
  std::atomic<bool> drives_noted_{false};  // it is registered with the monitor
  std::atomic<clock::rep> last_read_{0};   // when the last bytes arrived
  std::atomic<clock::rep> last_added_{0};  // when the last message was sent while many answers were expected

  std::mutex out_mutex_;      // guards what follows, except that active_ and active_at_ belong to the writer
  bool writing_ = false;      // some thread writes, or waits for the descriptor to become writable
  bool blocked_ = false;      // it waits for the descriptor to become writable
  bool parked_ = false;       // it waits for a device
  bool corked_ = false;       // some thread will call flush()
  bool closing_ = false;      // close once everything is written
  bool failed_ = false;       // fail() no longer needs the descriptor
  bool reader_gone_ = false;  // the reader has stopped for good
  bool released_ = false;     // the descriptor is closed
  std::atomic<bool> closed_{false};
  std::exception_ptr reason_;
  std::deque<segment> queue_;
  std::size_t queued_bytes_ = 0;
  std::vector<std::shared_ptr<awaited_message>> awaited_;
  const staged_send::prefetch_count prefetched_ = std::make_shared<std::atomic<std::size_t>>(0);
  const std::shared_ptr<staging_ring> outgoing_copies_;
  std::uint64_t notify_at_ = no_threshold;  // the receiver requested a notification at this many unwritten bytes
  // Bytes of messages that were not written at once; the difference is what queue_ and active_ hold.
  std::atomic<std::uint64_t> taken_{0};    // changed under the mutex
  std::atomic<std::uint64_t> written_{0};  // changed by the writer
  // Messages that are held back, and one that is expected to be followed; written under the mutex.
  std::atomic<std::size_t> held_back_{0};
  bool awaits_next_ = false;          // the last message is one of send_with_next() that no request has followed yet
  clock::time_point last_with_next_;  // when the last one of these was sent; zero: a request has followed
  int followed_ = 0;                  // of the last ones, those that were followed at once
  clock::time_point last_one_way_;
  int burst_ = 0;  // one-way messages in quick succession
  std::deque<segment> active_;
  std::size_t active_at_ = 0;  // bytes of the first segment that are written
  adaptive_spin room_spin_;    // for room in a ring; belongs to the writer
};

}  // namespace ferry::inline v0::detail
