// Calls of ferry beside those of other libraries: PyTorch's RPC agent, TensorPipe, gRPC, Cap'n Proto, ZeroMQ and UCX, of those that are
// installed (./dev install-packages peers). Each of them is a program of its own in peers/, which takes turns with ferry.
//
//   call  one call at a time with 64 bytes there and back, in a string; PyTorch: the sum of two numbers
//   rate  calls per second, 64 in flight: two numbers and their sum, 8 bytes each way
//   send  a tensor of 64 KiB, 1 MiB or 16 MiB, answered by a number; libraries without tensors: as many bytes
//
// ferry has its default options and tensors that it keeps for the next one. What the others do is on top of each program.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <ferry/ferry.hpp>
#include <ferry/tensor/factories.hpp>

#include "support/affinity.hpp"
#include "support/calls_in_flight.hpp"
#include "support/handlers.hpp"
#include "support/options.hpp"
#include "support/peer_program.hpp"
#include "support/report.hpp"
#include "support/statistics.hpp"
#include "support/worker_pair.hpp"

namespace ferry_bench {
namespace {

using namespace std::chrono_literals;

struct measurement {
  const char* name;
  const char* what;  // of the programs
  std::size_t bytes;
};
constexpr measurement measurements[] = {{"call", "call", 64},
                                        {"rate", "rate", 8},
                                        {"send/64KiB", "send", std::size_t{64} << 10U},
                                        {"send/1MiB", "send", std::size_t{1} << 20U},
                                        {"send/16MiB", "send", std::size_t{16} << 20U}};

bool is_rate(const measurement& of) { return std::string_view(of.what) == "rate"; }

// The numbers of the processors of the caller and the callee, for programs; -1: any.
std::string processors_of(pin_mode pin) {
  if (pin == pin_mode::unpinned) return "-1 -1";
  const int caller = processors().front();
  return std::to_string(caller) + " " + std::to_string(pin == pin_mode::two_cores ? processors().back() : caller);
}

struct outcome {
  double p50 = 0;  // or per second
  std::size_t n = 0;
};

// Another library's, which says nothing about the rest.
struct peer_failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A library that ferry is compared with.
class library {
 public:
  library(const char* name, std::vector<std::string> transports) : name_(name), transports_(std::move(transports)) {}
  virtual ~library() = default;
  library(const library&) = delete;
  library& operator=(const library&) = delete;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] virtual bool there() const = 0;
  /// Its version, and how it is used.
  [[nodiscard]] virtual std::string about() const = 0;
  [[nodiscard]] virtual bool has(const measurement& what, const std::string& transport, pin_mode pin) const {
    (void)what;
    (void)pin;
    for (const std::string& each : transports_) {
      if (each == transport) return true;
    }
    return false;
  }
  /// Whether ferry is to be ahead of it: it does the same work.
  [[nodiscard]] virtual bool is_measure() const noexcept { return true; }
  [[nodiscard]] virtual outcome measure(const measurement& what, const std::string& transport, pin_mode pin,
                                        std::chrono::milliseconds window) const = 0;

 private:
  std::string name_;
  std::vector<std::string> transports_;
};

class program_library final : public library {
 public:
  program_library(const char* name, const char* program, std::vector<std::string> transports)
      : library(name, std::move(transports)), program_(program) {}
  [[nodiscard]] bool there() const override { return program_.there(); }
  [[nodiscard]] std::string about() const override {
    std::string line = program_.ask("about");
    while (!line.empty() && line.back() == '\n') line.pop_back();
    return line;
  }
  [[nodiscard]] outcome measure(const measurement& what, const std::string& transport, pin_mode pin,
                                std::chrono::milliseconds window) const override {
    std::istringstream line(ask(std::string(what.what) + " " + transport + " " + std::to_string(what.bytes) + " " +
                                processors_of(pin) + " " + std::to_string(window.count())));
    outcome found;
    double p99 = 0;
    if (!(line >> found.p50 >> p99 >> found.n)) throw peer_failure(name() + " printed no figures");
    return found;
  }

 private:
  [[nodiscard]] std::string ask(const std::string& arguments) const {
    try {
      return program_.ask(arguments);
    } catch (const std::runtime_error& e) {
      throw peer_failure(e.what());
    }
  }

  peer_program program_;
};

// Both its ends poll without a pause: a row for orientation. With one processor for both it makes no progress.
class ucx final : public library {
 public:
  ucx() : library("ucx", {"tcp", "shm"}), script_("ucx_messages.py", "subprocess") {
    try {
      script_.run("about", [this](const std::string& line) { about_ = line.substr(0, line.find('\n')); });
    } catch (const std::runtime_error&) {
      about_.clear();  // it is not installed
    }
  }
  [[nodiscard]] bool there() const override { return !about_.empty(); }
  [[nodiscard]] std::string about() const override { return about_; }
  [[nodiscard]] bool has(const measurement& what, const std::string& transport, pin_mode pin) const override {
    return library::has(what, transport, pin) && std::string_view(what.what) == "call" && pin == pin_mode::two_cores;
  }
  [[nodiscard]] bool is_measure() const noexcept override { return false; }
  [[nodiscard]] outcome measure(const measurement& what, const std::string& transport, pin_mode pin,
                                std::chrono::milliseconds window) const override {
    outcome found;
    script_.run(
        transport + " " + std::to_string(what.bytes) + " " + processors_of(pin) + " " + std::to_string(window.count()),
        [&](const std::string& line) { found.p50 = std::stod(line); });
    return found;
  }

