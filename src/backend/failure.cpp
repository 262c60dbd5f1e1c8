// How a worker learns that another one is dead, and what follows from it. Two events are told apart:
//
//   loss of a connection   fails the calls on it at once. The peer is suspect until a control connection to it is open again.
//   death of a worker      nobody listens where it did, another incarnation answers there, or its lease has run out: it was
//                          silent for too long. Its incarnation is fenced: every member is told, and it too, should it live.
//
// Heartbeats go over a control connection of their own, one for each pair of workers, opened at the first tick at which calls
// have a connection: a group that is over sooner has none. A worker that nothing connects to this one is not watched,
// but for the next member of a dynamic group (dynamic_group.cpp).
//
// Fences are told to the members that a connection leads to, each of which passes them on once, and left in the store: in the
// log of a dynamic group, where whoever comes first is believed; in a static one as
//
//   fence/<id>         "<incarnation>\n<reason>"
//   silence/<a>/<b>    of two incarnations the one that was first to say that the other one is silent; the other one is dead
//
// where a worker that has been stopped for long looks before it says anything about others.

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/log.hpp>

#include "native_agent.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::milliseconds resolution{1};  // of timers
constexpr std::chrono::seconds farewell_limit{5};   // between a farewell and the end of the connections

std::string fence_key(worker_id id) { return fmt::format("fence/{}", id.value); }
std::string fence_value(incarnation life, const std::string& reason) {
  return fmt::format("{:016x}\n{}", life.value, reason);
}

lease_rules rules_of(const rpc_options& options) {
  return {options.heartbeat_interval.duration(), options.lease.duration()};
}

double seconds(std::chrono::nanoseconds value) { return std::chrono::duration<double>(value).count(); }

// Runs `action` on a thread that may block.
template <class Action>
void run_detached(reactor& loop, Action action) {
  struct item : work {
    explicit item(Action a) : action(std::move(a)) {}
    Action action;
  };
  auto* fresh = new item(std::move(action));
  fresh->run = [](work* self) noexcept {
    const std::unique_ptr<item> owned(static_cast<item*>(self));
    try {
      owned->action();
    } catch (const std::exception& e) {
      log(log_level::warning, e.what());
    }
  };
  loop.post(fresh);
}

// Where control frames to a worker go: over the control connection or, without one, where calls go.
struct control_route {
  /// With the peer's mutex held.
  explicit control_route(const peer& to) : control(to.control), out(to.link), in(to.incoming) {}
  /// Without it.
  template <class Make>
  void send(Make make) const {
    if (control) return control->send(make());
    if (out) out->send_control(make());
    if (in) in->send_control(make());
  }

  std::shared_ptr<control_link> control;
  std::shared_ptr<outgoing_link> out;
  std::shared_ptr<incoming_link> in;
};

}  // namespace

// ---------------------------------------------------------------- ticks

struct native_core::heartbeat : work {
  std::shared_ptr<native_core> core;
};

void native_core::keep_ticking(clock::time_point at) noexcept {
  if (options_.heartbeat_interval.is_never() || (log_ && joined_.load() == 0)) return;
  std::lock_guard lock(ticks_mutex_);
  watch_changed_ = true;
  if (ticking_ || closing_.load() || fenced_.load()) return;
  try {
    auto item = std::make_unique<heartbeat>();
    item->core = shared_from_this();
    item->run = [](work* self) noexcept {
      const std::unique_ptr<heartbeat> owned(static_cast<heartbeat*>(self));
      {
        std::lock_guard ticks(owned->core->ticks_mutex_);
        if (owned->core->tick_item_ != owned.get()) return;  // stopped meanwhile
        owned->core->tick_item_ = nullptr;
      }
      owned->core->tick();
    };
    next_tick_ = at;
    tick_timer_ = reactor_->start_timer(deadline(next_tick_), item.get());
    tick_item_ = item.release();
    ticking_ = true;
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{}: no timer for heartbeats: {}", self_.name(), e.what()));
  }
}

