// Lookup of workers by name, by id, and by incarnation. Where this worker's list of members may be behind, it reads the
// log of a dynamic group once more before it reports a worker as unknown, or takes one for it that is gone or not connected any
// more.

#include <algorithm>
#include <mutex>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "../links/links.hpp"
#include "worker_group.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::string_view no_answer = "; but the group's store, which records newcomers, does not answer";

// How long a call waits for the log where another worker may have the name or the id by now, half of its time at most. Once the log
// was not read in time, calls do not wait for a while, since the store may have gone with the worker.
constexpr std::chrono::milliseconds wait_for_successor{1000};
constexpr std::chrono::milliseconds wait_before_connecting{100};  // again: to a worker that most likely lives
constexpr std::chrono::seconds no_wait_after_silence{2};

// Zero: it is known to be there.
std::chrono::nanoseconds worth_waiting_for_successor_of(const peer& place) {
  const std::lock_guard lock(place.mutex);
  switch (place.state) {
    case peer_state::leaving:  // it gets no new calls
    case peer_state::left:
    case peer_state::lost: return wait_for_successor;
    case peer_state::member:
      if (place.link && place.link->closed()) return wait_before_connecting;
      break;
    case peer_state::unknown: break;
  }
  return {};
}

}  // namespace

std::vector<worker_info> worker_group::workers() const {
  std::vector<worker_info> result;
  for (const peer* each : peers_.all()) {
    std::lock_guard lock(each->mutex);
    // The members of a static group never change.
    if (each->state == peer_state::member || (!own_.dynamic() && each->state != peer_state::unknown))
      result.push_back(each->record->who);
  }
  return result;
}

// In a dynamic group a worker may have joined since the log was last read, also in the place of one that is gone.
template <class Find>
peer* worker_group::look_up(deadline until, const Find& find, bool& read) const {
  peer* found = find();
  read = true;
  if (!own_.dynamic() || own_.ended()) return found;
  if (found) {
    const auto begun = clock::now();
    const std::chrono::nanoseconds longest = worth_waiting_for_successor_of(*found);
    if (longest == longest.zero() || until.expired() ||
        begun.time_since_epoch().count() < no_wait_until_.load(std::memory_order_relaxed))
      return found;
    const auto successor = [&] {
      const peer* const now = find();
      return now && worth_waiting_for_successor_of(*now) == longest.zero();
    };
    const auto limit = until.is_never() ? longest : std::min<std::chrono::nanoseconds>(longest, until.remaining() / 2);
    if (!access_.read_log(deadline(begun + limit), successor) && limit >= wait_before_connecting) {
      no_wait_until_.store((clock::now() + no_wait_after_silence).time_since_epoch().count(),
                           std::memory_order_relaxed);
    }
    return find();
  }
  read = access_.read_log(std::min(until, deadline::after(store_limit)), [&] { return find() != nullptr; });
  found = find();
  if (!found && !read && until.expired()) {
    throw rpc_timeout(fmt::format("{} looked for a worker in the group's log, and its store did not answer in time",
                                  to_string(own_.self)));
  }
  return found;
}

peer_route worker_group::locate(std::string_view name, deadline until) const {
  bool read = false;
  peer* const found = look_up(
      until, [&] { return peers_.find(name); }, read);
  if (!found) {
    constexpr std::size_t listed = 8;
    std::string known;
    const auto all = workers();
    for (std::size_t i = 0; i != std::min(all.size(), listed); ++i)
      known += fmt::format("{}'{}'", i == 0 ? "" : ", ", all[i].name());
    throw_error(errc::unknown_worker,
                fmt::format("{} could not find destination '{}': no worker of the group has that name; there {} {}{}{}",
                            to_string(own_.self), name, all.size() == 1 ? "is only" : "are", known,
                            all.size() > listed ? fmt::format(" and {} more", all.size() - listed) : "",
                            read ? "" : no_answer));
  }
  {
    std::lock_guard lock(found->mutex);
    if (found->record->who.name() == name) return {{found->record->who, found->record->incarnation}, found};
  }
  // A newcomer has just taken the place, and is about to remove this name from the list.
  std::this_thread::yield();
  return locate(name, until);
}

