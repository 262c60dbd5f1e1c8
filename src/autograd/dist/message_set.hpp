#pragma once

// A set of messages with gradients, by their ids.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <ferry/base/ids.hpp>

namespace ferry::inline v0::detail {

/// The id of a message with gradients: the worker that sent it in the top 16 bits, a counter of that worker below.
constexpr unsigned message_counter_bits = 48;
constexpr std::uint64_t last_message_number = (std::uint64_t{1} << message_counter_bits) - 1;
[[nodiscard]] constexpr worker_id sender_of(std::uint64_t message) noexcept {
  return {static_cast<std::int32_t>(message >> message_counter_bits)};
}
/// The ids of a worker's messages are from here on, and below that of the next worker; those of its contexts and passes are made alike.
[[nodiscard]] constexpr std::uint64_t ids_of(worker_id whose) noexcept {
  return static_cast<std::uint64_t>(whose.value) << message_counter_bits;
}

/// Value type: sorted intervals, since what a loop sends has consecutive numbers.
class message_set {
 public:
  struct interval {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    friend bool operator==(const interval&, const interval&) = default;
    template <class Archive>
    void serialize(Archive& archive) {
      archive(first, last);
    }
  };

  message_set() = default;
  /// Throws errc::malformed unless they ascend with gaps between them, each of one sender.
  explicit message_set(std::vector<interval> intervals);

  [[nodiscard]] bool empty() const noexcept { return intervals_.empty(); }
  [[nodiscard]] bool contains(std::uint64_t message) const noexcept;
  void insert(std::uint64_t message) { merge({interval{message, message}}); }
  void merge(const message_set& more) { merge(more.intervals_); }
  /// Of the messages, ascending.
  [[nodiscard]] std::vector<worker_id> senders() const;
  [[nodiscard]] bool has_sender(worker_id sender) const noexcept;
  [[nodiscard]] std::span<const interval> intervals() const noexcept { return intervals_; }
  friend bool operator==(const message_set&, const message_set&) = default;

  template <class Archive>
  void save(Archive& archive) const {
    archive(intervals_);
  }
  template <class Archive>
  void load(Archive& archive) {
    std::vector<interval> loaded;
    archive(loaded);
    *this = message_set(std::move(loaded));
  }

 private:
  void merge(const std::vector<interval>& more);
  std::vector<interval> intervals_;
};

}  // namespace ferry::inline v0::detail
