// How the workers of a static group find each other and how they leave. Everything goes through the store, never
// through calls. Data that all workers need about all others is combined by one worker, so that the store serves n
// requests and not n squared. Keys, below the store's prefix:
//
//   attempt            the number of failed starts here that were followed by another one; absent: none
//
// and those of one attempt below attempt/<number>/:
//
//   name/<rank>        name and incarnation, written once, before any worker listens: reserves the rank
//   names              written by rank 0: "unique", or the duplicates
//   worker/<rank>      a worker_record
//   workers/<k>        written by rank 0: the records of the ranks from 64 k on, each after its length and a space
//   ready              the number of workers that have read all records
//   all_ready          written by the last of them
//   round/<n>/<rank>   "<requests sent> <requests handled>" of a worker that was quiet, in shutdown round n
//   round/<n>/sum      the sums of them, written by the lowest rank that has not terminated; the first write wins
//   failed             "<seconds since 1970>\n<which worker could not start, and why>"; checked by waiting workers
//   told/<rank>        written by a worker whose start has failed: its next start uses another attempt
//   fence/<id>         "<incarnation>\n<reason>" of a worker that was declared dead
//   silence/<a>/<b>    of two incarnations, the first one that declared the other one silent; the other one is dead
//   left               the number of workers that have agreed to leave and no longer need the store

#include "static_group.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ferry/backend/agent.hpp>
#include <ferry/base/log.hpp>

#include "../../base/parse_number.hpp"
#include "../detached.hpp"

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

std::uint64_t stored_number(std::string_view text, std::string_view what) {
  const auto value = parse_number<std::uint64_t>(text);
  if (!value) {
    throw_error(errc::malformed,
                fmt::format("the store holds '{}' as {}; is another program using these keys?", text, what));
  }
  return *value;
}

constexpr std::chrono::milliseconds longest_poll_pause{50};
constexpr std::chrono::seconds failure_report_limit{2};
constexpr std::chrono::milliseconds patience_with_store{500};

// Splits a long wait in the store, to check from time to time whether the awaited key can still appear.
class growing_wait {
 public:
  explicit growing_wait(deadline until) : until_(until) {}
  /// The next slice: doubles, up to a second, since a group may wait for a slow member for hours.
  deadline next() {
    const auto slice = std::exchange(slice_, std::min<std::chrono::nanoseconds>(2 * slice_, std::chrono::seconds(1)));
    const auto now = clock::now();
    return std::min(deadline(now + slice), std::max(until_, deadline(now + std::chrono::milliseconds(1))));
  }

 private:
  const deadline until_;
  std::chrono::nanoseconds slice_ = std::chrono::milliseconds(100);
};

// A failed start counts for the group that forms now for this long: its workers may start one after the other.
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
  const auto when = stored_number(value.substr(0, line), "the time of a failed start");
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
  return {stored_number(parts[0], "a counter"), stored_number(parts[1], "a counter"),
          stored_number(parts[2], "a counter")};
}

constexpr int records_together = 64;  // with the longest metadata they stay below the store's limit for one value

// Removes a text, after its length and a space, from the front of `from`.
std::string_view take_text(std::string_view& from) {
  const std::size_t space = from.find(' ');
  const auto length = stored_number(from.substr(0, space), "the length of a record");
  if (space == std::string_view::npos || length > from.size() - space - 1)
    throw_error(errc::malformed, "the store's records of workers are cut off");
  const std::string_view text = from.substr(space + 1, length);
  from.remove_prefix(space + 1 + length);
  return text;
}

constexpr std::chrono::seconds store_probe_limit{1};

std::string fence_key(worker_id id) { return fmt::format("fence/{}", id.value); }
std::string fence_value(incarnation_id incarnation, const std::string& reason) {
  return fmt::format("{:016x}\n{}", incarnation.value, reason);
}

std::string rank_key(std::string_view prefix, int rank) { return fmt::format("{}{}", prefix, rank); }

}  // namespace

// If the store outlives the workers (a file, a separate server), so does the record of a failed start, which workers
// that start late have yet to read. A worker that took part in it, or starts too late to belong to it, uses the next
// attempt.
void static_group::choose_attempt(deadline until) {
  const auto base = group_store();
  for (;;) {
    const auto number = base->try_get("attempt", until);
    const std::uint64_t attempt = number ? stored_number(*number, "the number of an attempt") : 0;
    const auto own = base->below(fmt::format("attempt/{}", attempt));
    const auto failed = own->try_get("failed", until);
    // A name in a group that has formed belongs to a worker that may be alive and took no part in a failed start.
    const auto took_part = [&, rank = own_.self.id().value] {
      return own->try_get(rank_key("told/", rank), until) ||
             (own->try_get(rank_key("name/", rank), until) && !own->try_get("all_ready", until));
    };
    if (!failed || !(took_part() || parse_failure(*failed).age > failure_counts)) {
      return access_.replace_store(own);
    }
    const std::string next = std::to_string(attempt + 1);
    if (base->compare_set("attempt", number.value_or(""), next, until) != next || attempt == 0) continue;
    for (const store_entry& entry : base->list(fmt::format("attempt/{}/", attempt - 1), until))
      base->erase(entry.key, until);
  }
}

