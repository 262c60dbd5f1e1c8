// Metrics in the text format of Prometheus, 0.0.4.

#include <ferry/profiler/metrics.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "metric_names.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

using profiler::call_metrics;
using profiler::call_side;
using profiler::latency_histogram;
using profiler::metrics_snapshot;
using profiler::peer_metrics;
using profiler::worker_figure;

// The bounds of the buckets that are written: powers of two of nanoseconds from 1 us to 69 s, of which a latency_histogram knows the
// counts exactly. `le` includes its bound: it is one nanosecond less.
constexpr unsigned first_bound = 10;
constexpr unsigned last_bound = 36;

// Seconds, exactly, without an exponent.
std::string seconds_of(std::uint64_t ns) {
  constexpr std::uint64_t second = 1'000'000'000;
  std::string text = fmt::format("{}.{:09}", ns / second, ns % second);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

class metrics_writer {
 public:
  void family(const metric_name& what) {
    fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", what.name, what.meaning, what.name,
                   what.type);
  }
  // `labels` as label() makes them, without the comma at the end.
  void sample(std::string_view name, std::string_view suffix, std::string_view labels, std::string_view value) {
    text_ += name;
    text_ += suffix;
    if (!labels.empty()) {
      text_ += '{';
      text_ += labels;
      text_ += '}';
    }
    text_ += ' ';
    text_ += value;
    text_ += '\n';
  }
  void histogram(std::string_view name, const std::string& labels, const latency_histogram& of) {
    for (unsigned bit = first_bound; bit <= last_bound; ++bit) {
      const std::uint64_t bound = std::uint64_t{1} << bit;
      const std::uint64_t below = of.count_below(std::chrono::nanoseconds(static_cast<std::int64_t>(bound)));
      sample(name, "_bucket", labels + ",le=\"" + seconds_of(bound - 1) + '"', std::to_string(below));
    }
    sample(name, "_bucket", labels + ",le=\"+Inf\"", std::to_string(of.count()));
    sample(name, "_sum", labels, seconds_of(static_cast<std::uint64_t>(of.sum().count())));
    sample(name, "_count", labels, std::to_string(of.count()));
  }
  [[nodiscard]] std::string take() noexcept { return std::move(text_); }

 private:
  std::string text_;
};

std::string labels_of(const call_metrics& row) {
  return metric_label("worker", row.worker) + ',' + metric_label("method", row.method) + ',' +
         metric_label("peer", row.peer);
}

template <class Write>
void write_rows(metrics_writer& out, const metrics_snapshot& of, call_side side, const metric_name& what,
                const Write& write) {
  const auto is_meant = [side](const call_metrics& row) { return row.side == side; };
  if (std::none_of(of.calls.begin(), of.calls.end(), is_meant)) return;
  out.family(what);
  for (const call_metrics& row : of.calls) {
    if (is_meant(row)) write(row, labels_of(row));
  }
}

template <class Value>
void write_values(metrics_writer& out, const metrics_snapshot& of, call_side side, const metric_name& what,
                  Value value) {
  write_rows(out, of, side, what, [&](const call_metrics& row, const std::string& labels) {
    out.sample(what.name, "", labels, std::to_string(row.*value));
  });
}

void write_histograms(metrics_writer& out, const metrics_snapshot& of, call_side side, const metric_name& what,
                      latency_histogram call_metrics::*which) {
  write_rows(out, of, side, what,
             [&](const call_metrics& row, const std::string& labels) { out.histogram(what.name, labels, row.*which); });
}

void write_errors(metrics_writer& out, const metrics_snapshot& of, call_side side, const metric_name& what) {
  write_rows(out, of, side, what, [&](const call_metrics& row, const std::string& labels) {
    for (const auto& [code, count] : row.errors)
      out.sample(what.name, "", labels + ',' + metric_label("code", errc_name(code)), std::to_string(count));
  });
}

