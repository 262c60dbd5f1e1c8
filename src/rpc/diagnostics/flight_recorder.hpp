#pragma once

// The last events of a worker, for diagnosis: a ring that every thread writes to without a lock.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/base/error.hpp>
#include <ferry/base/ids.hpp>
#include <ferry/base/time.hpp>

#include "../pipeline/flight_time.hpp"
#include "flight_calendar.hpp"
#include "flight_layout.hpp"
#include "flight_storage.hpp"

namespace ferry::inline v0::detail {

// docs/debugging.md lists the names (to_string) and what each means.
enum class flight_event : std::uint8_t {
  call_started = 1,
  call_sent,
  call_replied,
  call_failed,
  call_timed_out,
  call_cancelled,
  one_way_sent,
  request_received,
  handler_begun,
  handler_returned,
  request_answered,
  request_failed,
  request_done,
  connection_opened,
  connection_accepted,
  connection_lost,
  member,
  late_reply,
};
std::string_view to_string(flight_event what) noexcept;

struct flight_entry {
  std::uint64_t number = 0;  ///< events are counted from 0
  std::int64_t steady_ns = 0;
  flight_event what{};
  worker_id peer;
  std::uint64_t call = 0;
  std::uint64_t method = 0;
  std::uint64_t bytes = 0;
  errc code{};
  std::string text;
};

/// The event in a place of the ring, but for its time and text; none if the place is empty or was being written.
[[nodiscard]] std::optional<flight_entry> flight_entry_of(const flight_words& words, std::uint64_t check);

/// Thread-safe.
class flight_recorder {
 public:
  /// Keeps the last `events`, or a few more; 0: none. Memory: 64 bytes for each, touched as they come; of a file, if the
  /// owner names a directory for it.
  explicit flight_recorder(std::size_t events, const flight_owner& owner = {});
  flight_recorder(const flight_recorder&) = delete;
  flight_recorder& operator=(const flight_recorder&) = delete;

  [[nodiscard]] bool on() const noexcept { return words_ != nullptr; }
  /// Takes no lock; 20 ns or so where the memory is at hand. The first write to a page of it takes longer, and a file on a
  /// disk may make it wait while the system writes that page back.
  void add(flight_event what, flight_time at, worker_id peer, std::uint64_t call, std::uint64_t method,
           std::uint64_t bytes, errc code = {}) noexcept {
    if (words_) put(what, at, peer, call, method, bytes, code, 0);
  }
  /// For rare events: the text is kept until many others have followed.
  void add(flight_event what, flight_time at, worker_id peer, std::uint64_t call, std::uint64_t method,
           std::uint64_t bytes, errc code, std::string_view text) noexcept;

  /// The recorded events, in order of time. An event that is being written may be missing.
  [[nodiscard]] std::vector<flight_entry> entries() const;
  [[nodiscard]] std::size_t capacity() const noexcept { return words_ ? mask_ + 1 : 0; }
  /// How many events were recorded in total.
  [[nodiscard]] std::uint64_t count() const noexcept { return next_.load(std::memory_order_relaxed); }

  // For readers of the file, if there is one.

  /// Empty: there is none, or it was removed.
  [[nodiscard]] std::string file() const { return storage_ ? storage_->file() : std::string(); }
  /// Who the worker is in its group.
  void set_identity(worker_id id, incarnation_id incarnation) noexcept;
  void add_peer(worker_id id, std::string_view name) noexcept;
  /// The worker has ended in order: the file loses its name. It keeps its place on the disk, and recording goes on there,
  /// until the recorder ends. The destructor does it, too.
  void remove_file() noexcept;
  /// The file stays when the recorder ends.
  void keep_file() noexcept;

 private:
  // A thread that is preempted while it writes may be overtaken by a whole round of others, so that one place holds
  // parts of two events: the last word detects that.
  void put(flight_event what, flight_time at, worker_id peer, std::uint64_t call, std::uint64_t method,
           std::uint64_t bytes, errc code, std::uint64_t text) noexcept {
    const std::uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
    const flight_words words{number + 1,
                             at.raw(),
                             call,
                             method,
                             bytes,
                             static_cast<std::uint64_t>(what) | (static_cast<std::uint64_t>(code) & 0xffffU) << 8U |
                                 static_cast<std::uint64_t>(static_cast<std::uint32_t>(peer.value)) << 32U,
                             text};
    std::uint64_t* place = words_ + (number & mask_) * words_per_event;
    [&]<std::size_t... I>(std::index_sequence<I...>) {  // without a loop, so that the words need no memory
      (std::atomic_ref(place[I]).store(words[I], std::memory_order_relaxed), ...);
    }(std::make_index_sequence<words_per_event - 1>());
    std::atomic_ref(place[words.size()]).store(flight_check(words), std::memory_order_relaxed);
  }

  std::uint64_t* words_ = nullptr;
  std::uint64_t mask_ = 0;
  flight_calendar calendar_;
  std::unique_ptr<flight_storage> storage_;  // null: off
  alignas(64) std::atomic<std::uint64_t> next_{0};
  mutable std::mutex texts_mutex_;  // guards the next one and the texts
  std::uint64_t next_text_ = 1;
};

}  // namespace ferry::inline v0::detail
