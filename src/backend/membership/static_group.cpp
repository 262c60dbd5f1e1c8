// How the workers of a static group find each other, and how they declare one dead. Everything goes through the store, never
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
//   devices/<rank>     the counts of a worker's devices, where only the map of another worker names one of them
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
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ferry/backend/agent.hpp>
#include <ferry/base/log.hpp>

#include "../../base/parse_number.hpp"
#include "../detached.hpp"
#include "static_keys.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::seconds failure_report_limit{2};

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

constexpr int records_together = 64;  // with the longest metadata they stay below the store's limit for one value

constexpr std::chrono::seconds store_probe_limit{1};

// A start that waits for longer says so: without a word it looks as if it hung.
constexpr std::chrono::seconds silent_start{10};
constexpr int most_that_list = 64;  // workers of a group of which each looks who is missing

std::string fence_key(worker_id id) { return fmt::format("fence/{}", id.value); }
std::string fence_value(incarnation_id incarnation, const std::string& reason) {
  return fmt::format("{:016x}\n{}", incarnation.value, reason);
}

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
  began_ = clock::now();
  choose_attempt(until);
  try {
    agree_on_group(until);
    agree_on_names(until);
    warm_up_named_devices();
    listen();
    group_store()->set(rank_key("worker/", own_.self.id().value), own_record().encode(), until);
    read_peers(until);
    // Before others can call: connections offer the memory of devices that are in use.
    warm_up_mapped_devices();
    // A worker that returns from here may call any other: all must have their tables by then.
    if (group_store()->add("ready", 1, until) == own_.world_size) group_store()->set("all_ready", "1", until);
    wait_for_ready(until);
  } catch (const error& e) {
    if (e.kind() == errc::already_initialized) throw;  // the worker itself goes on
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
      if (!wait.is_over(e)) throw;
    }
    check_for_failed_start(until);
    say_if_late([&] {
      return fmt::format("{} of them are ready", group_store()->try_get("ready", last_look(until)).value_or("0"));
    });
    if (until.expired()) {
      throw_error(errc::init_failed,
                  fmt::format("{}: only {} of {} workers are ready after {:.1f} s; did another one fail to start?",
                              to_string(own_.self), group_store()->try_get("ready", last_look(until)).value_or("0"),
                              own_.world_size, in_seconds(own_.init_timeout.duration())));
    }
  }
}

template <class Text>
void static_group::say_if_late(const Text& how_far) {
  if (said_late_ || clock::now() - began_ < silent_start) return;
  said_late_ = true;
  const std::string where = group_store()->describe();  // and the keys there, which are no help
  log(log_level::warning, fmt::format("{} has waited {:.0f} s for the group of {} workers that meet in the {}; {}",
                                      to_string(own_.self), in_seconds(clock::now() - began_), own_.world_size,
                                      where.substr(0, where.find(" below '")), how_far()));
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
    const auto holder = split_text(there, '\n');
    const auto incarnation = parse_number<std::uint64_t>(holder.back(), 16);
    if (holder.front() == own_.self.name() && incarnation && runs_in_this_process({*incarnation})) {
      throw_error(
          errc::already_initialized,
          fmt::format("worker '{}' is already initialized: this process runs it, as worker {} of the group that meets "
                      "there. Shut it down before init_rpc() is called for it again",
                      holder.front(), id));
    }
    throw_error(
        errc::duplicate_id,
        fmt::format("worker id {} is not unique: '{}' took it before '{}'. Was a rank given twice, or is the {} "
                    "still used by an earlier group? If no worker of that one runs any more (it was killed), start all "
                    "workers again: the next start uses separate keys",
                    id, split_text(there, '\n').front(), own_.self.name(), group_store()->describe()));
  }
  const std::string unique = "unique";
  std::string verdict = unique;
  if (id == 0) {
    const auto names = get_all(all_ranks("name/"), "name/", until);
    std::map<std::string, int> ids;
    for (int rank = 0; rank != own_.world_size && verdict == unique; ++rank) {
      const auto [at, fresh] = ids.emplace(split_text(names[static_cast<std::size_t>(rank)], '\n').front(), rank);
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
      if (!wait.is_over(e)) throw;
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
    say_if_late([&] {
      const bool looks = own_.self.id().value == 0 || own_.world_size <= most_that_list;
      return looks ? "missing: " + missing_workers(keys, prefix, until) : std::string("not all are there");
    });
    if (until.expired()) {
      throw_error(errc::store_timeout, fmt::format("{} waited {:.1f} s for the group of {} workers; missing: {}",
                                                   to_string(own_.self), in_seconds(own_.init_timeout.duration()),
                                                   own_.world_size, missing_workers(keys, prefix, until)));
    }
  }
}

