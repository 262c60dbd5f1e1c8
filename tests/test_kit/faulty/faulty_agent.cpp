#include "faulty_agent.hpp"

#include <optional>
#include <utility>

#include <ferry/backend/observer_question.hpp>
#include <ferry/base/log.hpp>
#include <ferry/test_kit/faulty.hpp>

namespace ferry::inline v0::detail {
namespace {

message_kinds kind_of(const frame_header& header) {
  switch (header.kind) {
    case frame_kind::request:
      return (header.flags & frame_one_way) != 0 ? message_kinds::one_way : message_kinds::request;
    case frame_kind::reply: return message_kinds::reply;
    default: return message_kinds::exception;
  }
}

std::span<std::byte> writable(std::span<const std::byte> received) {
  return {const_cast<std::byte*>(received.data()), received.size()};  // of a message that only this call uses
}

// The destination of the answer to one request: applies the rules.
class faulty_channel final : public reply_channel {
 public:
  faulty_channel(std::shared_ptr<fault_engine> engine, std::shared_ptr<reply_channel> inner, std::string peer,
                 std::uint64_t method)
      : engine_(std::move(engine)), inner_(std::move(inner)), peer_(std::move(peer)), method_(method) {}

  void reply(std::uint64_t call_id, outgoing_message&& answer) override {
    const fault_decision decision =
        engine_->rules().decide({kind_of(answer.header), fault_direction::sending, peer_, method_, answer.payload()});
    if (!decision.pass) {
      switch (decision.rule.action) {
        case fault_action::drop:
        case fault_action::cut: return answer.finish();
        case fault_action::delay:
        case fault_action::reorder: {
          answer.finish();
          const auto kept = std::make_shared<outgoing_message>(std::move(answer));
          try {
            engine_->hold(decision.rule, peer_, [inner = inner_, kept, call_id] {
              try {
                inner->reply(call_id, std::move(*kept));
              } catch (const std::exception& problem) {
                log(log_level::warning, std::string("a fault injector could not send a late reply: ") + problem.what());
              }
            });
          } catch (const error& closed) {
            log(log_level::info, std::string("a fault injector dropped a reply: ") + closed.what());
          }
          return;
        }
        case fault_action::duplicate: inner_->reply(call_id, answer.copy()); break;
        case fault_action::corrupt: engine_->rules().damage(answer.payload()); break;
        case fault_action::fail: break;  // an injector's rules never have it
      }
    }
    inner_->reply(call_id, std::move(answer));
    engine_->passed(peer_);
  }
  void begin_call(std::uint64_t call_id, stoppable& running) override { inner_->begin_call(call_id, running); }
  void end_call(std::uint64_t call_id, const stoppable& ended) noexcept override { inner_->end_call(call_id, ended); }
  bool may_begin(work& item, executor& on) noexcept override { return inner_->may_begin(item, on); }
  void handled(std::uint64_t bytes) noexcept override { inner_->handled(bytes); }
  [[nodiscard]] const worker_info* sender() const noexcept override { return inner_->sender(); }
  [[nodiscard]] incarnation_id sender_incarnation() const noexcept override { return inner_->sender_incarnation(); }
  [[nodiscard]] std::shared_ptr<const wire_limits> sender_limits() const noexcept override {
    return inner_->sender_limits();
  }

 private:
  const std::shared_ptr<fault_engine> engine_;
  const std::shared_ptr<reply_channel> inner_;
  const std::string peer_;
  const std::uint64_t method_;
};

// For the duplicate of a request: drops its answer, and was never counted.
class no_channel final : public reply_channel {
 public:
  explicit no_channel(const reply_channel& first)
      : sender_(first.sender() ? std::optional(*first.sender()) : std::nullopt),
        incarnation_(first.sender_incarnation()) {}
  void reply(std::uint64_t, outgoing_message&& answer) override { answer.finish(); }
  void begin_call(std::uint64_t, stoppable&) override {}
  void end_call(std::uint64_t, const stoppable&) noexcept override {}
  void handled(std::uint64_t) noexcept override {}
  [[nodiscard]] const worker_info* sender() const noexcept override { return sender_ ? &*sender_ : nullptr; }
  [[nodiscard]] incarnation_id sender_incarnation() const noexcept override { return incarnation_; }