void native_core::stop_ticking() noexcept {
  std::lock_guard lock(ticks_mutex_);
  heartbeat* item = std::exchange(tick_item_, nullptr);
  if (item && reactor_->cancel_timer(tick_timer_)) delete item;
}

// Ticks come every interval, at which heartbeats go out, and when a lease may have run out.
void native_core::tick() noexcept {
  const lease_rules rules = rules_of(options_);
  const auto now = clock::now();
  bool late = false;
  bool beat = false;
  std::chrono::nanoseconds slept{};
  {
    std::lock_guard lock(ticks_mutex_);
    watch_changed_ = false;
    late = overslept(next_tick_, now, rules);
    slept = now - next_tick_;
    beat = now + resolution >= next_beat_;
    if (beat) next_beat_ = now + rules.interval;
  }
  bool wanted = false;
  auto next = now + rules.interval;
  try {
    if (slept > rules.lease) {
      log(log_level::warning,
          fmt::format("{} was stopped, or starved of its processor, for {:.1f} s", to_string(self_), seconds(slept)));
      look_for_own_fence();
    }
    for (peer* each : peers_.all()) {
      if (each->id != self_.id()) wanted = tend(*each, now, rules, late, beat, next) || wanted;
    }
  } catch (const std::exception& e) {
    log(log_level::error, e.what());
    wanted = true;
  }
  {
    std::lock_guard lock(ticks_mutex_);
    ticking_ = false;
    wanted = wanted || watch_changed_;
  }
  if (wanted) keep_ticking(std::max(next, now + resolution));
}

// What a tick does about one peer; true if it needs another tick.
bool native_core::tend(peer& whom, clock::time_point now, const lease_rules& rules, bool late, bool beat,
                       clock::time_point& next) {
  liveness_actions actions;
  std::optional<control_route> route;
  incarnation life;
  double silence = 0;
  bool overdue = false;
  bool wanted = false;
  {
    std::lock_guard lock(whom.mutex);
    // Messages of calls came some time since the last tick.
    if (whom.heard.exchange(false, std::memory_order_relaxed)) whom.live.renew(now - rules.interval);
    if (late) whom.live.renew(now);
    life = whom.record.life;
    if (whom.state == peer_state::member) {
      actions = assess(whom.live, now, rules, self_.id() < whom.id);
      wanted = whom.live.minded() || whom.live.connected();
      if (whom.live.watched() && !actions.declare_lost) {
        next = std::min(next, whom.live.heard + rules.lease + resolution);
      }
    } else {
      wanted = whom.live.links > 0;
      actions.send_heartbeat = whom.live.connected();  // it watches this worker as long as it has calls to end
      overdue = whom.state == peer_state::left && wanted && now - whom.live.heard > farewell_limit;
    }
    route.emplace(whom);
    silence = seconds(now - whom.live.heard);
  }
  if (actions.open_control) open_control(whom);
  if (actions.send_heartbeat && beat) route->send([] { return control_message(control_code::heartbeat); });
  if (actions.declare_lost) {
    lose(whom, life, fmt::format("it was silent for {:.1f} s; its lease is {:.1f} s", silence, seconds(rules.lease)),
         evidence::silence);
  }
  if (overdue) {
    end_links(&whom, life, errc::peer_lost,
              make_error(errc::peer_lost, "it has left the group, and its end was not heard of"));
  }
  return wanted;
}

// ---------------------------------------------------------------- connections

void native_core::on_link_open(const remote_worker& peer, const connection& opened, bool by_us) noexcept {
  auto& place = *peers_.at(peer.who.id());  // made before any link to it
  {
    std::lock_guard lock(place.mutex);
    if (!place.counts(peer.life)) return;
    place.live.suspect = false;
    place.live.reached = place.live.reached || by_us;
    if (opened.same_process()) return;
    ++place.live.links;
    place.live.renew(clock::now());
  }
  keep_ticking();
}

