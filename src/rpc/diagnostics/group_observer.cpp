#include <ferry/rpc/group_observer.hpp>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
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
constexpr std::size_t most_ended_known = 64;                       // workers that have ended, and are still told of
constexpr std::uint64_t longest_answer = std::uint64_t{1} << 30U;  // of a worker
constexpr std::int64_t latest_clock_ns = std::int64_t{1} << 62U;   // so that differences are numbers, too

observer_options with_secret(observer_options options) {
  if (options.secret.empty()) options.secret = secret_from_environment();
  return options;
}

// A store of files would make one.
void check_file_of_group(std::string_view init_method) {
  constexpr std::string_view scheme = "file://";
  if (!init_method.starts_with(scheme)) return;
  init_method.remove_prefix(scheme.size());
  const std::string path(init_method.substr(0, init_method.find('?')));
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown)) {
    throw_error(errc::unknown_worker, fmt::format("no group of workers has met at {}: there is no such file", path));
  }
}

std::shared_ptr<store> store_of_group(const observer_options& options) {
  check_file_of_group(options.init_method);
  return rendezvous(options.stores, {.init_method = options.init_method,
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
    transport.limits.max_message_bytes = detail::longest_answer;
    transport.limits.max_decoded_bytes = detail::longest_answer;
  }

  [[nodiscard]] deadline until() const { return deadline::after(options.limit); }
  std::shared_ptr<detail::observer_connection> connection_to(const observed_worker& whom, deadline until);
  void drop(const observed_worker& whom, const detail::observer_connection& which);
  std::string ask(const observed_worker& whom, std::string_view what, std::string_view argument, deadline until);

  const std::shared_ptr<reactor> threads = shared_reactor();
  const std::shared_ptr<store> where;
  const observer_options options;
  transport_options transport;
  std::mutex mutex;  // guards what follows
  std::string kind;
  std::string key;
  std::map<incarnation_id, observed_worker> known;
  std::deque<incarnation_id>
      ended;  // of these, the ones that are no longer members, in the order in which that was seen
  std::map<incarnation_id, std::shared_ptr<detail::observer_connection>> open;
};

std::shared_ptr<detail::observer_connection> group_observer::state::connection_to(const observed_worker& whom,
                                                                                  deadline until) {
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
  auto made = detail::observer_connection::open(*threads, record, group, transport, until);
  std::shared_ptr<detail::observer_connection> kept;
  {
    const std::lock_guard lock(mutex);
    kept = open.emplace(whom.incarnation, made).first->second;
  }
  if (kept != made) made->close();  // another thread was faster
  return kept;
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
  for (const auto& [incarnation, each] : state_->open) each->begin_to_close();
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
  std::vector<std::shared_ptr<detail::observer_connection>> over;  // outlives the lock
  const std::lock_guard lock(state_->mutex);
  if (now) {
    if (now->key != state_->key) {  // the next static group in the same store
      for (const auto& [incarnation, each] : state_->open) over.push_back(each);
      state_->open.clear();
      state_->known.clear();
      state_->ended.clear();
      state_->key = now->key;
    }
    state_->kind = now->kind;
    for (auto& [incarnation, each] : state_->known) {
      const auto there = std::find_if(now->members.begin(), now->members.end(), [&](const auto& member) {
        return member.record.incarnation == each.incarnation;
      });
      if (there != now->members.end() || !each.lost.empty()) continue;
      each.lost = "it is no longer a member of the group";
      state_->ended.push_back(incarnation);
      const auto link = state_->open.find(incarnation);
      if (link == state_->open.end()) continue;
      over.push_back(link->second);
      state_->open.erase(link);
    }
    for (; state_->ended.size() > detail::most_ended_known; state_->ended.pop_front())
      state_->known.erase(state_->ended.front());
    for (const detail::observed_member& each : now->members) {
      state_->known.insert_or_assign(each.record.incarnation, observed_worker{.who = each.record.who,
                                                                              .incarnation = each.record.incarnation,
                                                                              .host = each.record.host,
                                                                              .addresses = each.record.addresses,
                                                                              .leaving = each.leaving,
                                                                              .lost = each.lost});
    }
  }
  for (const auto& each : over) each->begin_to_close();
  std::vector<observed_worker> result;
  for (const auto& [incarnation, each] : state_->known) result.push_back(each);
  std::sort(result.begin(), result.end(), [](const observed_worker& a, const observed_worker& b) {
    return std::pair(a.who.id(), a.incarnation) < std::pair(b.who.id(), b.incarnation);
  });
  return result;
}

std::string group_observer::state::ask(const observed_worker& whom, std::string_view what, std::string_view argument,
                                       deadline until) {
  const auto link = connection_to(whom, until);
  try {
    return link->ask(what, argument, until);
  } catch (const error&) {
    if (link->ended()) drop(whom, *link);
    throw;
  }
}

std::string group_observer::ask(const observed_worker& whom, std::string_view what, std::string_view argument) {
  return state_->ask(whom, what, argument, state_->until());
}

worker_snapshot group_observer::snapshot(const observed_worker& of, bool with_events) {
  const std::string bytes = ask(of, "snapshot", with_events ? "events" : "");
  return detail::decode_snapshot(std::as_bytes(std::span(bytes)), state_->transport.limits);
}

observed_clock group_observer::clock_of(const observed_worker& whom) {
  const deadline until = state_->until();
  (void)state_->connection_to(whom, until);  // opening it is not part of a round trip
  observed_clock best;
  for (int i = 0; i != detail::clock_round_trips; ++i) {
    const std::int64_t sent = detail::steady_nanoseconds();
    const std::string text = state_->ask(whom, "clock", {}, until);
    const std::int64_t back = detail::steady_nanoseconds();
    const auto there = detail::parse_number<std::int64_t>(text);
    if (!there || *there < 0 || *there > detail::latest_clock_ns) {
      throw_error(errc::malformed, fmt::format("{} says '{}' as its time", to_string(whom.who), text.substr(0, 64)));
    }
    const std::int64_t half = (back - sent + 1) / 2;
    if (i != 0 && half >= best.uncertainty.count()) continue;
    best = {std::chrono::nanoseconds(*there - sent - half), std::chrono::nanoseconds(half)};
  }
  return best;
}

}  // namespace ferry::inline v0
