#include "native_agent.hpp"

#include <ferry/base/log.hpp>
#include <ferry/transport/address.hpp>

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "../../base/peer_log.hpp"
#include "../../transport/reactor/io_threads.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::seconds connect_limit{30};
constexpr std::chrono::seconds close_limit{5};

lease_rules rules_of(const rpc_options& options) {
  if (options.heartbeat_interval.is_never()) return {};  // the clock never ticks
  return {options.heartbeat_interval.duration(), options.lease.duration()};
}

std::vector<transport_factory> chosen_transports(const std::vector<transport_factory>& built,
                                                 const rpc_options& options) {
  std::vector<transport_factory> result = built;
  if (options.transports.empty()) {
    std::stable_sort(result.begin(), result.end(),
                     [](const auto& a, const auto& b) { return a.priority > b.priority; });
    return result;
  }
  result.clear();
  for (const std::string& name : options.transports) {
    const auto found =
        std::find_if(built.begin(), built.end(), [&](const auto& factory) { return factory.name == name; });
    if (found == built.end()) {
      std::vector<std::string_view> known;
      for (const auto& factory : built) known.push_back(factory.name);
      throw_error(errc::invalid_argument,
                  fmt::format("options.transports names '{}'; this program has {}", name, fmt::join(known, ", ")));
    }
    result.push_back(*found);
  }
  return result;
}

// The transports' admission options, completed from the worker's configuration, which already includes the environment.
rpc_options with_admission(rpc_options options, const worker_config& config) {
  if (options.secret.empty()) options.secret = config.secret;
  if (options.transport.secret.empty()) options.transport.secret = options.secret;
  options.transport.allow_unauthenticated |=
      options.allow_unauthenticated || config.allow_unauthenticated || !config.serve.everything();
  return options;
}

}  // namespace

native_core::native_core(std::shared_ptr<store> group_store, const worker_config& config, const rpc_options& options,
                         const std::vector<transport_factory>& transports, device_counts counts)
    : options_(with_admission(options, config)),
      reactor_(shared_reactor()),
      // The id is determined by join().
      self_(config.name, config.rank == any_rank ? worker_id::max : config.rank),
      world_size_(config.world_size),
      wanted_id_(config.rank),
      metadata_(config.metadata),
      init_timeout_(config.init_timeout.value_or(config.rpc_timeout)),
      devices_(std::make_shared<const device_record>(
          device_record{std::move(counts), options_.devices, options_.device_maps})),
      flow_(options_.flow),
      access_(*this, std::make_shared<bounded_store>(std::move(group_store)), reactor_),
      beats_(
          rules_of(options_), reactor_, [this] { return shared_from_this(); },
          [this](const heartbeat_clock::tick& due) { tick(due); }) {
  options_.check();
  for (const transport_factory& factory : chosen_transports(transports, options_)) {
    std::string reason = factory.unusable();
    if (reason.empty()) {
      try {
        transports_.push_back({std::string(factory.name), factory.open(*reactor_), false});
        continue;
      } catch (const std::exception& e) {
        reason = e.what();
      }
    }
    log(log_level::info, fmt::format("{}: transport {} is not usable here: {}", self_.name(), factory.name, reason));
    unusable_.push_back({std::string(factory.name), "it is not usable here: " + reason});
  }
  if (transports_.empty()) throw_error(errc::no_route, self_.name() + ": no transport is usable on this machine");
}

// ---------------------------------------------------------------- calls

call_ticket native_core::call(const call_target& to, outgoing_message&& request, pending_call& call, deadline until,
                              bool driven) {
  flow_.active_calls.fetch_add(1, std::memory_order_relaxed);
  try {
    for (;;) {
      auto link = link_to(to, call.urgency == call_urgency::apart, call.reaches_leaving);
      if (call.urgency == call_urgency::high && link->over_limit(request.bytes.size()))
        link = link_to(to, true, call.reaches_leaving);
      std::uint64_t id = 0;
      if (link->call(request, call, until, driven, id)) return {std::move(link), id};
    }
  } catch (...) {
    finished_calls(1);
    throw;
  }
}

