#pragma once

// What a fault injector does to messages: rules, by kind of message, method, peer and direction. For tests; faulty.hpp
// makes a backend of it.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ferry::inline v0 {

/// Kinds of messages, as a set: `message_kinds::reply | message_kinds::exception`.
enum class message_kinds : std::uint8_t {
  request = 1,    ///< a call
  one_way = 2,    ///< a call without a reply
  reply = 4,      ///< the value of a call
  exception = 8,  ///< the exception of the method, or why it did not run
  cancel = 16,    ///< the caller has given up; at the caller only
  any = 31,
};
constexpr message_kinds operator|(message_kinds a, message_kinds b) noexcept {
  return static_cast<message_kinds>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
constexpr bool overlap(message_kinds a, message_kinds b) noexcept {
  return (static_cast<unsigned>(a) & static_cast<unsigned>(b)) != 0;
}

/// Where a rule applies to a message: at the sender, or at the receiver.
enum class fault_direction : std::uint8_t { sending = 1, receiving = 2, both = 3 };

enum class fault_action : std::uint8_t {
  drop,       ///< it never arrives, without an error
  delay,      ///< it is sent on after `delay`. Deadlines have begun before that
  duplicate,  ///< it is sent twice; the second reply to a call is dropped
  reorder,    ///< it is sent on after `behind` later messages to the same peer, or after `delay` at the latest
  corrupt,    ///< some bits of its payload are flipped
  cut,        ///< the peer is unreachable until fault_injector::heal
  fail,       ///< of requests and one-way calls at the sender: errc::injected_failure at once
};

/// The first rule of an injector that matches a message, and whose limits and probability apply, decides about it.
struct fault_rule {
  fault_action action = fault_action::drop;
  message_kinds kinds = message_kinds::any;
  /// Of the called method: its readable name ("shop::order") or public name; `*` matches any text. Empty: any.
  std::string method = {};
  /// The worker at the other end. Empty: any.
  std::string peer = {};
  fault_direction direction = fault_direction::sending;
  std::chrono::nanoseconds delay = std::chrono::milliseconds(100);
  int behind = 1;
  double probability = 1;
  /// How often it may act in total; 0: unlimited.
  std::uint64_t limit = 0;
  /// Not 0: it acts on each distinct message (peer, method and payload) this often, and lets it pass from then on.
  std::uint64_t of_each = 0;

  friend bool operator==(const fault_rule&, const fault_rule&) = default;
};

/// The faults so far.
struct fault_counters {
  std::uint64_t passed = 0;
  std::uint64_t dropped = 0;
  std::uint64_t delayed = 0;
  std::uint64_t duplicated = 0;
  std::uint64_t reordered = 0;
  std::uint64_t corrupted = 0;
  std::uint64_t failed = 0;
  std::uint64_t cut_off = 0;  ///< messages and calls to or from a peer that was cut off
};

namespace detail {
class fault_core;
}

/// A handle on rules that can be changed while workers run; copies share them. Several workers may share one; each
/// applies it at its own end. Decisions are drawn from one seeded generator, so that one thread's messages get the same
/// faults in every run. Thread-safe.
class fault_injector {
 public:
  explicit fault_injector(std::uint64_t seed = 1);
  fault_injector(std::vector<fault_rule> rules, std::uint64_t seed = 1);

  /// Appends a rule and returns its number. Throws errc::invalid_argument for an invalid one.
  std::uint64_t add(const fault_rule& rule);
  /// False if there is none of that number.
  bool remove(std::uint64_t number);
  /// Removes all rules and heals all peers; the counters stay.
  void clear();
  [[nodiscard]] std::vector<fault_rule> rules() const;

  /// Cuts that worker off from all workers that use this injector: calls under way to it end with peer_lost, new ones
  /// with connect_failed, and its messages are dropped.
  void cut(std::string_view peer);
  void heal(std::string_view peer);

  [[nodiscard]] fault_counters counters() const;

  // For the library.
  [[nodiscard]] const std::shared_ptr<detail::fault_core>& core() const noexcept { return core_; }

 private:
  std::shared_ptr<detail::fault_core> core_;
};

}  // namespace ferry::inline v0
