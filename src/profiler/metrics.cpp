#include <ferry/profiler/metrics.hpp>
#include <ferry/profiler/metrics_server.hpp>

#include <algorithm>
#include <functional>
#include <iterator>
#include <tuple>

#include <fmt/format.h>
#include <ferry/device/cpu_pool.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/rpc/worker.hpp>

#include "../base/parse_number.hpp"
#include "../base/peer_log.hpp"
#include "../rpc/worker/worker_core.hpp"
#include "metrics_table.hpp"
#include "processor_clock.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

using profiler::call_metrics;
using profiler::peer_metrics;
using profiler::worker_figure;

auto order_of(const call_metrics& row) noexcept { return std::tie(row.worker, row.side, row.method, row.peer); }
auto order_of(const peer_metrics& row) noexcept { return std::tie(row.worker, row.peer); }
auto order_of(const worker_figure& row) noexcept { return std::tie(row.worker, row.name); }

template <class Row>
void sort_rows(std::vector<Row>& rows) {
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return order_of(a) < order_of(b); });
}

template <class Row>
Row* find_row(std::vector<Row>& rows, const Row& like) {
  const auto at = std::lower_bound(rows.begin(), rows.end(), like,
                                   [](const Row& a, const Row& b) { return order_of(a) < order_of(b); });
  return at != rows.end() && order_of(*at) == order_of(like) ? &*at : nullptr;
}

void take_away(std::uint64_t& from, std::uint64_t what) noexcept { from -= std::min(from, what); }

// Of the whole process, beside the figures of a worker. What cannot be told of a device, since that has failed, is left out.
void add_memory(std::vector<worker_figure>& figures, const std::string& worker, const std::vector<device>& devices) {
  const auto add = [&](std::string_view where, std::string_view what, std::uint64_t bytes) {
    figures.push_back({worker, fmt::format("memory.{}.{}", where, what), static_cast<double>(bytes)});
  };
  const cpu_pool_stats host = get_cpu_pool_stats();
  add("cpu", "reserved_bytes", host.reserved_bytes);
  add("cpu", "cached_bytes", host.cached_bytes);
  for (const device& each : devices) {
    try {
      const device_memory_stats stats = get_device_memory_stats(each);
      add(to_string(each), "reserved_bytes", stats.reserved_bytes);
      add(to_string(each), "used_bytes", stats.used_bytes);
    } catch (const error& failed) {
      log_about("metrics", log_level::info, [&] {
        return fmt::format("the memory of {} is not in the metrics: {}", to_string(each), failed.what());
      });
    }
  }
}

bool is_empty(const call_metrics& row) noexcept {
  return row.calls == 0 && row.one_way == 0 && row.not_sent == 0 && row.ended == 0 && row.late_replies == 0;
}

// Rows of one name become one; `add` adds the second to the first.
template <class Row, class Add>
void merge_rows(std::vector<Row>& rows, const std::vector<Row>& others, const Add& add) {
  std::vector<Row> fresh;
  for (const Row& each : others) {
    if (Row* known = find_row(rows, each)) {
      add(*known, each);
    } else {
      fresh.push_back(each);
    }
  }
  rows.insert(rows.end(), std::make_move_iterator(fresh.begin()), std::make_move_iterator(fresh.end()));
  sort_rows(rows);
}

}  // namespace
}  // namespace detail

namespace profiler {

struct metrics::state {
  state(detail::worker_core& core, const metrics_options& how);
  ~state() { table->switch_off(worker.lock().get()); }
  state(const state&) = delete;
  state& operator=(const state&) = delete;

  [[nodiscard]] metrics_snapshot read() const;

  std::shared_ptr<detail::metrics_table> table;
  std::weak_ptr<detail::worker_core> worker;
  std::string name;
  detail::metrics_table::totals before;  // what others have counted at this worker
  std::int64_t began_ns = 0;
};

metrics::state::state(detail::worker_core& core, const metrics_options& how) {
  if (how.max_series == 0) throw_error(errc::invalid_argument, "metrics_options::max_series is zero");
  name = core.agent().self().name();  // throws once it is shut down
  worker = core.weak_from_this();
  table = detail::metrics_client::table_of(core);
  table->switch_on(core, how.max_series, before);
  began_ns = detail::steady_now_ns();
}

metrics::metrics(const metrics_options& how) : state_(std::make_shared<const state>(*detail::current_worker(), how)) {}
metrics::metrics(const worker& of, const metrics_options& how)
    : state_(std::make_shared<const state>(detail::core_of(of), how)) {}
metrics::~metrics() = default;

metrics_snapshot metrics::read() const { return state_->read(); }

std::function<metrics_snapshot()> metrics_server::reader_of(const metrics& of) {
  return [kept = of.state_] { return kept->read(); };
}

metrics_snapshot metrics::state::read() const {
  metrics_snapshot result;
  detail::metrics_table::totals now = table->read();
  for (std::size_t i = 0; i != now.series.size(); ++i) {
    call_metrics& row = now.series[i];
    row.worker = name;
    if (i < before.series.size()) row.subtract(before.series[i]);
    // Threads count for themselves: an end may be seen before its beginning.
    const std::uint64_t begun = row.calls + (row.side == call_side::server ? row.one_way : 0);
    row.in_flight = static_cast<std::int64_t>(begun - std::min(begun, row.ended));
    if (!detail::is_empty(row)) result.calls.push_back(std::move(row));
  }
  detail::sort_rows(result.calls);
  for (peer_metrics& row : now.connections) {
    for (const peer_metrics& earlier : before.connections) {
      if (earlier.peer == row.peer) row.subtract(earlier);
    }
    row.worker = name;
    if (row.connections_opened != 0 || row.connections_lost != 0) result.peers.push_back(std::move(row));
  }
  detail::sort_rows(result.peers);
  result.folded_series = now.folded - before.folded;
  result.lost_events = now.lost - before.lost;
  result.duration = std::chrono::nanoseconds(detail::steady_now_ns() - began_ns);
  if (const auto core = worker.lock()) {
    for (const auto& [figure, text] : core->debug_info()) {
      if (const auto value = detail::parse_number<double>(text)) result.figures.push_back({name, figure, *value});
    }
    detail::add_memory(result.figures, name, core->agent_unchecked().members().devices());
  }
  detail::sort_rows(result.figures);
  return result;
}

// ---------------------------------------------------------------- rows

std::string_view to_string(call_side side) noexcept { return side == call_side::client ? "client" : "server"; }

std::uint64_t call_metrics::errors_of(errc code) const noexcept {
  for (const auto& [which, count] : errors) {
    if (which == code) return count;
  }
  return 0;
}

std::uint64_t call_metrics::failed() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& each : errors) sum += each.second;
  return sum;
}

