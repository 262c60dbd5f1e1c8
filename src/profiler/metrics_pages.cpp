// Tables of metrics, as text for a terminal and as HTML for a browser.

#include "metrics_pages.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "../base/printable.hpp"
#include "html_text.hpp"

namespace ferry::inline v0::detail {
namespace {

using profiler::call_metrics;
using profiler::call_side;
using profiler::metrics_snapshot;
using profiler::peer_metrics;
using profiler::worker_figure;
using std::chrono::nanoseconds;

// ---------------------------------------------------------------- numbers

// Three digits and a unit: "1.23 ms".
std::string with_unit(double value, double step, std::span<const std::string_view> units) {
  std::size_t unit = 0;
  while (value >= step && unit + 1 != units.size()) {
    value /= step;
    ++unit;
  }
  const int digits = unit == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return fmt::format("{:.{}f} {}", value, digits, units[unit]);
}

std::string text_of(nanoseconds span) {
  static constexpr std::array<std::string_view, 4> units{"ns", "us", "ms", "s"};
  return with_unit(static_cast<double>(span.count()), 1000, units);
}

std::string text_of_bytes(std::uint64_t bytes) {
  static constexpr std::array<std::string_view, 5> units{"B", "KiB", "MiB", "GiB", "TiB"};
  return with_unit(static_cast<double>(bytes), 1024, units);
}

std::string percent(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.2f} %", 100 * static_cast<double>(part) / static_cast<double>(whole));
}

// ---------------------------------------------------------------- tables

struct page_table {
  struct column {
    std::string_view name;
    bool is_text = false;  // numbers are aligned at the right
  };
  std::string_view title;
  std::vector<column> columns;
  std::vector<std::vector<std::string>> rows;
};

struct page_content {
  std::string_view note;  // what the numbers are
  std::vector<page_table> tables;
};

std::string quantile_of(const profiler::latency_histogram& of, double rank) {
  return of.count() == 0 ? "-" : text_of(of.quantile(rank));
}

std::vector<const call_metrics*> rows_of(const metrics_snapshot& of, call_side side) {
  std::vector<const call_metrics*> rows;
  for (const call_metrics& each : of.calls) {
    if (each.side == side) rows.push_back(&each);
  }
  return rows;
}

// Most first; equal ones stay in the order of the snapshot.
template <class Value>
void sort_by(std::vector<const call_metrics*>& rows, const Value& value) {
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const call_metrics* a, const call_metrics* b) { return value(*a) > value(*b); });
}

page_table durations_of(const metrics_snapshot& of, call_side side, std::string_view title) {
  page_table table{title,
                   {{"worker", true},
                    {"method", true},
                    {side == call_side::client ? "callee" : "caller", true},
                    {"ended"},
                    {"in flight"},
                    {"median"},
                    {"90 %"},
                    {"99 %"},
                    {"mean"},
                    {"sum"}},
                   {}};
  auto rows = rows_of(of, side);
  sort_by(rows, [](const call_metrics& row) { return row.duration.sum(); });
  for (const call_metrics* row : rows)
    table.rows.push_back(
        {row->worker, row->method, row->peer, std::to_string(row->ended), std::to_string(row->in_flight),
         quantile_of(row->duration, 0.5), quantile_of(row->duration, 0.9), quantile_of(row->duration, 0.99),
         row->duration.count() == 0 ? "-" : text_of(row->duration.mean()), text_of(row->duration.sum())});
  return table;
}

page_content slow_calls(const metrics_snapshot& of) {
  return {
      "Calls: from the call until its reply or error was there. Handlers: until the answer was made. The longest sums "
      "first.",
      {durations_of(of, call_side::client, "Calls of this worker"),
       durations_of(of, call_side::server, "Handlers of this worker")}};
}

