#include "fault_core.hpp"

#include <algorithm>
#include <utility>

#include <ferry/base/error.hpp>
#include <ferry/base/type_name.hpp>
#include <ferry/rpc/detail/method_entry.hpp>

namespace ferry::inline v0 {
namespace detail {
namespace {

constexpr std::size_t most_distinct = 65536;  // distinct messages that one rule distinguishes
constexpr int most_flips = 4;

bool fits(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t after_star = 0;
  while (t != text.size()) {
    if (p != pattern.size() && pattern[p] == '*') {
      star = p++;
      after_star = t;
    } else if (p != pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++after_star;
    } else {
      return false;
    }
  }
  while (p != pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool fits_method(const std::string& pattern, std::uint64_t method) {
  if (pattern.empty()) return true;
  if (fingerprint("name:" + pattern) == method) return true;  // a public name, also of a method that only the peer has
  return fits(pattern, known_method_name(method));
}

bool fits_direction(fault_direction wanted, fault_direction given) {
  return (static_cast<unsigned>(wanted) & static_cast<unsigned>(given)) != 0;
}

void check(const fault_rule& rule) {
  const auto refuse = [](const char* what) { throw_error(errc::invalid_argument, std::string("fault_rule: ") + what); };
  if (!(rule.probability >= 0 && rule.probability <= 1)) refuse("probability is not within 0 and 1");
  if (rule.delay < std::chrono::nanoseconds(0)) refuse("delay is negative");
  if (rule.behind < 1) refuse("behind is less than 1");
  const bool requests_only =
      !overlap(rule.kinds, message_kinds::reply | message_kinds::exception | message_kinds::cancel);
  if (rule.action == fault_action::fail && (!requests_only || rule.direction != fault_direction::sending)) {
    refuse("only the sending of requests and one-way calls can fail; set kinds");
  }
}

std::uint64_t identity(const faced_message& message) {
  const std::string_view bytes(reinterpret_cast<const char*>(message.payload.data()), message.payload.size());
  return fingerprint(bytes) ^ fingerprint(message.peer) * 31 ^ message.method;
}

}  // namespace

std::uint64_t fault_core::add(const fault_rule& rule) {
  check(rule);
  std::lock_guard lock(mutex_);
  entries_.push_back({next_number_, rule, 0, {}});
  return next_number_++;
}

bool fault_core::remove(std::uint64_t number) {
  std::lock_guard lock(mutex_);
  return std::erase_if(entries_, [&](const entry& each) { return each.number == number; }) != 0;
}

void fault_core::clear() {
  std::lock_guard lock(mutex_);
  entries_.clear();
  cut_.clear();
}

std::vector<fault_rule> fault_core::rules() const {
  std::lock_guard lock(mutex_);
  std::vector<fault_rule> all;
  for (const entry& each : entries_) all.push_back(each.rule);
  return all;
}

void fault_core::cut(const std::string& peer) {
  {
    std::lock_guard lock(mutex_);
    if (!cut_.insert(peer).second) return;
  }
  tell_cut(peer);
}

void fault_core::tell_cut(const std::string& peer) {
  std::vector<std::shared_ptr<fault_listener>> listeners;
  {
    std::lock_guard lock(mutex_);
    for (const auto& each : listeners_) {
      if (auto listener = each.lock()) listeners.push_back(std::move(listener));
    }
  }
  for (const auto& listener : listeners) listener->on_cut(peer);
}

void fault_core::heal(const std::string& peer) {
  std::lock_guard lock(mutex_);
  cut_.erase(peer);
}

fault_counters fault_core::counters() const {
  std::lock_guard lock(mutex_);
  return counters_;
}

void fault_core::listen(const std::shared_ptr<fault_listener>& listener) {
  std::lock_guard lock(mutex_);
  std::erase_if(listeners_, [](const auto& each) { return each.expired(); });
  listeners_.push_back(listener);
}

bool fault_core::fires(entry& candidate, const faced_message& message) {
  const fault_rule& rule = candidate.rule;
  if (!overlap(rule.kinds, message.kind) || !fits_direction(rule.direction, message.direction)) return false;
  if (!rule.peer.empty() && rule.peer != message.peer) return false;
  if (rule.action == fault_action::corrupt && message.payload.empty()) return false;
  if (!fits_method(rule.method, message.method)) return false;
  if (rule.limit != 0 && candidate.acted >= rule.limit) return false;
  if (rule.of_each != 0) {
    const std::uint64_t which = identity(message);
    const auto found = candidate.each.find(which);
    if (found != candidate.each.end() && found->second >= rule.of_each) return false;
    if (found == candidate.each.end() && candidate.each.size() >= most_distinct) return false;
    if (rule.probability < 1 && std::uniform_real_distribution<>(0, 1)(random_) >= rule.probability) return false;
    ++candidate.each[which];
  } else if (rule.probability < 1 && std::uniform_real_distribution<>(0, 1)(random_) >= rule.probability) {
    return false;
  }
  ++candidate.acted;
  return true;
}

fault_decision fault_core::decide(const faced_message& message) {
  fault_decision decision;
  {
    std::lock_guard lock(mutex_);
    if (cut_.count(message.peer) != 0) {
      ++counters_.cut_off;
      decision.pass = false;
      decision.rule.action = fault_action::cut;
      return decision;
    }
    const auto found =
        std::find_if(entries_.begin(), entries_.end(), [&](entry& each) { return fires(each, message); });
    if (found == entries_.end()) {
      ++counters_.passed;
      return decision;
    }
    decision = {false, found->rule};
    switch (decision.rule.action) {
      case fault_action::drop: ++counters_.dropped; break;
      case fault_action::delay: ++counters_.delayed; break;
      case fault_action::duplicate: ++counters_.duplicated; break;
      case fault_action::reorder: ++counters_.reordered; break;
      case fault_action::corrupt: ++counters_.corrupted; break;
      case fault_action::fail: ++counters_.failed; break;
      case fault_action::cut:
        ++counters_.cut_off;
        cut_.insert(message.peer);
        break;
    }
  }
  if (decision.rule.action == fault_action::cut) tell_cut(message.peer);
  return decision;
}

void fault_core::damage(std::span<std::byte> payload) {
  if (payload.empty()) return;
  std::lock_guard lock(mutex_);
  const int flips = std::uniform_int_distribution<>(1, most_flips)(random_);
  for (int i = 0; i != flips; ++i) {
    const auto at = std::uniform_int_distribution<std::size_t>(0, payload.size() - 1)(random_);
    payload[at] ^= static_cast<std::byte>(1U << std::uniform_int_distribution<unsigned>(0, 7)(random_));
  }
}

}  // namespace detail

fault_injector::fault_injector(std::uint64_t seed) : core_(std::make_shared<detail::fault_core>(seed)) {}
fault_injector::fault_injector(std::vector<fault_rule> rules, std::uint64_t seed) : fault_injector(seed) {
  for (const fault_rule& rule : rules) add(rule);
}
std::uint64_t fault_injector::add(const fault_rule& rule) { return core_->add(rule); }
bool fault_injector::remove(std::uint64_t number) { return core_->remove(number); }
void fault_injector::clear() { core_->clear(); }
std::vector<fault_rule> fault_injector::rules() const { return core_->rules(); }
void fault_injector::cut(std::string_view peer) { core_->cut(std::string(peer)); }
void fault_injector::heal(std::string_view peer) { core_->heal(std::string(peer)); }
fault_counters fault_injector::counters() const { return core_->counters(); }

}  // namespace ferry::inline v0