void native_core::notify(const call_target& to, outgoing_message&& request) {
  while (!link_to(to, false, false)->notify(request)) {
  }
}

std::shared_ptr<outgoing_link> native_core::link_to(const call_target& to, bool urgent, bool reaches_leaving) {
  peer* place = to.record ? static_cast<peer*>(to.record) : peers_.at(to.id);
  if (!place) {
    // A caller that names an incarnation has learned it from another worker, and may be a thread that must not wait for
    // the store.
    if (to.incarnation.value != 0) {
      throw_error(errc::unknown_worker,
                  fmt::format("{} has no record of worker {} yet", to_string(self_), to.id.value));
    }
    place = locate(to.id, {}).place;  // throws, unless the worker has joined just now
  }
  peer& target = *place;
  std::lock_guard lock(target.mutex);
  if (to.incarnation.value != 0 && target.record.incarnation != to.incarnation) {
    return std::make_shared<outgoing_link>(
        shared_from_this(), target.remote(), errc::peer_lost,
        fmt::format("it is no longer a member of the group; its id was reassigned to {}",
                    to_string(target.record.who)));
  }
  auto& current = urgent ? target.urgent : target.link;
  const bool leaving = target.state == peer_state::leaving;
  if (current && !current->closed() && (target.state == peer_state::member || (leaving && reaches_leaving)))
    return current;
  const remote_worker remote = target.remote();
  const auto refusing = [&](errc code, std::string why) {
    return std::make_shared<outgoing_link>(shared_from_this(), remote, code, std::move(why));
  };
  if (fence_.is_up()) return refusing(errc::fenced, fence_.reason());
  if (target.state == peer_state::lost) return refusing(errc::peer_lost, target.why_lost());
  if (target.state == peer_state::left || (leaving && !reaches_leaving))
    return refusing(errc::peer_lost, "it has left the group");
  auto link = std::make_shared<outgoing_link>(shared_from_this(), remote);
  if (!links_.add(link)) {
    if (fence_.is_up()) return refusing(errc::fenced, fence_.reason());
    throw_error(errc::shutting_down, fmt::format("{} has been shut down; it can no longer call {}", to_string(self_),
                                                 to_string(target.record.who)));
  }
  current = link;
  try {
    start_connecting(link, target.record, urgent ? feature_urgent : 0);
  } catch (const std::exception& e) {
    link->fail(errc::connect_failed, e.what());
    throw;
  }
  return link;
}

std::optional<std::string> native_core::end_of(const peer& whom, incarnation_id incarnation) const {
  const std::lock_guard lock(whom.mutex);
  if (whom.state == peer_state::lost && whom.record.incarnation == incarnation) return whom.why_lost();
  return {};
}

hello native_core::greeting(const worker_info& target, std::uint64_t features) const {
  return {.group = group_,
          .name = self_.name(),
          .id = self_.id(),
          .incarnation = incarnation_,
          .target = target.name(),
          .features = features | feature_device_tensors,
          .joined = target.id() == self_.id() ? own_mark_ : announced_.load()};
}

std::shared_ptr<connect_attempt> native_core::attempt_to_reach(const worker_record& to, std::uint64_t features,
                                                               std::chrono::nanoseconds limit_each,
                                                               std::function<bool()> wanted,
                                                               std::function<void(connect_outcome)> done) {
  std::vector<connect_attempt::route> routes;
  for (const auto& own : transports_) {
    for (const std::string& address : to.addresses) {
      if (own.transport->understands(address)) routes.emplace_back(own.transport, address);
    }
  }
  return std::make_shared<connect_attempt>(std::move(routes), greeting(to.who, features), to.incarnation,
                                           options_.transport, limit_each, std::move(wanted), std::move(done));
}

