#pragma once

// What the programs of other libraries beside `peers` have in common: a process that serves, and one that calls it.
//
//   PROGRAM call|rate|send TRANSPORT BYTES CALLER_CPU CALLEE_CPU WINDOW_MS
//
//   call  one call at a time with BYTES there and back: prints its median and 99th percentile in microseconds, and how many there were
//   rate  64 such calls in flight, made by one thread: prints how many end per second
//   send  one call at a time with BYTES, answered by 8 bytes: as call
//
// Processors are numbers, -1 for any. `PROGRAM about` prints the library and its version.

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace peer {

enum class kind { call, rate, send };

struct job {
  kind what = kind::call;
  std::string transport;  ///< "tcp", "unix", "shm"
  std::size_t bytes = 0;
  std::chrono::milliseconds window{};

  [[nodiscard]] std::size_t reply_bytes() const noexcept { return what == kind::send ? 8 : bytes; }
};

inline constexpr std::size_t in_flight = 64;

/// The other process may connect to this address now. Called once.
using announcement = std::function<void(const std::string& address)>;

struct library {
  std::string about;
  std::vector<std::string> transports;  ///< of those above
  /// In a process of its own, which is killed at the end; returning means the same as serving on.
  std::function<void(const job&, const announcement&)> serve;
  /// Microseconds of each call, or one number of calls per second.
  std::function<std::vector<double>(const job&, const std::string& address)> measure;
};

/// main(). What is thrown ends both processes with an error.
int run(int argc, char** argv, const library& of);

/// A path for a unix socket or a file that does not exist; removed at the end.
std::string fresh_path();

/// Calls per second, of a client whose calls start each other.
class rate_window {
 public:
  explicit rate_window(const job& of) : until_(std::chrono::steady_clock::now() + of.window) {}
  /// A call has ended; true: make the next.
  bool again() noexcept {
    ++calls_;
    return calls_ % 16 != 0 || std::chrono::steady_clock::now() < until_;
  }
  [[nodiscard]] double per_second() const {
    return static_cast<double>(calls_) /
           std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  }

 private:
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point until_;
  std::size_t calls_ = 0;
};

/// The same of one that makes calls and waits for the end of any: `begin` a call, `end` one.
template <class Begin, class End>
double per_second(const job& of, const Begin& begin, const End& end) {
  rate_window window(of);
  std::size_t running = in_flight;
  for (std::size_t i = 0; i != in_flight; ++i) begin();
  while (running != 0) {
    end();
    if (window.again()) {
      begin();
    } else {
      --running;
    }
  }
  return window.per_second();
}

}  // namespace peer
