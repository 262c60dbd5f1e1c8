// How the workers of a static group find each other and how they part. Everything goes through the store, never through
// calls. Keys, below the prefix that the store was given:
//
//   name/<rank>        name and incarnation, written once: who has the rank, and all names before anybody listens
//   worker/<rank>      a worker_record
//   ready              how many workers have read all records
//   all_ready          written by the last of them
//   round/<n>/<rank>   "<requests sent> <requests handled>" of a worker that was quiet, in shutdown round n
//   failed             who could not start, and why; looked at by those that wait for it
//   fence/<id>         who was declared dead (failure.cpp)
//   silence/<a>/<b>    which of two incarnations was first to say that the other one is silent (failure.cpp)
//   left               how many workers have agreed to leave and need the store no more

#include <algorithm>
#include <charconv>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ferry/base/log.hpp>

#include "native_agent.hpp"

namespace ferry::inline v0::detail {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> result;
  std::size_t at = 0;
  for (;;) {
    const std::size_t end = text.find(separator, at);
    result.push_back(text.substr(at, end - at));
    if (end == std::string::npos) return result;
    at = end + 1;
  }
}

std::uint64_t parse_number(const std::string& text, int base, const std::string& what) {
  std::uint64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (failure != std::errc() || end != text.data() + text.size()) {
    throw_error(errc::malformed,
                fmt::format("the store holds '{}' as {}; is another program using these keys?", text, what));
  }
  return value;
}

constexpr std::chrono::milliseconds longest_pause{50};

// A long wait in the store is broken up, to look from time to time whether what it waits for can still come.
class patience {
 public:
  explicit patience(deadline until) : until_(until) {}
  /// How long to wait at once: longer and longer, up to a second, since a group may wait for a slow member for hours.
  timeout next() {
    const auto slice = std::exchange(slice_, std::min<std::chrono::nanoseconds>(2 * slice_, std::chrono::seconds(1)));
    if (until_.is_never()) return slice;
    return std::clamp<std::chrono::nanoseconds>(until_.remaining(), std::chrono::milliseconds(1), slice);
  }

 private:
  const deadline until_;
  std::chrono::nanoseconds slice_ = std::chrono::milliseconds(100);
};

std::string rank_key(std::string_view prefix, int rank) { return fmt::format("{}{}", prefix, rank); }

}  // namespace

void native_core::form_static(deadline until) {
  try {
    agree_on_group();
    agree_on_names(until);
    listen();
    store_->set(rank_key("worker/", self_.id().value),
                worker_record{self_, life_, host_, advertised_, metadata_, 0}.encode());
    read_peers(until);
    // Whoever returns from here may call anybody: all must have their tables by then.
    if (store_->add("ready", 1) == world_size_) store_->set("all_ready", "1");
    wait_for_ready(until);
  } catch (const error& e) {
    // The others would wait for this worker in vain.
    try {
      store_->compare_set("failed", "", fmt::format("{}: {}", to_string(self_), e.what()));
    } catch (const error& unreachable) {
      log(log_level::info, fmt::format("{}: the others cannot be told that the start has failed: {}", to_string(self_),
                                       unreachable.what()));
    }
    throw;
  }
}

void native_core::wait_for_ready(deadline until) {
  for (patience wait(until);;) {
    try {
      return store_->wait("all_ready", wait.next());
    } catch (const error& e) {
      if (e.kind() != errc::store_timeout) throw;
    }
    check_for_failed_start();
    if (until.expired()) {
      throw_error(errc::init_failed,
                  fmt::format("{}: only {} of {} workers are ready after {:.1f} s; did another one fail to start?",
                              to_string(self_), store_->try_get("ready").value_or("0"), world_size_,
                              std::chrono::duration<double>(init_timeout_.duration()).count()));
    }
  }
}

void native_core::check_for_failed_start() {
  if (const auto failed = store_->try_get("failed"))
    throw_error(errc::init_failed, fmt::format("{}: another worker could not start: {}", to_string(self_), *failed));
}

// Before anybody listens: workers of one process share a listener, which cannot tell two of one name apart.
void native_core::agree_on_names(deadline until) {
  const std::string own = fmt::format("{}\n{:016x}", self_.name(), life_.value);
  const int id = self_.id().value;
  if (const std::string there = store_->compare_set(rank_key("name/", id), "", own); there != own) {
    throw_error(
        errc::duplicate_id,
        fmt::format("worker id {} is not unique: '{}' has taken it before '{}'. Was a rank given twice, or is the "
                    "store still used by an earlier group?",
                    id, split(there, '\n').front(), self_.name()));
  }
  const auto names = get_all("name/", until);
  std::map<std::string, int> ids;
  for (int rank = 0; rank != world_size_; ++rank) {
    const auto [at, fresh] = ids.emplace(split(names[static_cast<std::size_t>(rank)], '\n').front(), rank);
    if (!fresh) {
      throw_error(errc::duplicate_name,
                  fmt::format("worker name '{}' is not unique: the workers {} and {} both have it", at->first,
                              at->second, rank));
    }
  }
}

