#include "peer_process.hpp"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport_kit.hpp"

namespace transport_kit {
namespace {

constexpr int report_descriptor = 3;  // where the child writes its address
constexpr const char* transport_variable = "FERRY_TEST_PEER_TRANSPORT";
constexpr const char* bind_variable = "FERRY_TEST_PEER_BIND";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

template <class... Tags>
std::shared_ptr<ferry::transport> open_by_name(ferry::reactor& loop, const std::string& name,
                                               ferry::transport_list<Tags...>) {
  for (const auto& factory : ferry::transport_list<Tags...>::factories()) {
    if (factory.name == name) return factory.open(loop);
  }
  throw std::runtime_error("no transport " + name);
}

}  // namespace

peer_process::peer_process(const std::string& transport, const std::string& bind) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], report_descriptor);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);

  std::vector<std::string> settings{std::string(transport_variable) + "=" + transport,
                                    std::string(bind_variable) + "=" + bind};
  std::vector<char*> environment;
  for (char** at = environ; *at; ++at) environment.push_back(*at);
  for (auto& setting : settings) environment.push_back(setting.data());
  environment.push_back(nullptr);
  std::vector<std::string> arguments{"peer", "--no-skip", "--test-case=peer process"};
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const int failure = ::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environment.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  char byte = 0;
  if (failure == 0) {
    while (true) {
      const auto got = ::read(ends[0], &byte, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0 || byte == '\n') break;
      address_ += byte;
    }
  }
  ::close(ends[0]);
  if (failure != 0 || byte != '\n') throw std::runtime_error("the peer process did not start");
}

peer_process::~peer_process() {
  if (pid_ > 0) kill();
}

void peer_process::kill() {
  ::kill(pid_, SIGKILL);
  wait_for_exit();
}

int peer_process::wait_for_exit() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_CASE("peer process" * doctest::skip()) {  // run by peer_process alone
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto loop = test_reactor();
  const auto over = open_by_name(*loop, variable(transport_variable), ferry::default_transports());
  const auto echo = std::make_shared<accepting_worker>("echo");
  echo->prepare = [](recorder& log) {
    log.forget_messages();
    log.on_arrival = [](ferry::connection& from, ferry::inbound_message& message) {
      from.send(make_message(message.header.call_id, message.payload.size(), std::move(message.tensors)));
    };
  };
  ferry::transport_options options;
  options.bind = variable(bind_variable);
  const auto address = over->listen("group", "echo", "", options, echo).front() + "\n";
  REQUIRE(::write(report_descriptor, address.data(), address.size()) == static_cast<ssize_t>(address.size()));
  const auto [far_end, log] = echo->accepted();
  CHECK(log->wait_closed());
  over->unlisten("group", "echo");
}

}  // namespace transport_kit
