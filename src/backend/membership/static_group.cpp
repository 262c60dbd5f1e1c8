// How the workers of a static group find each other and how they part. Everything goes through the store, never through
// calls. What everybody must know of everybody one worker puts together, so that the store is asked for n things and not for n
// by each of n. Keys, below the prefix that the store was given:
//
//   attempt            how many starts here have failed and were followed by another one; absent: none
//
// and those of one attempt below attempt/<number>/:
//
//   name/<rank>        name and incarnation, written once: who has the rank, and all names before anybody listens
//   names              written by rank 0: "unique", or which are not
//   worker/<rank>      a worker_record
//   workers/<k>        written by rank 0: the records of the ranks from 64 k on, each after its length and a space
//   ready              how many workers have read all records
//   all_ready          written by the last of them
//   round/<n>/<rank>   "<requests sent> <requests handled>" of a worker that was quiet, in shutdown round n
//   round/<n>/sum      the sums of them, written by the lowest rank that is not gone; whoever is first is believed
//   failed             "<seconds since 1970>\n<who could not start, and why>"; looked at by those that wait for it
//   told/<rank>        written by a worker whose start has failed, too: the next one is not of this attempt
//   fence/<id>         who was declared dead (failure.cpp)
//   silence/<a>/<b>    which of two incarnations was first to say that the other one is silent (failure.cpp)
//   left               how many workers have agreed to leave and need the store no more

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ferry/base/log.hpp>
#include <ferry/store/prefix_store.hpp>

#include "../agent/native_agent.hpp"

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

constexpr std::chrono::milliseconds longest_poll_pause{50};

// A long wait in the store is broken up, to look from time to time whether what it waits for can still come.
class growing_wait {
 public:
  explicit growing_wait(deadline until) : until_(until) {}
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

// For so long a failed start is one of the group that forms now: its workers may come one after the other.
constexpr std::chrono::seconds failure_counts{60};

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

struct failed_start {
  std::chrono::seconds age;
  std::string text;
};

failed_start parse_failure(const std::string& value) {
  const std::size_t line = value.find('\n');
  const auto when = parse_number(value.substr(0, line), 10, "the time of a failed start");
  return {std::chrono::seconds(unix_seconds() - static_cast<std::int64_t>(when)),
          line == std::string::npos ? std::string() : value.substr(line + 1)};
}

struct request_counts {
  std::uint64_t sent = 0;
  std::uint64_t handled = 0;
  std::uint64_t loose_ends = 0;
};

request_counts parse_counts(const std::string& text) {
  const auto parts = split(text, ' ');
  if (parts.size() != 3) throw_error(errc::malformed, fmt::format("the store holds '{}' as shutdown counters", text));
  return {parse_number(parts[0], 10, "a counter"), parse_number(parts[1], 10, "a counter"),
          parse_number(parts[2], 10, "a counter")};
}

constexpr int records_together = 64;  // with the longest metadata they stay below what a store takes as one value

// Cuts a text after its length and a space off the front of `from`.
std::string_view take_text(std::string_view& from) {
  const std::size_t space = from.find(' ');
  const auto length = parse_number(std::string(from.substr(0, space)), 10, "the length of a record");
  if (space == std::string_view::npos || length > from.size() - space - 1)
    throw_error(errc::malformed, "the store's records of workers are cut off");
  const std::string_view text = from.substr(space + 1, length);
  from.remove_prefix(space + 1 + length);
  return text;
}

std::string rank_key(std::string_view prefix, int rank) { return fmt::format("{}{}", prefix, rank); }

}  // namespace

// Where the store outlives the workers (a file, a server of its own), so does what a failed start leaves there for those that
// have yet to hear of it. Whoever took part in it, or comes so late that it does not mean him, belongs to the next attempt.
void native_core::choose_attempt() {
  const auto base = group_store();
  for (;;) {
    const auto number = base->try_get("attempt");
    const std::uint64_t attempt = number ? parse_number(*number, 10, "the number of an attempt") : 0;
    const auto own = std::make_shared<prefix_store>(fmt::format("attempt/{}", attempt), base);
    own->set_default_timeout(base->default_timeout());
    const auto failed = own->try_get("failed");
    // The name in a group that had formed is that of a worker which may live: it was no part of a failed start.
    const auto took_part = [&, rank = self_.id().value] {
      return own->try_get(rank_key("told/", rank)) ||
             (own->try_get(rank_key("name/", rank)) && !own->try_get("all_ready"));
    };
    if (!failed || !(took_part() || parse_failure(*failed).age > failure_counts)) {
      const std::lock_guard lock(links_mutex_);
      store_ = own;
      return;
    }
    const std::string next = std::to_string(attempt + 1);
    if (base->compare_set("attempt", number.value_or(""), next) != next || attempt == 0) continue;
    for (const store_entry& entry : base->list(fmt::format("attempt/{}/", attempt - 1))) base->erase(entry.key);
  }
}

