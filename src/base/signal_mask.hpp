#pragma once

// Which signals those threads of the library take that run none of the program's code.

#include <csignal>

#include <pthread.h>

namespace ferry::inline v0::detail {

/// While it lives, this thread blocks signals, and so do for good the threads that it starts meanwhile: signals are for the
/// program's own threads. Those that an instruction raises on its own thread stay open, for what reports crashes.
class signals_blocked {
 public:
  signals_blocked() noexcept {
    sigset_t blocked;
    ::sigfillset(&blocked);
    for (const int crash : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP}) ::sigdelset(&blocked, crash);
    ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~signals_blocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  signals_blocked(const signals_blocked&) = delete;
  signals_blocked& operator=(const signals_blocked&) = delete;

 private:
  sigset_t before_;
};

/// While it lives, what a write of this thread runs into is its error, and does not end the process: EFBIG beyond RLIMIT_FSIZE (by
/// SIGXFSZ), EPIPE without a reader (by SIGPIPE).
class writes_fail_by_error {
 public:
  writes_fail_by_error() noexcept {
    sigset_t pending;
    ::sigpending(&pending);
    ::sigemptyset(&raised_);
    sigset_t blocked;
    ::sigemptyset(&blocked);
    for (const int signal : {SIGXFSZ, SIGPIPE}) {
      ::sigaddset(&blocked, signal);
      if (::sigismember(&pending, signal) == 0) ::sigaddset(&raised_, signal);
    }
    ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~writes_fail_by_error() {
    const timespec at_once{};
    while (::sigtimedwait(&raised_, nullptr, &at_once) > 0) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  writes_fail_by_error(const writes_fail_by_error&) = delete;
  writes_fail_by_error& operator=(const writes_fail_by_error&) = delete;

 private:
  sigset_t raised_;  // by this thread's writes, if they are pending at the end
  sigset_t before_;
};

}  // namespace ferry::inline v0::detail
