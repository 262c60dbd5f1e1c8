#include "calls.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/statistics.hpp"

namespace peer {
namespace {

constexpr unsigned longest_seconds = 120;

void pin(int processor) {
  if (processor < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(processor), &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) throw std::system_error(errno, std::generic_category(), "pinning");
}

kind kind_of(std::string_view word) {
  if (word == "call") return kind::call;
  if (word == "rate") return kind::rate;
  if (word == "send") return kind::send;
  throw std::invalid_argument("neither call nor rate nor send: " + std::string(word));
}

// Of this process and its child, which has the same.
const std::string& own_folder() {
  static const std::string made = [] {
    std::string name = (std::filesystem::temp_directory_path() / "ferry_peer_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), "mkdtemp");
    return name;
  }();
  return made;
}

[[noreturn]] void serve(const library& of, const job& wanted, int processor, int to_caller) {
  try {
    pin(processor);
    of.serve(wanted, [&](const std::string& address) {
      const std::string line = address + "\n";
      if (::write(to_caller, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
        throw std::system_error(errno, std::generic_category(), "announcing an address");
    });
    for (;;) ::pause();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s, serving: %s\n", of.about.c_str(), e.what());
  }
  ::_exit(1);
}

std::string address_from(int callee) {
  std::string line;
  char each = 0;
  for (ssize_t got = 0;;) {
    got = ::read(callee, &each, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got != 1) throw std::runtime_error("the process that serves has ended");
    if (each == '\n') return line;
    line.push_back(each);
  }
}

}  // namespace

std::string fresh_path() {
  static int made = 0;
  return own_folder() + "/" + std::to_string(made++);
}

int run(int argc, char** argv, const library& of) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 1 && words[0] == "about") {
    std::puts(of.about.c_str());
    return 0;
  }
  pid_t child = -1;
  int status = 1;
  try {
    if (words.size() != 6) throw std::invalid_argument("usage: call|rate|send TRANSPORT BYTES CPU CPU WINDOW_MS");
    const job wanted{kind_of(words[0]), words[1], std::stoul(words[2]), std::chrono::milliseconds(std::stol(words[5]))};
    if (std::find(of.transports.begin(), of.transports.end(), wanted.transport) == of.transports.end())
      throw std::invalid_argument("it is not measured over " + wanted.transport);
    const int caller_processor = std::stoi(words[3]);
    const int callee_processor = std::stoi(words[4]);
    (void)own_folder();
    int ends[2];
    if (::pipe(ends) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    std::fflush(nullptr);
    child = ::fork();  // before any thread of the library
    if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
    ::alarm(longest_seconds);
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(ends[0]);
      serve(of, wanted, callee_processor, ends[1]);
    }
    ::close(ends[1]);
    pin(caller_processor);
    const std::string address = address_from(ends[0]);
    std::vector<double> figures = of.measure(wanted, address);
    if (figures.empty()) throw std::runtime_error("nothing was measured");
    const double median = ferry_bench::quantile(figures, 0.5);
    std::printf("%.4f %.4f %zu\n", median, ferry_bench::quantile(figures, 0.99), figures.size());
    status = 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", of.about.c_str(), e.what());
  }
  if (child > 0) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(own_folder(), ignored);
  std::fflush(nullptr);
  ::_exit(status);  // without what a library does at the end, when its peer is gone
}

}  // namespace peer
