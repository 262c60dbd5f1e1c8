// How a collective is agreed on for NCCL.

#include <chrono>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <ferry/rpc/context.hpp>

#include "../rpc/worker/worker_core.hpp"
#include "../transport/reactor/time_limit.hpp"
#include "group_collective.hpp"
#include "group_core.hpp"
#include "nccl_group.hpp"

namespace ferry::inline v0::detail {
namespace {

// A member that leaves has done its part, and so the device may be about to.
constexpr std::chrono::seconds device_grace{1};

}  // namespace

// What any thread has been brought is passed on by that thread.
void group_collective::agree() noexcept {
  if (!enter()) return;
  try {
    std::vector<nccl_agreement::outgoing> words;
    std::optional<nccl_agreement::word> answer;
    {
      const std::lock_guard lock(mutex_);
      if (agrees_ && !ended_) {  // else begin() will
        if (says_yes_ && questions_ == 0) said_yes_.store(true);
        words = agreement_->go_on();
        answer = agreement_->take_answer();
        if (answer) ++questions_;
      }
    }
    for (const nccl_agreement::outgoing& each : words) send_word(each);
    if (answer) on_agreed(*answer);
  } catch (...) {
    fail_here();
  }
  leave();
}

void group_collective::on_agreed(const nccl_agreement::word& all) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = questions_ == 1;
  }
  if (!first) return group_->nccl()->on_made_by_all(all.yes);
  if (all.never) group_->nccl()->refused_for_good(key_.sequence);
  if (all.never || !all.yes) return go_staged();
  on_device_.store(true);
  group_->nccl()->agreed(shared_from_this(), all.id);
}

void group_collective::ask_again(bool yes) noexcept {
  const context_scope outside(static_cast<call_context*>(nullptr));
  {
    const std::lock_guard lock(mutex_);
    agreement_->ask_again(yes);
  }
  agree();
}

// Those that are on the device as well end with the same error.
void group_collective::tell_nccl(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const ferry::error& problem) {
    group_->nccl()->give_up(problem.kind(), fmt::format("NCCL was given up: {}", problem.message()));
  } catch (const std::exception& problem) {
    group_->nccl()->give_up(errc::device_failure, fmt::format("NCCL was given up: {}", problem.what()));
  }
}

bool group_collective::is_refused() const {
  const std::lock_guard lock(mutex_);
  return agreement_->is_refused();
}

void group_collective::go_staged() noexcept {
  on_device_.store(false);
  said_yes_.store(false);
  group_->nccl()->drop(key_.sequence);
  const context_scope outside(static_cast<call_context*>(nullptr));
  begin_lanes();
}

bool group_collective::ends_on_device(std::function<void()> late) {
  if (!on_device_.load()) return false;
  auto limit = std::make_unique<time_limit>(group_->nccl()->timers(), deadline::after(device_grace), std::move(late));
  const std::lock_guard lock(mutex_);
  if (!ended_ && !soon_) soon_ = std::move(limit);
  return true;
}

future<void> group_collective::take_word(const group_message& message, const tensor& bytes) {
  std::string odd;
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return error_ ? make_failed_future<void>(error_) : make_ready_future();
    odd = why_unexpected(message);
    if (odd.empty()) {
      if (const auto word = nccl_agreement::word::decode(bytes)) {
        agreement_->take(message.tag, *word);
      } else {
        odd = malformed_word(message);
      }
    }
  }
  if (!odd.empty()) {
    group_->fail(key_, errc::malformed, odd);
    return make_failed_future<void>(make_error(errc::malformed, odd));
  }
  if (in_segment_.load()) {
    group_->segment()->ask_to_leave(key_.sequence);
  } else {
    agree();
  }
  return make_ready_future();
}

void group_collective::send_word(const nccl_agreement::outgoing& what) {
  group_message message;
  message.group = group_->facts().id;
  message.from = group_->rank();
  message.key = key_;
  message.piece = nccl_agreement::piece;
  message.tag = what.tag;
  message.signature = start_.signature;
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (ended_ && error_) return;  // one that is complete here may still be needed for others to hear of all
    number = next_send_++;
  }
  try {
    track(number, what.to, nullptr, -1, group_->send(message, what.to, what.what.encode()));
  } catch (const error& problem) {
    group_->fail(key_, problem.kind(), fmt::format("{}: {}", group_->name_of(what.to), problem.message()));
  }
}

std::string group_collective::malformed_word(const group_message& message) const {
  return fmt::format("{} has sent no word of an agreement", group_->name_of(message.from));
}

}  // namespace ferry::inline v0::detail
