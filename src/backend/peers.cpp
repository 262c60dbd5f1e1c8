#include "peers.hpp"

#include <algorithm>

namespace ferry::inline v0::detail {

peer_table::~peer_table() = default;

peer* peer_table::at(worker_id id) const noexcept {
  if (id.value < 0 || id.value > worker_id::max) return nullptr;
  const auto index = static_cast<std::size_t>(id.value);
  const block* part = blocks_[index / block_size].load(std::memory_order_acquire);
  return part ? (*part)[index % block_size].load(std::memory_order_acquire) : nullptr;
}

peer& peer_table::place(worker_id id) {
  if (peer* there = at(id)) return *there;
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<std::size_t>(id.value);
  auto& slot = blocks_.at(index / block_size);
  block* part = slot.load(std::memory_order_relaxed);
  if (!part) {
    part = owned_blocks_.emplace_back(std::make_unique<block>()).get();
    slot.store(part, std::memory_order_release);
  }
  auto& entry = (*part)[index % block_size];
  if (peer* there = entry.load(std::memory_order_relaxed)) return *there;
  peer* fresh = owned_.emplace_back(std::make_unique<peer>(id)).get();
  entry.store(fresh, std::memory_order_release);
  return *fresh;
}

peer* peer_table::find(std::string_view name) const {
  const std::shared_lock lock(mutex_);
  const auto found = names_.find(name);
  return found == names_.end() ? nullptr : found->second;
}

peer& peer_table::admit(worker_record record) {
  peer& where = place(record.who.id());
  const std::string name = record.who.name();
  std::string before;
  {
    const std::lock_guard lock(where.mutex);
    before = where.record.who.name();
    where.record = std::move(record);
    if (where.state != peer_state::unknown) where.live = {};  // of its predecessor
    where.state = peer_state::member;
    where.end.clear();
  }
  const std::lock_guard lock(mutex_);
  if (const auto old = names_.find(before); old != names_.end() && old->second == &where && before != name)
    names_.erase(old);
  names_[name] = &where;
  return where;
}

void peer_table::forget_name(const std::string& name, worker_id id) {
  const std::lock_guard lock(mutex_);
  if (const auto found = names_.find(name); found != names_.end() && found->second->id == id) names_.erase(found);
}

std::vector<peer*> peer_table::all() const {
  std::vector<peer*> result;
  {
    const std::shared_lock lock(mutex_);
    result.reserve(owned_.size());
    for (const auto& each : owned_) result.push_back(each.get());
  }
  std::sort(result.begin(), result.end(), [](const peer* a, const peer* b) { return a->id.value < b->id.value; });
  return result;
}

}  // namespace ferry::inline v0::detail