void static_group::join(deadline until) {
  choose_attempt(until);
  try {
    agree_on_group(until);
    agree_on_names(until);
    listen();
    group_store()->set(rank_key("worker/", own_.self.id().value), own_record().encode(), until);
    read_peers(until);
    // A worker that returns from here may call any other: all must have their tables by then.
    if (group_store()->add("ready", 1, until) == own_.world_size) group_store()->set("all_ready", "1", until);
    wait_for_ready(until);
  } catch (const error& e) {
    // The others would wait for this worker until their deadline.
    const auto limit = deadline::after(failure_report_limit);
    try {
      group_store()->compare_set("failed", "",
                                 fmt::format("{}\n{}: {}", unix_seconds(), to_string(own_.self), e.what()), limit);
      group_store()->set(rank_key("told/", own_.self.id().value), "", limit);
    } catch (const error& unreachable) {
      log(log_level::info, fmt::format("{}: the failed start cannot be reported to the other workers: {}",
                                       to_string(own_.self), unreachable.what()));
    }
    throw;
  }
}

void static_group::wait_for_ready(deadline until) {
  for (growing_wait wait(until);;) {
    try {
      return group_store()->wait("all_ready", wait.next());
    } catch (const error& e) {
      if (e.kind() != errc::store_timeout) throw;
    }
    check_for_failed_start(until);
    if (until.expired()) {
      throw_error(errc::init_failed,
                  fmt::format("{}: only {} of {} workers are ready after {:.1f} s; did another one fail to start?",
                              to_string(own_.self), group_store()->try_get("ready", last_look(until)).value_or("0"),
                              own_.world_size, in_seconds(own_.init_timeout.duration())));
    }
  }
}

void static_group::check_for_failed_start(deadline until) {
  if (const auto failed = group_store()->try_get("failed", last_look(until)))
    throw_error(errc::init_failed, fmt::format("{}: another worker could not start: {}", to_string(own_.self),
                                               parse_failure(*failed).text));
}

// Before any worker listens: workers of one process share a listener, which cannot distinguish two of the same name.
void static_group::agree_on_names(deadline until) {
  const std::string own = fmt::format("{}\n{:016x}", own_.self.name(), own_.incarnation.value);
  const int id = own_.self.id().value;
  if (const std::string there = group_store()->compare_set(rank_key("name/", id), "", own, until); there != own) {
    throw_error(
        errc::duplicate_id,
        fmt::format("worker id {} is not unique: '{}' took it before '{}'. Was a rank given twice, or is the {} "
                    "still used by an earlier group? If no worker of that one runs any more (it was killed), start all "
                    "workers again: the next start uses separate keys",
                    id, split(there, '\n').front(), own_.self.name(), group_store()->describe()));
  }
  const std::string unique = "unique";
  std::string verdict = unique;
  if (id == 0) {
    const auto names = get_all(all_ranks("name/"), "name/", until);
    std::map<std::string, int> ids;
    for (int rank = 0; rank != own_.world_size && verdict == unique; ++rank) {
      const auto [at, fresh] = ids.emplace(split(names[static_cast<std::size_t>(rank)], '\n').front(), rank);
      if (!fresh) {
        verdict = fmt::format("worker name '{}' is not unique: the workers {} and {} both have it", at->first,
                              at->second, rank);
      }
    }
    group_store()->set("names", verdict, until);
  } else {
    verdict = get_all({"names"}, "name/", until).front();
  }
  if (verdict != unique) throw_error(errc::duplicate_name, verdict);
}

std::vector<std::string> static_group::all_ranks(std::string_view prefix) const {
  std::vector<std::string> keys;
  keys.reserve(static_cast<std::size_t>(own_.world_size));
  for (int rank = 0; rank != own_.world_size; ++rank) keys.push_back(rank_key(prefix, rank));
  return keys;
}