page_content failures(const metrics_snapshot& of) {
  page_content page{"Calls that ended with an error or could not be sent, and requests that were answered with one.",
                    {}};
  for (const call_side side : {call_side::client, call_side::server}) {
    const bool is_client = side == call_side::client;
    page_table table{is_client ? "Calls of this worker" : "Requests to this worker",
                     {{"worker", true},
                      {"method", true},
                      {is_client ? "callee" : "caller", true},
                      {"error", true},
                      {"times"},
                      {"of all"}},
                     {}};
    auto rows = rows_of(of, side);
    sort_by(rows, [](const call_metrics& row) { return row.failed(); });
    for (const call_metrics* row : rows) {
      for (const auto& [code, times] : row->errors)
        table.rows.push_back({row->worker, row->method, row->peer, std::string(errc_name(code)), std::to_string(times),
                              percent(times, row->calls + row->one_way + row->not_sent)});
    }
    page.tables.push_back(std::move(table));
  }
  return page;
}

page_content waits(const metrics_snapshot& of) {
  page_table table{"Requests to this worker",
                   {{"worker", true},
                    {"method", true},
                    {"caller", true},
                    {"begun"},
                    {"queued, median"},
                    {"queued, 99 %"},
                    {"handler, median"},
                    {"handler, 99 %"},
                    {"queued share"}},
                   {}};
  auto rows = rows_of(of, call_side::server);
  sort_by(rows, [](const call_metrics& row) { return row.queued.sum(); });
  for (const call_metrics* row : rows) {
    const auto queued = static_cast<std::uint64_t>(row->queued.sum().count());
    const auto run = static_cast<std::uint64_t>(row->duration.sum().count());
    table.rows.push_back({row->worker, row->method, row->peer, std::to_string(row->queued.count()),
                          quantile_of(row->queued, 0.5), quantile_of(row->queued, 0.99),
                          quantile_of(row->duration, 0.5), quantile_of(row->duration, 0.99),
                          percent(queued, queued + run)});
  }
  page_table threads{"Threads and queues now", {{"worker", true}, {"figure", true}, {"value"}}, {}};
  for (const worker_figure& each : of.figures) {
    if (each.name.starts_with("agent."))
      threads.rows.push_back({each.worker, each.name, fmt::format("{}", each.value)});
  }
  return {"Requests wait for a thread, then their handlers run. The longest waits first.",
          {std::move(table), std::move(threads)}};
}

page_content traffic(const metrics_snapshot& of) {
  struct sums {
    std::uint64_t calls = 0, requests = 0, sent = 0, received = 0;
    const peer_metrics* connections = nullptr;
  };
  std::map<std::pair<std::string_view, std::string_view>, sums> peers;
  for (const call_metrics& each : of.calls) {
    sums& sum = peers[{each.worker, each.peer}];
    (each.side == call_side::client ? sum.calls : sum.requests) += each.calls + each.one_way;
    sum.sent += each.sent_bytes;
    sum.received += each.received_bytes;
  }
  for (const peer_metrics& each : of.peers) peers[{each.worker, each.peer}].connections = &each;
  page_table table{"Peers",
                   {{"worker", true},
                    {"peer", true},
                    {"calls to it"},
                    {"requests of it"},
                    {"sent"},
                    {"received"},
                    {"connected"},
                    {"lost"},
                    {"reconnected"}},
                   {}};
  std::vector<std::pair<std::pair<std::string_view, std::string_view>, sums>> rows(peers.begin(), peers.end());
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.second.sent + a.second.received > b.second.sent + b.second.received;
  });
  for (const auto& [who, sum] : rows) {
    const peer_metrics none;
    const peer_metrics& links = sum.connections ? *sum.connections : none;
    table.rows.push_back({std::string(who.first), std::string(who.second), std::to_string(sum.calls),
                          std::to_string(sum.requests), text_of_bytes(sum.sent), text_of_bytes(sum.received),
                          std::to_string(links.connections_opened), std::to_string(links.connections_lost),
                          std::to_string(links.reconnects)});
  }
  page_table methods{"Methods",
                     {{"worker", true},
                      {"side", true},
                      {"method", true},
                      {"peer", true},
                      {"calls"},
                      {"one-way"},
                      {"sent"},
                      {"received"},
                      {"in flight"}},
                     {}};
  std::vector<const call_metrics*> all;
  for (const call_metrics& each : of.calls) all.push_back(&each);
  sort_by(all, [](const call_metrics& row) { return row.sent_bytes + row.received_bytes; });
  for (const call_metrics* row : all)
    methods.rows.push_back({row->worker, std::string(to_string(row->side)), row->method, row->peer,
                            std::to_string(row->calls), std::to_string(row->one_way), text_of_bytes(row->sent_bytes),
                            text_of_bytes(row->received_bytes), std::to_string(row->in_flight)});
  return {"Whole messages with headers and tensors. The largest sums first.", {std::move(table), std::move(methods)}};
}