void static_group::read_peers(deadline until) {
  if (own_.self.id().value == 0) publish_peers(get_all(all_ranks("worker/"), "worker/", until), until);
  std::vector<std::string> keys;
  for (int part = 0; part * records_together < own_.world_size; ++part) keys.push_back(rank_key("workers/", part));
  std::vector<worker_record> records;
  for (const std::string& part : get_all(keys, "worker/", until)) append_records(records, part);
  if (records.size() != static_cast<std::size_t>(own_.world_size)) {
    throw_error(errc::malformed,
                fmt::format("the store holds the records of {} workers of {}", records.size(), own_.world_size));
  }
  count_mapped_devices(records, until);
  std::vector<worker_devices> devices;
  devices.reserve(records.size());
  for (const worker_record& each : records) devices.push_back(each.for_checks());
  if (const std::string broken = broken_device_rule(devices, true); !broken.empty())
    throw_error(errc::invalid_argument, broken);
  for (worker_record& each : records) {
    const member_event event{member_event::kind::joined, each.who, each.incarnation, {}};
    own_.events.member(event, [&] {
      admit(std::make_shared<const worker_record>(std::move(each)));
      return true;
    });
  }
  peers_known_.store(true, std::memory_order_release);
}

std::optional<std::uint64_t> static_group::table_as_of() const noexcept {
  if (!peers_known_.load(std::memory_order_acquire)) return std::nullopt;
  return 0;
}

// All workers know from the records which counts are missing, so all come to the same result.
void static_group::count_mapped_devices(std::vector<worker_record>& records, deadline until) {
  const auto is_mapped = [&](const worker_record& one) {
    return std::any_of(records.begin(), records.end(), [&](const worker_record& source) {
      if (!source.devices) return false;
      const auto map = source.devices->maps.find(one.who.name());
      return map != source.devices->maps.end() &&
             std::any_of(map->second.begin(), map->second.end(),
                         [](const device_pair& each) { return !each.to.is_cpu(); });
    });
  };
  std::vector<std::size_t> missing;
  std::vector<std::string> keys;
  for (std::size_t rank = 0; rank != records.size(); ++rank) {
    if (!records[rank].devices || records[rank].devices->counted || !is_mapped(records[rank])) continue;
    missing.push_back(rank);
    keys.push_back(rank_key("devices/", static_cast<int>(rank)));
    if (static_cast<int>(rank) != own_.self.id().value) continue;
    device_record counts;
    counts.counts = local_device_counts();
    group_store()->set(keys.back(), counts.encode(), until);
  }
  if (missing.empty()) return;
  const std::vector<std::string> values = get_all(keys, "devices/", until);
  for (std::size_t i = 0; i != missing.size(); ++i) {
    device_record whole = *records[missing[i]].devices;
    whole.counts = device_record::decode(values[i]).counts;
    whole.counted = true;
    records[missing[i]].devices = std::make_shared<const device_record>(std::move(whole));
  }
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

// Those that have not written what `keys` are, or are made of; all of the keys of workers begin with `prefix`.
std::string static_group::missing_workers(const std::vector<std::string>& keys, std::string_view prefix,
                                          deadline until) const {
  std::set<std::string> there;
  try {
    for (const store_entry& entry : group_store()->list(prefix, last_look(until))) there.insert(entry.key);
  } catch (const error& e) {
    return fmt::format("unknown ({})", e.message());
  }
  const bool of_workers = keys.front().starts_with(prefix);
  std::vector<std::string> missing;
  for (int rank = 0; rank != own_.world_size; ++rank) {
    const std::string key = rank_key(prefix, rank);
    if (there.count(key) != 0 || (of_workers && std::find(keys.begin(), keys.end(), key) == keys.end())) continue;
    missing.push_back(peers_known_.load() ? to_string(find(worker_id{rank})) : fmt::format("rank {}", rank));
    if (missing.size() == 16) {
      missing.emplace_back("...");
      break;
    }
  }
  return missing.empty() ? "none, but rank 0 has not told the others" : fmt::format("{}", fmt::join(missing, ", "));
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
