#pragma once

// The memory of a flight recorder: anonymous, or a file that outlives a process which is killed.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include <ferry/base/ids.hpp>

#include "flight_calendar.hpp"
#include "flight_layout.hpp"

namespace ferry::inline v0::detail {

/// Of this machine since it was started; empty: unknown.
[[nodiscard]] std::string flight_boot_id();

/// Whose events are recorded, and where.
struct flight_owner {
  std::string directory = {};  ///< of the file; empty: no file
  std::string worker = {};
  worker_id id = {};
  incarnation_id incarnation = {};
  int places = 0;  ///< num_worker_threads
};

/// Thread-safe, but for what ring() and text() refer to.
class flight_storage {
 public:
  /// Memory for that many events, a power of two. Logs a warning and takes anonymous memory where there can be no file;
  /// logs a warning and has none at all (is_usable()) if there is no memory.
  flight_storage(std::size_t events, const flight_owner& owner);
  /// Removes the file, unless it shall be kept.
  ~flight_storage();
  flight_storage(const flight_storage&) = delete;
  flight_storage& operator=(const flight_storage&) = delete;

  [[nodiscard]] bool is_usable() const noexcept { return memory_ != nullptr; }
  [[nodiscard]] bool in_file() const noexcept { return in_file_; }
  [[nodiscard]] std::uint64_t* ring() const noexcept;
  /// The slot of the text with that number.
  [[nodiscard]] flight_text& text(std::uint64_t number) const noexcept;
  /// Empty: there is no file, or it was removed.
  [[nodiscard]] std::string file() const;

  // Without a file these do nothing, nor in a child process, which has the memory of its parent's file: not even wait for
  // the mutex, which a thread of the parent may have held.

  void set_identity(worker_id id, incarnation_id incarnation) noexcept;
  void calibrate(const flight_reading& now) noexcept;
  /// The last name of a key counts. A name that there is no memory or room for is not kept; where there is no room, the
  /// key has no name from then on.
  void add_name(flight_name kind, std::uint64_t key, std::string_view name) noexcept;
  /// Takes the file's name away; the memory stays that of the file.
  void remove_file() noexcept;
  void keep_file() noexcept;

 private:
  void open_file(std::size_t events, const flight_owner& owner);
  void write_header(std::size_t events, const flight_owner& owner) noexcept;
  void write_calibration(std::size_t place, std::uint64_t number, const flight_reading& now) noexcept;
  // False: in a child process.
  [[nodiscard]] bool is_in_its_process() const noexcept;

  struct kept_name {
    std::string name;
    std::size_t at = 0;  // in the file
  };

  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t ring_at_ = 0;
  std::size_t texts_at_ = 0;
  std::size_t names_at_ = 0;
  bool in_file_ = false;
  std::atomic<std::int64_t> process_{0};  // that made the file
  mutable std::mutex mutex_;              // guards the rest
  std::string path_;                      // empty: removed, or to be kept
  std::size_t next_name_ = 0;
  std::set<std::uint64_t> methods_;
  std::map<std::uint64_t, kept_name> peers_;
  std::uint64_t calibrations_ = 0;
  std::int64_t calibrated_ns_ = 0;
};

}  // namespace ferry::inline v0::detail