void native_core::on_link_lost(const remote_worker& peer, const connection& lost) noexcept {
  auto& place = *peers_.at(peer.who.id());
  bool ask = false;
  std::shared_ptr<incoming_link> in;  // released without the lock
  {
    std::lock_guard lock(place.mutex);
    if (place.record.life != peer.life && place.state != peer_state::unknown) return;
    if (!place.live.watched()) place.live.renew(clock::now());
    if (!lost.same_process()) --place.live.links;
    if (place.live.links == 0) place.incoming.swap(in);
    if (place.state != peer_state::member || closing_.load() || fenced_.load()) return;
    if (!place.live.control) {
      place.live.suspect = true;
      ask = !place.live.opening;
    }
  }
  if (ask) open_control(place);
  keep_ticking();
}

void native_core::on_control_closed(control_link& which) noexcept {
  auto& place = *peers_.at(which.peer().who.id());
  bool ask = false;
  std::shared_ptr<control_link> released;
  {
    std::lock_guard lock(place.mutex);
    if (place.control.get() == &which) {
      place.control.swap(released);
      place.live.control = false;
      if (place.is(which.peer().life) && !closing_.load() && !fenced_.load()) {
        if (!place.live.watched()) place.live.renew(clock::now());
        place.live.suspect = true;
        ask = !place.live.opening;
      }
    }
  }
  if (ask) open_control(place);
  keep_ticking();
  std::shared_ptr<control_link> registered;
  std::lock_guard lock(links_mutex_);
  if (const auto found = controls_.find(&which); found != controls_.end()) {
    registered = std::move(found->second);
    controls_.erase(found);
  }
  links_changed_.notify_all();
}

void native_core::await(peer& whom) noexcept {
  if (whom.id == self_.id()) return;
  bool ask = false;
  {
    std::lock_guard lock(whom.mutex);
    if (whom.state != peer_state::member) return;
    if (!whom.live.watched()) whom.live.renew(clock::now());
    (log_ ? whom.live.guarded : whom.live.awaited) = true;
    ask = !whom.live.control && !whom.live.opening;
  }
  if (ask) open_control(whom);
  keep_ticking();
}

void native_core::open_control(peer& to) noexcept {
  worker_record record;
  try {
    {
      std::lock_guard lock(to.mutex);
      if (to.state != peer_state::member || to.live.opening || to.live.control || to.id == self_.id()) return;
      record = to.record;
      to.live.opening = true;
    }
    // Without leases a silent host is asked again only by the next call.
    const auto limit = options_.heartbeat_interval.is_never() ? std::chrono::nanoseconds(std::chrono::seconds(30))
                                                              : options_.lease.duration();
    attempt_to_reach(
        record, true, limit, [self = shared_from_this()] { return !self->closing_.load() && !self->fenced_.load(); },
        [self = shared_from_this(), &to, life = record.life](connect_outcome outcome) {
          {
            std::lock_guard lock(to.mutex);
            to.live.opening = false;
          }
          if (outcome.verdict == connect_verdict::opened)
            return self->add_control(to, std::move(outcome.opened), life, true);
          if (outcome.verdict == connect_verdict::hung_up) return self->ask_again(to);
          self->heed(to, life, outcome);
        })
        ->start(*reactor_);
  } catch (const std::exception& e) {
    log(log_level::warning,
        fmt::format("{}: no control connection to {}: {}", self_.name(), to_string(record.who), e.what()));
    std::lock_guard lock(to.mutex);
    to.live.opening = false;
  }
}

// A process that is being killed closes its connections before the socket that it listens on, or after it: soon the answer
// will be clear. The tick asks on if it is not.
void native_core::ask_again(peer& whom) noexcept {
  struct question : work {
    question(std::shared_ptr<native_core> c, peer& w) : core(std::move(c)), whom(w) {}
    std::shared_ptr<native_core> core;
    peer& whom;
  };
  constexpr int most = 7;  // 127 ms in all
  try {
    int times = 0;
    {
      std::lock_guard lock(whom.mutex);
      times = ++whom.live.asked_again;
    }
    if (times > most) return;
    auto item = std::make_unique<question>(shared_from_this(), whom);
    item->run = [](work* self) noexcept {
      const std::unique_ptr<question> owned(static_cast<question*>(self));
      if (!owned->core->closing_.load()) owned->core->open_control(owned->whom);
    };
    reactor_->start_timer(deadline(clock::now() + resolution * (1 << (times - 1))), item.get());
    (void)item.release();
  } catch (const std::exception& e) {
    log(log_level::warning, fmt::format("{}: no timer to ask for a worker again: {}", self_.name(), e.what()));
  }
}

