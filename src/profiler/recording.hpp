#pragma once

// The events of one profile while they come: a ring for each thread, of times and addresses of descriptions. Names are made, and
// times converted, when the recording ends.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/base/detail/ref_ptr.hpp>
#include <ferry/base/traced_range.hpp>
#include <ferry/profiler/profile.hpp>
#include <ferry/rpc/context_values.hpp>

#include "device_times.hpp"
#include "processor_clock.hpp"
#include "profile_batch.hpp"
#include "profile_names.hpp"
#include "profiled_thread.hpp"

namespace ferry::inline v0::detail {

/// Before the name that an event has at its worker, behind that of the call.
inline constexpr std::string_view remote_mark = "#remote_op: ";

/// What few events have.
struct event_details {
  std::string shapes = {};
  std::int64_t bytes = -1;
  std::string error = {};
  std::shared_ptr<device_interval> on_device = nullptr;
};

/// An event as it is kept until the recording ends.
struct recorded_event {
  const range_description* what = nullptr;
  std::uint64_t number = 0;
  std::uint64_t parent = 0;
  std::int64_t began = 0;  // ticks
  std::int64_t ended = 0;
  std::int64_t queued_ns = 0;
  std::uint64_t call = 0;
  std::int32_t node = -1;  ///< -1: that of the recording
  std::int32_t peer = -1;
  std::uint32_t thread = 0;
  std::uint32_t began_thread = 0;  ///< 0: the same
  bool failed = false;
  bool answered = false;  ///< a call: the next one came with its reply
  std::unique_ptr<event_details> details = nullptr;
  brief_answer answer = {};
};

/// For another recording, with what that wants.
[[nodiscard]] recorded_event copy_of(const recorded_event& from, const profile_wishes& wishes) noexcept;

/// Counts its references itself: ranges hold one each. Thread-safe.
class recording {
 public:
  struct properties {
    profile_wishes wishes = {};
    bool remote = true;  ///< callees are asked for their events
    bool brief = false;  ///< a request's: it lasts no longer than that
    bool hides = false;  ///< its code is that of the profiler itself: no other recording sees it, either
    std::size_t events_per_thread = 0;
    std::int32_t node = -1;
    std::shared_ptr<profile_names> names = nullptr;  ///< null: it has names of its own
  };
  static ref_ptr<recording> make(const properties& how);
  void add_ref() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  recording(const recording&) = delete;
  recording& operator=(const recording&) = delete;

  [[nodiscard]] const properties& how() const noexcept { return how_; }
  [[nodiscard]] bool closed() const noexcept { return closed_.load(std::memory_order_relaxed); }
  /// The number of an event that begins. Each begin() needs an add() or a give_up().
  [[nodiscard]] std::uint64_t begin() noexcept {
    begin_numbered();
    return new_event_number(profiled_thread_here());
  }
  /// The same of an event that has a number.
  void begin_numbered() noexcept { begun_.fetch_add(1, std::memory_order_relaxed); }
  void give_up() noexcept { given_up_.fetch_add(1, std::memory_order_release); }
  /// An event that has ended: on the calling thread, if it does not say on which.
  void add(profiled_thread& here, recorded_event&& event) noexcept;
  void add(recorded_event&& event) noexcept { add(profiled_thread_here(), std::move(event)); }
  /// Ends it if nothing is recorded, and nothing but one event has begun. False: finish() is to end it. Not beside finish().
  [[nodiscard]] bool end_without_events() noexcept;
  /// Begins it anew, and one event, if it has ended so, and nothing but the caller's one reference knows it.
  [[nodiscard]] bool begin_again(std::int32_t node, const profile_wishes& wishes) noexcept;
  /// What came with the reply of worker `node` to a call, which has those times (in ticks): an encoded profile_batch.
  void add_reply(std::uint64_t call, const range_description& name, std::int64_t began, std::int64_t ended,
                 std::int32_t node, std::span<const std::byte> content) noexcept;
  /// Those of a recording within this one, on the same clock.
  void add_inner(const profiler::profile& inner, std::uint64_t parent) noexcept;

