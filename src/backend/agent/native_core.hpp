#pragma once

// What the agent of the native backend consists of. The core is shared with its links; the agent is the handle that closes
// it.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/backend/agent.hpp>
#include <ferry/backend/backend.hpp>

#include "../devices/device_placement.hpp"
#include "../failure/failure_detector.hpp"
#include "../links/endpoints.hpp"
#include "../links/link_checks.hpp"
#include "../links/link_table.hpp"
#include "../links/links.hpp"
#include "../links/peers.hpp"
#include "../made_from_members.hpp"
#include "../membership/worker_group.hpp"
#include "../observers/observer_links.hpp"
#include "../own_worker.hpp"

namespace ferry::inline v0::detail {

/// Owns the rooms of the backend, each of which has its own state and mutex, in the order of lock_ranks.hpp. It makes and
/// accepts the links that calls go over, and passes on what links report.
class native_core final : public link_owner,
                          public connection_acceptor,
                          public std::enable_shared_from_this<native_core> {
 public:
  native_core(std::shared_ptr<store> group_store, const worker_config& config, const rpc_options& options,
              const std::vector<transport_factory>& transports, std::optional<device_counts> counts);

  /// `handler` is told of requests and events until close() has returned. Throws as agent::join().
  void join(request_handler& handler);
  void close() noexcept;

  [[nodiscard]] const own_worker& own() const noexcept { return own_; }
  [[nodiscard]] const device_placement& placement() const noexcept { return devices_; }
  [[nodiscard]] const link_table& links() const noexcept { return links_; }
  [[nodiscard]] failure_detector& failures() noexcept { return failures_; }
  [[nodiscard]] const failure_detector& failures() const noexcept { return failures_; }
  [[nodiscard]] worker_group& group() noexcept { return *group_; }

  call_ticket call(const call_target& to, outgoing_message&& request, pending_call& call, deadline until,
                   reply_wait how);
  void notify(const call_target& to, outgoing_message&& request);
  [[nodiscard]] bool within_process(const call_target& to) const noexcept;
  void finished_calls(std::uint64_t count) noexcept;
  [[nodiscard]] agent_counters counters() const noexcept;
  [[nodiscard]] route_info route(worker_id id) const;

  [[nodiscard]] std::vector<device> devices() const;
  [[nodiscard]] std::shared_ptr<const device_maps_between> maps_to(worker_id id) const;
  void place_tensors(const call_target& to, outgoing_message& message, bool response,
                     const device_map* placement) const;

  // link_owner
  void on_link_closed(void* link) noexcept override;
  void count_late_reply() noexcept override { late_replies_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] bool closing() const noexcept override { return own_.closing.load(); }
  [[nodiscard]] worker_flow& flow() noexcept override { return flow_; }
  void check_deadlines_at(deadline at) noexcept override { checks_.check_deadlines_at(at); }
  void count_sent(std::int64_t change) noexcept override { totals_.sent.fetch_add(static_cast<std::uint64_t>(change)); }
  void count_handled(std::int64_t change) noexcept override {
    totals_.handled.fetch_add(static_cast<std::uint64_t>(change));
  }
  [[nodiscard]] bool takes_tensors_on(device where) const noexcept override { return devices_.takes_tensors_on(where); }
  void run_later(work* item) noexcept override { own_.threads->post(item); }
  void look_again_soon() noexcept override { checks_.look_again_soon(); }
  void on_link_open(const remote_worker& from, const connection& opened, bool by_us) noexcept override {
    failures_.on_link_open(from, opened, by_us);
  }
  void on_link_lost(const remote_worker& from, const connection& lost) noexcept override {
    failures_.on_link_lost(from, lost);
  }
  void on_control(const remote_worker& from, inbound_message&& message) noexcept override {
    failures_.on_control(from, std::move(message));
  }
  void on_control_closed(control_link& which) noexcept override { failures_.on_control_closed(which); }
  void on_cancel(const remote_worker& to, std::uint64_t call_id) noexcept override { failures_.on_cancel(to, call_id); }
  void on_link_event(const link_event& event) noexcept override { own_.events.link(event); }

  // connection_acceptor
  hello_reply on_hello(const hello& from) override;
  void on_accepted(std::shared_ptr<connection> accepted, const hello& from) noexcept override;
  [[nodiscard]] bool expects(std::string_view host) noexcept override;

 private:
  /// The connection for urgent calls, or the ordinary one. A leaving worker is no longer a member, but may be reached.
  std::shared_ptr<outgoing_link> link_to(const call_target& to, bool urgent, bool reaches_leaving);
  void start_connecting(const std::shared_ptr<outgoing_link>& link, const worker_record& to, std::uint64_t features);
  void check_hello(const hello& from) const;
  /// Throws errc::resource_exhausted if it has as many connections of the kind as it may have.
  static void check_connections(const peer& of, const hello& from);
  void log_route(const worker_info& to) const noexcept;

  own_worker own_;
  peer_table peers_;
  device_placement devices_;

  // Links.
  made_from_members<std::set<std::string, std::less<>>> peer_hosts_;  // IP addresses that members listen on
  worker_flow flow_;
  request_totals totals_;
  std::atomic<std::uint64_t> late_replies_{0};
  endpoints ends_;
  link_table links_;
  link_checks checks_{links_, own_.threads, own_.keep_alive};

  observer_links observers_{own_};
  failure_detector failures_;
  const std::unique_ptr<worker_group> group_;
};

}  // namespace ferry::inline v0::detail