page_content holdings(const metrics_snapshot& of) {
  page_table table{"Figures now", {{"worker", true}, {"figure", true}, {"value"}}, {}};
  for (const worker_figure& each : of.figures)
    table.rows.push_back({each.worker, each.name, fmt::format("{}", each.value)});
  page_table metrics{"The metrics themselves", {{"what", true}, {"value"}}, {}};
  metrics.rows.push_back({"rows", std::to_string(of.calls.size())});
  metrics.rows.push_back({"methods and peers summed as other", std::to_string(of.folded_series)});
  metrics.rows.push_back({"events lost", std::to_string(of.lost_events)});
  return {"Figures of debug_info(), read now: threads, queues, references, contexts, and those of the program.",
          {std::move(table), std::move(metrics)}};
}

page_content overview(const metrics_snapshot& of) {
  page_table table{"Sums",
                   {{"side", true},
                    {"calls"},
                    {"one-way"},
                    {"in flight"},
                    {"failed"},
                    {"timed out"},
                    {"cancelled"},
                    {"sent"},
                    {"received"},
                    {"median"},
                    {"99 %"}},
                   {}};
  for (const call_side side : {call_side::client, call_side::server}) {
    const call_metrics sum = of.total(side);
    table.rows.push_back({std::string(to_string(side)), std::to_string(sum.calls), std::to_string(sum.one_way),
                          std::to_string(sum.in_flight), std::to_string(sum.failed()), std::to_string(sum.timed_out()),
                          std::to_string(sum.cancelled()), text_of_bytes(sum.sent_bytes),
                          text_of_bytes(sum.received_bytes), quantile_of(sum.duration, 0.5),
                          quantile_of(sum.duration, 0.99)});
  }
  return {"All methods and peers. Other pages have the parts; /metrics has all of it, for Prometheus.",
          {std::move(table)}};
}

struct metrics_question {
  std::string_view path;
  std::string_view text;
  page_content (*answer)(const metrics_snapshot& of);
};
constexpr std::array questions{
    metrics_question{"/", "How much is called?", &overview},
    metrics_question{"/slow", "What takes long?", &slow_calls},
    metrics_question{"/failures", "What fails?", &failures},
    metrics_question{"/waits", "Where do requests wait?", &waits},
    metrics_question{"/traffic", "Who talks to whom, and how much?", &traffic},
    metrics_question{"/holdings", "What does the worker hold?", &holdings},
};

const metrics_question* question_at(std::string_view path) noexcept {
  const auto found =
      std::find_if(questions.begin(), questions.end(), [&](const metrics_question& each) { return each.path == path; });
  return found == questions.end() ? nullptr : &*found;
}

// ---------------------------------------------------------------- text

std::size_t width_of(std::string_view utf8) {
  return static_cast<std::size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80; }));
}

