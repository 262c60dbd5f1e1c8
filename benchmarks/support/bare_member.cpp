#include "bare_member.hpp"

#include <cerrno>
#include <filesystem>
#include <iterator>
#include <system_error>

#include <sys/socket.h>

#include "process.hpp"
#include "statistics.hpp"

namespace ferry_bench {
namespace {

std::string path_of(const std::string& folder, int rank) { return folder + "/" + std::to_string(rank); }

}  // namespace

std::int64_t now_of_all_processes() { return clock::now().time_since_epoch().count(); }

std::uint64_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::uint64_t>(std::distance(begin(all), end(all))) - 1;  // without the one that looks
}

int run_bare_member(const std::vector<std::string>& arguments) {
  member_times times{.entered = now_of_all_processes()};
  const std::string& folder = arguments.at(0);
  const int rank = std::stoi(arguments.at(1));
  const int size = std::stoi(arguments.at(2));
  const descriptor listener = listen_at(path_of(folder, rank), size);
  char ready = 1;
  write_all(control_descriptor, &ready, 1);
  if (!read_all(control_descriptor, &ready, 1)) return 1;
  times.initialised = now_of_all_processes();

  std::vector<descriptor> others;
  for (int other = 0; other != rank; ++other) others.push_back(connect_to(path_of(folder, other)));
  for (int other = rank + 1; other != size; ++other) {
    others.emplace_back(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (others.back().get() < 0) throw std::system_error(errno, std::generic_category(), "accept");
  }
  // A request and an answer of 64 bytes in each direction; what is under way fits into the sockets.
  char message[64] = {};
  for (const descriptor& each : others) write_all(each.get(), message, sizeof message);
  for (int answers = 0; answers != 2; ++answers) {
    for (const descriptor& each : others) {
      if (!read_all(each.get(), message, sizeof message)) return 1;
      if (answers == 0) write_all(each.get(), message, sizeof message);
    }
  }
  times.called = now_of_all_processes();
  times.descriptors = open_descriptors();
  write_all(control_descriptor, &times, sizeof times);
  return 0;
}

}  // namespace ferry_bench
