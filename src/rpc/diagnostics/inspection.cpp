// What a worker shows for diagnosis.

#include <ferry/rpc/debug.hpp>

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "../methods/method_table.hpp"
#include "../references/table/reference_table.hpp"
#include "../worker/worker_core.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

std::string seconds_text(std::chrono::nanoseconds value) { return fmt::format("{:.3g} s", in_seconds(value)); }

std::string time_left(deadline until) {
  if (until.is_never()) return "no deadline";
  return until.expired() ? "deadline passed" : seconds_text(until.remaining()) + " left";
}

}  // namespace
}  // namespace detail

std::string_view to_string(served_phase phase) noexcept {
  switch (phase) {
    case served_phase::queued: return "queued for a handler thread";
    case served_phase::held: return "held back by its object or its references";
    case served_phase::running: return "running";
    case served_phase::waiting: return "waiting in a call or for a future";
    case served_phase::later: return "to be answered by a future or task";
  }
  return "unknown";
}

std::string to_string(const pending_call_info& call) {
  return fmt::format("call {:x} of '{}' to {}: {} since {}, {}, {} bytes{}{}", call.id, call.method,
                     to_string(call.peer), to_string(call.phase), detail::seconds_text(call.age),
                     detail::time_left(call.until), call.bytes, call.route.empty() ? "" : " over " + call.route,
                     call.silence ? ", peer last heard of " + detail::seconds_text(*call.silence) + " ago" : "");
}

std::string to_string(const served_call_info& call) {
  const std::string which = call.one_way ? "one-way call" : fmt::format("call {:x}", call.id);
  return fmt::format("{} of '{}' by {}: {} since {}, {}, {} bytes{}", which, call.method, to_string(call.caller),
                     to_string(call.phase), detail::seconds_text(call.age), detail::time_left(call.until), call.bytes,
                     call.unwanted ? ", no longer wanted" : "");
}

std::string to_string(const pending_collective_info& collective) {
  std::string text = collective.operation;
  if (collective.group_id == 0) {
    text += fmt::format(" of {}", fmt::join(collective.members, ", "));
  } else {
    text += fmt::format(", {} {} of group '{}'", collective.channel < 0 ? "collective" : "message", collective.number,
                        collective.group);
  }
  text += fmt::format(": since {}, {}", detail::seconds_text(collective.age), detail::time_left(collective.until));
  if (!collective.missing.empty()) text += "; not called by " + fmt::format("{}", fmt::join(collective.missing, ", "));
  return text;
}

namespace detail {

std::vector<pending_call_info> worker_core::pending_calls(clock::time_point now) const {
  std::vector<pending_call_info> result;
  for (open_call& each : agent_->inspection().open_calls()) {
    const auto silence = agent_->inspection().silence(each.peer.id());
    result.push_back({.id = each.id,
                      .method = readable_name(each.method),
                      .peer = std::move(each.peer),
                      .phase = each.phase,
                      .age = std::max(now - each.began, clock::duration{}),
                      .until = each.until,
                      .bytes = each.bytes,
                      .transport = std::move(each.transport),
                      .route = std::move(each.route),
                      .silence = silence});
  }
  std::stable_sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.age > b.age; });
  return result;
}

std::vector<served_call_info> worker_core::served_calls(clock::time_point now) const {
  std::vector<served_call_info> result;
  agent_->inspection().visit_requests([&](const worker_info& from, std::uint64_t id, stoppable& running) {
    // Channels carry no other kind of device.
    result.push_back(static_cast<const incoming_call&>(running).describe_now(from, id, now));
  });
  std::vector<std::pair<std::size_t, worker_id>> unnamed;  // of a backend that does not name the sender
  for (const one_way_list& list : one_way_) {
    std::lock_guard lock(list.mutex);
    for (const incoming_call* each = list.first; each; each = each->following_) {
      const worker_info* from = each->sender();  // those in the list have a channel
      if (!from) unnamed.emplace_back(result.size(), each->caller());
      result.push_back(each->describe_now(from ? *from : worker_info(), 0, now));
    }
  }
  for (const auto& [at, id] : unnamed) {
    try {
      result[at].caller = agent_->members().find(id);
    } catch (const error&) {
      result[at].caller = worker_info("unknown", id);
    }
  }
  std::stable_sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.age > b.age; });
  return result;
}

namespace {
std::size_t list_of(const incoming_call& call, std::size_t lists) noexcept {
  return (reinterpret_cast<std::uintptr_t>(&call) / sizeof(incoming_call)) % lists;
}
}  // namespace

