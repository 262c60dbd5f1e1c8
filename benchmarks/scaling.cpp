// What many peers cost one worker.
//
//   clients/TRANSPORT/N     N processes that each make one small call after another to a server: calls per second in all, and how long
//                           one takes; baseline: as many processes with a unix socket each and a server that waits for all of them
//                           with epoll, whose messages have the same size
//   connections/TRANSPORT/N a server to which N workers are connected that do nothing: memory for each of them, descriptors, and
//                           the processor time that the server uses

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <sys/epoll.h>
#include <sys/socket.h>

#include <ferry/ferry.hpp>

#include "support/handlers.hpp"
#include "support/options.hpp"
#include "support/process.hpp"
#include "support/report.hpp"
#include "support/statistics.hpp"

namespace ferry_bench {
namespace {

using namespace std::chrono_literals;

// Of add(): frame header and arguments.
constexpr std::size_t small_message = ferry::frame_header::encoded_size + 8;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

// What a client reports to its parent for a window.
struct client_result {
  double calls = 0;
  double p50_us = 0;
};

void await_end() {
  char ignored = 0;
  (void)read_all(control_descriptor, &ignored, 1);
}

// Says that it is ready, then measures a window each time that its parent names one, until that closes the socket.
int measure_windows(const std::function<void()>& call) {
  for (int warm = 0; warm != 20; ++warm) call();
  char ready = 1;
  write_all(control_descriptor, &ready, 1);
  std::int64_t window_ns = 0;
  while (read_all(control_descriptor, &window_ns, sizeof window_ns)) {
    std::vector<double> samples = time_each(std::chrono::nanoseconds(window_ns), 1, call);
    client_result found{.calls = static_cast<double>(samples.size()) * 1e9 / static_cast<double>(window_ns)};
    found.p50_us = quantile(samples, 0.5);
    write_all(control_descriptor, &found, sizeof found);
  }
  return 0;
}

// ---------------------------------------------------------------- ferry

ferry::worker_config member(const std::string& meeting, const std::string& transport, int rank, int size) {
  ferry::worker_config config{.rank = rank, .world_size = size, .init_method = meeting};
  config.transports = {transport};
  config.transport.bind = "127.0.0.1";
  config.init_timeout = 120s;
  config.exit_timeout = 60s;
  return config;
}

// Arguments: init method, transport, rank, size.
ferry::worker start(const std::vector<std::string>& arguments) {
  return ferry::init_rpc(
      member(arguments.at(0), arguments.at(1), std::stoi(arguments.at(2)), std::stoi(arguments.at(3))));
}

// Arguments: those of start(), then "at once" if it does not wait for the others at its end.
int serve(const std::vector<std::string>& arguments) {
  ferry::worker self = start(arguments);
  char ready = 1;
  write_all(control_descriptor, &ready, 1);
  await_end();
  self.shutdown(arguments.size() == 4);
  return 0;
}

int call_server(const std::vector<std::string>& arguments) {
  ferry::worker self = start(arguments);
  const int result = measure_windows([&] { (void)self.rpc_sync<remote::add>(ferry::worker_id{0}, 1, 2); });
  self.shutdown();
  return result;
}

// Arguments: those of start(), where the rank is that of the first, and a number of workers. Each calls the server once.
int be_many(const std::vector<std::string>& arguments) {
  const int first = std::stoi(arguments.at(2));
  const int count = std::stoi(arguments.at(4));
  std::vector<ferry::worker> workers(static_cast<std::size_t>(count));
  const auto each = [&](const std::function<void(int)>& action) {
    std::vector<std::jthread> threads;
    for (int i = 0; i != count; ++i) threads.emplace_back([&, i] { action(i); });
  };
  each([&](int i) {
    workers[static_cast<std::size_t>(i)] =
        ferry::init_rpc(member(arguments.at(0), arguments.at(1), first + i, std::stoi(arguments.at(3))));
  });
  char step = 1;
  write_all(control_descriptor, &step, 1);
  if (!read_all(control_descriptor, &step, 1)) return 1;
  for (const ferry::worker& each_worker : workers) (void)each_worker.rpc_sync<remote::add>(ferry::worker_id{0}, 1, 2);
  write_all(control_descriptor, &step, 1);
  await_end();
  each([&](int i) { workers[static_cast<std::size_t>(i)].shutdown(false); });
  return 0;
}

// ---------------------------------------------------------------- the baseline

// Arguments: the path of its socket.
int serve_bare(const std::vector<std::string>& arguments) {
  const descriptor listener = listen_at(arguments.at(0), 128);
  const descriptor poll(::epoll_create1(EPOLL_CLOEXEC));
  const auto watch = [&](int which) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP;
    event.data.fd = which;
    if (::epoll_ctl(poll.get(), EPOLL_CTL_ADD, which, &event) != 0) fail("epoll_ctl");
  };
  watch(listener.get());
  watch(control_descriptor);
  char ready = 1;
  write_all(control_descriptor, &ready, 1);
  std::vector<descriptor> clients;
  std::array<epoll_event, 64> events{};
  std::array<char, small_message> message{};
  for (;;) {
    const int count = ::epoll_wait(poll.get(), events.data(), static_cast<int>(events.size()), -1);
    if (count < 0 && errno != EINTR) fail("epoll_wait");
    for (int i = 0; i < count; ++i) {
      const int which = events.at(static_cast<std::size_t>(i)).data.fd;
      if (which == control_descriptor) return 0;
      if (which == listener.get()) {
        clients.emplace_back(::accept4(which, nullptr, nullptr, SOCK_CLOEXEC));
        watch(clients.back().get());
      } else if (read_all(which, message.data(), message.size())) {
        write_all(which, message.data(), message.size());
      } else if (::epoll_ctl(poll.get(), EPOLL_CTL_DEL, which, nullptr) != 0) {
        fail("epoll_ctl");
      }
    }
  }
}

int call_bare(const std::vector<std::string>& arguments) {
  const descriptor socket = connect_to(arguments.at(0));
  std::array<char, small_message> message{};
  return measure_windows([&] {
    write_all(socket.get(), message.data(), message.size());
    if (!read_all(socket.get(), message.data(), message.size())) throw std::runtime_error("the server has gone");
  });
}

// ---------------------------------------------------------------- the measurements

void await_ready(const child_process& of) {
  char ready = 0;
  if (!read_all(of.control(), &ready, 1)) throw std::runtime_error("a process has failed");
}

// A server and its clients, in processes.
class crowd {
 public:
  void add_server(const char* role, const std::vector<std::string>& arguments) {
    server_ = child_process(role, arguments);
  }
  void add_client(const char* role, const std::vector<std::string>& arguments) {
    clients_.emplace_back(role, arguments);
  }
  void await_server() { await_ready(server_); }
  void await_clients() {
    for (const child_process& each : clients_) await_ready(each);
  }
  // All clients at once: calls per second in all, and the median of their medians.
  client_result measure(std::chrono::nanoseconds window) {
    const std::int64_t length = window.count();
    for (const child_process& each : clients_) write_all(each.control(), &length, sizeof length);
    client_result all;
    std::vector<double> medians;
    for (const child_process& each : clients_) {
      client_result one;
      if (!read_all(each.control(), &one, sizeof one)) throw std::runtime_error("a client has failed");
      all.calls += one.calls;
      medians.push_back(one.p50_us);
    }
    all.p50_us = quantile(medians, 0.5);
    return all;
  }
  [[nodiscard]] pid_t server() const noexcept { return server_.id(); }
  [[nodiscard]] const std::vector<child_process>& clients() const noexcept { return clients_; }
  // A graceful shutdown waits for all.
  void stop() {
    server_.ask_to_stop();
    for (child_process& each : clients_) each.ask_to_stop();
    for (child_process& each : clients_) each.stop();
    server_.stop();
  }

