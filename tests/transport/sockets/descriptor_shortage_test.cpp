// A process without file descriptors keeps what it needs to accept, and to hear from others.

#include <doctest/doctest.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ferry/test_kit/transport_kit.hpp>
#include "processes.hpp"
#include "raw_socket.hpp"
#include "transport/sockets/descriptor_reserve.hpp"
#include "transport/sockets/handshake.hpp"

namespace descriptor_shortage_test {

namespace {

using namespace ferry::test_kit;
namespace d = ferry::detail;

void limit_descriptors(rlim_t most) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = most;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) throw std::runtime_error("setrlimit failed");
}

std::vector<d::unique_fd> take_all_descriptors() {
  std::vector<d::unique_fd> all;
  for (int fd = 0; (fd = ::fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0;) all.emplace_back(fd);
  return all;
}

ferry::hello for_control(ferry::hello from) {
  from.features |= ferry::feature_control;
  return from;
}

// Says where it listens, then does what each line says, and prints what came of it.
int be_short(const std::vector<std::string>&) {
  limit_descriptors(128);
  captured_log log;
  const auto loop = test_reactor();
  const auto over = ferry::transport_traits<ferry::tcp>::open(*loop);
  const auto server = std::make_shared<accepting_worker>("server");
  const std::string address = over->listen("group", "server", "", {}, server).front();
  std::vector<d::unique_fd> taken;
  std::vector<ferry::connect_result> kept;
  ferry_test::tell_parent(address);
  for (;;) {
    const std::string order = ferry_test::ask_parent();
    if (order == "take") {
      taken = take_all_descriptors();
      ferry_test::tell_parent("taken");
    } else if (order == "release") {
      taken.clear();
      ferry_test::tell_parent("released");
    } else if (order == "dial" || order == "dial for control") {
      const auto hello = order == "dial" ? hello_to("server") : for_control(hello_to("server"));
      auto result = ferry::test_kit::connect(*over, address, hello);
      if (result.opened) {
        ferry_test::tell_parent("opened");
        kept.push_back(std::move(result));
      } else {
        const auto [kind, text] = failure_of(result);
        ferry_test::tell_parent(std::string(ferry::errc_name(kind)) + (result.gone ? " gone: " : ": ") + text);
      }
    } else if (order == "warnings") {
      ferry_test::tell_parent(std::to_string(log.count("RLIMIT_NOFILE is 128")));
    } else {
      break;
    }
  }
  over->unlisten("group", "server");
  return 0;
}

const ferry_test::role short_role("short of descriptors", &be_short);

}  // namespace

TEST_CASE("a process without descriptors refuses data connections in words, and opens and accepts those for control") {
  ferry_test::child_process child({.role = "short of descriptors"});
  const std::string address = child.read_line();
  const auto ask = [&](const std::string& order) {
    child.write_line(order);
    return child.read_line();
  };
  const auto loop = test_reactor();
  const auto over = ferry::transport_traits<ferry::tcp>::open(*loop);
  CHECK(ask("dial") == "opened");
  CHECK(ask("take") == "taken");

  // Those that it opens itself.
  const std::string refused = ask("dial");
  CHECK_MESSAGE(refused.starts_with("resource_exhausted: "), refused);
  CHECK_MESSAGE(refused.find("RLIMIT_NOFILE is 128") != std::string::npos, refused);
  CHECK(ask("dial for control") == "opened");

  // Those that it accepts: many more than there are descriptors held back.
  for (int i = 0; i != 40; ++i) {
    const auto [kind, text] = failure_of(ferry::test_kit::connect(*over, address, hello_to("server")));
    REQUIRE_MESSAGE(kind == ferry::errc::resource_exhausted, text);
    REQUIRE_MESSAGE(text.find("RLIMIT_NOFILE is 128") != std::string::npos, text);
  }
  const auto control = ferry::test_kit::connect(*over, address, for_control(hello_to("server")));
  CHECK(control.opened);
  CHECK(ask("warnings") == "1");

  CHECK(ask("release") == "released");
  CHECK(ferry::test_kit::connect(*over, address, hello_to("server")).opened);
  CHECK(ask("dial") == "opened");
  child.write_line("end");
  CHECK(child.wait() == 0);
}

TEST_CASE("a descriptor that a handshake gives back goes to the reserve, and to nothing else") {
  d::descriptor_reserve reserve(3);
  CHECK(reserve.fill());
  CHECK(reserve.release_one(2));
  CHECK_FALSE(reserve.release_one(2));
  d::unique_fd fd(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  const int number = fd.get();
  reserve.take_back(std::move(fd));
  CHECK(::fcntl(number, F_GETFD) == FD_CLOEXEC);  // open, as something else
  char zero = 1;
  CHECK(::read(number, &zero, 1) == 0);
  CHECK(reserve.fill());

  d::unique_fd further(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  const int closed = further.get();
  reserve.take_back(std::move(further));
  CHECK(::fcntl(closed, F_GETFD) == -1);
}

}  // namespace descriptor_shortage_test
