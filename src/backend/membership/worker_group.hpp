#pragma once

// The group as one of its workers takes part in it. Each group has its own part of the store, where its members agree on
//
//   kind     "static <world size>, heartbeats ..., lease ...", or "dynamic, ...": all must say the same
//   group    the key that identifies connections of this group

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/backend/group_view.hpp>
#include <ferry/base/time.hpp>

#include "../../store/bounded_store.hpp"
#include "../devices/device_placement.hpp"
#include "../failure/failure_detector.hpp"
#include "../failure/group_records.hpp"
#include "../links/endpoints.hpp"
#include "../links/flow.hpp"
#include "../links/peers.hpp"
#include "../own_worker.hpp"
#include "quiescence.hpp"
#include "store_access.hpp"

namespace ferry::inline v0::detail {

/// The other rooms of the worker that takes part; they live as long as its group.
struct group_surroundings {
  own_worker& own;
  peer_table& peers;
  const worker_flow& flow;
  const request_totals& totals;
  endpoints& ends;
  device_placement& devices;
  failure_detector& failures;
  connection_acceptor& acceptor;  ///< kept alive by own.keep_alive()
};

/// What both kinds of groups have in common: agreement on the parameters, look-up of members, becoming idle before leaving.
/// Thread-safe; join() comes first, and end() after the links were closed.
class worker_group : public group_records, private store_user {
 public:
  worker_group(const group_surroundings& around, std::shared_ptr<store> where);
  virtual ~worker_group() = default;
  worker_group(const worker_group&) = delete;
  worker_group& operator=(const worker_group&) = delete;

  /// Agrees with the others, publishes this worker, begins to listen; in a static group waits for all of it.
  virtual void join(deadline until) = 0;
  virtual void leave_together(deadline until) = 0;
  virtual void leave(deadline until) = 0;
  /// Interrupts what leaves: entirely, or only its waits for other workers.
  void stop_leaving(bool entirely) noexcept;
  /// The worker closes: before its links end, after.
  virtual void begin_to_close() noexcept {}
  virtual void end() noexcept {}
  /// Futures that are kept keep the worker's parts alive, but must not keep the store's resources open.
  void release_store() noexcept { access_.release_store(); }

  // Members (lookup.cpp). Where this worker's list of members may be behind, it reads the log of a dynamic group once more
  // before it reports a worker as unknown, or takes one for it that is gone or not connected any more.
  [[nodiscard]] std::vector<worker_info> workers() const;
  [[nodiscard]] worker_info find(std::string_view name) const;
  [[nodiscard]] worker_info find(worker_id id) const;
  /// The record of a route is its place (a peer), which lives as long as the table of peers.
  [[nodiscard]] peer_route locate(std::string_view name, deadline until) const;
  [[nodiscard]] peer_route locate(worker_id id, deadline until) const;
  [[nodiscard]] peer_route locate(const call_target& whom, deadline until) const;
  [[nodiscard]] bool is_over(const call_target& whom, std::uint64_t& question) const;
  bool update(deadline until) const;
  [[nodiscard]] worker_info wait_for(std::string_view name, deadline until) const;
  [[nodiscard]] std::string metadata(worker_id id) const;
  /// Those of this worker that it or a member's map names.
  [[nodiscard]] std::vector<device> devices() const;
  /// Whether the group can have a member of that id.
  [[nodiscard]] virtual bool may_have(worker_id id) const noexcept = 0;
  /// The last entry of the log that the table of peers includes, 0 without a log; nothing while the table of a static group
  /// is not complete.
  [[nodiscard]] virtual std::optional<std::uint64_t> table_as_of() const noexcept = 0;

  // group_records
  void write_later(store_record&& record) noexcept final;
  void publish_loss(const fence_notice& notice, bool contested) noexcept final;
  void on_change() noexcept final { access_.wake_waiting(); }
  void on_activity() noexcept final { quiet_.changed(); }

 protected:
  static constexpr std::chrono::seconds store_limit{5};  // for a member's requests to the store
  /// For a request that says what was missing at a deadline that may have passed.
  [[nodiscard]] static deadline last_look(deadline until) noexcept {
    return std::max(until, deadline::after(std::chrono::milliseconds(250)));
  }

  [[nodiscard]] std::shared_ptr<bounded_store> group_store() const { return access_.store(); }
  void agree_on_group(deadline until);
  void listen();
  /// Makes what the devices that this worker names are slow to make, before others can call it.
  void warm_up_named_devices();
  /// The same for those that only the maps of others name. One that fails is an error of the calls that use it.
  void warm_up_mapped_devices();
  [[nodiscard]] worker_record own_record() const;
  /// Adds a member to the table of peers, with the maps between it and this worker.
  peer& admit(shared_record record);

  void wait_until_quiet(deadline until, leave_interrupt level);
  void settle_loose_ends(deadline until);
  /// Throws errc::shutting_down once waits of this level are interrupted.
  void check_still_leaving(leave_interrupt level) const;

  /// Writes that a worker is dead into the store. `contested` as in publish_loss().
  virtual void write_loss(const fence_notice& notice, bool contested) = 0;
  /// Reads what has been recorded; false: it could not be read.
  [[nodiscard]] bool catch_up() noexcept override { return true; }

  own_worker& own_;
  peer_table& peers_;
  const worker_flow& flow_;
  const request_totals& totals_;
  endpoints& ends_;
  device_placement& devices_;
  failure_detector& failures_;
  connection_acceptor& acceptor_;
  mutable store_access access_;                       // for joining, leaving and fences
  mutable std::atomic<clock::rep> no_wait_until_{0};  // of lookups that look for a successor
  quiescence quiet_;

 private:
  // store_user
  [[nodiscard]] std::shared_ptr<void> keep_alive() final { return own_.keep_alive(); }
  [[nodiscard]] bool closing() const noexcept final { return own_.closing.load(); }
  [[nodiscard]] bool ended() const noexcept final { return own_.ended(); }
  [[nodiscard]] std::string name() const final { return to_string(own_.self); }

  template <class Find>
  [[nodiscard]] peer* look_up(deadline until, const Find& find, bool& read) const;
  [[nodiscard]] bool quiet() const noexcept;
};

}  // namespace ferry::inline v0::detail
