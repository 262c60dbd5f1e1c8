#include <ferry/rpc/group_observer.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/base/secret.hpp>
#include <ferry/store/rendezvous.hpp>
#include <ferry/transport/reactor.hpp>

#include "../../backend/observers/observed_group.hpp"
#include "../../backend/observers/observer_connection.hpp"
#include "../../base/parse_number.hpp"
#include "snapshot_archive.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

constexpr int clock_round_trips = 8;

observer_options with_secret(observer_options options) {
  if (options.secret.empty()) options.secret = secret_from_environment();
  return options;
}

std::shared_ptr<store> store_of_group(const observer_options& options) {
  return rendezvous({.init_method = options.init_method,
                     .dynamic = true,
                     .any_rank = true,
                     .limit = options.limit,
                     .secret = options.secret})
      .store;
}

std::int64_t steady_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now().time_since_epoch()).count();
}

}  // namespace
}  // namespace detail

struct group_observer::state {
  state(std::shared_ptr<store> where_, observer_options options_)
      : where(std::move(where_)), options(std::move(options_)) {
    transport.secret = options.secret;
  }

  [[nodiscard]] deadline until() const { return deadline::after(options.limit); }
  std::shared_ptr<detail::observer_connection> connection_to(const observed_worker& whom);
  void drop(const observed_worker& whom, const detail::observer_connection& which);

  const std::shared_ptr<reactor> threads = shared_reactor();
  const std::shared_ptr<store> where;
  const observer_options options;
  transport_options transport;
  std::mutex mutex;  // guards what follows
  std::string kind;
  std::string key;
  std::map<incarnation_id, observed_worker> known;
  std::map<incarnation_id, std::shared_ptr<detail::observer_connection>> open;
};

std::shared_ptr<detail::observer_connection> group_observer::state::connection_to(const observed_worker& whom) {
  std::string group;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = open.find(whom.incarnation); found != open.end()) return found->second;
    group = key;
  }
  detail::worker_record record;
  record.who = whom.who;
  record.incarnation = whom.incarnation;
  record.addresses = whom.addresses;
  auto made = detail::observer_connection::open(*threads, record, group, transport, until());
  const std::lock_guard lock(mutex);
  const auto [place, fresh] = open.emplace(whom.incarnation, made);
  if (!fresh) made->close();  // another thread was faster
  return place->second;
}

void group_observer::state::drop(const observed_worker& whom, const detail::observer_connection& which) {
  const std::lock_guard lock(mutex);
  const auto found = open.find(whom.incarnation);
  if (found != open.end() && found->second.get() == &which) open.erase(found);
}

group_observer::group_observer(const observer_options& options)
    : group_observer(detail::store_of_group(detail::with_secret(options)), options) {}

group_observer::group_observer(std::shared_ptr<store> where, const observer_options& options)
    : state_(std::make_unique<state>(std::move(where), detail::with_secret(options))) {
  (void)workers();
}

group_observer::~group_observer() {
  for (const auto& [incarnation, each] : state_->open) each->close();
}

std::string group_observer::kind() const {
  const std::lock_guard lock(state_->mutex);
  return state_->kind;
}

std::vector<observed_worker> group_observer::workers() {
  std::optional<detail::observed_group> now;
  try {
    now = detail::read_group(state_->where, state_->until());
  } catch (const error& e) {
    const std::lock_guard lock(state_->mutex);
    if (state_->key.empty()) throw;
    log(log_level::info, fmt::format("the store of the group cannot be read: {}", e.message()));
  }
  const std::lock_guard lock(state_->mutex);
  if (now) {
    if (now->key != state_->key) {  // the next static group in the same store
      state_->known.clear();
      state_->key = now->key;
    }
    state_->kind = now->kind;
    for (auto& [incarnation, each] : state_->known) {
      const auto there = std::find_if(now->members.begin(), now->members.end(), [&](const auto& member) {
        return member.record.incarnation == each.incarnation;
      });
      if (there == now->members.end() && each.lost.empty()) each.lost = "it is no longer a member of the group";
    }
    for (const detail::observed_member& each : now->members) {
      state_->known.insert_or_assign(each.record.incarnation, observed_worker{.who = each.record.who,
                                                                              .incarnation = each.record.incarnation,
                                                                              .host = each.record.host,
                                                                              .addresses = each.record.addresses,
                                                                              .leaving = each.record.leaving,
                                                                              .lost = each.lost});
    }
  }
  std::vector<observed_worker> result;
  for (const auto& [incarnation, each] : state_->known) result.push_back(each);
  std::sort(result.begin(), result.end(), [](const observed_worker& a, const observed_worker& b) {
    return std::pair(a.who.id(), a.incarnation) < std::pair(b.who.id(), b.incarnation);
  });
  return result;
}

std::string group_observer::ask(const observed_worker& whom, std::string_view what, std::string_view argument) {
  const auto link = state_->connection_to(whom);
  try {
    return link->ask(what, argument, state_->until());
  } catch (const error& e) {
    if (e.kind() == errc::peer_lost || e.kind() == errc::rpc_timeout) state_->drop(whom, *link);
    throw;
  }
}

worker_snapshot group_observer::snapshot(const observed_worker& of, bool with_events) {
  const std::string bytes = ask(of, "snapshot", with_events ? "events" : "");
  return detail::decode_snapshot(std::as_bytes(std::span(bytes)), state_->transport.limits);
}

observed_clock group_observer::clock_of(const observed_worker& whom) {
  (void)state_->connection_to(whom);  // opening it is not part of a round trip
  observed_clock best;
  for (int i = 0; i != detail::clock_round_trips; ++i) {
    const std::int64_t sent = detail::steady_nanoseconds();
    const std::string text = ask(whom, "clock");
    const std::int64_t back = detail::steady_nanoseconds();
    const auto there = detail::parse_number<std::int64_t>(text);
    if (!there) throw_error(errc::malformed, fmt::format("{} says '{}' as its time", to_string(whom.who), text));
    const std::int64_t half = (back - sent + 1) / 2;
    if (i != 0 && half >= best.uncertainty.count()) continue;
    best = {std::chrono::nanoseconds(*there - sent - half), std::chrono::nanoseconds(half)};
  }
  return best;
}

}  // namespace ferry::inline v0