// The attempt does not begin inline: a failure would end the call before it is registered on the link.
void native_core::start_connecting(const std::shared_ptr<outgoing_link>& link, const worker_record& to,
                                   std::uint64_t features) {
  attempt_to_reach(
      to, features, connect_limit, [link] { return !link->closed(); },
      [self = shared_from_this(), link](connect_outcome outcome) {
        if (outcome.verdict == connect_verdict::opened) {
          try {
            link->note_failed_routes(std::move(outcome.failed));
            link->opened(outcome.opened);
            return self->log_route(link->peer().who);
          } catch (const std::exception& e) {
            outcome.opened->close(std::current_exception());
            return link->fail(errc::connect_failed, e.what());
          }
        }
        const remote_worker& far = link->peer();
        peer& whom = self->peers_.place(far.who.id());
        self->on_connect_outcome(whom, far.incarnation, outcome);
        // on_connect_outcome() may have ended the link's calls already, or another thread may be about to: by then the
        // reason is known.
        if (self->closing_.load()) return link->fail(errc::shutting_down, outcome.why);
        if (outcome.verdict == connect_verdict::leaving) return link->fail(errc::peer_lost, outcome.why);
        if (const auto end = self->end_of(whom, far.incarnation)) return link->fail(errc::peer_lost, *end);
        link->fail(outcome.code, outcome.why);
      })
      ->start(*reactor_);
}

void native_core::on_link_closed(void* link) noexcept {
  if (links_.remove_outgoing(link)) return;
  if (const auto in = links_.remove_incoming(link)) peers_.at(in->peer().who.id())->accepted_calls.fetch_sub(1);
}

void native_core::finished_calls(std::uint64_t count) noexcept {
  flow_.active_calls.fetch_sub(count);
  activity_changed();
}

agent_counters native_core::counters() const noexcept {
  return {.client_active_calls = flow_.active_calls.load(),
          .requests_sent = sent_.load(),
          .late_replies = late_replies_.load(),
          .lost_workers = lost_workers_.load(),
          .queued_calls = flow_.queued_messages.load(),
          .queued_bytes = flow_.queued_bytes.load(),
          .unwritten_bytes = flow_.requests.bytes(),
          .served_bytes = links_.served_bytes(),
          .unwritten_replies = flow_.replies.bytes(),
          .held_handlers = flow_.held_handlers.load(),
          .paused_connections = flow_.paused_links.load()};
}

// ---------------------------------------------------------------- accepting

hello_reply native_core::on_hello(const hello& from) {
  if (!options_.transport.secret.empty() && (from.features & feature_authenticated) == 0) {
    throw_error(errc::authentication_failed,
                fmt::format("{} requires the group's secret, but the transport accepted a peer that did not prove it",
                            to_string(self_)));
  }
  if (closing_.load()) throw_error(errc::shutting_down, fmt::format("{} is shutting down", to_string(self_)));
  if (fence_.is_up()) throw_error(errc::unknown_worker, to_string(self_) + " was declared dead by its group");
  check_hello(from);
  if (const peer* known = peers_.at(from.id)) check_connections(*known, from);
  return {.name = self_.name(), .id = self_.id(), .incarnation = incarnation_, .features = feature_device_tensors};
}

void native_core::check_connections(const peer& of, const hello& from) {
  const bool control = (from.features & feature_control) != 0;
  if ((control ? of.accepted_controls : of.accepted_calls).load() < peer::most_connections) return;
  throw_error(errc::resource_exhausted,
              fmt::format("'{}' has {} open connections for {} to '{}', and may have no more", from.name,
                          peer::most_connections, control ? "control" : "calls", from.target));
}

void native_core::check_hello(const hello& from) const {
  if (from.id.value < 0 || from.id.value > worker_id::max || (!log_ && from.id.value >= world_size_)) {
    throw_error(errc::handshake_failed,
                fmt::format("{} has no record of a worker with id {}", to_string(self_), from.id.value));
  }
  if (from.incarnation == incarnation_ && from.joined != own_mark_) {
    throw_error(errc::handshake_failed,
                fmt::format("{} has not opened this connection to itself, as its other end says", to_string(self_)));
  }
  // The table of a static group is complete once every worker has published itself; a peer that is ahead of this worker
  // has seen that. The table of a dynamic one is at least as new as `seen`.
  if (!log_ && !peers_known_.load(std::memory_order_acquire)) return;
  const std::uint64_t seen = log_ ? log_->seen() : 0;
  const peer* known = peers_.at(from.id);
  if (known) {
    std::lock_guard lock(known->mutex);
    const worker_info& who = known->record.who;
    if (known->record.incarnation == from.incarnation && known->state == peer_state::lost) {
      throw_error(errc::fenced, fmt::format("{} was declared dead by its group: {}", to_string(who), known->end));
    }
    if (known->record.incarnation == from.incarnation && who.name() == from.name) return;
    if (!log_ && who.name() != from.name) {
      throw_error(errc::handshake_failed, fmt::format("{} has worker {} on record as '{}', not as '{}'",
                                                      to_string(self_), from.id.value, who.name(), from.name));
    }
  }
  if (from.joined > seen) {
    throw_error(errc::join_pending,
                fmt::format("{} has not read yet that '{}' has joined", to_string(self_), from.name));
  }
  throw_error(errc::fenced,
              fmt::format("{} has no record of this incarnation of worker_info(id={}, name={}), or it has ended",
                          to_string(self_), from.id.value, from.name));
}

