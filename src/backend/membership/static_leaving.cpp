// How the workers of a static group leave: together, once no request is under way between any of them. static_group.cpp has the
// keys in the store.

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ferry/backend/agent.hpp>

#include "static_group.hpp"
#include "static_keys.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::milliseconds longest_poll_pause{50};
constexpr std::chrono::milliseconds patience_with_store{500};
constexpr std::size_t most_named = 16;  // workers, in an error

struct request_counts {
  std::uint64_t sent = 0;
  std::uint64_t handled = 0;
  std::uint64_t loose_ends = 0;
};

request_counts parse_counts(const std::string& text) {
  const auto parts = split_text(text, ' ');
  if (parts.size() != 3) throw_error(errc::malformed, fmt::format("the store holds '{}' as shutdown counters", text));
  return {stored_number(parts[0], "a counter"), stored_number(parts[1], "a counter"),
          stored_number(parts[2], "a counter")};
}

}  // namespace

void static_group::leave(deadline until) {
  wait_until_quiet(until, leave_interrupt::all);
  settle_loose_ends(until);
}

bool static_group::is_gone(int rank) const {
  const peer* place = peers_.at(worker_id{rank});
  std::lock_guard lock(place->mutex);
  return place->state == peer_state::lost || place->state == peer_state::left;
}

int static_group::gone_count() const {
  int result = 0;
  for (int rank = 0; rank != own_.world_size; ++rank) result += is_gone(rank) ? 1 : 0;
  return result;
}

// The sums of a shutdown round, the same for every worker. The lowest rank that has not terminated computes them and
// watches the ranks it waits for; the others watch that one, and take over if it terminates.
std::string static_group::sum_of_round(int round, deadline until) {
  const std::string prefix = fmt::format("round/{}/", round);
  const std::string sum = prefix + "sum";
  peer* watched = nullptr;
  for (growing_wait wait(until);;) {
    own_.fence.check();
    check_still_leaving(leave_interrupt::others);
    int first = 0;
    while (first != own_.self.id().value && is_gone(first)) ++first;
    const bool sums_up = first == own_.self.id().value;
    const deadline slice = wait.next();
    std::set<std::string> there;
    try {
      if (!sums_up) return group_store()->get(sum, slice);
      return group_store()->compare_set(sum, "", add_up_round(prefix, slice), last_look(slice));
    } catch (const error& e) {
      if (!wait.is_over(e)) throw;
    }
    const deadline look = last_look(slice);
    try {
      if (sums_up) {  // a worker that declared this one lost, or that this one declared lost, may have written them
        if (auto done = group_store()->try_get(sum, look)) return *std::move(done);
        for (const store_entry& entry : group_store()->list(prefix, look)) there.insert(entry.key);
      }
    } catch (const error& e) {
      if (!wait.is_over(e, look)) throw;
      if (!until.expired()) continue;
      throw_silent_store(e.message());
    }
    if (until.expired()) {
      throw_error(errc::shutdown_timeout, fmt::format("{} waited for the others to shut down; {}", to_string(own_.self),
                                                      who_delays(round, until)));
    }
    // Watch the awaited ranks: a worker that died before it was ever called would never be detected. Without
    // heartbeats, this loop keeps probing.
    peer& whom = peers_.place(worker_id{first});
    if (std::exchange(watched, &whom) == &whom && !own_.options.heartbeat_interval.is_never()) continue;
    if (!sums_up) {
      failures_.await(whom);
      continue;
    }
    for (int rank = 0; rank != own_.world_size; ++rank) {
      if (there.count(rank_key(prefix, rank)) == 0 && !is_gone(rank)) failures_.await(peers_.place(worker_id{rank}));
    }
  }
}