void write_text(std::string& out, const page_table& table) {
  out += fmt::format("\n{}\n", table.title);
  if (table.rows.empty()) {
    out += "  nothing\n";
    return;
  }
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i != table.columns.size(); ++i) {
    std::size_t widest = table.columns[i].name.size();
    for (const auto& row : table.rows) widest = std::max(widest, width_of(row[i]));
    widths.push_back(widest);
  }
  const auto write_row = [&](const auto& cell_at) {
    std::string line;
    for (std::size_t i = 0; i != table.columns.size(); ++i) {
      const std::string cell = printable(cell_at(i));
      const std::string fill(widths[i] - width_of(cell), ' ');
      line += "  " + (table.columns[i].is_text ? cell + fill : fill + cell);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  };
  write_row([&](std::size_t i) { return table.columns[i].name; });
  for (const auto& row : table.rows) write_row([&](std::size_t i) { return std::string_view(row[i]); });
}

std::string text_page(const metrics_question& what, const page_content& content, nanoseconds counted) {
  std::string out = fmt::format("{} ({} counted)\n{}\n", what.text, text_of(counted), content.note);
  for (const page_table& each : content.tables) write_text(out, each);
  out += "\nOther pages:";
  for (const metrics_question& each : questions) {
    if (&each != &what) out += fmt::format(" {}", each.path);
  }
  return out + " /metrics\n";
}

// ---------------------------------------------------------------- HTML

constexpr std::string_view style =
    "body{font:14px/1.4 system-ui,sans-serif;margin:1.5em;color:#222;background:#fff}"
    "nav a{margin-right:1.2em}nav b{margin-right:1.2em}h1{font-size:1.4em}h2{font-size:1.1em;margin-top:1.5em}"
    "div{overflow-x:auto}table{border-collapse:collapse}th,td{padding:.2em .7em;border-bottom:1px solid #ddd;"
    "text-align:right;white-space:nowrap}th{background:#f4f4f4}td:not(.t){font-variant-numeric:tabular-nums}"
    ".t{text-align:left}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}th{background:#262626}"
    "th,td{border-color:#444}a{color:#8bf}}";

void write_html(std::string& out, const page_table& table) {
  out += fmt::format("<h2>{}</h2>\n", table.title);
  if (table.rows.empty()) {
    out += "<p>nothing</p>\n";
    return;
  }
  out += "<div><table>\n<tr>";
  for (const auto& each : table.columns)
    out += fmt::format("<th{}>{}</th>", each.is_text ? " class=\"t\"" : "", each.name);
  out += "</tr>\n";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (std::size_t i = 0; i != row.size(); ++i) {
      out += table.columns[i].is_text ? "<td class=\"t\">" : "<td>";
      append_html(out, row[i]);
      out += "</td>";
    }
    out += "</tr>\n";
  }
  out += "</table></div>\n";
}

std::string html_page(const metrics_question& what, const page_content& content, nanoseconds counted) {
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" "
      "content=\"width=device-width\">\n<title>{0}</title>\n<style>{1}</style></head>\n<body>\n<nav>",
      what.text, style);
  for (const metrics_question& each : questions) {
    out += &each == &what ? fmt::format("<b>{}</b> ", each.text)
                          : fmt::format("<a href=\"{}\">{}</a> ", each.path, each.text);
  }
  out += fmt::format("<a href=\"/metrics\">/metrics</a></nav>\n<h1>{}</h1>\n<p>{} {} counted.</p>\n", what.text,
                     content.note, text_of(counted));
  for (const page_table& each : content.tables) write_html(out, each);
  return out + "</body></html>\n";
}

}  // namespace

bool is_metrics_page(std::string_view path) noexcept { return question_at(path) != nullptr; }

std::optional<std::string> metrics_page(const metrics_snapshot& of, std::string_view path, page_form form) {
  const metrics_question* what = question_at(path);
  if (!what) return std::nullopt;
  const page_content content = what->answer(of);
  return form == page_form::html ? html_page(*what, content, of.duration) : text_page(*what, content, of.duration);
}

}  // namespace ferry::inline v0::detail
