#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include <ferry/backend/agent.hpp>

namespace ferry_test {

/// Passes everything on to another agent: for those that do something else with a part of it.
class forwarding_agent : public ferry::agent {
 public:
  explicit forwarding_agent(std::unique_ptr<ferry::agent> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] const ferry::worker_info& self() const noexcept override { return inner_->self(); }
  [[nodiscard]] ferry::incarnation_id incarnation() const noexcept override { return inner_->incarnation(); }
  [[nodiscard]] const ferry::rpc_options& options() const noexcept override { return inner_->options(); }
  [[nodiscard]] std::shared_ptr<ferry::reactor> reactor() const override { return inner_->reactor(); }
  [[nodiscard]] const ferry::group_view& members() const noexcept override { return inner_->members(); }
  [[nodiscard]] const ferry::agent_inspection& inspection() const noexcept override { return inner_->inspection(); }
  void join(ferry::request_handler& handler) override { inner_->join(handler); }
  [[nodiscard]] ferry::peer_route open(std::string_view name, ferry::deadline until) override {
    return inner_->open(name, until);
  }
  [[nodiscard]] ferry::peer_route open(ferry::worker_id id, ferry::deadline until) override {
    return inner_->open(id, until);
  }
  [[nodiscard]] ferry::peer_route open(const ferry::call_target& whom, ferry::deadline until) override {
    return inner_->open(whom, until);
  }
  void place_request(const ferry::call_target& to, ferry::outgoing_message& request,
                     const ferry::device_map* placement) const override {
    inner_->place_request(to, request, placement);
  }
  void place_response(const ferry::call_target& to, ferry::outgoing_message& response,
                      const ferry::device_map* placement) const override {
    inner_->place_response(to, response, placement);
  }
  ferry::call_ticket call(const ferry::call_target& to, ferry::outgoing_message&& request, ferry::pending_call& call,
                          ferry::deadline until, ferry::reply_wait how) override {
    return inner_->call(to, std::move(request), call, until, how);
  }
  void notify(const ferry::call_target& to, ferry::outgoing_message&& request) override {
    inner_->notify(to, std::move(request));
  }
  bool wait(const ferry::call_ticket& ticket, const ferry::drive_condition& condition,
            ferry::deadline until) noexcept override {
    return inner_->wait(ticket, condition, until);
  }
  void interrupt(const ferry::call_ticket& ticket) noexcept override { inner_->interrupt(ticket); }
  bool abandon(const ferry::call_ticket& ticket, ferry::call_phase& phase) noexcept override {
    return inner_->abandon(ticket, phase);
  }
  void finished_calls(std::uint64_t count) noexcept override { inner_->finished_calls(count); }
  void activity_changed() noexcept override { inner_->activity_changed(); }
  void leave_together(ferry::deadline until) override { inner_->leave_together(until); }
  void leave(ferry::deadline until) override { inner_->leave(until); }
  void stop_leaving(bool entirely) noexcept override { inner_->stop_leaving(entirely); }
  void close() noexcept override { inner_->close(); }

 private:
  const std::unique_ptr<ferry::agent> inner_;
};

}  // namespace ferry_test
