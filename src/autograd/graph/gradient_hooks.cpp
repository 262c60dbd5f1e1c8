#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

#include "facts_difference.hpp"
#include "gradient_record.hpp"

namespace ferry::inline v0 {
namespace detail {

gradient_hook gradient_hooks::add(std::uint32_t value, std::function<tensor(const tensor&)> hook, bool retains) {
  gradient_hook made;
  std::lock_guard lock(mutex_);
  entries_.push_back({next_, value, retains, std::move(hook)});
  made.list_ = weak_from_this();
  made.number_ = next_++;
  return made;
}

void gradient_hooks::remove(std::uint64_t number) noexcept {
  std::function<tensor(const tensor&)> removed;  // destroyed outside of the lock
  std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const entry& each) { return each.number == number; });
  if (found == entries_.end()) return;
  removed.swap(found->hook);
  entries_.erase(found);
}

// A copy: a hook may register and remove hooks.
std::vector<gradient_hooks::entry> gradient_hooks::entries() const {
  std::lock_guard lock(mutex_);
  return entries_;
}

bool gradient_hooks::has(std::uint64_t number) const {
  std::lock_guard lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [&](const entry& each) { return each.number == number; });
}

bool gradient_hooks::has_any_of(std::uint32_t value) const {
  std::lock_guard lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [&](const entry& each) { return each.value == value; });
}

void gradient_hooks::call(const graph_node& of, std::uint32_t value, tensor& gradient, bool only_finds) const {
  const value_facts facts = value_facts::of(gradient);
  for (const entry& each : entries()) {
    if (each.value != value || (only_finds && each.retains) || !has(each.number)) continue;
    tensor other = each.hook(gradient);
    if (!other.defined()) continue;
    const value_facts now = value_facts::of(other);
    if (now != facts) {
      throw_error(difference_of(now, facts), fmt::format("a hook on the gradient of {} returned {} for {}",
                                                         of.describe(), now.describe(), facts.describe()));
    }
    gradient = std::move(other);
  }
}

}  // namespace detail

void gradient_hook::remove() noexcept {
  if (const auto list = list_.lock()) list->remove(number_);
  list_.reset();
}

}  // namespace ferry::inline v0