void native_core::add_control(peer& to, std::shared_ptr<connection> opened, incarnation life, bool by_us) {
  std::shared_ptr<control_link> link;
  std::shared_ptr<control_link> before;  // both ends may have opened one at once: that one goes on unused
  {
    std::lock_guard lock(to.mutex);
    std::lock_guard links(links_mutex_);
    if (!closing_.load() && !fenced_.load() && to.counts(life)) {
      link = std::make_shared<control_link>(shared_from_this(), remote_worker(to.record.who, life, &to.heard), opened);
      controls_.emplace(link.get(), link);
      before = std::exchange(to.control, link);
      to.live.control = true;
      to.live.suspect = false;
      to.live.asked_again = 0;
      to.live.reached = to.live.reached || by_us;
      to.live.renew(clock::now());
    }
  }
  if (!link) {
    if (closing_.load()) say_farewell(*opened);
    return opened->close(make_error(errc::shutting_down, "the worker takes no connections any more"));
  }
  try {
    link->start();
  } catch (...) {
    opened->close(std::current_exception());
    on_control_closed(*link);
    throw;
  }
  link->send(control_message(control_code::heartbeat));
  keep_ticking();
}

void native_core::heed(peer& whom, incarnation life, const connect_outcome& outcome) noexcept {
  switch (outcome.verdict) {
    case connect_verdict::opened:
    case connect_verdict::unknown: return;                     // its lease will tell
    case connect_verdict::hung_up: return open_control(whom);  // which tells, once it is dead, that nobody listens
    case connect_verdict::leaving: return depart(whom, life, "it has left the group");
    case connect_verdict::fenced: return become_fenced(outcome.why);
    case connect_verdict::gone: break;
  }
  bool reached = false;
  bool awaited = false;
  {
    std::lock_guard lock(whom.mutex);
    // A member of a dynamic group has announced itself when it listened; where this worker runs, too, a refusal is that of its
    // machine.
    reached = whom.live.reached || (log_ && !host_.empty() && whom.record.host == host_);
    awaited = whom.live.awaited;
  }
  // Where this worker has never been it may be at the wrong address: that is no evidence for others. To wait there is in vain.
  if (reached) {
    lose_unless_left(whom, life, "it is gone: " + outcome.why);
  } else if (awaited) {
    depart(whom, life, "nobody answers for it: " + outcome.why);
  }
}

// ---------------------------------------------------------------- control frames

void native_core::on_control(const remote_worker& from, inbound_message&& message) noexcept {
  switch (static_cast<control_code>(message.header.code)) {
    case control_code::heartbeat: {
      peer& place = *peers_.at(from.who.id());
      std::lock_guard lock(place.mutex);
      if (place.counts(from.life)) place.live.renew(clock::now());
      return;
    }
    case control_code::farewell: return depart(*peers_.at(from.who.id()), from.life, "it has left the group");
    case control_code::fence: break;
    default: return;  // of a later version
  }
  try {
    const auto notice = fence_notice::decode(message, options_.transport.limits);
    {
      const peer& sender = *peers_.at(from.who.id());
      std::lock_guard lock(sender.mutex);
      if (!sender.is(from.life)) return;  // the dead do not bear witness
    }
    if (notice.who.id() == self_.id()) {
      if (notice.life == life_) become_fenced(fmt::format("{} says: {}", to_string(from.who), notice.reason));
      return;
    }
    if (peer* whom = peers_.at(notice.who.id())) lose(*whom, notice.life, notice.reason, evidence::hearsay);
  } catch (const std::exception& e) {
    log(log_level::warning,
        fmt::format("{} sent a control frame that cannot be read: {}", to_string(from.who), e.what()));
  }
}

