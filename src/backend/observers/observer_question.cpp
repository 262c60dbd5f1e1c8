#include <ferry/backend/observer_question.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>

#include <ferry/backend/agent.hpp>

namespace ferry::inline v0 {

void request_handler::on_question(std::shared_ptr<observer_question> question) noexcept {
  question->refuse(errc::unknown_method, "this program answers no observers");
}

void observer_state::keep(std::string_view name, std::shared_ptr<void> what) {
  std::shared_ptr<void> before;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found != names_.end()) {
    before = std::exchange(kept_[static_cast<std::size_t>(found - names_.begin())], std::move(what));
    return;
  }
  kept_.reserve(names_.size() + 1);
  names_.emplace_back(name);
  kept_.push_back(std::move(what));
}

std::shared_ptr<void> observer_state::take(std::string_view name) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = std::find(names_.begin(), names_.end(), name);
  return found == names_.end() ? nullptr
                               : std::exchange(kept_[static_cast<std::size_t>(found - names_.begin())], nullptr);
}

std::vector<std::shared_ptr<void>> observer_state::end() noexcept {
  std::vector<std::shared_ptr<void>> dropped;
  const std::lock_guard lock(mutex_);
  ended_ = true;
  names_.clear();
  dropped.swap(kept_);
  return dropped;
}

}  // namespace ferry::inline v0
