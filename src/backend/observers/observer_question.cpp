#include <ferry/backend/observer_question.hpp>

#include <algorithm>

#include <ferry/backend/agent.hpp>

namespace ferry::inline v0 {

void request_handler::on_question(std::shared_ptr<observer_question> question) noexcept {
  question->refuse(errc::unknown_method, "this program answers no observers");
}

void observer_state::keep(std::string_view name, std::shared_ptr<void> what) {
  std::shared_ptr<void> before;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const auto& each) { return each.first == name; });
  if (found != kept_.end()) {
    before = std::exchange(found->second, std::move(what));
  } else {
    kept_.emplace_back(name, std::move(what));
  }
}

std::shared_ptr<void> observer_state::take(std::string_view name) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const auto& each) { return each.first == name; });
  return found == kept_.end() ? nullptr : std::exchange(found->second, nullptr);
}

void observer_state::end() noexcept {
  std::vector<std::pair<std::string, std::shared_ptr<void>>> dropped;  // outlives the lock
  const std::lock_guard lock(mutex_);
  ended_ = true;
  dropped.swap(kept_);
}

}  // namespace ferry::inline v0
