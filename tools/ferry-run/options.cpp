#include "options.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "../../src/base/parse_number.hpp"

namespace ferry_run {

using ferry::detail::parse_number;

namespace {

int to_workers(const std::string& text) {
  const auto value = parse_number<int>(text);
  if (!value || *value < 1 || *value > largest_worker_count) {
    throw usage_error("the number of workers must be 1 to " + std::to_string(largest_worker_count) + ", not '" + text +
                      "'");
  }
  return *value;
}

std::uint16_t to_port(const std::string& text, const std::string& origin) {
  const auto value = parse_number<int>(text);
  if (!value || *value < 1 || *value > 65535)
    throw usage_error(origin + " must be a port, 1 to 65535, not '" + text + "'");
  return static_cast<std::uint16_t>(*value);
}

std::chrono::milliseconds to_duration(const std::string& text, const std::string& origin) {
  const auto value = parse_number<double>(text);
  if (!value || !std::isfinite(*value) || *value < 0 || *value > 86400) {
    throw usage_error(origin + " must be seconds, 0 to 86400, not '" + text + "'");
  }
  return std::chrono::milliseconds(std::llround(*value * 1000));
}

int to_nodes(const std::string& text) {
  const auto value = parse_number<int>(text);
  if (!value || *value < 1 || *value > largest_node_count) {
    throw usage_error("--nnodes must be a number of nodes, 1 to " + std::to_string(largest_node_count) + ", not '" +
                      text + "'");
  }
  return *value;
}

int to_node_rank(const std::string& text) {
  const auto value = parse_number<int>(text);
  if (!value || *value < 0 || *value >= largest_node_count)
    throw usage_error("--node-rank must be 0 to " + std::to_string(largest_node_count - 1) + ", not '" + text + "'");
  return *value;
}

std::string to_id(const std::string& text) {
  const bool harmless = std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '_' ||
           c == '-';
  });
  if (!harmless || text.size() > 64)
    throw usage_error("--rdzv-id must be up to 64 letters, digits, '.', '_' and '-', not '" + text + "'");
  return text;
}

endpoint to_endpoint(const std::string& text) {
  const auto colon = text.rfind(':');
  endpoint result;
  if (colon != std::string::npos) {
    result.host = text.substr(0, colon);
    result.port = to_port(text.substr(colon + 1), "the port of --rdzv");
  }
  if (result.host.starts_with('[') && result.host.ends_with(']')) {
    result.host = result.host.substr(1, result.host.size() - 2);
  } else if (result.host.find(':') != std::string::npos) {
    throw usage_error("write the IPv6 address of --rdzv in brackets, [HOST]:PORT, not '" + text + "'");
  }
  if (result.host.empty()) throw usage_error("--rdzv must be HOST:PORT, not '" + text + "'");
  if (result.host == "0.0.0.0" || result.host == "::" || result.host.find_first_of(" \n") != std::string::npos)
    throw usage_error("--rdzv must name an address of node 0 that the other nodes can reach, not '" + result.host +
                      "'");
  return result;
}

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): one thread
  return value ? value : "";
}

// As ferry::unauthenticated_allowed_by_environment(); ferry-run does without the library.
bool unauthenticated_allowed() {
  const std::string value = from_environment("FERRY_ALLOW_UNAUTHENTICATED");
  if (value.empty() || value == "0" || value == "false") return false;
  if (value == "1" || value == "true") return true;
  throw usage_error("FERRY_ALLOW_UNAUTHENTICATED is '" + value + "'; it must be 1 or 0 (true or false)");
}

/// The arguments one after the other, with "--name=value" and "-nVALUE" split.
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
    // torchrun accepts both.
    if (text.starts_with("--")) std::replace(text.begin(), text.end(), '_', '-');
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
    if (name == "-n" || name == "--workers" || name == "--nproc-per-node") {
      result.workers = to_workers(reader.value(name));
    } else if (name == "--port" || name == "--master-port") {
      result.port = to_port(reader.value(name), name);
    } else if (name == "--addr" || name == "--master-addr") {
      result.address = reader.value(name);
      if (result.address.empty()) throw usage_error(name + " must not be empty");
      if (result.address.find_first_of(" \n") != std::string::npos) throw usage_error(name + " must be one word");
    } else if (name == "--grace") {
      result.grace = to_duration(reader.value(name), name);
    } else if (name == "--flight-records") {
      result.flight_records = reader.value(name);
      if (result.flight_records.empty()) throw usage_error(name + " must name a directory");
    } else if (name == "--nnodes") {
      result.nodes = to_nodes(reader.value(name));
    } else if (name == "--node-rank") {
      result.node_rank = to_node_rank(reader.value(name));
    } else if (name == "--rdzv" || name == "--rdzv-endpoint") {
      result.meet_at = to_endpoint(reader.value(name));
    } else if (name == "--rdzv-id") {
      result.job_id = to_id(reader.value(name));
    } else if (name == "--rdzv-timeout") {
      result.meeting_limit = to_duration(reader.value(name), name);
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
  if (result.workers == 0) throw usage_error("give the number of workers to start: -n COUNT");
  if (result.command.empty() || result.command.front().empty()) throw usage_error("name the program to run");

  if (result.node_rank.value_or(0) >= result.nodes) {
    throw usage_error("--node-rank " + std::to_string(*result.node_rank) + " is not below --nnodes " +
                      std::to_string(result.nodes));
  }
  if (result.nodes > 1 && !result.meet_at.host.empty()) {
    if (result.port != 0 && result.port == result.meet_at.port)
      throw usage_error("--port and the port of --rdzv must differ: the workers and ferry-run each listen on one");
  } else {
    // In a worker of another run these two are where that run meets: of no use to workers of this machine.
    const bool inside_another = result.nodes == 1 && !from_environment("RANK").empty();
    const std::string address = inside_another ? std::string() : from_environment("MASTER_ADDR");
    if (result.address.empty()) result.address = address;
    const std::string port = inside_another ? std::string() : from_environment("MASTER_PORT");
    if (result.port == 0 && !port.empty()) result.port = to_port(port, "MASTER_PORT in the environment");
    if (result.nodes > 1) {
      if (result.address.empty() || result.port == 0)
        throw usage_error("give the rendezvous address of the " + std::to_string(result.nodes) +
                          " nodes: --rdzv HOST:PORT");
      result.meet_at = {std::exchange(result.address, {}), std::exchange(result.port, std::uint16_t{0})};
    } else if (result.address.empty()) {
      result.address = "127.0.0.1";
    }
  }
  result.wants_secret = result.nodes == 1 && from_environment("FERRY_SECRET").empty() &&
                        from_environment("FERRY_SECRET_FILE").empty() && !unauthenticated_allowed();
  return result;
}

}  // namespace ferry_run