peer_route worker_group::locate(worker_id id, deadline until) const {
  bool read = false;
  peer* const found = look_up(
      until, [&] { return peers_.at(id); }, read);
  if (!found) {
    throw_error(
        errc::unknown_worker,
        fmt::format("{} could not find destination {}: {}{}", to_string(own_.self),
                    id.value < 0
                        ? fmt::format("{} (no worker can have that id; numbers beyond 32 bits become -1)", id.value)
                        : std::to_string(id.value),
                    own_.dynamic() ? std::string("no worker of the group has that id")
                                   : fmt::format("the group has the ids 0..{}", own_.world_size - 1),
                    read ? "" : no_answer));
  }
  std::lock_guard lock(found->mutex);
  return {{found->record->who, found->record->incarnation}, found};
}

peer_route worker_group::locate(const call_target& whom, deadline until) const {
  const auto look = [&]() -> std::optional<peer_route> {
    peer* const place = peers_.at(whom.id);
    if (!place) return {};
    std::lock_guard lock(place->mutex);
    if (place->record->incarnation != whom.incarnation) return {};
    return peer_route{{place->record->who, place->record->incarnation}, place};
  };
  if (const auto there = look()) return *there;
  if (own_.dynamic() && !own_.ended()) {
    const bool read =
        access_.read_log(std::min(until, deadline::after(store_limit)), [&] { return look().has_value(); });
    if (const auto there = look()) return *there;
    if (!read) {
      throw rpc_timeout(fmt::format("{} looked for worker {} in the group's log, and its store did not answer in time",
                                    to_string(own_.self), whom.id.value));
    }
  }
  throw_error(errc::peer_lost, fmt::format("worker {} is no longer a member of the group{}", whom.id.value,
                                           peers_.at(whom.id) ? "; its id was reassigned" : ""));
}

bool worker_group::is_over(const call_target& whom, std::uint64_t& question) const {
  const std::uint64_t read = access_.last_good_read();
  if (const peer* place = peers_.at(whom.id)) {
    std::lock_guard lock(place->mutex);
    if (place->record->incarnation == whom.incarnation) return !place->present();
  }
  if (!own_.dynamic()) return true;
  if (question != 0 && read >= question) return true;
  question = access_.request_read();
  return false;
}

worker_info worker_group::find(std::string_view name) const { return locate(name, {}).who; }
worker_info worker_group::find(worker_id id) const { return locate(id, {}).who; }

bool worker_group::update(deadline until) const {
  return !own_.dynamic() || access_.read_log(std::min(until, deadline::after(store_limit)));
}

worker_info worker_group::wait_for(std::string_view name, deadline until) const {
  if (!own_.dynamic()) return find(name);
  std::optional<blocking_scope> blocking;
  for (;;) {
    const std::uint64_t seen = access_.member_changes();
    if (const peer* found = peers_.find(name)) {
      std::lock_guard lock(found->mutex);
      // Skip the name of a newcomer that has just taken the place.
      if (found->state == peer_state::member && found->record->who.name() == name) return found->record->who;
    }
    own_.fence.check();
    if (own_.closing.load()) throw_error(errc::shutting_down, to_string(own_.self) + " has been shut down");
    if (!blocking) {
      blocking.emplace();
      (void)access_.request_read();  // so that later entries are read, too
    }
    if (!access_.await_change(seen, until)) {
      throw_error(errc::rpc_timeout,
                  fmt::format("{} timed out waiting for worker '{}': the group has no member of that name",
                              to_string(own_.self), name));
    }
  }
}

std::string worker_group::metadata(worker_id id) const {
  (void)find(id);
  const peer* found = peers_.at(id);
  std::lock_guard lock(found->mutex);
  return found->record->metadata;
}

}  // namespace ferry::inline v0::detail