void native_core::form_static(deadline until) {
  choose_attempt();
  try {
    agree_on_group();
    agree_on_names(until);
    listen();
    store_->set(rank_key("worker/", self_.id().value), own_record().encode());
    read_peers(until);
    // Whoever returns from here may call anybody: all must have their tables by then.
    if (store_->add("ready", 1) == world_size_) store_->set("all_ready", "1");
    wait_for_ready(until);
  } catch (const error& e) {
    // The others would wait for this worker in vain.
    try {
      store_->compare_set("failed", "", fmt::format("{}\n{}: {}", unix_seconds(), to_string(self_), e.what()));
      store_->set(rank_key("told/", self_.id().value), "");
    } catch (const error& unreachable) {
      log(log_level::info, fmt::format("{}: the others cannot be told that the start has failed: {}", to_string(self_),
                                       unreachable.what()));
    }
    throw;
  }
}

void native_core::wait_for_ready(deadline until) {
  for (growing_wait wait(until);;) {
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
                              in_seconds(init_timeout_.duration())));
    }
  }
}

void native_core::check_for_failed_start() {
  if (const auto failed = store_->try_get("failed"))
    throw_error(errc::init_failed,
                fmt::format("{}: another worker could not start: {}", to_string(self_), parse_failure(*failed).text));
}

// Before anybody listens: workers of one process share a listener, which cannot tell two of one name apart.
void native_core::agree_on_names(deadline until) {
  const std::string own = fmt::format("{}\n{:016x}", self_.name(), incarnation_.value);
  const int id = self_.id().value;
  if (const std::string there = store_->compare_set(rank_key("name/", id), "", own); there != own) {
    throw_error(
        errc::duplicate_id,
        fmt::format("worker id {} is not unique: '{}' has taken it before '{}'. Was a rank given twice, or is the {} "
                    "still used by an earlier group? If no worker of that one runs any more (it was killed), start all "
                    "workers again: the next start has a place of its own",
                    id, split(there, '\n').front(), self_.name(), store_->describe()));
  }
  const std::string unique = "unique";
  std::string verdict = unique;
  if (id == 0) {
    const auto names = get_all(all_ranks("name/"), "name/", until);
    std::map<std::string, int> ids;
    for (int rank = 0; rank != world_size_ && verdict == unique; ++rank) {
      const auto [at, fresh] = ids.emplace(split(names[static_cast<std::size_t>(rank)], '\n').front(), rank);
      if (!fresh) {
        verdict = fmt::format("worker name '{}' is not unique: the workers {} and {} both have it", at->first,
                              at->second, rank);
      }
    }
    store_->set("names", verdict);
  } else {
    verdict = get_all({"names"}, "name/", until).front();
  }
  if (verdict != unique) throw_error(errc::duplicate_name, verdict);
}

std::vector<std::string> native_core::all_ranks(std::string_view prefix) const {
  std::vector<std::string> keys;
  keys.reserve(static_cast<std::size_t>(world_size_));
  for (int rank = 0; rank != world_size_; ++rank) keys.push_back(rank_key(prefix, rank));
  return keys;
}

// Waits for `keys`, which are there once every rank has written its own under `prefix`.
std::vector<std::string> native_core::get_all(const std::vector<std::string>& keys, std::string_view prefix,
                                              deadline until) {
  for (growing_wait wait(until);;) {
    try {
      return store_->get(keys, wait.next());
    } catch (const error& e) {
      if (e.kind() != errc::store_timeout) throw;
    }
    if (store_->try_get("failed")) {
      // Another one may have failed over what these keys say, and they are there by now: all shall fail over the same.
      std::vector<std::string> values;
      for (auto value = store_->try_get(keys[0]); value; value = store_->try_get(keys[values.size()])) {
        values.push_back(*std::move(value));
        if (values.size() == keys.size()) return values;
      }
    }
    check_for_failed_start();
    if (until.expired()) {
      throw_error(errc::store_timeout,
                  fmt::format("{} waited {:.1f} s for the group of {} workers; missing: {}", to_string(self_),
                              in_seconds(init_timeout_.duration()), world_size_, missing_workers(prefix)));
    }
  }
}

void native_core::read_peers(deadline until) {
  if (self_.id().value == 0) publish_peers(get_all(all_ranks("worker/"), "worker/", until));
  std::vector<std::string> keys;
  for (int part = 0; part * records_together < world_size_; ++part) keys.push_back(rank_key("workers/", part));
  std::vector<worker_record> records;
  for (const std::string& part : get_all(keys, "worker/", until)) {
    for (std::string_view rest = part; !rest.empty();)
      records.push_back(worker_record::decode(std::string(take_text(rest)), static_cast<int>(records.size())));
  }
  if (records.size() != static_cast<std::size_t>(world_size_)) {
    throw_error(errc::malformed,
                fmt::format("the store holds the records of {} workers of {}", records.size(), world_size_));
  }
  check_devices_of(records);
  for (worker_record& each : records) {
    const peer& admitted = admit(std::move(each));
    report({member_event::kind::joined, admitted.record.who, admitted.record.incarnation, {}});
  }
  peers_known_.store(true, std::memory_order_release);
}