void worker_core::enlist_one_way(incoming_call& call) noexcept {
  one_way_list& list = one_way_[list_of(call, one_way_.size())];
  std::lock_guard lock(list.mutex);
  call.following_ = list.first;
  if (list.first) list.first->previous_ = &call;
  list.first = &call;
}

void worker_core::delist_one_way(incoming_call& call) noexcept {
  one_way_list& list = one_way_[list_of(call, one_way_.size())];
  std::lock_guard lock(list.mutex);
  (call.previous_ ? call.previous_->following_ : list.first) = call.following_;
  if (call.following_) call.following_->previous_ = call.previous_;
}

// ---------------------------------------------------------------- debug_info

void worker_core::add_own_figures() {
  const auto threads = [this] { return agent_->options().num_worker_threads; };
  add_debug_info(
      "the agent",
      {{"agent.blocked_handlers", [this] { return std::to_string(pool_->blocked()); }},
       {"agent.client_active_calls",
        [this] { return std::to_string(agent_->inspection().counters().client_active_calls); }},
       {"agent.held_handlers", [this] { return std::to_string(agent_->inspection().counters().held_handlers); }},
       {"agent.late_replies", [this] { return std::to_string(agent_->inspection().counters().late_replies); }},
       {"agent.lost_workers", [this] { return std::to_string(agent_->inspection().counters().lost_workers); }},
       {"agent.num_idle_threads",
        [this, threads] { return std::to_string(threads() - std::min(threads(), pool_->running())); }},
       {"agent.paused_connections",
        [this] { return std::to_string(agent_->inspection().counters().paused_connections); }},
       {"agent.queued_bytes", [this] { return std::to_string(agent_->inspection().counters().queued_bytes); }},
       {"agent.queued_calls", [this] { return std::to_string(agent_->inspection().counters().queued_calls); }},
       {"agent.server_active_async_calls", [this] { return std::to_string(std::max(later_.load(), 0)); }},
       {"agent.server_active_calls", [this] { return std::to_string(requests_.load()); }},
       {"agent.served_bytes", [this] { return std::to_string(agent_->inspection().counters().served_bytes); }},
       {"agent.thread_pool_size", [threads] { return std::to_string(threads()); }},
       {"agent.unwritten_bytes", [this] { return std::to_string(agent_->inspection().counters().unwritten_bytes); }},
       {"agent.unwritten_replies",
        [this] { return std::to_string(agent_->inspection().counters().unwritten_replies); }}});
}

void worker_core::add_debug_info(std::string_view provider, std::vector<debug_figure> figures) {
  auto added = std::make_shared<figures_of>();
  added->provider = provider;
  std::lock_guard lock(figures_mutex_);
  if (figures_dropped_) throw_error(errc::not_initialized, to_string(agent_->self()) + " has been shut down");
  for (debug_figure& each : figures) {
    if (each.name.empty() || !each.value) {
      throw_error(errc::invalid_argument, fmt::format("{}: a figure of {} has no name or no function",
                                                      to_string(agent_->self()), added->provider));
    }
    const auto has = [&](const figures_of& other) {
      return std::any_of(other.figures.begin(), other.figures.end(),
                         [&](const debug_figure& its) { return its.name == each.name; });
    };
    const auto taken = std::find_if(figures_.begin(), figures_.end(), [&](const auto& other) { return has(*other); });
    if (taken != figures_.end() || has(*added)) {
      throw_error(errc::invalid_argument,
                  fmt::format("{}: {} adds the figure '{}' to debug_info, which {} has already; give it another name",
                              to_string(agent_->self()), added->provider, each.name,
                              taken != figures_.end() ? (*taken)->provider : added->provider));
    }
    added->figures.push_back(std::move(each));
  }
  figures_.push_back(std::move(added));
}

std::vector<std::pair<std::string, std::string>> worker_core::debug_info() const {
  std::vector<std::shared_ptr<const figures_of>> providers;
  {
    std::lock_guard lock(figures_mutex_);
    providers = figures_;
  }
  std::vector<std::pair<std::string, std::string>> result;
  for (const auto& each : providers) {
    for (const debug_figure& figure : each->figures) {
      std::string value;
      try {
        value = figure.value();
      } catch (...) {
        value = describe_exception(std::current_exception());
      }
      result.emplace_back(figure.name, std::move(value));
    }
  }
  std::sort(result.begin(), result.end());
  return result;
}

// The functions may own the worker.
void worker_core::drop_figures() noexcept {
  std::vector<std::shared_ptr<const figures_of>> dropped;  // outlives the lock
  std::lock_guard lock(figures_mutex_);
  figures_dropped_ = true;
  dropped.swap(figures_);
}

}  // namespace detail
}  // namespace ferry::inline v0
