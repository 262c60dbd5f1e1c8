#include "nccl_communicator.hpp"

#include <fmt/format.h>

namespace ferry::inline v0::detail {

std::string owned_communicator::text_of(int result) const {
  std::string text = library_.error_text(result);
  if (const char* const more = library_.last_error(usable_); more && *more != '\0') text += fmt::format(" ({})", more);
  return text;
}

std::string owned_communicator::make(int members, const nccl_unique_id& id, int rank) noexcept {
  nccl_config config;
  const std::lock_guard lock(mutex_);
  if (aborted_) return "it was given up";
  const int result = library_.init_rank(&made_, members, id, rank, &config);
  usable_ = made_;  // with an error, too: there may be something to abort
  return is_begun(result) && usable_ ? std::string() : text_of(result);
}

bool owned_communicator::in_progress(std::string& text) noexcept {
  const std::lock_guard lock(mutex_);
  if (!usable_) {
    text = "it was given up";
    return false;
  }
  int result = nccl_success;
  if (const int asked = library_.async_error(usable_, &result); asked != nccl_success) result = asked;
  if (!is_begun(result)) text = text_of(result);
  return result == nccl_in_progress;
}

void owned_communicator::abort() noexcept {
  nccl_communicator* lost = nullptr;
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    lost = std::exchange(usable_, nullptr);
  }
  if (lost) (void)library_.abort(lost);
}

}  // namespace ferry::inline v0::detail