void native_core::on_accepted(std::shared_ptr<connection> accepted, const hello& from) noexcept {
  try {
    peer& place = peers_.place(from.id);
    check_connections(place, from);  // again: others may have been accepted since the hello
    if ((from.features & feature_control) != 0) return add_control(place, std::move(accepted), from.incarnation, false);
    auto link = std::make_shared<incoming_link>(
        shared_from_this(), remote_worker(worker_info(from.name, from.id), from.incarnation, &place.heard),
        *handler_.load(), accepted);
    {
      std::lock_guard lock(place.mutex);
      if (ended() || !place.counts(from.incarnation) || !links_.add(link)) {
        link = nullptr;
      } else {
        place.accepted_calls.fetch_add(1);
        if ((from.features & feature_urgent) == 0) place.incoming = link;
      }
    }
    if (!link) {
      if (closing_.load()) send_goodbye(*accepted);
      return accepted->close(make_error(errc::shutting_down, "the worker no longer accepts connections"));
    }
    try {
      link->start();
    } catch (...) {
      on_link_closed(link.get());
      throw;
    }
  } catch (const std::exception& e) {
    log_about(from.id, log_level::warning,
              [&] { return fmt::format("{}: refusing {}: {}", self_.name(), from.name, e.what()); });
    accepted->close(std::current_exception());
  }
}

bool native_core::expects(std::string_view host) noexcept {
  try {
    return peer_hosts_.with(
        group_changes_.load(std::memory_order_acquire),
        [&] {
          std::set<std::string, std::less<>> hosts;
          for (const peer* each : peers_.all()) {
            const std::lock_guard lock(each->mutex);
            if (!each->present()) continue;
            for (const std::string& text : each->record.addresses) {
              if (has_scheme(text, "tcp")) hosts.insert(address::parse(text).host);
            }
          }
          return hosts;
        },
        [&](const auto& hosts) { return hosts.contains(host); });
  } catch (const std::exception&) {  // an address of a later version, or out of memory: then it has no privilege
    return false;
  }
}

// ---------------------------------------------------------------- close

void native_core::close() noexcept {
  if (closing_.exchange(true)) return;
  links_.refuse_new();
  checks_.stop();
  beats_.stop();
  wake_waiting();
  if (log_ && !leave_written_.load())
    log_own_end();  // before the others' leases run out, which would declare it
                    // dead
  const auto reason = make_error(errc::shutting_down, fmt::format("{} was shut down", to_string(self_)));
  const auto until = clock::now() + close_limit;
  for (bool first = true;; first = false) {
    // The first pass still lets queued messages be written; the last one drops them.
    links_.all().close(errc::shutting_down, reason, first);
    if (links_.wait_until_empty(first ? clock::now() + close_limit / 2 : until)) break;
    if (!first) {
      log(log_level::warning, fmt::format("{}: {} connections did not close in time", self_.name(), links_.size()));
      break;
    }
  }
  // Until here peers that connect get the error that this worker is leaving, not that it has terminated.
  stop_listening();
  stop_following();
  events_.set(nullptr);
  for (peer* each : peers_.all()) {
    std::shared_ptr<incoming_link> in;
    std::shared_ptr<outgoing_link> link;
    std::shared_ptr<outgoing_link> urgent;
    std::shared_ptr<control_link> control;
    std::lock_guard lock(each->mutex);
    in.swap(each->incoming);
    link.swap(each->link);
    urgent.swap(each->urgent);
    control.swap(each->control);
  }
  activity_changed();
  access_.release_store();
}