  [[nodiscard]] profile_names& names() noexcept { return how_.names ? *how_.names : own_names_; }
  /// Descriptions that live as long as the recording. Throws std::bad_alloc.
  const range_description& name_range(std::string_view name, range_kind kind) { return names().name_range(name, kind); }
  const range_description& name_call(std::string_view method, profiled_mode mode, std::int32_t caller,
                                     std::string_view caller_name, std::int32_t peer, std::string_view peer_name) {
    return names().name_call(profiled_thread_here(), {std::hash<std::string_view>()(method), caller, peer, mode}, [&] {
      return profile_names::call_texts{method, caller_name, peer_name};
    });
  }
  /// Ends it, and gives all events. Once. `awaited` gets what devices have not told yet.
  [[nodiscard]] profiler::profile finish(std::vector<awaited_time>* awaited = nullptr);

 private:
  // One thread adds, where there are not very many; the lock is for the one that takes the events at the end.
  struct ring {
    std::mutex mutex;
    std::uint64_t added = 0;
    std::vector<std::vector<recorded_event>> chunks;  // each grows to its capacity, so that no event is moved
    std::size_t count = 0;                            // in all of them
    std::size_t chunk = 0;  // once it is full: where the oldest event is, and in this, at `next`
    std::size_t next = 0;
    std::uint64_t add(recorded_event&& event, std::size_t most);
  };
  struct reply {
    std::uint64_t call;
    const range_description* name;
    std::int64_t began;
    std::int64_t ended;
    std::int32_t node;
    std::size_t bytes;
  };
  // Replies, and behind each other what came with them: read when the recording ends.
  struct reply_chunk {
    std::vector<reply> replies;
    std::vector<std::byte> contents;
  };
  struct told_reply {
    reply of;
    profile_batch batch;
  };
  struct inner_profile {
    std::uint64_t parent;
    profiler::profile events;
  };
  explicit recording(const properties& how);
  ~recording();
  ring& ring_of(profiled_thread& here);
  void note_use() noexcept {
    if (!used_.load(std::memory_order_relaxed)) used_.store(true, std::memory_order_relaxed);
  }
  void read(const std::list<reply_chunk>& replies, std::vector<told_reply>& to);
  void drop_oldest_replies() noexcept;  // under the mutex
  // Returns how many were ever added.
  static std::uint64_t take_events(ring& from, const tick_scale& scale, profiler::profile& to,
                                   std::vector<awaited_time>* awaited, std::vector<told_reply>& told);
  void add_events_of(const told_reply& from, const std::vector<profiler::clock_offset>& clocks, profiler::profile& to,
                     std::vector<awaited_time>* awaited);
  void add_events_of(const inner_profile& from, profiler::profile& to);
  void name_handlers(std::vector<told_reply>& of);
  static void drop_missing_parents(profiler::profile& of);
  void stop_watching() noexcept;

  properties how_;
  const std::uint64_t serial_;
  const clock_reading start_;  // of a recording that is not brief
  std::atomic<std::uint32_t> references_{1};
  std::atomic<bool> closed_{false};
  std::atomic<bool> used_{false};           // anything was added to it, or lost
  std::atomic<std::uint64_t> begun_{0};     // events
  std::atomic<std::uint64_t> given_up_{0};  // of these; rings have the number of those that were added
  std::atomic<std::uint64_t> lost_{0};
  std::mutex mutex_;  // guards the rest
  std::uint32_t first_thread_ = 0;
  ring first_ring_;                                       // of that thread: most requests have one
  std::map<std::uint32_t, std::unique_ptr<ring>> rings_;  // of the others
  std::list<reply_chunk> replies_;
  std::size_t reply_bytes_ = 0;
  std::list<inner_profile> inner_;
  std::size_t inner_events_ = 0;  // in these, and one more for each
  profile_names own_names_;       // unless it has those of others
};

/// The recording that the running code is part of, and the event within it. Goes with calls.
struct recording_in_force final : travelling_value {
  recording_in_force(ref_ptr<recording> which, std::uint64_t event, std::int32_t where) noexcept
      : to(std::move(which)), parent(event), node(where) {}
  void on_request(outgoing_request& request) const override;

  /// Of another event, while nothing else knows this value.
  void use_again(std::uint64_t event, std::int32_t where) const noexcept {
    parent = event;
    node = where;
  }

  ref_ptr<recording> to;  ///< null: none but those of the process
  mutable std::uint64_t parent;
  mutable std::int32_t node;  ///< the worker whose code it is; -1: unknown
};

inline constexpr context_key<recording_in_force> current_recording("profile");

}  // namespace ferry::inline v0::detail