// ---------------------------------------------------------------- the end of a worker

bool native_core::is_gone(int rank) const {
  const peer* place = peers_.at(worker_id{rank});
  std::lock_guard lock(place->mutex);
  return place->state == peer_state::lost || place->state == peer_state::left;
}

int native_core::gone_count() const {
  int result = 0;
  for (int rank = 0; rank != world_size_; ++rank) result += is_gone(rank) ? 1 : 0;
  return result;
}

void native_core::tell(const member_event& event) noexcept {
  std::lock_guard lock(listener_mutex_);
  if (event_listener_) event_listener_->on_member_event(event);
}

void native_core::depart(peer& whom, incarnation life, std::string reason) noexcept {
  try {
    member_event event{member_event::kind::left, {}, life, std::move(reason)};
    {
      std::lock_guard lock(whom.mutex);
      if (!whom.is(life)) return;
      whom.state = peer_state::left;
      whom.end = event.reason;
      whom.live.renew(clock::now());
      event.who = whom.record.who;
    }
    if (!closing_.load()) tell(event);
    activity_changed();
    keep_ticking();
    if (log_ && joined_.load() != 0 && !closing_.load() && !fenced_.load()) {
      wake_waiting();
      watch_next();
      run_detached(*reactor_, [self = shared_from_this(), life] {
        if (!self->closing_.load()) self->catch_up();
        if (!self->closing_.load()) self->write_leave(life);
      });
    }
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{}: the leave of a worker got lost: {}", self_.name(), e.what()));
  }
}

// Called with no lock held.
void native_core::lose(peer& whom, incarnation life, const std::string& reason, evidence from) noexcept {
  if (closing_.load() || fenced_.load() || whom.id == self_.id()) return;
  try {
    member_event event{member_event::kind::lost, {}, life, reason};
    {
      std::lock_guard lock(whom.mutex);
      if (!whom.is(life)) return;
      whom.state = peer_state::lost;
      whom.end = reason;
      event.who = whom.record.who;
    }
    lost_workers_.fetch_add(1);
    log(log_level::warning, fmt::format("{}: {} is lost: {}", to_string(self_), to_string(event.who), reason));
    end_links(&whom, life, errc::peer_lost,
              make_error(errc::peer_lost, fmt::format("{} is dead: {}", to_string(event.who), reason)));
    tell(event);
    activity_changed();
    const fence_notice notice{event.who, life, reason};
    switch (from) {
      case evidence::record: return;
      case evidence::hearsay: return spread(notice);
      case evidence::gone: spread(notice); return publish_fence(notice, false);
      case evidence::silence: return publish_fence(notice, true);  // which spreads it
    }
  } catch (const std::exception& e) {
    log(log_level::error, e.what());
  }
}

// Those of one life of a worker, or (null) all there are. They are closed twice: what they still have queued nobody will read.
void native_core::end_links(const peer* whom, incarnation life, errc code, const std::exception_ptr& why) noexcept {
  try {
    std::vector<std::shared_ptr<outgoing_link>> out;
    std::vector<std::shared_ptr<incoming_link>> in;
    std::vector<std::shared_ptr<control_link>> control;
    {
      std::lock_guard lock(links_mutex_);
      const auto its = [&](const remote_worker& far) {
        return whom == nullptr || (far.who.id() == whom->id && far.life == life);
      };
      for (auto& [key, link] : outgoing_) {
        if (its(link->peer())) out.push_back(link);
      }
      for (auto& [key, link] : incoming_) {
        if (its(link->peer())) in.push_back(link);
      }
      for (auto& [key, link] : controls_) {
        if (its(link->peer())) control.push_back(link);
      }
    }
    for (int once = 0; once != 2; ++once) {
      for (auto& link : out) link->close(code, why, false);
      for (auto& link : in) link->close(why, false);
      for (auto& link : control) link->close(why, false);
    }
  } catch (const std::bad_alloc&) {
    log(log_level::error, "no memory to close connections to workers that are lost");
  }
}

