#pragma once

// The open links of a worker, and the traffic of those that have closed.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include <ferry/backend/inspection.hpp>
#include <ferry/base/time.hpp>

#include "../lock_ranks.hpp"
#include "links.hpp"

namespace ferry::inline v0::detail {

/// Links at one moment.
struct link_list {
  std::vector<std::shared_ptr<outgoing_link>> out;
  std::vector<std::shared_ptr<incoming_link>> in;
  std::vector<std::shared_ptr<control_link>> control;

  /// Ends the calls of outgoing links with `code`, and closes all; a goodbye precedes the end of each if `graceful`.
  void close(errc code, const std::exception_ptr& why, bool graceful) const noexcept;
};

/// Keeps a link alive from add() until it reports its end. Thread-safe; calls no function of its owner.
class link_table {
 public:
  link_table() = default;
  link_table(const link_table&) = delete;
  link_table& operator=(const link_table&) = delete;

  /// False after refuse_new(): then the link is not in the table. Throws std::bad_alloc.
  [[nodiscard]] bool add(const std::shared_ptr<outgoing_link>& link) { return add_to(out_, link); }
  [[nodiscard]] bool add(const std::shared_ptr<incoming_link>& link) { return add_to(in_, link); }
  [[nodiscard]] bool add(const std::shared_ptr<control_link>& link) { return add_to(control_, link); }
  /// Whatever is in the table when this returns is all that will ever be.
  void refuse_new() noexcept;

  /// Removes a link that has ended, keeping its traffic. The result is to be destroyed without a lock.
  [[nodiscard]] std::shared_ptr<outgoing_link> remove_outgoing(const void* link) noexcept;
  [[nodiscard]] std::shared_ptr<incoming_link> remove_incoming(const void* link) noexcept;
  [[nodiscard]] std::shared_ptr<control_link> remove_control(const void* link) noexcept;

  /// Throws std::bad_alloc, as do the next three.
  [[nodiscard]] link_list all() const;
  /// Those of one incarnation of a worker.
  [[nodiscard]] link_list of(worker_id id, incarnation_id incarnation) const;
  /// Those that wait for capacity that other links release.
  [[nodiscard]] link_list waiting() const;
  /// By peer, those that have closed included.
  [[nodiscard]] std::vector<peer_traffic> traffic() const;
  [[nodiscard]] std::uint64_t served_bytes() const noexcept;
  [[nodiscard]] std::size_t size() const noexcept;
  /// False: there still were links at the deadline.
  bool wait_until_empty(clock::time_point until) const;

 private:
  template <class Link>
  using links = std::unordered_map<const void*, std::shared_ptr<Link>>;
  template <class Link>
  bool add_to(links<Link>& table, const std::shared_ptr<Link>& link) {
    const std::lock_guard lock(mutex_);
    if (refuses_) return false;
    table.emplace(link.get(), link);
    return true;
  }
  template <class Link>
  std::shared_ptr<Link> remove_from(links<Link>& table, const void* link) noexcept;
  template <class Wanted>
  [[nodiscard]] link_list select(const Wanted& wanted) const;
  template <class Link>
  void keep_traffic(const Link& closed) noexcept;  // with mutex_ held
  void keep_traffic(const control_link&) noexcept {}
  [[nodiscard]] std::size_t size_locked() const noexcept { return out_.size() + in_.size() + control_.size(); }

  mutable ranked_mutex mutex_{rank_of_link_table};  // guards what follows
  mutable ranked_condition changed_;
  bool refuses_ = false;
  links<outgoing_link> out_;
  links<incoming_link> in_;
  links<control_link> control_;
  std::map<std::int32_t, peer_traffic> past_traffic_;  // by the peer's id
};

}  // namespace ferry::inline v0::detail
