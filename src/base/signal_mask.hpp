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

/// While it lives, a write of this thread beyond RLIMIT_FSIZE is EFBIG, and does not end the process by SIGXFSZ.
class file_limit_is_an_error {
 public:
  file_limit_is_an_error() noexcept {
    ::sigemptyset(&signal_);
    ::sigaddset(&signal_, SIGXFSZ);
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGXFSZ) == 1;
    ::pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~file_limit_is_an_error() {
    const timespec at_once{};
    if (!was_pending_) (void)::sigtimedwait(&signal_, nullptr, &at_once);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  file_limit_is_an_error(const file_limit_is_an_error&) = delete;
  file_limit_is_an_error& operator=(const file_limit_is_an_error&) = delete;

 private:
  sigset_t signal_;
  sigset_t before_;
  bool was_pending_;
};

}  // namespace ferry::inline v0::detail
