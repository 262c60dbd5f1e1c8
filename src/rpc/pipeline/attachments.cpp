#include "attachments.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/rpc/detail/future_state.hpp>
#include <ferry/rpc/worker.hpp>

#include "../worker/worker_core.hpp"

namespace ferry::inline v0 {

const worker_info& attachment_owner::info() const noexcept { return core_.agent_unchecked().self(); }
incarnation_id attachment_owner::incarnation() const noexcept { return core_.agent_unchecked().incarnation(); }

namespace detail {

worker_core& core_of(const worker& of) { return *of.core(); }

std::shared_ptr<worker_attachment> attachment_of(worker_core& worker, const void* key, std::string_view name,
                                                 attachment_maker make) {
  return worker.attached().find_or_make(worker, key, name, make);
}

void attachments::add_of_library(std::shared_ptr<worker_attachment> state) { library_.push_back(std::move(state)); }

std::shared_ptr<worker_attachment> attachments::find_or_make(worker_core& worker, const void* key,
                                                             std::string_view name, attachment_maker make) {
  const auto known = [&]() -> std::shared_ptr<worker_attachment> {
    if (auto state = find(key)) return state;
    const std::lock_guard lock(mutex_);
    if (closed_) throw_closed(worker, name);
    return nullptr;
  };
  if (auto state = known()) return state;
  // One at a time, without the mutex: the constructor is a user's, and events go on.
  const std::lock_guard making(making_);
  if (auto state = known()) return state;
  if (std::find(being_made_.begin(), being_made_.end(), key) != being_made_.end()) {
    throw_error(errc::invalid_argument, fmt::format("the constructor of the attachment '{}' asks for itself", name));
  }
  being_made_.push_back(key);
  std::shared_ptr<worker_attachment> fresh;
  auto failure = caught([&] { fresh = make(worker); });
  being_made_.pop_back();
  if (failure) std::rethrow_exception(failure);
  const std::lock_guard lock(mutex_);  // released before `fresh` is dropped, should the worker have been closed
  if (closed_) throw_closed(worker, name);
  others_.push_back({key, name, fresh});
  return fresh;
}

void attachments::throw_closed(const worker_core& worker, std::string_view name) {
  throw_error(errc::not_initialized,
              fmt::format("{} has been shut down: '{}' cannot be attached to it; call init_rpc again",
                          to_string(worker.agent_unchecked().self()), name));
}

std::shared_ptr<worker_attachment> attachments::at(std::size_t index) const noexcept {
  const std::lock_guard lock(mutex_);
  return index < others_.size() ? others_[index].state : nullptr;
}

std::shared_ptr<worker_attachment> attachments::find(const void* key) const noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(others_.begin(), others_.end(), [&](const entry& each) { return each.key == key; });
  return found == others_.end() ? nullptr : found->state;
}

void attachments::on_member_event(const member_event& event) const noexcept {
  for (const auto& each : library_) {
    if (each) each->on_member_event(event);
  }
  for (std::size_t i = 0; const auto state = at(i); ++i) state->on_member_event(event);
}

void attachments::on_member_end(worker_id id, incarnation_id incarnation) const noexcept {
  for (const auto& each : library_) {
    if (each) each->on_member_end(id, incarnation);
  }
  for (std::size_t i = 0; const auto state = at(i); ++i) state->on_member_end(id, incarnation);
}

void attachments::on_group_quiet(deadline until, bool alone) const noexcept {
  for (std::size_t i = 0; const auto state = at(i); ++i) state->on_group_quiet(until, alone);
  // The library's own last: what the others send may carry references.
  for (const auto& each : library_) {
    if (each) each->on_group_quiet(until, alone);
  }
}

std::uint64_t attachments::loose_ends() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& each : library_) {
    if (each) sum += each->loose_ends();
  }
  for (std::size_t i = 0; const auto state = at(i); ++i) sum += state->loose_ends();
  return sum;
}

void attachments::stop_waiting(bool entirely) const noexcept {
  for (const auto& each : library_) {
    if (each) each->stop_waiting(entirely);
  }
  for (std::size_t i = 0; const auto state = at(i); ++i) state->stop_waiting(entirely);
}

std::vector<std::string> attachments::leaks() const {
  std::vector<std::string> all;
  const auto add = [&](const worker_attachment& of) {
    for (std::string& each : of.leaks()) all.push_back(std::move(each));
  };
  for (const auto& each : library_) {
    if (each) add(*each);
  }
  for (std::size_t i = 0; const auto state = at(i); ++i) add(*state);
  return all;
}

void attachments::close() noexcept {
  std::size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    count = others_.size();
  }
  while (count != 0) at(--count)->close();
  for (auto each = library_.rbegin(); each != library_.rend(); ++each) {
    if (*each) (*each)->close();
  }
}

void attachments::clear(bool idle) noexcept {
  for (;;) {
    std::shared_ptr<worker_attachment> last;  // destroyed without the mutex: its destructor may run user code
    {
      const std::lock_guard lock(mutex_);
      if (others_.empty()) break;
      last = std::move(others_.back().state);
      others_.pop_back();
    }
    last->clear(idle);
  }
  for (auto each = library_.rbegin(); each != library_.rend(); ++each) {
    if (*each) (*each)->clear(idle);
  }
}

}  // namespace detail
}  // namespace ferry::inline v0