// Waits for `keys`, which exist once every rank has written its own under `prefix`.
std::vector<std::string> static_group::get_all(const std::vector<std::string>& keys, std::string_view prefix,
                                               deadline until) {
  for (growing_wait wait(until);;) {
    try {
      return group_store()->get(keys, wait.next());
    } catch (const error& e) {
      if (e.kind() != errc::store_timeout) throw;
    }
    if (group_store()->try_get("failed", last_look(until))) {
      // Another worker may have failed over the values of these keys, which exist by now: all must report the same
      // error.
      std::vector<std::string> values;
      for (auto value = group_store()->try_get(keys[0], last_look(until)); value;
           value = group_store()->try_get(keys[values.size()], last_look(until))) {
        values.push_back(*std::move(value));
        if (values.size() == keys.size()) return values;
      }
    }
    check_for_failed_start(until);
    if (until.expired()) {
      throw_error(errc::store_timeout, fmt::format("{} waited {:.1f} s for the group of {} workers; missing: {}",
                                                   to_string(own_.self), in_seconds(own_.init_timeout.duration()),
                                                   own_.world_size, missing_workers(prefix, until)));
    }
  }
}

void static_group::read_peers(deadline until) {
  if (own_.self.id().value == 0) publish_peers(get_all(all_ranks("worker/"), "worker/", until), until);
  std::vector<std::string> keys;
  for (int part = 0; part * records_together < own_.world_size; ++part) keys.push_back(rank_key("workers/", part));
  std::vector<worker_record> records;
  for (const std::string& part : get_all(keys, "worker/", until)) {
    for (std::string_view rest = part; !rest.empty();)
      records.push_back(worker_record::decode(std::string(take_text(rest)), static_cast<int>(records.size())));
  }
  if (records.size() != static_cast<std::size_t>(own_.world_size)) {
    throw_error(errc::malformed,
                fmt::format("the store holds the records of {} workers of {}", records.size(), own_.world_size));
  }
  std::vector<worker_devices> devices;
  devices.reserve(records.size());
  for (const worker_record& each : records) devices.push_back(each.for_checks());
  if (const std::string broken = broken_device_rule(devices, true); !broken.empty())
    throw_error(errc::invalid_argument, broken);
  for (worker_record& each : records) {
    const peer& admitted = admit(std::move(each));
    failures_.report({member_event::kind::joined, admitted.record.who, admitted.record.incarnation, {}});
  }
  peers_known_.store(true, std::memory_order_release);
}

std::optional<std::uint64_t> static_group::table_as_of() const noexcept {
  if (!peers_known_.load(std::memory_order_acquire)) return std::nullopt;
  return 0;
}

void static_group::publish_peers(const std::vector<std::string>& records, deadline until) {
  for (int part = 0; part * records_together < own_.world_size; ++part) {
    std::string together;
    for (int rank = part * records_together; rank != std::min((part + 1) * records_together, own_.world_size); ++rank) {
      const std::string& record = records[static_cast<std::size_t>(rank)];
      together += fmt::format("{} {}", record.size(), record);
    }
    group_store()->set(rank_key("workers/", part), together, until);
  }
}

std::string static_group::missing_workers(std::string_view prefix, deadline until) const {
  std::set<std::string> there;
  try {
    for (const store_entry& entry : group_store()->list(prefix, last_look(until))) there.insert(entry.key);
  } catch (const error& e) {
    return fmt::format("unknown ({})", e.message());
  }
  std::vector<std::string> missing;
  for (int rank = 0; rank != own_.world_size; ++rank) {
    if (there.count(rank_key(prefix, rank)) != 0) continue;
    missing.push_back(peers_known_.load() ? to_string(find(worker_id{rank})) : fmt::format("rank {}", rank));
    if (missing.size() == 16) {
      missing.emplace_back("...");
      break;
    }
  }
  return fmt::format("{}", fmt::join(missing, ", "));
}

// ---------------------------------------------------------------- leaving

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
      if (e.kind() != errc::store_timeout) throw;
    }
    try {
      if (sums_up) {  // a worker that declared this one lost, or that this one declared lost, may have written them
        if (auto done = group_store()->try_get(sum, last_look(slice))) return *std::move(done);
        for (const store_entry& entry : group_store()->list(prefix, last_look(slice))) there.insert(entry.key);
      }
    } catch (const error& e) {
      if (e.kind() != errc::store_timeout) throw;
      if (!until.expired()) continue;
      throw_silent_store(e.message());
    }
    if (until.expired()) {
      throw_error(errc::shutdown_timeout, fmt::format("{} waited for the others to shut down; missing in round {}: {}",
                                                      to_string(own_.self), round, missing_workers(prefix, until)));
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

// The request runs on a thread that may block: a store that hangs must not keep this one.
template <class Request>
auto static_group::ask_while_leaving(deadline until, Request request) {
  using result = decltype(request(std::declval<const bounded_store&>()));
  const auto answer = std::make_shared<std::optional<result>>();
  std::string why = "no answer";
  try {
    const auto pending = access_.run_in_background(
        [answer, where = group_store(), request = std::move(request)] { answer->emplace(request(*where)); });
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
      return each->record.serves_store && each->present();
    }();
    if (serves) failures_.await(*each);
  }
}

