#include "process_recordings.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <mutex>
#include <new>

#include "../rpc/pipeline/interceptor_table.hpp"
#include "recorded_ranges.hpp"

namespace ferry::inline v0::detail {
namespace {

// Many threads look at once, and a change is rare: each looks at one of these, whose locks few threads share.
constexpr std::size_t bytes_apart = 64;
struct alignas(bytes_apart) recordings_place {
  std::mutex mutex;
  ref_ptr<const process_recordings> now;
};
constexpr std::size_t places_of_recordings = 16;
struct recordings_places {
  std::array<recordings_place, places_of_recordings> all;
  std::mutex changes;  // one at a time
};
recordings_places& places_of_process() {
  static auto* instance = new recordings_places;  // threads may end ranges while the process exits
  return *instance;
}

}  // namespace

constinit std::atomic<std::uint32_t> process_recordings::count_{0};

ref_ptr<const process_recordings> process_recordings::find() noexcept {
  recordings_place& place = places_of_process().all[number_of(profiled_thread_here()) % places_of_recordings];
  const std::lock_guard lock(place.mutex);
  return place.now;
}

void process_recordings::replace(const ref_ptr<const process_recordings>& by) noexcept {
  for (recordings_place& each : places_of_process().all) {
    ref_ptr<const process_recordings> former = by;  // destroyed without the lock
    const std::lock_guard lock(each.mutex);
    std::swap(each.now, former);
  }
}

void process_recordings::add(ref_ptr<recording> which) {
  const recording::properties& how = which->how();
  wishes_.shapes |= how.wishes.shapes;
  wishes_.memory |= how.wishes.memory;
  wishes_.device_times |= how.wishes.device_times;
  remote_ |= how.remote;
  all_.push_back(std::move(which));
}

ref_ptr<recording> process_recordings::enter(recording::properties how) {
  recordings_places& places = places_of_process();
  const std::lock_guard lock(places.changes);
  const ref_ptr<const process_recordings> former = places.all[0].now;  // changed under the lock of changes only
  auto* const fresh = new process_recordings;
  const auto next = ref_ptr<const process_recordings>::adopt(fresh);
  fresh->names_ = former ? former->names_ : std::make_shared<profile_names>();
  how.names = fresh->names_;
  ref_ptr<recording> made = recording::make(how);
  if (former) {
    for (const ref_ptr<recording>& each : former->all_) fresh->add(each);
  }
  fresh->add(made);
  replace(next);
  count_.fetch_add(1);
  interceptor_table::watch_arrivals(1);
  interceptor_table::watch_requests(1);
  return made;
}

void process_recordings::leave(const recording& which) noexcept {
  recordings_places& places = places_of_process();
  const std::lock_guard lock(places.changes);
  interceptor_table::watch_requests(-1);
  interceptor_table::watch_arrivals(-1);
  const ref_ptr<const process_recordings> former = places.all[0].now;
  if (count_.fetch_sub(1) == 1) return replace({});
  try {
    auto* const fresh = new process_recordings;
    const auto next = ref_ptr<const process_recordings>::adopt(fresh);
    fresh->names_ = former->names_;
    for (const ref_ptr<recording>& each : former->all_) {
      if (each.get() != &which) fresh->add(each);
    }
    replace(next);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it stays among them, closed, until the next change
  }
}

// ---------------------------------------------------------------- targets

void event_targets::begin_in_whole() const noexcept {
  for (const ref_ptr<recording>& each : whole->all()) each->begin_numbered();
}

void event_targets::give_up() const noexcept {
  if (own) own->give_up();
  if (!whole) return;
  for (const ref_ptr<recording>& each : whole->all()) each->give_up();
}

void event_targets::add_to_all(profiled_thread& here, recorded_event&& event,
                               const range_description* name_in_whole) const noexcept {
  for (const ref_ptr<recording>& each : whole->all()) {
    recorded_event copy = copy_of(event, each->how().wishes);
    copy.what = name_in_whole;
    copy.answered = copy.answered && each->how().remote;
    each->add(here, std::move(copy));
  }
  if (!own) return;
  recorded_event copy = copy_of(event, own->how().wishes);
  copy.answered = copy.answered && own->how().remote;
  own->add(here, std::move(copy));
}

void event_targets::add_reply(std::uint64_t call, const range_description* name, const range_description* name_in_whole,
                              std::int64_t began, std::int64_t ended, std::int32_t node,
                              std::span<const std::byte> content) const noexcept {
  if (own && own->how().remote) own->add_reply(call, *name, began, ended, node, content);
  if (!whole) return;
  for (const ref_ptr<recording>& each : whole->all()) {
    if (each->how().remote) each->add_reply(call, *name_in_whole, began, ended, node, content);
  }
}

}  // namespace ferry::inline v0::detail