// A worker takes part in the first round once it has come, and in every one only while it has no calls and no handlers. What it
// has sent and handled up to a round stays until the next one has been added up.
std::string static_group::who_delays(int round, deadline until) const {
  std::map<std::string, std::string> now;
  std::map<std::string, std::string> before;
  const auto read = [&](int which, std::map<std::string, std::string>& counts) {
    for (const store_entry& entry : group_store()->list(fmt::format("round/{}/", which), last_look(until)))
      counts.emplace(entry.key, entry.value);
  };
  try {
    read(round, now);
    if (round != 0) read(round - 1, before);
  } catch (const error& e) {
    return fmt::format("it is unknown for whom ({})", e.message());
  }
  const std::string prefix = fmt::format("round/{}/", round);
  const auto name_of = [this](int rank) {  // it may have left just now
    const peer* place = peers_.at(worker_id{rank});
    const std::lock_guard lock(place->mutex);
    return to_string(place->record->who);
  };
  std::vector<std::string> absent;
  std::vector<std::string> active;
  for (int rank = 0; rank != own_.world_size; ++rank) {
    const auto counts = now.find(rank_key(prefix, rank));
    const auto earlier = before.find(rank_key(fmt::format("round/{}/", round - 1), rank));
    const bool is_absent = counts == now.end();
    if (is_absent && is_gone(rank)) continue;
    if (!is_absent && (earlier == before.end() || earlier->second == counts->second)) continue;
    std::vector<std::string>& names = is_absent ? absent : active;
    if (names.size() < most_named)
      names.push_back(name_of(rank));
    else if (names.size() == most_named)
      names.emplace_back("...");
  }
  if (!absent.empty()) {
    return fmt::format("{}: {}",
                       round == 0 ? "these have not come, or have calls that are pending or handlers that run"
                                  : "these have calls that are pending or handlers that run",
                       fmt::join(absent, ", "));
  }
  if (!active.empty()) return fmt::format("all have come, but these made or served calls: {}", fmt::join(active, ", "));
  return "all have come, but calls were made or served between them";
}

std::string static_group::add_up_round(const std::string& prefix, deadline until) {
  std::vector<std::string> keys;
  std::vector<int> gone;
  for (int rank = 0; rank != own_.world_size; ++rank) {
    if (is_gone(rank)) {
      gone.push_back(rank);
    } else {
      keys.push_back(rank_key(prefix, rank));
    }
  }
  auto counts = group_store()->get(keys, until);
  // A terminated worker may have taken part in this round before.
  for (const int rank : gone) {
    if (auto count = group_store()->try_get(rank_key(prefix, rank), last_look(until)))
      counts.push_back(*std::move(count));
  }
  request_counts sums;
  for (const std::string& text : counts) {
    const request_counts own = parse_counts(text);
    sums.sent += own.sent;
    sums.handled += own.handled;
    sums.loose_ends += own.loose_ends;
  }
  return fmt::format("{} {} {}", sums.sent, sums.handled, sums.loose_ends);
}

// The request runs on a thread that may block: a store that hangs must not keep this one. It has some time also where the deadline
// is about to pass: the error then says who delays the shutdown, and does not blame a store that would have answered.
template <class Request>
auto static_group::ask_while_leaving(deadline limit, Request request) {
  using result = decltype(request(std::declval<const bounded_store&>(), limit));
  const deadline until = std::max(limit, deadline::after(patience_with_store));
  const auto answer = std::make_shared<std::optional<result>>();
  std::string why = "no answer";
  try {
    const auto pending =
        access_.run_in_background([answer, where = group_store(), until, request = std::move(request)] {
          answer->emplace(request(*where, until));
        });
    const auto interrupted = [this] { return quiet_.interrupted(leave_interrupt::others) || own_.fence.is_up(); };
    bool done = access_.await_background(*pending, std::min(until, deadline::after(patience_with_store)), interrupted);
    if (!done) {
      watch_store_host();
      done = access_.await_background(*pending, until, interrupted);
    }
    if (done) return **std::move(answer);
  } catch (const error& e) {
    if (e.kind() != errc::store_timeout) throw;
    why = e.message();
  }
  own_.fence.check();
  check_still_leaving(leave_interrupt::others);
  throw_silent_store(why);
}

