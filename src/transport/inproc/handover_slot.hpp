#pragma once

// Passes a message to a thread that spins for it, without a lock.

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include <ferry/wire/message.hpp>

namespace ferry::inline v0::detail {

/// A message on its way between two ends within a process.
struct envelope {
  explicit envelope(inbound_message&& content) noexcept : message(std::move(content)) {}
  inbound_message message;
  envelope* next = nullptr;
};

/// Owns its envelopes. Not thread-safe.
class envelope_queue {
 public:
  envelope_queue() = default;
  ~envelope_queue() {
    while (!empty()) pop();
  }
  envelope_queue(const envelope_queue&) = delete;
  envelope_queue& operator=(const envelope_queue&) = delete;

  [[nodiscard]] bool empty() const noexcept { return head_ == nullptr; }
  [[nodiscard]] const inbound_message& front() const noexcept { return head_->message; }
  void push(std::unique_ptr<envelope> last) noexcept {
    (tail_ ? tail_->next : head_) = last.get();
    tail_ = last.release();
  }
  std::unique_ptr<envelope> pop() noexcept {
    std::unique_ptr<envelope> first(head_);
    head_ = std::exchange(first->next, nullptr);
    if (!head_) tail_ = nullptr;
    return first;
  }
  void swap(envelope_queue& other) noexcept {
    std::swap(head_, other.head_);
    std::swap(tail_, other.tail_);
  }

 private:
  envelope* head_ = nullptr;
  envelope* tail_ = nullptr;
};

/// Room for one message, beside an inbox that has a mutex. One thread, the receiver, opens it while the inbox is empty, and
/// looks at it alone. Senders that find it shut use the inbox, and poke the receiver before they offer their next message. So
/// the messages of each keep their order: the slot is opened only with the mutex held, and only once the inbox is empty. What is
/// not marked otherwise may be called by any thread at any time.
class handover_slot {
 public:
  enum class withdrawal : unsigned char {
    none,       ///< it was shut
    withdrawn,  ///< it was open, and is shut now; the receiver has yet to see that
    refused,    ///< the receiver has a message from it, or is about to
  };

  /// True if the receiver takes the message, which must not be touched any more.
  [[nodiscard]] bool offer(envelope* message) noexcept {
    return state_.load(std::memory_order_relaxed) == open_ &&
           exchange(open_, reinterpret_cast<std::uintptr_t>(message));  // NOLINT(*-reinterpret-cast)
  }
  /// The receiver stops looking, for something else than a message.
  void poke() noexcept {
    if (state_.load() == open_) exchange(open_, poked_);
  }
  /// Takes the slot from its receiver. With the mutex.
  withdrawal withdraw() noexcept {
    if (exchange(open_, shut_) || exchange(poked_, shut_)) return withdrawal::withdrawn;
    return state_.load(std::memory_order_acquire) == shut_ ? withdrawal::none : withdrawal::refused;
  }

  // By the receiver alone.

  /// With the mutex, and the inbox empty.
  void open() noexcept { state_.store(open_); }
  [[nodiscard]] bool is_open() const noexcept { return state_.load(std::memory_order_acquire) == open_; }
  /// The message, if there is one. Until shut() the slot cannot be withdrawn then.
  [[nodiscard]] std::unique_ptr<envelope> take() noexcept {
    const std::uintptr_t now = state_.load(std::memory_order_acquire);
    if (now <= taken_) return nullptr;
    state_.store(taken_, std::memory_order_relaxed);
    return std::unique_ptr<envelope>(
        reinterpret_cast<envelope*>(now));  // NOLINT(*-reinterpret-cast,performance-no-int-to-ptr)
  }
  /// The same, and shuts it if there is none. With the mutex.
  [[nodiscard]] std::unique_ptr<envelope> leave() noexcept {
    if (exchange(open_, shut_)) return nullptr;
    auto last = take();
    if (!last) shut();
    return last;
  }
  /// After take().
  void shut() noexcept { state_.store(shut_, std::memory_order_release); }

 private:
  bool exchange(std::uintptr_t from, std::uintptr_t to) noexcept { return state_.compare_exchange_strong(from, to); }

  // Less than any address of an envelope.
  static constexpr std::uintptr_t shut_ = 0;
  static constexpr std::uintptr_t open_ = 1;
  static constexpr std::uintptr_t poked_ = 2;
  static constexpr std::uintptr_t taken_ = 3;
  std::atomic<std::uintptr_t> state_{shut_};
};

}  // namespace ferry::inline v0::detail
