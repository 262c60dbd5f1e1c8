// The native backend's agent: the handle that closes its core.

#include <memory>
#include <utility>
#include <vector>

#include <ferry/backend/agent.hpp>

#include "native_core.hpp"

namespace ferry::inline v0::detail {
namespace {

class native_members final : public group_view {
 public:
  explicit native_members(native_core& core) noexcept : core_(core) {}

  [[nodiscard]] std::vector<worker_info> workers() const override { return core_.group().workers(); }
  [[nodiscard]] bool dynamic() const noexcept override { return core_.own().dynamic(); }
  [[nodiscard]] worker_info find(std::string_view name) const override { return core_.group().find(name); }
  [[nodiscard]] worker_info find(worker_id id) const override { return core_.group().find(id); }
  [[nodiscard]] located_worker locate(std::string_view name, deadline until) const override {
    return core_.group().locate(name, until);
  }
  [[nodiscard]] located_worker locate(worker_id id, deadline until) const override {
    return core_.group().locate(id, until);
  }
  [[nodiscard]] located_worker locate(const call_target& whom, deadline until) const override {
    return core_.group().locate(whom, until);
  }
  [[nodiscard]] bool is_over(const call_target& whom, std::uint64_t& question) const override {
    return core_.group().is_over(whom, question);
  }
  void seek(const call_target& whom) const noexcept override { core_.failures().seek(whom); }
  [[nodiscard]] worker_info wait_for(std::string_view name, deadline until) const override {
    return core_.group().wait_for(name, until);
  }
  bool update(deadline until) const override { return core_.group().update(until); }
  [[nodiscard]] std::string metadata(worker_id id) const override { return core_.group().metadata(id); }
  [[nodiscard]] std::vector<device> devices() const override { return core_.devices(); }
  [[nodiscard]] bool uses_devices() const noexcept override { return core_.placement().uses_devices(); }
  [[nodiscard]] device_map request_map(worker_id to) const override {
    const auto maps = core_.maps_to(to);
    return maps ? maps->requests : device_map();
  }
  [[nodiscard]] device_map response_map(worker_id to) const override {
    const auto maps = core_.maps_to(to);
    return maps ? maps->responses : device_map();
  }

 private:
  native_core& core_;
};

class native_inspection final : public agent_inspection {
 public:
  explicit native_inspection(const native_core& core) noexcept : core_(core) {}

  [[nodiscard]] agent_counters counters() const noexcept override { return core_.counters(); }
  [[nodiscard]] std::vector<open_call> open_calls() const override {
    std::vector<open_call> result;
    for (const auto& link : core_.links().all().out) link->list_calls(result);
    return result;
  }
  void visit_requests(const request_visitor& visit) const override {
    for (const auto& link : core_.links().all().in) link->visit_requests(visit);
  }
  [[nodiscard]] std::optional<std::chrono::nanoseconds> silence(worker_id peer) const noexcept override {
    return core_.failures().silence(peer);
  }
  [[nodiscard]] std::vector<peer_traffic> traffic() const override { return core_.links().traffic(); }
  [[nodiscard]] route_info route(worker_id to) const override { return core_.route(to); }

 private:
  const native_core& core_;
};

class native_agent final : public agent {
 public:
  explicit native_agent(std::shared_ptr<native_core> core)
      : core_(std::move(core)), members_(*core_), inspection_(*core_) {}
  ~native_agent() override { core_->close(); }
  native_agent(const native_agent&) = delete;
  native_agent& operator=(const native_agent&) = delete;

  [[nodiscard]] const worker_info& self() const noexcept override { return core_->own().self; }
  [[nodiscard]] incarnation_id incarnation() const noexcept override { return core_->own().incarnation; }
  [[nodiscard]] const rpc_options& options() const noexcept override { return core_->own().options; }
  [[nodiscard]] std::shared_ptr<ferry::reactor> reactor() const override { return core_->own().threads; }
  [[nodiscard]] const group_view& members() const noexcept override { return members_; }
  [[nodiscard]] const agent_inspection& inspection() const noexcept override { return inspection_; }
  void join(request_handler& handler) override { core_->join(handler); }
  [[nodiscard]] peer_route open(std::string_view name, deadline until) override {
    return core_->group().locate(name, until);
  }
  [[nodiscard]] peer_route open(worker_id id, deadline until) override { return core_->group().locate(id, until); }
  [[nodiscard]] peer_route open(const call_target& whom, deadline until) override {
    return core_->group().locate(whom, until);
  }
  [[nodiscard]] bool within_process(const call_target& to) const noexcept override { return core_->within_process(to); }
  void place_request(const call_target& to, outgoing_message& request, const device_map* placement) const override {
    core_->place_tensors(to, request, false, placement);
  }
  void place_response(const call_target& to, outgoing_message& response, const device_map* placement) const override {
    core_->place_tensors(to, response, true, placement);
  }
  call_ticket call(const call_target& to, outgoing_message&& request, pending_call& call, deadline until,
                   reply_wait how) override {
    return core_->call(to, std::move(request), call, until, how);
  }
  void notify(const call_target& to, outgoing_message&& request) override { core_->notify(to, std::move(request)); }
  bool wait(const call_ticket& ticket, const drive_condition& condition, deadline until) noexcept override {
    return link_of(ticket).wait(condition, until);
  }
  void interrupt(const call_ticket& ticket) noexcept override { link_of(ticket).interrupt(); }
  bool abandon(const call_ticket& ticket, call_phase& phase) noexcept override {
    return link_of(ticket).abandon(ticket.id, phase, true);
  }
  void finished_calls(std::uint64_t count) noexcept override { core_->finished_calls(count); }
  void activity_changed() noexcept override { core_->group().on_activity(); }
  void leave_together(deadline until) override { core_->group().leave_together(until); }
  void leave(deadline until) override { core_->group().leave(until); }
  void stop_leaving(bool entirely) noexcept override { core_->group().stop_leaving(entirely); }
  void close() noexcept override { core_->close(); }

 private:
  static outgoing_link& link_of(const call_ticket& ticket) noexcept {
    return *static_cast<outgoing_link*>(ticket.route.get());
  }

  const std::shared_ptr<native_core> core_;
  const native_members members_;
  const native_inspection inspection_;
};

}  // namespace

std::unique_ptr<agent> make_native_agent(std::shared_ptr<store> group_store, const worker_config& config,
                                         const rpc_options& options, std::vector<transport_factory> transports,
                                         std::optional<device_counts> devices) {
  return std::make_unique<native_agent>(std::make_shared<native_core>(std::move(group_store), config, options,
                                                                      std::move(transports), std::move(devices)));
}

}  // namespace ferry::inline v0::detail