// Tells everybody that a connection leads to.
void native_core::spread(const fence_notice& notice) noexcept {
  try {
    for (peer* each : peers_.all()) {
      std::optional<control_route> route;
      {
        std::lock_guard lock(each->mutex);
        if (each->state == peer_state::member) route.emplace(*each);
      }
      if (route) route->send([&] { return notice.encode(); });
    }
  } catch (const std::exception& e) {
    log(log_level::error, e.what());
  }
}

std::shared_ptr<store> native_core::group_store() const {
  std::lock_guard lock(links_mutex_);
  return store_;
}

// A member of a dynamic group may have said that it leaves in the log alone.
void native_core::lose_unless_left(peer& whom, incarnation life, const std::string& reason) noexcept {
  if (!log_) return lose(whom, life, reason, evidence::gone);
  try {
    run_detached(*reactor_, [self = shared_from_this(), &whom, life, reason] {
      if (self->closing_.load()) return;
      self->catch_up();
      self->lose(whom, life, reason, evidence::gone);
    });
  } catch (const std::bad_alloc&) {
    lose(whom, life, reason, evidence::gone);
  }
}

// The log tells all the others; of two that take each other for dead, it is the first one that is believed.
void native_core::record_loss(const fence_notice& notice, bool contested) {
  (void)log_->append(member_entry::lost(life_, notice.life, notice.reason));
  if (contested && !fenced_.load()) spread(notice);
}

// Two workers whose link is cut take each other for dead: of the two, the store believes the first one.
void native_core::publish_fence(const fence_notice& notice, bool contested) noexcept {
  try {
    run_detached(*reactor_, [self = shared_from_this(), notice, contested] {
      const auto where = self->group_store();
      if (!where) return;
      try {
        if (self->log_) return self->record_loss(notice, contested);
        if (contested) {
          const std::string own = fmt::format("{:016x}", self->life_.value);
          const auto [less, more] = std::minmax(self->life_.value, notice.life.value);
          const std::string first = where->compare_set(fmt::format("silence/{:016x}/{:016x}", less, more), "", own);
          if (first != own) {
            return self->become_fenced(
                fmt::format("{} was silent to it, and was quicker to say so", to_string(notice.who)));
          }
          self->spread(notice);
        }
        where->set(fence_key(notice.who.id()), fence_value(notice.life, notice.reason));
      } catch (const error& e) {
        log(log_level::info, fmt::format("{}: the store does not know that {} is lost: {}", to_string(self->self_),
                                         to_string(notice.who), e.what()));
        if (contested) self->spread(notice);
      }
    });
  } catch (const std::bad_alloc&) {
    log(log_level::warning, "no memory to tell the store of a loss");
  }
}

void native_core::look_for_own_fence() noexcept {
  try {
    run_detached(*reactor_, [self = shared_from_this()] {
      const auto where = self->group_store();
      if (!where) return;
      if (self->log_) return self->catch_up();
      const auto fence = where->try_get(fence_key(self->self_.id()));
      if (fence && fence->starts_with(fence_value(self->life_, {}))) {
        self->become_fenced(fmt::format("the store says: {}", fence->substr(fence->find('\n') + 1)));
      }
    });
  } catch (const std::bad_alloc&) {
    log(log_level::warning, "no memory to look for a fence");
  }
}

void native_core::become_fenced(const std::string& reason) noexcept {
  try {
    {
      std::lock_guard lock(links_mutex_);
      if (closing_.load() || fenced_.load()) return;
      fence_reason_ = fmt::format(
          "{} was declared dead by its group, and takes no part in it any more ({}); a new worker may "
          "be started in its place",
          to_string(self_), reason);
      fenced_.store(true, std::memory_order_release);
    }
    log(log_level::error, fence_reason_);
    end_links(nullptr, {}, errc::fenced, make_error(errc::fenced, fence_reason_));
    tell({member_event::kind::fenced, self_, life_, fence_reason_});
    activity_changed();
    wake_waiting();
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{}: the fence was not dealt with: {}", self_.name(), e.what()));
  }
}

}  // namespace ferry::inline v0::detail