void native_core::publish_peers(const std::vector<std::string>& records) {
  for (int part = 0; part * records_together < world_size_; ++part) {
    std::string together;
    for (int rank = part * records_together; rank != std::min((part + 1) * records_together, world_size_); ++rank) {
      const std::string& record = records[static_cast<std::size_t>(rank)];
      together += fmt::format("{} {}", record.size(), record);
    }
    store_->set(rank_key("workers/", part), together);
  }
}

std::string native_core::missing_workers(std::string_view prefix) const {
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

// The sums of a shutdown round, the same for everybody. The lowest rank that is not gone puts them together and watches
// whom it waits for; the others watch that one, and take its place if it goes.
std::string native_core::sum_of_round(int round, deadline until) {
  const std::string prefix = fmt::format("round/{}/", round);
  const std::string sum = prefix + "sum";
  peer* watched = nullptr;
  for (growing_wait wait(until);;) {
    if (fenced_.load(std::memory_order_acquire)) throw_error(errc::fenced, fence_reason_);
    check_still_leaving(1);
    int first = 0;
    while (first != self_.id().value && is_gone(first)) ++first;
    const bool sums_up = first == self_.id().value;
    try {
      if (!sums_up) return store_->get(sum, wait.next());
      return store_->compare_set(sum, "", add_up_round(prefix, wait.next()));
    } catch (const error& e) {
      if (e.kind() != errc::store_timeout) throw;
    }
    if (sums_up) {  // somebody who takes this worker for gone, or whom this worker takes for gone, may have been first
      if (auto there = store_->try_get(sum)) return *std::move(there);
    }
    if (until.expired()) {
      throw_error(errc::shutdown_timeout, fmt::format("{} waited for the others to shut down; missing in round {}: {}",
                                                      to_string(self_), round, missing_workers(prefix)));
    }
    // Whom it waits for is watched: a worker that died before anybody called it would be missed for ever. Where no heartbeats
    // ask on, this does.
    peer& whom = peers_.place(worker_id{first});
    if (std::exchange(watched, &whom) == &whom && !options_.heartbeat_interval.is_never()) continue;
    if (!sums_up) {
      await(whom);
      continue;
    }
    std::set<std::string> there;
    for (const store_entry& entry : store_->list(prefix)) there.insert(entry.key);
    for (int rank = 0; rank != world_size_; ++rank) {
      if (there.count(rank_key(prefix, rank)) == 0 && !is_gone(rank)) await(peers_.place(worker_id{rank}));
    }
  }
}

std::string native_core::add_up_round(const std::string& prefix, timeout limit) {
  std::vector<std::string> keys;
  std::vector<int> gone;
  for (int rank = 0; rank != world_size_; ++rank) {
    if (is_gone(rank)) {
      gone.push_back(rank);
    } else {
      keys.push_back(rank_key(prefix, rank));
    }
  }
  auto counts = store_->get(keys, limit);
  // Who is gone may have taken part in this round before.
  for (const int rank : gone) {
    if (auto count = store_->try_get(rank_key(prefix, rank))) counts.push_back(*std::move(count));
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

// Mattern's four counters: in every round each worker, once it is quiet, says how many requests it has ever sent and
// handled. When two rounds in a row have equal sums, sent and handled alike, nothing was under way in between. What was lost with a
// connection is counted at neither end. If anybody then has loose ends, all see to theirs, which takes messages, and agree anew.
void native_core::leave_static(deadline until) {
  // Who has left may start another group here at once: it must not meet this one's server.
  store_->admit_no_more();
  const int left_before = gone_count();
  request_handler& above = *handler_.load();
  constexpr std::uint64_t none = ~std::uint64_t{0};
  std::uint64_t last_sent = none;
  bool tidy = false;
  for (int round = 0;; ++round) {
    wait_until_quiet(until, 1);
    const std::string prefix = fmt::format("round/{}/", round);
    store_->set(rank_key(prefix, self_.id().value),
                fmt::format("{} {} {}", sent_.load(), handled_.load(), above.loose_ends()));
    const auto [sent, handled, loose_ends] = parse_counts(sum_of_round(round, until));
    const bool agreed = sent == handled && sent == last_sent;
    if (agreed && (tidy || loose_ends == 0)) break;
    last_sent = sent == handled ? sent : none;
    if (agreed) {
      tidy = true;
      last_sent = none;
      above.on_group_quiet(until, false);
      check_still_leaving(1);
    }
    if (until.expired()) {
      throw_error(errc::shutdown_timeout,
                  fmt::format("{}: at the deadline of shutdown {} requests have been sent in the group "
                              "and {} handled",
                              to_string(self_), sent, handled));
    }
    if (round >= 1) store_->erase(rank_key(fmt::format("round/{}/", round - 1), self_.id().value));
    // The first rounds differ as a rule; later ones only while something is under way, or a connection has just been lost.
    if (round >= 2)
      std::this_thread::sleep_for(std::min(std::chrono::milliseconds(1 << std::min(round, 6)), longest_poll_pause));
  }
  // The last one removes the group's keys, so that a store that outlives the group (a file) can serve another.
  if (store_->add("left", 1) == world_size_ - left_before) {
    for (const store_entry& entry : store_->list()) store_->erase(entry.key);
  }
}

}  // namespace ferry::inline v0::detail