void static_group::throw_silent_store(std::string_view why) const {
  throw_error(errc::shutdown_timeout, fmt::format("{}: the {} has not answered at the deadline of the shutdown ({})",
                                                  to_string(own_.self), group_store()->describe(), why));
}

// Mattern's four counters: in every round each worker, once it is quiet, publishes how many requests it has ever sent
// and handled. When two rounds in a row have equal sums, sent and handled alike, nothing was under way in between.
// Requests lost with a connection are counted at neither end. If any worker then has loose ends, all workers settle
// theirs, which takes messages, and agree again.
void static_group::leave_together(deadline until) {
  // A worker that has left may start another group here at once, which must not connect to this group's server.
  group_store()->admit_no_more();
  const int left_before = gone_count();
  request_handler& above = *own_.handler.load();
  constexpr std::uint64_t none = ~std::uint64_t{0};
  std::uint64_t last_sent = none;
  bool tidy = false;
  for (int round = 0;; ++round) {
    wait_until_quiet(until, leave_interrupt::others);
    const std::string prefix = fmt::format("round/{}/", round);
    (void)ask_while_leaving(
        until, [key = rank_key(prefix, own_.self.id().value),
                counts = fmt::format("{} {} {}", totals_.sent.load(), totals_.handled.load(), above.loose_ends()),
                until](const bounded_store& where) {
          where.set(key, counts, until);
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
                  fmt::format("{}: at the deadline of shutdown {} requests have been sent in the group "
                              "and {} handled",
                              to_string(own_.self), sent, handled));
    }
    if (round >= 1) {
      (void)ask_while_leaving(until, [key = rank_key(fmt::format("round/{}/", round - 1), own_.self.id().value),
                                      until](const bounded_store& where) { return where.erase(key, until); });
    }
    // The first rounds usually differ; later ones only while something is under way, or a connection has just been
    // lost.
    if (round >= 2)
      std::this_thread::sleep_for(std::min(std::chrono::milliseconds(1 << std::min(round, 6)), longest_poll_pause));
  }
  // The last worker removes the group's keys, so that a store that outlives the group (a file) can serve another.
  (void)ask_while_leaving(until, [present = own_.world_size - left_before, until](const bounded_store& where) {
    if (where.add("left", 1, until) != present) return false;
    for (const store_entry& entry : where.list({}, until)) where.erase(entry.key, until);
    return true;
  });
}

// ---------------------------------------------------------------- fences

// Two workers whose link is cut declare each other dead: of the two, the store accepts the first one.
void static_group::write_loss(const fence_notice& notice, bool contested) {
  const auto where = group_store();
  if (!where) return;
  const auto until = deadline::after(store_limit);
  if (contested) {
    const std::string own = fmt::format("{:016x}", own_.incarnation.value);
    const auto [less, more] = std::minmax(own_.incarnation.value, notice.incarnation.value);
    const std::string first = where->compare_set(fmt::format("silence/{:016x}/{:016x}", less, more), "", own, until);
    if (first != own) {
      return failures_.become_fenced(
          fmt::format("{} lost contact with it, and was the first to report that", to_string(notice.who)));
    }
    failures_.spread(notice);
  }
  where->set(fence_key(notice.who.id()), fence_value(notice.incarnation, notice.reason), until);
}

// It may be reached on another path than its worker. A store that does not answer now is not asked again: requests to
// it, which a stopped process neither answers nor refuses, would all wait until their deadlines.
void static_group::on_store_host_lost(const std::string& host, const std::string& reason) noexcept {
  try {
    run_detached(*own_.threads, [this, kept = own_.keep_alive(), host, reason] {
      const auto where = group_store();
      if (!where || own_.closing.load()) return;
      try {
        (void)where->try_get("group", deadline::after(store_probe_limit));
      } catch (const error& e) {
        if (own_.closing.load()) return;
        log(log_level::warning, fmt::format("{} gives up the {}, which {} served: {}", to_string(own_.self),
                                            where->describe(), host, e.message()));
        where->give_up(fmt::format("{}, which served it, is lost: {}", host, reason));
      }
    });
  } catch (const std::exception& e) {
    log(log_level::warning, fmt::format("{}: did not check the store: {}", own_.self.name(), e.what()));
  }
}

void static_group::look_for_own_fence() noexcept {
  try {
    run_detached(*own_.threads, [this, kept = own_.keep_alive()] {
      const auto where = group_store();
      if (!where) return;
      const auto fence = where->try_get(fence_key(own_.self.id()), deadline::after(store_limit));
      if (fence && fence->starts_with(fence_value(own_.incarnation, {}))) {
        failures_.become_fenced(fmt::format("the store reports: {}", fence->substr(fence->find('\n') + 1)));
      }
    });
  } catch (const std::bad_alloc&) {
    log(log_level::warning, "out of memory: did not look for a fence");
  }
}

}  // namespace ferry::inline v0::detail