 private:
  const std::optional<worker_info> sender_;
  const incarnation_id incarnation_;
};

// Shows what the injector has done, too.
class faulty_inspection final : public agent_inspection {
 public:
  faulty_inspection(const agent_inspection& inner, const fault_engine& engine, const std::atomic<std::uint64_t>& active)
      : inner_(inner), engine_(engine), active_(active) {}
  [[nodiscard]] agent_counters counters() const noexcept override {
    agent_counters figures = inner_.counters();
    figures.client_active_calls = active_.load();
    return figures;
  }
  [[nodiscard]] std::vector<open_call> open_calls() const override { return engine_.open_calls(inner_.open_calls()); }
  void visit_requests(const request_visitor& visit) const override { inner_.visit_requests(visit); }
  [[nodiscard]] std::optional<std::chrono::nanoseconds> silence(worker_id peer) const noexcept override {
    return inner_.silence(peer);
  }
  [[nodiscard]] std::vector<peer_traffic> traffic() const override { return inner_.traffic(); }
  [[nodiscard]] route_info route(worker_id to) const override { return inner_.route(to); }

 private:
  const agent_inspection& inner_;
  const fault_engine& engine_;
  const std::atomic<std::uint64_t>& active_;
};

class faulty_agent final : public agent, public request_handler {
 public:
  faulty_agent(std::unique_ptr<agent> inner, const fault_injector& faults)
      : inner_(std::move(inner)),
        engine_(std::make_shared<fault_engine>(*inner_, faults.core())),
        inspection_(inner_->inspection(), *engine_, active_) {
    faults.core()->listen(engine_);
  }
  ~faulty_agent() override { close(); }
  faulty_agent(const faulty_agent&) = delete;
  faulty_agent& operator=(const faulty_agent&) = delete;

  [[nodiscard]] const worker_info& self() const noexcept override { return inner_->self(); }
  [[nodiscard]] incarnation_id incarnation() const noexcept override { return inner_->incarnation(); }
  [[nodiscard]] const rpc_options& options() const noexcept override { return inner_->options(); }
  [[nodiscard]] std::shared_ptr<ferry::reactor> reactor() const override { return inner_->reactor(); }
  [[nodiscard]] const group_view& members() const noexcept override { return inner_->members(); }
  [[nodiscard]] const agent_inspection& inspection() const noexcept override { return inspection_; }

  [[nodiscard]] peer_route open(std::string_view name, deadline until) override { return inner_->open(name, until); }
  [[nodiscard]] peer_route open(worker_id id, deadline until) override { return inner_->open(id, until); }
  [[nodiscard]] peer_route open(const call_target& whom, deadline until) override { return inner_->open(whom, until); }
  void place_request(const call_target& to, outgoing_message& request, const device_map* placement) const override {
    inner_->place_request(to, request, placement);
  }
  void place_response(const call_target& to, outgoing_message& response, const device_map* placement) const override {
    inner_->place_response(to, response, placement);
  }

  void join(request_handler& handler) override {
    above_ = &handler;
    inner_->join(*this);
  }

  call_ticket call(const call_target& to, outgoing_message&& request, pending_call& call, deadline until,
                   reply_wait how) override {
    const std::uint64_t id = next_call_.fetch_add(1);
    call.call_id = id;
    call.method = request.header.method;
    call.bytes = request.size();
    const auto made = std::make_shared<faulty_call>(engine_, &call,
                                                    open_call{.id = id,
                                                              .method = call.method,
                                                              .peer = inner_->members().find(to.id),
                                                              .began = call.began,
                                                              .until = until,
                                                              .bytes = call.bytes},
                                                    to.incarnation);
    active_.fetch_add(1);
    try {
      engine_->enlist(made);
      made->begin(std::move(request), how);
    } catch (...) {
      made->forget();
      finished_calls(1);
      throw;
    }
    return {made, id};
  }

  void notify(const call_target& to, outgoing_message&& request) override {
    const std::string peer = inner_->members().find(to.id).name();
    const fault_decision decision = engine_->rules().decide(
        {message_kinds::one_way, fault_direction::sending, peer, request.header.method, request.payload()});
    if (!decision.pass) {
      switch (decision.rule.action) {
        case fault_action::drop:
        case fault_action::cut: return request.finish();
        case fault_action::fail:
          throw_error(errc::injected_failure,
                      to_string(self()) + ": a fault injector failed the sending of a one-way call to " + peer);
        case fault_action::delay:
        case fault_action::reorder: {
          request.finish();
          const auto kept = std::make_shared<outgoing_message>(std::move(request));
          return engine_->hold(decision.rule, peer, [engine = engine_.get(), kept, to] {
            try {
              engine->inner().notify(to, std::move(*kept));
            } catch (const std::exception& problem) {
              log(log_level::warning,
                  std::string("a fault injector could not send a late one-way call: ") + problem.what());
            }
          });
        }
        case fault_action::duplicate: inner_->notify(to, request.copy()); break;
        case fault_action::corrupt: engine_->rules().damage(request.payload()); break;
      }
    }
    inner_->notify(to, std::move(request));
    engine_->passed(peer);
  }

