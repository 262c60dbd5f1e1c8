#include "group_table.hpp"

#include <utility>

#include <ferry/base/error.hpp>

#include "../rpc/diagnostics/collective_sources.hpp"
#include "../rpc/worker/worker_core.hpp"
#include "group_core.hpp"

namespace ferry::inline v0::detail {
namespace {
constexpr attached_key<group_table> group_table_key("ferry.process_groups");
constexpr std::size_t most_failed_collectives = 1024;

void list_groups(const worker_core& worker, clock::time_point now, collectives_of_worker& to) {
  const auto own = worker.attached().find(group_table_key);
  if (!own) return;
  for (const auto& group : own->all()) group->describe(now, to);
}
const bool groups_listed = [] {
  add_collective_source(&list_groups);
  return true;
}();

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

std::shared_ptr<group_core> group_table::find(std::uint64_t id) const noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second.lock();
}

void group_table::note_failed(std::uint64_t group, const collective_key& key, errc error, const std::string& text) {
  const std::lock_guard lock(mutex_);
  for (const failed_collective& each : failed_) {
    if (each.group == group && each.key == key) return;
  }
  failed_.push_back({group, key, error, text});
  if (failed_.size() > most_failed_collectives) failed_.pop_front();
}

std::exception_ptr group_table::error_of(std::uint64_t group, const collective_key& key) const {
  const std::lock_guard lock(mutex_);
  for (const failed_collective& each : failed_) {
    if (each.group == group && each.key == key) return make_error(each.error, each.text);
  }
  return nullptr;
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