// ---------------------------------------------------------------- the agent

namespace {

class native_members final : public group_view {
 public:
  explicit native_members(native_core& core) noexcept : core_(core) {}

  [[nodiscard]] std::vector<worker_info> workers() const override { return core_.workers(); }
  [[nodiscard]] bool dynamic() const noexcept override { return core_.dynamic(); }
  [[nodiscard]] worker_info find(std::string_view name) const override { return core_.find(name); }
  [[nodiscard]] worker_info find(worker_id id) const override { return core_.find(id); }
  [[nodiscard]] located_worker locate(std::string_view name, deadline until) const override {
    return core_.locate(name, until);
  }
  [[nodiscard]] located_worker locate(worker_id id, deadline until) const override { return core_.locate(id, until); }
  [[nodiscard]] located_worker locate(const call_target& whom, deadline until) const override {
    return core_.locate(whom, until);
  }
  [[nodiscard]] bool is_over(const call_target& whom, std::uint64_t& question) const override {
    return core_.is_over(whom, question);
  }
  void seek(const call_target& whom) const noexcept override { core_.seek(whom); }
  [[nodiscard]] worker_info wait_for(std::string_view name, deadline until) const override {
    return core_.wait_for(name, until);
  }
  bool update(deadline until) const override { return core_.update_workers(until); }
  [[nodiscard]] std::string metadata(worker_id id) const override { return core_.metadata(id); }
  [[nodiscard]] std::vector<device> devices() const override { return core_.devices(); }
  [[nodiscard]] bool uses_devices() const noexcept override { return core_.uses_devices(); }
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
    return core_.silence(peer);
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

  [[nodiscard]] const worker_info& self() const noexcept override { return core_->self(); }
  [[nodiscard]] incarnation_id incarnation() const noexcept override { return core_->incarnation(); }
  [[nodiscard]] const rpc_options& options() const noexcept override { return core_->options(); }
  [[nodiscard]] std::shared_ptr<ferry::reactor> reactor() const override { return core_->reactor(); }
  [[nodiscard]] const group_view& members() const noexcept override { return members_; }
  [[nodiscard]] const agent_inspection& inspection() const noexcept override { return inspection_; }
  void join(request_handler& handler) override {
    core_->set_request_handler(&handler);
    core_->join();
  }
  [[nodiscard]] peer_route open(std::string_view name, deadline until) override {
    return as_route(core_->locate(name, until));
  }
  [[nodiscard]] peer_route open(worker_id id, deadline until) override { return as_route(core_->locate(id, until)); }
  [[nodiscard]] peer_route open(const call_target& whom, deadline until) override {
    return as_route(core_->locate(whom, until));
  }
  void place_request(const call_target& to, outgoing_message& request, const device_map* placement) const override {
    core_->place_tensors(to, request, false, placement);
  }
  void place_response(const call_target& to, outgoing_message& response, const device_map* placement) const override {
    core_->place_tensors(to, response, true, placement);
  }
  call_ticket call(const call_target& to, outgoing_message&& request, pending_call& call, deadline until,
                   bool driven) override {
    return core_->call(to, std::move(request), call, until, driven);
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
  void activity_changed() noexcept override { core_->activity_changed(); }
  void leave_together(deadline until) override { core_->leave_together(until); }
  void leave(deadline until) override { core_->leave(until); }
  void stop_leaving(bool entirely) noexcept override { core_->stop_leaving(entirely); }
  void close() noexcept override { core_->close(); }

 private:
  [[nodiscard]] peer_route as_route(native_core::found_worker found) {
    peer* const place = found.place;
    return {*this, std::move(found), place};
  }
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
                                         device_counts devices) {
  return std::make_unique<native_agent>(std::make_shared<native_core>(std::move(group_store), config, options,
                                                                      std::move(transports), std::move(devices)));
}

}  // namespace ferry::inline v0::detail
