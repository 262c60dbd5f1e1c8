#pragma once

// Recordings of everything that the process does, and where an event goes.

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ferry/base/detail/ref_ptr.hpp>

#include "recording.hpp"

namespace ferry::inline v0::detail {

/// Those that are under way at one moment. Never changed: others take its place. Counts its references itself.
class process_recordings {
 public:
  /// Null: there are none, which costs a relaxed load.
  [[nodiscard]] static ref_ptr<const process_recordings> now() noexcept {
    return count_.load(std::memory_order_relaxed) == 0 ? ref_ptr<const process_recordings>() : find();
  }
  /// Makes a recording that sees what begins from now on. Throws std::bad_alloc.
  static ref_ptr<recording> enter(recording::properties how);
  /// It sees nothing more that begins.
  static void leave(const recording& which) noexcept;

  process_recordings() = default;
  process_recordings(const process_recordings&) = delete;
  process_recordings& operator=(const process_recordings&) = delete;
  void add_ref() const noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() const noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  [[nodiscard]] const std::vector<ref_ptr<recording>>& all() const noexcept { return all_; }
  /// Of all of them.
  [[nodiscard]] profile_names& names() const noexcept { return *names_; }
  /// Of any of them.
  [[nodiscard]] const profile_wishes& wishes() const noexcept { return wishes_; }
  /// Whether any of them asks callees.
  [[nodiscard]] bool remote() const noexcept { return remote_; }

 private:
  ~process_recordings() = default;
  void add(ref_ptr<recording> which);
  static ref_ptr<const process_recordings> find() noexcept;
  static void replace(const ref_ptr<const process_recordings>& by) noexcept;
  static std::atomic<std::uint32_t> count_;

  mutable std::atomic<std::uint32_t> references_{1};
  std::vector<ref_ptr<recording>> all_;
  std::shared_ptr<profile_names> names_;
  profile_wishes wishes_;
  bool remote_ = false;
};

/// Where an event goes: to the recording of the code that it is part of, and to those of the process.
struct event_targets {
  /// Of what begins on this thread, where `here` is in force; null: no value is.
  [[nodiscard]] static event_targets at(const recording_in_force* here) noexcept {
    event_targets found;
    if (here && here->to) {
      if (here->to->how().hides) return found;
      if (!here->to->closed()) found.own = here->to;
    }
    found.whole = process_recordings::now();
    return found;
  }
  [[nodiscard]] explicit operator bool() const noexcept { return own || whole; }
  /// Each needs one of the next two.
  void begin() const noexcept {
    if (own) own->begin_numbered();
    if (whole) begin_in_whole();
  }
  void give_up() const noexcept;
  /// `name_in_whole`: of the event in the recordings of the process; its own `what` is that in the other one.
  void add(profiled_thread& here, recorded_event&& event, const range_description* name_in_whole) const noexcept {
    if (whole) return add_to_all(here, std::move(event), name_in_whole);
    if (!own) return;
    event.answered = event.answered && own->how().remote;
    own->add(here, std::move(event));
  }
  /// As recording::add_reply() does; for those that ask callees.
  void add_reply(std::uint64_t call, const range_description* name, const range_description* name_in_whole,
                 std::int64_t began, std::int64_t ended, std::int32_t node,
                 std::span<const std::byte> content) const noexcept;
  /// Of any of them.
  [[nodiscard]] profile_wishes wishes() const noexcept {
    profile_wishes all;
    if (own) all = own->how().wishes;
    if (!whole) return all;
    all.shapes |= whole->wishes().shapes;
    all.memory |= whole->wishes().memory;
    all.device_times |= whole->wishes().device_times;
    return all;
  }
  [[nodiscard]] bool remote() const noexcept { return (own && own->how().remote) || (whole && whole->remote()); }

  ref_ptr<recording> own;                   ///< null: none
  ref_ptr<const process_recordings> whole;  ///< null: none

 private:
  void begin_in_whole() const noexcept;
  void add_to_all(profiled_thread& here, recorded_event&& event, const range_description* name_in_whole) const noexcept;
};

}  // namespace ferry::inline v0::detail