 private:
  child_process server_;
  std::vector<child_process> clients_;
};

void measure_clients(report& out, const options& chosen, const std::string& transport, int count) {
  const std::string prefix = "clients/" + transport + "/" + std::to_string(count) + "/";
  if (!chosen.wants(prefix)) return;
  const auto window = chosen.window_or(300ms);
  const std::string meeting = "tcp://127.0.0.1:" + std::to_string(free_port());  // the server serves the store, too
  const auto arguments = [&](int rank) -> std::vector<std::string> {
    return {meeting, transport, std::to_string(rank), std::to_string(count + 1)};
  };
  crowd with;
  with.add_server("server", arguments(0));
  for (int rank = 1; rank <= count; ++rank) with.add_client("client", arguments(rank));
  with.await_server();
  with.await_clients();

  crowd bare;
  if (!chosen.alone) {
    std::string folder = (std::filesystem::temp_directory_path() / "ferry_scaling_XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr) fail("mkdtemp");
    bare.add_server("bare-server", {folder + "/s"});
    bare.await_server();
    for (int i = 0; i != count; ++i) bare.add_client("bare-client", {folder + "/s"});
    bare.await_clients();
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }

  repeated rate;
  repeated bare_rate;
  repeated one;
  repeated bare_one;
  for (int repeat = 0; repeat != chosen.repeats; ++repeat) {
    if (!chosen.alone) {
      const client_result theirs = bare.measure(window);
      bare_rate.add(theirs.calls);
      bare_one.add(theirs.p50_us);
    }
    const client_result ours = with.measure(window);
    rate.add(ours.calls);
    one.add(ours.p50_us);
  }
  out.section(prefix);
  const auto n = static_cast<std::size_t>(chosen.repeats);
  out.add(prefix + "calls", rate, "/s", "sockets and epoll", chosen.alone ? nullptr : &bare_rate, n);
  out.add(prefix + "one-call", one, "us", "sockets and epoll", chosen.alone ? nullptr : &bare_one, n);
  with.stop();
  if (!chosen.alone) bare.stop();
}

double descriptors_of(pid_t process) {
  const std::filesystem::directory_iterator all("/proc/" + std::to_string(process) + "/fd");
  return static_cast<double>(std::distance(begin(all), end(all)));
}

void measure_connections(report& out, const options& chosen, const std::string& transport, int count) {
  const std::string prefix = "connections/" + transport + "/" + std::to_string(count) + "/";
  if (!chosen.wants(prefix)) return;
  constexpr int in_one_process = 250;
  const auto length = chosen.window.count() != 0 ? std::chrono::nanoseconds(chosen.window)
                                                 : std::chrono::nanoseconds(chosen.quick ? 2s : 10s);
  const std::string meeting = "tcp://127.0.0.1:" + std::to_string(free_port());  // the server serves the store, too
  crowd all;
  const std::string size = std::to_string(count + 1);
  all.add_server("server", {meeting, transport, "0", size, "at once"});
  for (int first = 1; first <= count; first += in_one_process) {
    all.add_client("many", {meeting, transport, std::to_string(first), size,
                            std::to_string(std::min(in_one_process, count + 1 - first))});
  }
  all.await_server();
  all.await_clients();
  const double memory = resident_kib(all.server());
  const double descriptors = descriptors_of(all.server());
  char step = 1;
  for (const child_process& each : all.clients()) {
    write_all(each.control(), &step, 1);
    await_ready(each);
  }
  std::this_thread::sleep_for(3s);  // heartbeats have connections of their own, which the first ticks open
  const double memory_then = resident_kib(all.server());
  const double before = processor_seconds(all.server());
  const auto started = clock::now();
  std::this_thread::sleep_for(length);
  const double used = processor_seconds(all.server()) - before;
  const double seconds = std::chrono::duration<double>(clock::now() - started).count();
  out.section(prefix);
  out.add({.name = prefix + "memory-of-one", .value = (memory_then - memory) / count, .unit = "KiB", .n = 1});
  out.add({.name = prefix + "descriptors-of-one",
           .value = (descriptors_of(all.server()) - descriptors) / count,
           .unit = "",
           .n = 1});
  out.add({.name = prefix + "server-idle", .value = 100 * used / seconds, .unit = "% core", .n = 1});
  all.stop();
}

}  // namespace
}  // namespace ferry_bench

int main(int argc, char** argv) {
  using namespace ferry_bench;
  run_role(argc, argv,
           {{"server", serve},
            {"client", call_server},
            {"many", be_many},
            {"bare-server", serve_bare},
            {"bare-client", call_bare}});
  const options chosen = read_options(argc, argv, "scaling: what many clients and many connections cost a worker");
  end_after(chosen.limit.count() != 0 ? chosen.limit : std::chrono::seconds(600));
  ferry::set_log_level(ferry::log_level::error);
  try {
    report out("scaling", chosen);
    for (const std::string transport : {"unix", "tcp", "shm"}) {
      for (const int count : {1, 2, 4, 16, 64}) measure_clients(out, chosen, transport, count);
    }
    for (const std::string transport : {"unix", "tcp", "shm"}) measure_connections(out, chosen, transport, 1000);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "scaling: %s\n", e.what());
    return 1;
  }
}