void write_connections(metrics_writer& out, const metrics_snapshot& of, const metric_name& what,
                       std::uint64_t peer_metrics::*value) {
  if (of.peers.empty()) return;
  out.family(what);
  for (const peer_metrics& each : of.peers)
    out.sample(what.name, "", metric_label("worker", each.worker) + ',' + metric_label("peer", each.peer),
               std::to_string(each.*value));
}

void write_figures(metrics_writer& out, const metrics_snapshot& of) {
  for (const figure_name& what : figure_names) {
    bool begun = false;
    for (const worker_figure& each : of.figures) {
      if (each.name != what.figure) continue;
      if (!std::exchange(begun, true)) out.family(what.metric);
      out.sample(what.metric.name, "", metric_label("worker", each.worker), fmt::format("{}", each.value));
    }
  }
  bool begun = false;
  for (const worker_figure& each : of.figures) {
    const bool has_name = std::any_of(figure_names.begin(), figure_names.end(),
                                      [&](const figure_name& what) { return what.figure == each.name; });
    if (has_name) continue;
    if (!std::exchange(begun, true)) out.family(metric_names::figure);
    out.sample(metric_names::figure.name, "",
               metric_label("worker", each.worker) + ',' + metric_label("figure", each.name),
               fmt::format("{}", each.value));
  }
}

}  // namespace

std::string metric_label(std::string_view name, std::string_view value) {
  std::string text(name);
  text += "=\"";
  for (const char c : value) {
    switch (c) {
      case '\\': text += "\\\\"; break;
      case '"': text += "\\\""; break;
      case '\n': text += "\\n"; break;
      default: text += c;
    }
  }
  text += '"';
  return text;
}

}  // namespace detail

namespace profiler {

std::string prometheus_text(const metrics_snapshot& of) {
  using namespace detail::metric_names;
  detail::metrics_writer out;
  constexpr auto client = call_side::client;
  constexpr auto server = call_side::server;
  detail::write_values(out, of, client, client_calls, &call_metrics::calls);
  detail::write_values(out, of, client, client_one_way, &call_metrics::one_way);
  detail::write_values(out, of, client, client_not_sent, &call_metrics::not_sent);
  detail::write_values(out, of, client, client_late_replies, &call_metrics::late_replies);
  detail::write_values(out, of, client, client_in_flight, &call_metrics::in_flight);
  detail::write_errors(out, of, client, client_errors);
  detail::write_values(out, of, client, client_sent_bytes, &call_metrics::sent_bytes);
  detail::write_values(out, of, client, client_received_bytes, &call_metrics::received_bytes);
  detail::write_histograms(out, of, client, client_duration, &call_metrics::duration);
  detail::write_values(out, of, server, server_requests, &call_metrics::calls);
  detail::write_values(out, of, server, server_one_way, &call_metrics::one_way);
  detail::write_values(out, of, server, server_in_flight, &call_metrics::in_flight);
  detail::write_errors(out, of, server, server_errors);
  detail::write_values(out, of, server, server_received_bytes, &call_metrics::received_bytes);
  detail::write_values(out, of, server, server_sent_bytes, &call_metrics::sent_bytes);
  detail::write_histograms(out, of, server, server_queued, &call_metrics::queued);
  detail::write_histograms(out, of, server, server_duration, &call_metrics::duration);
  detail::write_connections(out, of, connections_opened, &peer_metrics::connections_opened);
  detail::write_connections(out, of, connections_lost, &peer_metrics::connections_lost);
  detail::write_connections(out, of, reconnects, &peer_metrics::reconnects);
  detail::write_figures(out, of);
  out.family(folded_series);
  out.sample(folded_series.name, "", "", std::to_string(of.folded_series));
  out.family(lost_events);
  out.sample(lost_events.name, "", "", std::to_string(of.lost_events));
  return out.take();
}

}  // namespace profiler
}  // namespace ferry::inline v0