// What every rank has written under `prefix`; waits for all.
std::vector<std::string> native_core::get_all(const std::string& prefix, deadline until) {
  std::vector<std::string> keys;
  for (int rank = 0; rank != world_size_; ++rank) keys.push_back(rank_key(prefix, rank));
  for (patience wait(until);;) {
    try {
      return store_->get(keys, wait.next());
    } catch (const error& e) {
      if (e.kind() != errc::store_timeout) throw;
    }
    check_for_failed_start();
    if (until.expired()) {
      throw_error(errc::store_timeout,
                  fmt::format("{} waited {:.1f} s for the group of {} workers; missing: {}", to_string(self_),
                              std::chrono::duration<double>(init_timeout_.duration()).count(), world_size_,
                              missing_workers(prefix)));
    }
  }
}

void native_core::read_peers(deadline until) {
  const auto records = get_all("worker/", until);
  for (int rank = 0; rank != world_size_; ++rank) {
    const peer& admitted = peers_.admit(worker_record::decode(records[static_cast<std::size_t>(rank)], rank));
    tell({member_event::kind::joined, admitted.record.who, admitted.record.life, {}});
  }
  peers_known_.store(true, std::memory_order_release);
}

std::string native_core::missing_workers(const std::string& prefix) const {
  std::set<std::string> there;
  for (const store_entry& entry : store_->list(prefix)) there.insert(entry.key);
  std::vector<std::string> missing;
  for (int rank = 0; rank != world_size_; ++rank) {
    if (there.count(rank_key(prefix, rank)) != 0) continue;
    missing.push_back(peers_known_.load() ? to_string(find(worker_id{rank})) : fmt::format("rank {}", rank));
    if (missing.size() == 16) {
      missing.emplace_back("...");
      break;
    }
  }
  return fmt::format("{}", fmt::join(missing, ", "));
}

// ---------------------------------------------------------------- parting

std::vector<std::string> native_core::get_round(int round, deadline until) {
  const std::string prefix = fmt::format("round/{}/", round);
  bool watching = false;
  for (patience wait(until);;) {
    if (fenced_.load(std::memory_order_acquire)) throw_error(errc::fenced, fence_reason_);
    if (leaving_stopped_.load()) {
      throw_error(errc::shutting_down, to_string(self_) + ": the graceful shutdown was ended by one that is not");
    }
    std::vector<std::string> keys;
    std::vector<int> gone;
    for (int rank = 0; rank != world_size_; ++rank) {
      if (is_gone(rank)) {
        gone.push_back(rank);
      } else {
        keys.push_back(rank_key(prefix, rank));
      }
    }
    try {
      auto counts = store_->get(keys, wait.next());
      // Who is gone may have taken part in this round before: the sums are the same for everybody who reads them.
      for (const int rank : gone) {
        if (auto count = store_->try_get(rank_key(prefix, rank))) counts.push_back(*std::move(count));
      }
      return counts;
    } catch (const error& e) {
      if (e.kind() != errc::store_timeout) throw;
    }
    if (until.expired()) {
      throw_error(errc::shutdown_timeout, fmt::format("{} waited for the others to shut down; missing in round {}: {}",
                                                      to_string(self_), round, missing_workers(prefix)));
    }
    // Whom it waits for is watched: a worker that died before anybody called it would be missed for ever.
    if (!std::exchange(watching, true)) {
      std::set<std::string> there;
      for (const store_entry& entry : store_->list(prefix)) there.insert(entry.key);
      for (int rank = 0; rank != world_size_; ++rank) {
        if (there.count(rank_key(prefix, rank)) == 0) await(peers_.place(worker_id{rank}));
      }
    }
  }
}

// Mattern's four counters: in every round each worker, once it is quiet, says how many requests it has ever sent and
// handled. When two rounds in a row have equal sums, sent and handled alike, nothing was under way in between. What was lost with a
// connection is counted at neither end.
void native_core::leave_static(deadline until) {
  // Who has left may start another group here at once: it must not meet this one's server.
  store_->admit_no_more();
  const int left_before = gone_count();
  std::uint64_t last_sent = ~std::uint64_t{0};
  for (int round = 0;; ++round) {
    wait_until_quiet(until);
    const std::string prefix = fmt::format("round/{}/", round);
    store_->set(rank_key(prefix, self_.id().value), fmt::format("{} {}", sent_.load(), handled_.load()));
    const std::vector<std::string> counts = get_round(round, until);
    std::uint64_t sent = 0;
    std::uint64_t handled = 0;
    for (const std::string& text : counts) {
      const auto parts = split(text, ' ');
      if (parts.size() != 2)
        throw_error(errc::malformed, fmt::format("the store holds '{}' as shutdown counters", text));
      sent += parse_number(parts[0], 10, "a counter");
      handled += parse_number(parts[1], 10, "a counter");
    }
    if (sent == handled && sent == last_sent) break;
    last_sent = sent == handled ? sent : ~std::uint64_t{0};
    if (until.expired()) {
      throw_error(errc::shutdown_timeout,
                  fmt::format("{}: at the deadline of shutdown {} requests have been sent in the group "
                              "and {} handled",
                              to_string(self_), sent, handled));
    }
    if (round >= 1) store_->erase(rank_key(fmt::format("round/{}/", round - 1), self_.id().value));
    // The first rounds differ as a rule; later ones only while something is under way, or a connection has just been lost.
    if (round >= 2)
      std::this_thread::sleep_for(std::min(std::chrono::milliseconds(1 << std::min(round, 6)), longest_pause));
  }
  // The last one removes the group's keys, so that a store that outlives the group (a file) can serve another.
  if (store_->add("left", 1) == world_size_ - left_before) {
    for (const store_entry& entry : store_->list()) store_->erase(entry.key);
  }
}

}  // namespace ferry::inline v0::detail
