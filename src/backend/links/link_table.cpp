#include "link_table.hpp"

#include <new>
#include <utility>

#include <ferry/base/log.hpp>

namespace ferry::inline v0::detail {

void link_list::close(errc code, const std::exception_ptr& why, bool graceful) const noexcept {
  for (const auto& link : control) link->close(why, graceful);
  for (const auto& link : out) link->close(code, why, graceful);
  for (const auto& link : in) link->close(why, graceful);
}

void link_table::refuse_new() noexcept {
  const std::lock_guard lock(mutex_);
  refuses_ = true;
}

template <class Link>
std::shared_ptr<Link> link_table::remove_from(links<Link>& table, const void* link) noexcept {
  std::shared_ptr<Link> removed;
  {
    const std::lock_guard lock(mutex_);
    const auto found = table.find(link);
    if (found == table.end()) return nullptr;
    removed = std::move(found->second);
    table.erase(found);
    keep_traffic(*removed);
  }
  changed_.notify_all();
  return removed;
}

std::shared_ptr<outgoing_link> link_table::remove_outgoing(const void* link) noexcept {
  return remove_from(out_, link);
}
std::shared_ptr<incoming_link> link_table::remove_incoming(const void* link) noexcept { return remove_from(in_, link); }
std::shared_ptr<control_link> link_table::remove_control(const void* link) noexcept {
  return remove_from(control_, link);
}

template <class Wanted>
link_list link_table::select(const Wanted& wanted) const {
  link_list result;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, link] : out_) {
    if (wanted(*link)) result.out.push_back(link);
  }
  for (const auto& [key, link] : in_) {
    if (wanted(*link)) result.in.push_back(link);
  }
  for (const auto& [key, link] : control_) {
    if (wanted(*link)) result.control.push_back(link);
  }
  return result;
}

link_list link_table::all() const {
  return select([](const auto&) { return true; });
}

link_list link_table::of(worker_id id, incarnation_id incarnation) const {
  return select([&](const auto& link) { return link.peer().who.id() == id && link.peer().incarnation == incarnation; });
}

link_list link_table::waiting() const {
  link_list result;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, link] : out_) {
    if (link->waits_for_others()) result.out.push_back(link);
  }
  for (const auto& [key, link] : in_) {
    if (link->waits_for_others()) result.in.push_back(link);
  }
  return result;
}

std::vector<peer_traffic> link_table::traffic() const {
  std::map<std::int32_t, peer_traffic> sums;
  {
    const std::lock_guard lock(mutex_);  // a link stays here until its figures have been moved there
    sums = past_traffic_;
    const auto add = [&](const auto& link) {
      peer_traffic& sum = sums[link.peer().who.id().value];
      sum.peer = link.peer().who;
      link.add_traffic(sum);
    };
    for (const auto& [key, link] : out_) add(*link);
    for (const auto& [key, link] : in_) add(*link);
  }
  std::vector<peer_traffic> result;
  result.reserve(sums.size());
  for (auto& [id, sum] : sums) result.push_back(std::move(sum));
  return result;
}

template <class Link>
void link_table::keep_traffic(const Link& closed) noexcept {
  try {
    peer_traffic& sum = past_traffic_[closed.peer().who.id().value];
    sum.peer = closed.peer().who;
    closed.add_traffic(sum);
  } catch (const std::bad_alloc&) {
    log(log_level::warning, "out of memory: the traffic of a closed connection was not recorded");
  }
}

std::uint64_t link_table::served_bytes() const noexcept {
  std::uint64_t sum = 0;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, link] : in_) sum += link->served_now().bytes;
  return sum;
}

std::size_t link_table::size() const noexcept {
  const std::lock_guard lock(mutex_);
  return size_locked();
}

bool link_table::wait_until_empty(clock::time_point until) const {
  ranked_lock lock(mutex_);
  return changed_.wait_until(lock, until, [&] { return size_locked() == 0; });
}

}  // namespace ferry::inline v0::detail
