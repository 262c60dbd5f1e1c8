// The text format of Prometheus, read by a strict parser.

#include <cctype>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ferry.hpp>
#include <ferry/profiler.hpp>

#include "cluster.hpp"

namespace text_test {

namespace profiler = ferry::profiler;
using ferry::errc;
using profiler::call_metrics;
using profiler::call_side;
using profiler::metrics_snapshot;
using std::chrono::nanoseconds;

// ---------------------------------------------------------------- the parser

using labels = std::map<std::string, std::string>;
struct sample {
  std::string name;
  labels with;
  double value = 0;
};
struct family {
  std::string type;
  std::vector<sample> samples;
};

[[noreturn]] void refuse(std::string_view line, std::string_view why) {
  throw std::runtime_error(std::string(why) + ": " + std::string(line));
}

class line_reader {
 public:
  explicit line_reader(std::string_view line) : line_(line), rest_(line) {}
  std::string name(bool of_metric) {
    std::size_t size = 0;
    const auto fits = [&](char c) {
      return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || (c == ':' && of_metric) ||
             (size != 0 && std::isdigit(static_cast<unsigned char>(c)));
    };
    while (size != rest_.size() && fits(rest_[size])) ++size;
    if (size == 0) refuse(line_, "a name is missing");
    return take(size);
  }
  bool skip(char c) {
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void need(char c) {
    if (!skip(c)) refuse(line_, std::string("there is no '") + c + "'");
  }
  std::string quoted() {
    need('"');
    std::string text;
    for (;;) {
      if (rest_.empty()) refuse(line_, "a label does not end");
      const char c = take(1)[0];
      if (c == '"') return text;
      if (c != '\\') {
        text += c;
        continue;
      }
      const std::string escaped = rest_.empty() ? "" : take(1);
      if (escaped == "n") {
        text += '\n';
      } else if (escaped == "\\" || escaped == "\"") {
        text += escaped;
      } else {
        refuse(line_, "an unknown escape");
      }
    }
  }
  double number() {
    if (rest_ == "+Inf") return std::numeric_limits<double>::infinity();
    double value = 0;
    const auto [end, problem] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (problem != std::errc() || end != rest_.data() + rest_.size()) refuse(line_, "a number is expected");
    return value;
  }
  std::string rest() { return take(rest_.size()); }

 private:
  std::string take(std::size_t size) {
    std::string taken(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return taken;
  }
  std::string_view line_;
  std::string_view rest_;
};

sample read_sample(std::string_view line) {
  line_reader in(line);
  sample found;
  found.name = in.name(true);
  if (in.skip('{')) {
    do {
      std::string name = in.name(false);
      in.need('=');
      if (!found.with.emplace(std::move(name), in.quoted()).second) refuse(line, "a label occurs twice");
    } while (in.skip(','));
    in.need('}');
  }
  in.need(' ');
  found.value = in.number();
  return found;
}

bool belongs(const family& to, const std::string& family_name, const std::string& name) {
  if (to.type != "histogram") return name == family_name;
  return name == family_name + "_bucket" || name == family_name + "_sum" || name == family_name + "_count";
}

// Buckets in order, cumulative, and the same number in the last one as in the count.
void check_histogram(const std::string& name, const family& all) {
  struct one {
    double last_bound = -1;
    double last_count = 0;
    std::optional<double> count, sum;
  };
  std::map<labels, one> found;
  for (const sample& each : all.samples) {
    labels key = each.with;
    key.erase("le");
    one& of = found[key];
    if (each.name == name + "_bucket") {
      const double bound = line_reader(each.with.at("le")).number();
      if (bound <= of.last_bound || each.value < of.last_count) refuse(name, "buckets are not in order");
      of.last_bound = bound;
      of.last_count = each.value;
    } else {
      (each.name == name + "_sum" ? of.sum : of.count) = each.value;
    }
  }
  for (const auto& [key, of] : found) {
    if (!std::isinf(of.last_bound) || !of.count || !of.sum || *of.count != of.last_count)
      refuse(name, "an incomplete histogram");
  }
}

std::map<std::string, family> parse(std::string_view text) {
  std::map<std::string, family> all;
  std::set<std::pair<std::string, labels>> seen;
  std::string current;
  std::string helped;
  if (!text.empty() && !text.ends_with('\n')) refuse("", "the last line does not end");
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(line.size() + 1);
    if (line.starts_with("# HELP ")) {
      line_reader in(line.substr(7));
      helped = in.name(true);
      in.need(' ');
      if (in.rest().empty()) refuse(line, "no help");
    } else if (line.starts_with("# TYPE ")) {
      line_reader in(line.substr(7));
      current = in.name(true);
      in.need(' ');
      if (current != helped) refuse(line, "HELP and TYPE of one metric stand together");
      family fresh{in.rest(), {}};
      if (fresh.type != "counter" && fresh.type != "gauge" && fresh.type != "histogram")
        refuse(line, "an unknown type");
      if ((fresh.type == "counter") != current.ends_with("_total"))
        refuse(line, "counters, and nothing else, end with _total");
      if (!all.emplace(current, fresh).second) refuse(line, "a metric occurs twice");
    } else {
      sample found = read_sample(line);
      const auto at = all.find(current);
      if (at == all.end() || !belongs(at->second, current, found.name)) refuse(line, "a sample of another metric");
      if (!seen.emplace(found.name, found.with).second) refuse(line, "a sample occurs twice");
      at->second.samples.push_back(std::move(found));
    }
  }
  for (const auto& [name, each] : all) {
    if (each.type == "histogram") check_histogram(name, each);
  }
  return all;
}

double value_of(const std::map<std::string, family>& all, const std::string& family_name, const std::string& name,
                const labels& with) {
  const auto at = all.find(family_name);
  REQUIRE_MESSAGE(at != all.end(), family_name);
  for (const sample& each : at->second.samples) {
    if (each.name == name && each.with == with) return each.value;
  }
  FAIL("there is no such sample of " << name);
  return 0;
}

int half(int x) { return x / 2; }
int fails_to_halve(int) { throw std::runtime_error("odd"); }

TEST_CASE("the text of metrics has all values, and a strict parser reads it") {
  metrics_snapshot all;
  all.calls.reserve(2);
  call_metrics& row = all.calls.emplace_back();
  row.worker = "w";
  row.side = call_side::client;
  row.method = "f<\"a\\b\">\nnext";
  row.peer = "p";
  row.calls = 7;
  row.one_way = 3;
  row.not_sent = 2;
  row.late_replies = 8;
  row.ended = 6;
  row.in_flight = 1;
  row.sent_bytes = 12345678901234;
  row.received_bytes = 5;
  row.errors = {{errc::rpc_timeout, 4}, {errc{}, 1}};
  for (const std::int64_t ns : {1, 1023, 1024, 2'000'000'000}) row.duration.add(nanoseconds(ns));
  call_metrics& served = all.calls.emplace_back();
  served.worker = "w";
  served.side = call_side::server;
  served.method = "g";
  served.peer = "p";
  served.calls = 2;
  served.queued.add(nanoseconds(5000), 2);
  served.duration.add(nanoseconds(1'500'000'000), 2);
  served.errors = {{errc::remote_exception, 1}};
  all.peers = {{.worker = "w", .peer = "p", .connections_opened = 5, .connections_lost = 3, .reconnects = 2}};
  all.figures = {{"w", "agent.queued_calls", 4}, {"w", "autograd.num_autograd_contexts", 6}, {"w", "my.figure", 2.5}};
  all.folded_series = 9;
  all.lost_events = 1;

  const auto found = parse(profiler::prometheus_text(all));
  const labels of{{"worker", "w"}, {"method", row.method}, {"peer", "p"}};
  const auto client = [&](const std::string& name) { return value_of(found, name, name, of); };
  CHECK(client("ferry_client_calls_total") == 7);
  CHECK(client("ferry_client_one_way_calls_total") == 3);
  CHECK(client("ferry_client_calls_not_sent_total") == 2);
  CHECK(client("ferry_client_late_replies_total") == 8);
  CHECK(client("ferry_client_calls_in_flight") == 1);
  CHECK(client("ferry_client_sent_bytes_total") == 12345678901234);
  CHECK(client("ferry_client_received_bytes_total") == 5);
  labels with_code = of;
  with_code["code"] = "rpc_timeout";
  CHECK(value_of(found, "ferry_client_call_errors_total", "ferry_client_call_errors_total", with_code) == 4);
  with_code["code"] = "unknown";
  CHECK(value_of(found, "ferry_client_call_errors_total", "ferry_client_call_errors_total", with_code) == 1);

  const std::string duration = "ferry_client_call_duration_seconds";
  const auto bucket = [&](const std::string& bound) {
    labels with = of;
    with["le"] = bound;
    return value_of(found, duration, duration + "_bucket", with);
  };
  CHECK(bucket("0.000001023") == 2);  // the bound itself is in it
  CHECK(bucket("0.000002047") == 3);
  CHECK(bucket("1.073741823") == 3);
  CHECK(bucket("2.147483647") == 4);
  CHECK(bucket("+Inf") == 4);
  CHECK(value_of(found, duration, duration + "_count", of) == 4);
  CHECK(value_of(found, duration, duration + "_sum", of) == doctest::Approx(2.000002048).epsilon(1e-12));

  const labels server{{"worker", "w"}, {"method", "g"}, {"peer", "p"}};
  CHECK(value_of(found, "ferry_server_queue_duration_seconds", "ferry_server_queue_duration_seconds_sum", server) ==
        doctest::Approx(1e-5).epsilon(1e-12));
  CHECK(value_of(found, "ferry_server_handler_duration_seconds", "ferry_server_handler_duration_seconds_sum", server) ==
        3);
  CHECK(value_of(found, "ferry_server_requests_total", "ferry_server_requests_total", server) == 2);
  const auto of_peer = [&](const std::string& name) {
    return value_of(found, name, name, {{"worker", "w"}, {"peer", "p"}});
  };
  CHECK(of_peer("ferry_peer_connections_opened_total") == 5);
  CHECK(of_peer("ferry_peer_connections_lost_total") == 3);
  CHECK(of_peer("ferry_peer_reconnects_total") == 2);
  CHECK(value_of(found, "ferry_worker_queued_calls", "ferry_worker_queued_calls", {{"worker", "w"}}) == 4);
  CHECK(value_of(found, "ferry_worker_autograd_contexts", "ferry_worker_autograd_contexts", {{"worker", "w"}}) == 6);
  CHECK(value_of(found, "ferry_worker_figure", "ferry_worker_figure", {{"worker", "w"}, {"figure", "my.figure"}}) ==
        2.5);
  CHECK(value_of(found, "ferry_metrics_folded_series", "ferry_metrics_folded_series", {}) == 9);
  CHECK(value_of(found, "ferry_metrics_lost_events_total", "ferry_metrics_lost_events_total", {}) == 1);
}

TEST_CASE("the text of nothing is valid, and so is that of two workers of a process") {
  CHECK(parse(profiler::prometheus_text({})).size() == 2);
  ferry_test::cluster group(2);
  const profiler::metrics zero(group[0]);
  const profiler::metrics one(group[1]);
  CHECK(group[0].rpc_sync<half>("worker1", 8) == 4);
  CHECK_THROWS_AS((void)group[1].rpc_sync<fails_to_halve>("worker0", 8), std::runtime_error);
  metrics_snapshot both = zero.read();
  both.merge(one.read());
  const auto found = parse(profiler::prometheus_text(both));
  CHECK(found.at("ferry_client_calls_total").samples.size() == 2);
  CHECK(found.at("ferry_server_requests_total").samples.size() == 2);
  CHECK(found.at("ferry_client_call_errors_total").samples.size() == 1);
  CHECK(found.at("ferry_worker_threads").samples.size() == 2);
  for (const char* worker : {"worker0", "worker1"})
    CHECK(value_of(found, "ferry_worker_threads", "ferry_worker_threads", {{"worker", worker}}) >= 1);
}

TEST_CASE("the parser of these tests refuses what is not the format") {
  for (const char* text :
       {"a 1", "a 1\n", "# HELP a x\n# TYPE a gauge\nb 1\n", "# HELP a x\n# TYPE a gauge\na{x=1} 1\n",
        "# HELP a x\n# TYPE a gauge\na{x=\"\\q\"} 1\n", "# HELP a x\n# TYPE a gauge\na one\n",
        "# HELP a x\n# TYPE a gauge\na 1\na 2\n", "# HELP a x\n# TYPE a counter\na 1\n",
        "# HELP a x\n# TYPE a histogram\na_bucket{le=\"1\"} 1\na_sum 1\na_count 1\n"}) {
    CHECK_THROWS_AS((void)parse(text), std::runtime_error);
  }
}

}  // namespace text_test
