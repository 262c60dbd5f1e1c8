#include "options.hpp"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

namespace ferry_run {

const char* const usage_text = R"(usage: ferry-run -n COUNT [OPTIONS] [--] PROGRAM [ARGUMENTS]

Starts COUNT workers of PROGRAM on this machine and waits for them. Each one finds in its environment
  RANK, LOCAL_RANK              its number, 0 to COUNT-1
  WORLD_SIZE, LOCAL_WORLD_SIZE  COUNT
  MASTER_ADDR, MASTER_PORT      where worker 0 serves the rendezvous

  -n, --workers COUNT  how many, 1 to 4096
  --port PORT          MASTER_PORT; default: $MASTER_PORT, else a free port
  --addr ADDRESS       MASTER_ADDR; default: $MASTER_ADDR, else 127.0.0.1
  --grace SECONDS      how long workers may take to end after a signal or a failure before they are killed; default 10
  --help, --version

Each line that a worker writes is passed on with its rank before it: "[2] text". Workers read nothing on standard input.
SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to all workers and their children.
When a worker fails, the others are ended: SIGTERM, then SIGKILL after the grace time. What a worker leaves behind in its
process group ends with it.

Exit status: 0 if all workers succeeded, else that of the first that failed (128 + N if signal N ended it); 127 if the
program was not found, 126 if it cannot be run, 2 for a wrong command line, 125 for a failure of ferry-run itself.
)";

namespace {

template <class Number>
std::optional<Number> to_number(std::string_view text) {
  Number value{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

int to_workers(const std::string& text) {
  const auto value = to_number<int>(text);
  if (!value || *value < 1 || *value > largest_worker_count) {
    throw usage_error("the number of workers must be 1 to " + std::to_string(largest_worker_count) + ", not '" + text +
                      "'");
  }
  return *value;
}

std::uint16_t to_port(const std::string& text, const std::string& origin) {
  const auto value = to_number<int>(text);
  if (!value || *value < 1 || *value > 65535)
    throw usage_error(origin + " must be a port, 1 to 65535, not '" + text + "'");
  return static_cast<std::uint16_t>(*value);
}

std::chrono::milliseconds to_grace(const std::string& text) {
  const auto value = to_number<double>(text);
  if (!value || !std::isfinite(*value) || *value < 0 || *value > 86400) {
    throw usage_error("--grace must be seconds, 0 to 86400, not '" + text + "'");
  }
  return std::chrono::milliseconds(std::llround(*value * 1000));
}

/// The arguments one after the other, with "--name=value" and "-nVALUE" taken apart.
class argument_reader {
 public:
  argument_reader(int argc, char** argv) : rest_(argv + 1, argv + argc) {}

  [[nodiscard]] bool more_options() const {
    return at_ < rest_.size() && rest_[at_].size() > 1 && rest_[at_][0] == '-';
  }
  /// The name of the next option.
  std::string name() {
    std::string text = rest_[at_++];
    attached_.reset();
    const auto equals = text.find('=');
    if (text.starts_with("--") && equals != std::string::npos) {
      attached_ = text.substr(equals + 1);
      text.resize(equals);
    } else if (text.starts_with("-n") && text.size() > 2) {
      attached_ = text.substr(2);
      text.resize(2);
    }
    return text;
  }
  std::string value(const std::string& name) {
    if (attached_) return *std::exchange(attached_, std::nullopt);
    if (at_ == rest_.size()) throw usage_error(name + " needs a value");
    return rest_[at_++];
  }
  void expect_no_value(const std::string& name) const {
    if (attached_) throw usage_error(name + " takes no value");
  }
  [[nodiscard]] std::vector<std::string> remaining() const {
    return {rest_.begin() + static_cast<std::ptrdiff_t>(at_), rest_.end()};
  }

 private:
  std::vector<std::string> rest_;
  std::size_t at_ = 0;
  std::optional<std::string> attached_;
};

}  // namespace

options parse(int argc, char** argv) {
  options result;
  argument_reader reader(argc, argv);
  while (reader.more_options()) {
    const std::string name = reader.name();
    if (name == "--") break;
    if (name == "-n" || name == "--workers") {
      result.workers = to_workers(reader.value(name));
    } else if (name == "--port") {
      result.port = to_port(reader.value(name), name);
    } else if (name == "--addr") {
      result.address = reader.value(name);
      if (result.address.empty()) throw usage_error("--addr must not be empty");
    } else if (name == "--grace") {
      result.grace = to_grace(reader.value(name));
    } else if (name == "-h" || name == "--help") {
      reader.expect_no_value(name);
      result.show_help = true;
      return result;
    } else if (name == "--version") {
      reader.expect_no_value(name);
      result.show_version = true;
      return result;
    } else {
      throw usage_error("unknown option '" + name + "'");
    }
  }
  result.command = reader.remaining();
  if (result.workers == 0) throw usage_error("say how many workers to start: -n COUNT");
  if (result.command.empty() || result.command.front().empty()) throw usage_error("name the program to run");

  const char* address = std::getenv("MASTER_ADDR");  // NOLINT(concurrency-mt-unsafe): one thread
  if (result.address.empty()) result.address = address && *address ? address : "127.0.0.1";
  const char* port = std::getenv("MASTER_PORT");  // NOLINT(concurrency-mt-unsafe)
  if (result.port == 0 && port && *port) result.port = to_port(port, "MASTER_PORT in the environment");
  return result;
}

}  // namespace ferry_run