  bool wait(const call_ticket& ticket, const drive_condition& condition, deadline until) noexcept override {
    return call_of(ticket).wait(condition, until);
  }
  void interrupt(const call_ticket& ticket) noexcept override { call_of(ticket).interrupt(); }
  bool abandon(const call_ticket& ticket, call_phase& phase) noexcept override {
    return call_of(ticket).abandon(phase);
  }
  void finished_calls(std::uint64_t count) noexcept override {
    active_.fetch_sub(count);
    inner_->activity_changed();
  }
  void activity_changed() noexcept override { inner_->activity_changed(); }

  void leave_together(deadline until) override { inner_->leave_together(until); }
  void leave(deadline until) override { inner_->leave(until); }
  void stop_leaving(bool entirely) noexcept override { inner_->stop_leaving(entirely); }
  void close() noexcept override {
    if (closed_.exchange(true)) return;
    engine_->stop();
    inner_->close();
    engine_->end_all_calls();
  }

  void on_request(const std::shared_ptr<reply_channel>& channel, const worker_info& from,
                  inbound_message&& request) noexcept override {
    const std::uint64_t bytes = request.header.held_bytes();
    try {
      const std::uint64_t method = request.header.method;
      const message_kinds kind = kind_of(request.header);
      const fault_decision decision =
          engine_->rules().decide({kind, fault_direction::receiving, from.name(), method, request.payload});
      const auto answers = std::make_shared<faulty_channel>(engine_, channel, from.name(), method);
      if (!decision.pass) {
        switch (decision.rule.action) {
          case fault_action::drop:
          case fault_action::cut: return channel->handled(bytes);
          case fault_action::delay:
          case fault_action::reorder: {
            const auto kept = std::make_shared<inbound_message>(std::move(request));
            return engine_->hold(decision.rule, from.name(),
                                 [this, answers, from, kept] { above_->on_request(answers, from, std::move(*kept)); });
          }
          case fault_action::duplicate: {
            inbound_message second = request;
            for (tensor& each : second.tensors) each = each.clone();
            above_->on_request(std::make_shared<no_channel>(*channel), from, std::move(second));
            break;
          }
          case fault_action::corrupt: engine_->rules().damage(writable(request.payload)); break;
          case fault_action::fail: break;  // an injector's rules never have it
        }
      }
      above_->on_request(answers, from, std::move(request));
      engine_->passed(from.name());
    } catch (const std::exception& problem) {
      log(log_level::error, std::string("a fault injector dropped a request: ") + problem.what());
      channel->handled(bytes);
    }
  }
  void on_member_event(const member_event& event) noexcept override { above_->on_member_event(event); }
  void on_link_event(const link_event& event) noexcept override { above_->on_link_event(event); }
  void on_question(std::shared_ptr<observer_question> question) noexcept override {
    above_->on_question(std::move(question));
  }
  void on_member_end(worker_id id, incarnation_id incarnation) noexcept override {
    above_->on_member_end(id, incarnation);
  }
  void on_group_quiet(deadline until, bool alone) override { above_->on_group_quiet(until, alone); }
  [[nodiscard]] std::uint64_t loose_ends() const noexcept override { return above_->loose_ends(); }
  [[nodiscard]] bool busy() const noexcept override { return above_->busy() || active_.load() != 0 || engine_->busy(); }

 private:
  static faulty_call& call_of(const call_ticket& ticket) noexcept {
    return *static_cast<faulty_call*>(ticket.route.get());
  }

  const std::unique_ptr<agent> inner_;
  const std::shared_ptr<fault_engine> engine_;
  request_handler* above_ = nullptr;
  std::atomic<std::uint64_t> next_call_{1};
  std::atomic<std::uint64_t> active_{0};
  std::atomic<bool> closed_{false};
  const faulty_inspection inspection_;
};

}  // namespace

std::unique_ptr<agent> make_faulty_agent(std::unique_ptr<agent> inner, fault_injector faults) {
  return std::make_unique<faulty_agent>(std::move(inner), faults);
}

}  // namespace ferry::inline v0::detail
