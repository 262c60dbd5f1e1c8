#pragma once

// Ends a process before or after the n-th store that it makes to memory which it shares. The memory is made read-only: each store
// is caught (SIGSEGV), made as a single step of the processor with the memory writable, and caught again after it (SIGTRAP). Needs
// nothing of the code that stores.

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "sanitizers.hpp"

namespace ferry_test {

/// The memory of this process whose mapping has that name in /proc/self/maps; there must be one.
inline std::span<std::byte> mapped_memory(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  std::span<std::byte> found;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(name) == std::string::npos) continue;
    std::uintptr_t first = 0;
    std::uintptr_t last = 0;
    char dash = 0;
    std::istringstream(line) >> std::hex >> first >> dash >> last;
    if (!found.empty()) throw std::runtime_error("there are several mappings of " + name);
    found = {reinterpret_cast<std::byte*>(first), last - first};
  }
  if (found.empty()) throw std::runtime_error("there is no mapping of " + name);
  return found;
}

/// Where the processor can be told to make one step. Not under the thread sanitizer, which holds locks of its own during a store that
/// its part of the handlers of signals needs.
#ifdef __x86_64__
inline constexpr bool can_step = !thread_sanitized;
#else
inline constexpr bool can_step = false;
#endif

/// For one process, which it may end at any time from watch() on, until the memory is unmapped. Threads may store at once: then a
/// store may go uncounted.
class stores_until_death {
 public:
  enum class moment : std::uint8_t { before, after };

  /// From now on; `memory` is of whole pages. The first store has the number 1.
  static void watch(std::span<std::byte> memory, long number, moment when) {
    memory_ = memory;
    end_at_ = number;
    when_ = when;
    struct sigaction act {};
    act.sa_flags = SA_SIGINFO | SA_RESTART;
    act.sa_sigaction = on_store;
    ::sigaction(SIGSEGV, &act, nullptr);
    act.sa_sigaction = on_stored;
    ::sigaction(SIGTRAP, &act, nullptr);
    protect(PROT_READ);
  }
  [[nodiscard]] static long count() { return count_.load(); }

 private:
  static void protect(int access) {
    if (::mprotect(memory_.data(), memory_.size(), access) != 0) ::_exit(70);
  }
  static void end_at(moment when, long number) {
    if (number == end_at_ && when == when_) ::kill(::getpid(), SIGKILL);
  }
  static void step(void* context, [[maybe_unused]] bool on) {
#ifdef __x86_64__
    constexpr greg_t trap_flag = 0x100;
    greg_t& flags = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL];
    flags = on ? flags | trap_flag : flags & ~trap_flag;
#else
    (void)context;
#endif
  }
  static void on_store(int signal, siginfo_t* info, void* context) {
    const auto* const at = static_cast<const std::byte*>(info->si_addr);
    if (at < memory_.data() || at >= memory_.data() + memory_.size()) {  // a fault of the program
      ::signal(signal, SIG_DFL);
      return;
    }
    stepping_ = ++count_;
    end_at(moment::before, stepping_);
    protect(PROT_READ | PROT_WRITE);
    step(context, true);
  }
  static void on_stored(int, siginfo_t*, void* context) {
    step(context, false);
    end_at(moment::after, stepping_);
    protect(PROT_READ);
  }

  static inline std::span<std::byte> memory_;
  static inline long end_at_ = 0;
  static inline moment when_ = moment::before;
  static inline std::atomic<long> count_{0};
  static inline thread_local long stepping_ = 0;
};

}  // namespace ferry_test