 private:
  python_peer script_;
  std::string about_;
};

outcome measure_ferry(const ferry::worker& caller, const measurement& what, std::chrono::nanoseconds window) {
  if (is_rate(what)) return {continuations(caller, window), 1};
  std::vector<double> samples;
  if (std::string_view(what.what) == "call") {
    const std::string text(what.bytes, 'x');
    const auto call = [&] { (void)caller.rpc_sync<remote::echo>(callee, text); };
    for (int warm = 0; warm != 10; ++warm) call();
    samples = time_each(window, 3, call);
  } else {
    const ferry::tensor payload = ferry::zeros({static_cast<std::int64_t>(what.bytes / sizeof(float))});
    const auto call = [&] { (void)caller.rpc_sync<remote::numel>(callee, payload); };
    for (int warm = 0; warm != 10; ++warm) call();
    samples = time_each(window, 3, call);
  }
  outcome found{.n = samples.size()};
  found.p50 = quantile(samples, 0.5);
  return found;
}

// False if one of them failed.
bool measure(report& out, const options& chosen, const std::vector<std::unique_ptr<library>>& libraries,
             const std::string& transport, pin_mode pin) {
  const auto window = std::chrono::duration_cast<std::chrono::milliseconds>(chosen.window_or(250ms));
  bool all_good = true;
  std::optional<worker_pair> pair;
  for (const measurement& what : measurements) {
    const std::string prefix = transport + "/" + std::string(name_of(pin)) + "/" + what.name + "/";
    bool header = false;
    for (const auto& other : libraries) {
      const std::string name = prefix + other->name();
      if (!chosen.wants(name) || !other->has(what, transport, pin)) continue;
      if (!pair) pair.emplace(pair_options{.transport = transport}, pin);
      repeated ours;
      repeated theirs;
      std::size_t samples = 0;
      try {
        for (int repeat = 0; repeat != chosen.repeats; ++repeat) {
          theirs.add(other->measure(what, transport, pin, window).p50);
          pair->pin();
          const outcome here = measure_ferry(pair->caller(), what, window);
          ours.add(here.p50);
          samples += here.n;
        }
      } catch (const peer_failure& e) {
        std::fprintf(stderr, "peers: %s: %s\n", name.c_str(), e.what());
        all_good = false;
        continue;
      }
      if (!header) out.section(prefix);
      header = true;
      std::optional<target> wanted;
      if (other->is_measure()) wanted = target{1.0, is_rate(what), true};
      out.add(name, ours, is_rate(what) ? "/s" : "us", other->name(), &theirs, samples, wanted);
    }
  }
  return all_good;
}

}  // namespace
}  // namespace ferry_bench

int main(int argc, char** argv) {
  using namespace ferry_bench;
  run_role(argc, argv, worker_roles());
  const options chosen = read_options(
      argc, argv, "peers: calls beside those of other libraries (./dev install-packages peers), the median of each");
  end_after(chosen.limit.count() != 0 ? chosen.limit : std::chrono::seconds(1200));
  try {
    std::vector<std::unique_ptr<library>> libraries;
    libraries.push_back(
        std::make_unique<program_library>("torch", "torch_rpc_calls", std::vector<std::string>{"tcp", "shm"}));
    libraries.push_back(
        std::make_unique<program_library>("tensorpipe", "tensorpipe_calls", std::vector<std::string>{"tcp", "shm"}));
    libraries.push_back(
        std::make_unique<program_library>("grpc", "grpc_calls", std::vector<std::string>{"tcp", "unix"}));
    libraries.push_back(
        std::make_unique<program_library>("capnp", "capnp_calls", std::vector<std::string>{"tcp", "unix"}));
    libraries.push_back(
        std::make_unique<program_library>("zeromq", "zeromq_calls", std::vector<std::string>{"tcp", "unix"}));
    libraries.push_back(std::make_unique<ucx>());

    report out("peers", chosen);
    std::vector<std::unique_ptr<library>> found;
    for (auto& each : libraries) {
      if (each->there()) {
        out.say(each->name() + ": " + each->about());
        found.push_back(std::move(each));
      } else {
        out.say(each->name() + ": not installed");
      }
    }
    if (found.empty())
      throw std::runtime_error("none of these libraries is installed: ./dev install-packages peers torch");
    bool all_good = true;
    for (const pin_mode pin : chosen.pins_or({pin_mode::two_cores, pin_mode::same_core})) {
      for (const std::string transport : {"tcp", "unix", "shm"})
        all_good = measure(out, chosen, found, transport, pin) && all_good;
    }
    return all_good ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "peers: %s\n", e.what());
    return 1;
  }
}