// So that the end of the process that serves the store is noticed, which may never have been called.
void static_group::watch_store_host() noexcept {
  for (peer* each : peers_.all()) {
    const bool serves = [&] {
      std::lock_guard lock(each->mutex);
      return each->record->serves_store && each->present();
    }();
    if (serves) failures_.await(*each);
  }
}

void static_group::throw_silent_store(std::string_view why) const {
  throw_error(errc::shutdown_timeout, fmt::format("{}: the {} has not answered at the deadline of the shutdown ({})",
                                                  to_string(own_.self), group_store()->describe(), why));
}

void static_group::leave_together(deadline until) {
  try {
    agree_to_leave(until);
  } catch (const error&) {
    // A shutdown that interrupts this one closes the store: a request that fails for that is not the reason.
    check_still_leaving(leave_interrupt::others);
    throw;
  }
}

// Mattern's four counters: in every round each worker, once it is quiet, publishes how many requests it has ever sent
// and handled. When two rounds in a row have equal sums, sent and handled alike, nothing was under way in between.
// Requests lost with a connection are counted at neither end. If any worker then has loose ends, all workers settle
// theirs, which takes messages, and agree again.
void static_group::agree_to_leave(deadline until) {
  const int left_before = gone_count();
  request_handler& above = *own_.handler.load();
  constexpr std::uint64_t none = ~std::uint64_t{0};
  std::uint64_t last_sent = none;
  bool tidy = false;
  for (int round = 0;; ++round) {
    wait_until_quiet(until, leave_interrupt::others);
    // A worker that has left may start another group here at once, which must not connect to this group's server. The members may
    // have to connect again until all have come, which a server of parameters waits for all the time; and none leaves without
    // another round.
    if (round == 1) group_store()->admit_no_more();
    const std::string prefix = fmt::format("round/{}/", round);
    (void)ask_while_leaving(
        until, [key = rank_key(prefix, own_.self.id().value),
                counts = fmt::format("{} {} {}", totals_.sent.load(), totals_.handled.load(), above.loose_ends())](
                   const bounded_store& where, deadline asked) {
          where.set(key, counts, asked);
          return true;
        });
    const auto [sent, handled, loose_ends] = parse_counts(sum_of_round(round, until));
    const bool agreed = sent == handled && sent == last_sent;
    if (agreed && (tidy || loose_ends == 0)) break;
    last_sent = sent == handled ? sent : none;
    if (agreed) {
      tidy = true;
      last_sent = none;
      above.on_group_quiet(until, false);
      check_still_leaving(leave_interrupt::others);
    }
    if (until.expired()) {
      throw_error(errc::shutdown_timeout,
                  fmt::format("{}: at the deadline of the shutdown {} ({} requests were sent in the group, and {} "
                              "handled)",
                              to_string(own_.self), who_delays(round, until), sent, handled));
    }
    if (round >= 1) {
      (void)ask_while_leaving(until,
                              [key = rank_key(fmt::format("round/{}/", round - 1), own_.self.id().value)](
                                  const bounded_store& where, deadline asked) { return where.erase(key, asked); });
    }
    // The first rounds usually differ; later ones only while something is under way, or a connection has just been
    // lost.
    if (round >= 2)
      std::this_thread::sleep_for(std::min(std::chrono::milliseconds(1 << std::min(round, 6)), longest_poll_pause));
  }
  // The last worker removes the group's keys, so that a store that outlives the group (a file) can serve another.
  (void)ask_while_leaving(until, [present = own_.world_size - left_before](const bounded_store& where, deadline asked) {
    if (where.add("left", 1, asked) != present) return false;
    for (const store_entry& entry : where.list({}, asked)) where.erase(entry.key, asked);
    return true;
  });
}

}  // namespace ferry::inline v0::detail