call_metrics& call_metrics::merge(const call_metrics& other) {
  calls += other.calls;
  one_way += other.one_way;
  not_sent += other.not_sent;
  late_replies += other.late_replies;
  ended += other.ended;
  in_flight += other.in_flight;
  sent_bytes += other.sent_bytes;
  received_bytes += other.received_bytes;
  duration.merge(other.duration);
  queued.merge(other.queued);
  for (const auto& [code, count] : other.errors) {
    const auto at = std::lower_bound(errors.begin(), errors.end(), code,
                                     [](const auto& entry, errc wanted) { return entry.first < wanted; });
    if (at != errors.end() && at->first == code) {
      at->second += count;
    } else {
      errors.insert(at, {code, count});
    }
  }
  return *this;
}

call_metrics& call_metrics::subtract(const call_metrics& earlier) {
  detail::take_away(calls, earlier.calls);
  detail::take_away(one_way, earlier.one_way);
  detail::take_away(not_sent, earlier.not_sent);
  detail::take_away(late_replies, earlier.late_replies);
  detail::take_away(ended, earlier.ended);
  detail::take_away(sent_bytes, earlier.sent_bytes);
  detail::take_away(received_bytes, earlier.received_bytes);
  duration.subtract(earlier.duration);
  queued.subtract(earlier.queued);
  for (auto& [code, count] : errors) detail::take_away(count, earlier.errors_of(code));
  std::erase_if(errors, [](const auto& each) { return each.second == 0; });
  return *this;
}

peer_metrics& peer_metrics::merge(const peer_metrics& other) noexcept {
  connections_opened += other.connections_opened;
  connections_lost += other.connections_lost;
  reconnects += other.reconnects;
  return *this;
}

peer_metrics& peer_metrics::subtract(const peer_metrics& earlier) noexcept {
  detail::take_away(connections_opened, earlier.connections_opened);
  detail::take_away(connections_lost, earlier.connections_lost);
  detail::take_away(reconnects, earlier.reconnects);
  return *this;
}

// ---------------------------------------------------------------- snapshots

metrics_snapshot& metrics_snapshot::merge(const metrics_snapshot& other) {
  detail::merge_rows(calls, other.calls, [](call_metrics& row, const call_metrics& more) { row.merge(more); });
  detail::merge_rows(peers, other.peers, [](peer_metrics& row, const peer_metrics& more) { row.merge(more); });
  detail::merge_rows(figures, other.figures,
                     [](worker_figure& row, const worker_figure& more) { row.value += more.value; });
  folded_series += other.folded_series;
  lost_events += other.lost_events;
  duration = std::max(duration, other.duration);
  return *this;
}

metrics_snapshot& metrics_snapshot::subtract(const metrics_snapshot& earlier) {
  for (const call_metrics& each : earlier.calls) {
    if (call_metrics* known = detail::find_row(calls, each)) known->subtract(each);
  }
  for (const peer_metrics& each : earlier.peers) {
    if (peer_metrics* known = detail::find_row(peers, each)) known->subtract(each);
  }
  detail::take_away(folded_series, earlier.folded_series);
  detail::take_away(lost_events, earlier.lost_events);
  duration -= std::min(duration, earlier.duration);
  return *this;
}

call_metrics metrics_snapshot::total(call_side side, std::string_view method, std::string_view peer) const {
  call_metrics sum;
  sum.side = side;
  sum.method = method;
  sum.peer = peer;
  for (const call_metrics& each : calls) {
    const bool is_meant =
        each.side == side && (method.empty() || each.method == method) && (peer.empty() || each.peer == peer);
    if (is_meant) sum.merge(each);
  }
  return sum;
}

}  // namespace profiler
}  // namespace ferry::inline v0
