#include "group_table.hpp"

#include <utility>

#include <ferry/base/error.hpp>

#include "../rpc/worker/worker_core.hpp"
#include "group_core.hpp"

namespace ferry::inline v0::detail {
namespace {
constexpr attached_key<group_table> group_table_key("ferry.process_groups");
}  // namespace

std::shared_ptr<group_table> group_table::of(worker_core& worker) {
  auto own = attached_to(worker, group_table_key);
  std::call_once(own->observes_, [&] {
    worker.observe_members(
        [weak = std::weak_ptr<group_table>(own)](const member_event& event) {
          const auto table = weak.lock();
          if (!table) return;
          if (event.what == member_event::kind::left) table->on_gone(event.who, "has left the group of workers");
          if (event.what == member_event::kind::lost) table->on_gone(event.who, "is dead: " + event.reason);
        },
        false);
  });
  return own;
}

void group_table::add(const std::shared_ptr<group_core>& group) {
  const std::lock_guard lock(mutex_);
  if (closed_) throw_error(errc::not_initialized, "the worker has been shut down; call init_rpc again");
  groups_[group->facts().id] = group;
}

void group_table::remove(std::uint64_t id) noexcept {
  const std::lock_guard lock(mutex_);
  groups_.erase(id);
}

std::shared_ptr<group_core> group_table::find_or_null(std::uint64_t id) const noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second.lock();
}

std::shared_ptr<group_core> group_table::find(std::uint64_t id) const {
  auto group = find_or_null(id);
  if (!group) throw_error(errc::invalid_argument, "this worker does not have the process_group any more");
  return group;
}

std::vector<std::shared_ptr<group_core>> group_table::all() const {
  std::vector<std::shared_ptr<group_core>> found;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, weak] : groups_) {
    if (auto group = weak.lock()) found.push_back(std::move(group));
  }
  return found;
}

void group_table::on_gone(const worker_info& who, const std::string& what) noexcept {
  for (const auto& group : all()) group->on_gone(who, what);
}

void group_table::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  for (const auto& group : all()) group->close();
}

}  // namespace ferry::inline v0::detail
