#include <ferry/rpc/debug.hpp>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

#include "../../base/signal_mask.hpp"
#include "../../transport/reactor/io_threads.hpp"
#include "flight_record.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

constexpr int signal_count = 65;  // Linux has 1..64

// The state that the signal handler may use. The descriptor lives as long as the process; a forked child has none of
// the threads.
std::atomic<int> bell{-1};
std::atomic<pid_t> owner{0};
std::array<std::atomic<bool>, signal_count> raised{};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void on_signal(int number) {
  const int saved = errno;
  if (owner.load() == ::getpid()) {
    raised[static_cast<std::size_t>(number)].store(true);
    const std::uint64_t one = 1;
    (void)!::write(bell.load(), &one, sizeof one);
  }
  errno = saved;
}

struct signal_paths {
  std::mutex mutex;
  std::map<int, std::string> by_signal;
};
signal_paths& paths() {
  static auto* instance = new signal_paths;  // the thread below never ends
  return *instance;
}

void write_for(int number) {
  std::string path;
  {
    std::lock_guard lock(paths().mutex);
    path = paths().by_signal[number];
  }
  try {
    const std::string file = detail::write_record(path, fmt::format("ferry-{}.json", ::getpid()),
                                                  detail::records_of_process(fmt::format("signal {}", number)));
    log(log_level::info, fmt::format("signal {}: flight records: {}", number, file));
  } catch (const std::exception& e) {
    log(log_level::warning, fmt::format("signal {}: {}", number, e.what()));
  }
}

// A separate thread, because the other threads may hang.
void serve_signals(int descriptor) {
  for (;;) {
    std::uint64_t count = 0;
    if (::read(descriptor, &count, sizeof count) < 0 && errno != EINTR) return;
    for (int number = 1; number != signal_count; ++number) {
      if (raised[static_cast<std::size_t>(number)].exchange(false)) write_for(number);
    }
  }
}

void start_serving() {
  const int descriptor = ::eventfd(0, EFD_CLOEXEC);
  if (descriptor < 0) throw_errno(errc::system_failure, "record_on_signal: eventfd", errno);
  // The code of the handler and of the thread must stay loaded as long as the process lives.
  Dl_info about{};
  if (::dladdr(reinterpret_cast<const void*>(&on_signal), &about) != 0 && about.dli_fname) {
    (void)::dlopen(about.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  }
  try {
    const signals_blocked here;
    std::thread(serve_signals, descriptor).detach();
  } catch (const std::exception& e) {
    ::close(descriptor);
    throw_error(errc::system_failure, fmt::format("record_on_signal: no thread: {}", e.what()));
  }
  bell.store(descriptor);
  owner.store(::getpid());
}

}  // namespace
}  // namespace detail

void record_on_signal(int number, std::string path) {
  detail::check_not_forked();
  if (number <= 0 || number >= detail::signal_count || path.empty()) {
    throw_error(errc::invalid_argument, fmt::format("record_on_signal needs a signal (1..{}, not {}) and a path",
                                                    detail::signal_count - 1, number));
  }
  std::lock_guard lock(detail::paths().mutex);
  const bool ours = detail::paths().by_signal.contains(number);
  if (!ours) {
    struct sigaction before {};
    if (::sigaction(number, nullptr, &before) != 0) {
      throw_error(errc::invalid_argument, fmt::format("record_on_signal: the system has no signal {}", number));
    }
    const bool unused =
        (before.sa_flags & SA_SIGINFO) == 0 && (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN);
    if (!unused) {
      throw_error(errc::invalid_argument,
                  fmt::format("record_on_signal: the program handles signal {} itself; take another one", number));
    }
  }
  if (detail::owner.load() != ::getpid()) detail::start_serving();
  if (!ours) {
    struct sigaction action {};
    action.sa_handler = detail::on_signal;
    action.sa_flags = SA_RESTART;
    ::sigemptyset(&action.sa_mask);
    if (::sigaction(number, &action, nullptr) != 0) {
      throw_errno(errc::invalid_argument, fmt::format("record_on_signal: signal {} cannot be caught", number), errno);
    }
  }
  detail::paths().by_signal[number] = std::move(path);
}

}  // namespace ferry::inline v0
