#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <ferry/test_kit/fault_rules.hpp>

namespace ferry::inline v0::detail {

/// Notified when a peer is cut off.
class fault_listener {
 public:
  virtual void on_cut(const std::string& peer) noexcept = 0;

 protected:
  ~fault_listener() = default;
};

/// The properties of a message that rules match.
struct faced_message {
  message_kinds kind = message_kinds::any;
  fault_direction direction = fault_direction::sending;
  const std::string& peer;
  std::uint64_t method = 0;
  std::span<const std::byte> payload;
};

struct fault_decision {
  bool pass = true;
  fault_rule rule;
};

/// The rules of an injector. Thread-safe.
class fault_core {
 public:
  explicit fault_core(std::uint64_t seed) : random_(seed) {}

  std::uint64_t add(const fault_rule& rule);
  bool remove(std::uint64_t number);
  void clear();
  [[nodiscard]] std::vector<fault_rule> rules() const;
  void cut(const std::string& peer);
  void heal(const std::string& peer);
  [[nodiscard]] fault_counters counters() const;

  void listen(const std::shared_ptr<fault_listener>& listener);
  /// Counts the decision as executed.
  fault_decision decide(const faced_message& message);
  /// Flips a few bits.
  void damage(std::span<std::byte> payload);

 private:
  struct entry {
    std::uint64_t number = 0;
    fault_rule rule;
    std::uint64_t acted = 0;
    std::map<std::uint64_t, std::uint64_t> each;  // by fingerprint of the message
  };
  bool fires(entry& candidate, const faced_message& message);
  void tell_cut(const std::string& peer);

  mutable std::mutex mutex_;
  std::vector<entry> entries_;
  std::uint64_t next_number_ = 1;
  std::set<std::string> cut_;
  std::mt19937_64 random_;
  fault_counters counters_;
  std::vector<std::weak_ptr<fault_listener>> listeners_;
};

}  // namespace ferry::inline v0::detail
