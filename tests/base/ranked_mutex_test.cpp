// The order of locks, which builds without NDEBUG check.

#include "base/ranked_mutex.hpp"

#include <array>
#include <csignal>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

namespace ranked_mutex_test {

using ferry::detail::lock_rank;
using ferry::detail::ranked_condition;
using ferry::detail::ranked_lock;
using ferry::detail::ranked_mutex;

namespace {

constexpr lock_rank low{10, "the first"};
constexpr lock_rank high{20, "the second"};

#ifndef NDEBUG
// What a child process that runs `action` prints before it aborts; empty if it ends in order.
template <class Action>
std::string last_words(Action action) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    ::dup2(ends[1], STDERR_FILENO);
    action();
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 512> part{};
  for (ssize_t count = 0; (count = ::read(ends[0], part.data(), part.size())) > 0;)
    text.append(part.data(), static_cast<std::size_t>(count));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK((WIFSIGNALED(status) ? WTERMSIG(status) : 0) == (text.empty() ? 0 : SIGABRT));
  return text;
}
#endif

}  // namespace

TEST_CASE("ranked mutexes exclude, and may be taken in order and waited with") {
  ranked_mutex first{low};
  ranked_mutex second{high};
  ranked_condition changed;
  bool there = false;
  std::thread other([&] {
    const std::lock_guard one(first);
    const std::lock_guard two(second);
    there = true;
    changed.notify_all();
  });
  {
    ranked_lock lock(second);
    changed.wait(lock, [&] { return there; });
  }
  other.join();
  std::unique_lock one(first);
  std::unique_lock two(second);
  one.unlock();
  two.unlock();
  const std::lock_guard again(first);
  CHECK(there);
}

#ifndef NDEBUG
TEST_CASE("a mutex that is taken against the order ends a process that checks it, with both names") {
  ranked_mutex first{low};
  ranked_mutex second{high};
  const std::string text = last_words([&] {
    const std::lock_guard two(second);
    const std::lock_guard one(first);
  });
  CHECK(text.find("the mutex of the first (rank 10) while it holds that of the second (rank 20)") != text.npos);
  ranked_mutex equal{low};
  CHECK_FALSE(last_words([&] {
                const std::lock_guard one(first);
                const std::lock_guard other(equal);
              }).empty());
  CHECK(last_words([&] {
          const std::lock_guard one(first);
          const std::lock_guard two(second);
        }).empty());
}
#endif

}  // namespace ranked_mutex_test
