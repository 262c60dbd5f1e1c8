#include "watchdog.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include <execinfo.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#if FERRY_TEST_ADDRESS_SANITIZER
extern "C" void __sanitizer_print_stack_trace();  // NOLINT(bugprone-reserved-identifier)
#endif

namespace ferry_test {
namespace {

constexpr std::chrono::seconds longest_stack{10};  // to print one, with names
constexpr std::chrono::seconds all_stacks{90};

std::atomic<bool> stack_printed{false};

// With names of functions and lines where the address sanitizer's runtime finds them, else with addresses: that of the thread
// sanitizer reports what it does itself in a signal handler.
void print_stack(int) {
  const int before = errno;
#if FERRY_TEST_ADDRESS_SANITIZER
  __sanitizer_print_stack_trace();
#else
  std::array<void*, 64> frames{};
  ::backtrace_symbols_fd(frames.data(), ::backtrace(frames.data(), static_cast<int>(frames.size())), STDERR_FILENO);
#endif
  errno = before;
  stack_printed = true;
}

// One thread after the other. A thread that hangs within the runtime of a sanitizer prints nothing, and the next one is asked. Threads of
// the library block other signals than this. The alarm ends the process if this thread hangs, too.
void print_stacks_of_others() {
  ::signal(SIGALRM, SIG_DFL);
  ::alarm(static_cast<unsigned>((all_stacks + 2 * longest_stack).count()));
  struct sigaction printer {};
  printer.sa_handler = print_stack;
  printer.sa_flags = SA_RESTART;
  ::sigaction(SIGTRAP, &printer, nullptr);
  const auto own = static_cast<pid_t>(::syscall(SYS_gettid));
  const auto end = std::chrono::steady_clock::now() + all_stacks;
  std::error_code gone;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    if (std::chrono::steady_clock::now() > end) break;
    const auto id = static_cast<pid_t>(std::stol(thread.path().filename().string()));
    if (id == own) continue;
    std::string name;
    std::getline(std::ifstream(thread.path() / "comm"), name);
    std::fprintf(stderr, "thread %d (%s)\n", static_cast<int>(id), name.c_str());
    stack_printed = false;
    if (::syscall(SYS_tgkill, ::getpid(), id, SIGTRAP) != 0) continue;
    const auto until = std::chrono::steady_clock::now() + longest_stack;
    while (!stack_printed && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  }
}

// A child that is left, perhaps a stopped one, would keep the test's output open, and its reader waiting.
void kill_children() {
  std::error_code gone;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    std::ifstream children(thread.path() / "children");
    for (pid_t child = 0; children >> child;) ::kill(child, SIGKILL);
  }
}

}  // namespace

watchdog::watchdog(std::string what, std::chrono::seconds limit)
    : thread_([this, what = std::move(what), limit] {
        std::array<void*, 1> loads_what_it_needs{};
        ::backtrace(loads_what_it_needs.data(), 1);
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, limit, [&] { return done_; })) return;
        std::fprintf(stderr, "watchdog: %s took more than %lld s\n", what.c_str(),
                     static_cast<long long>(limit.count()));
        print_stacks_of_others();
        kill_children();
        std::abort();
      }) {}

watchdog::~watchdog() {
  {
    std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace ferry_test
