#include "metrics_table.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <optional>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/rpc/detail/call_lifecycle.hpp>
#include <ferry/rpc/detail/incoming_call.hpp>
#include <ferry/rpc/detail/method_entry.hpp>

#include "../rpc/methods/method_table.hpp"
#include "../rpc/pipeline/library_clients.hpp"
#include "../rpc/worker/worker_core.hpp"
#include "processor_clock.hpp"

namespace ferry::inline v0::detail {
namespace {

using profiler::call_metrics;
using profiler::call_side;
using profiler::latency_histogram;

constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t most_folded = std::size_t{1} << 16U;
constexpr std::string_view other_name = "other";

std::int64_t ns_of(clock::time_point at) noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

// Of a moment that is just past.
std::int64_t ns_of(flight_time at, kept_tick_scale& scale) noexcept {
  const std::uint64_t value = at.raw() >> 1U;
  if ((at.raw() & 1U) == 0) return static_cast<std::int64_t>(value);
  if (!counter_is_steady) return steady_now_ns();
  const auto ticks = static_cast<std::int64_t>(value);
  return scale.at(ticks).steady_ns(ticks);
}

// The codes of errors, numbered from 1; 0: a code that is none, which a peer may send.
class code_numbers {
 public:
  static const code_numbers& all() {
    static const code_numbers instance;
    return instance;
  }
  [[nodiscard]] std::size_t of(errc code) const noexcept {
    const int value = static_cast<int>(code);
    return value >= 0 && value < highest ? numbers_[static_cast<std::size_t>(value)] : 0;
  }
  [[nodiscard]] const std::vector<errc>& codes() const noexcept { return codes_; }

 private:
  static constexpr int highest = 1000;
  code_numbers() : codes_{errc{}} {
    for (int value = 0; value != highest; ++value) {
      if (errc_name(static_cast<errc>(value)) == "unknown") continue;
      numbers_[static_cast<std::size_t>(value)] = static_cast<std::uint8_t>(codes_.size());
      codes_.push_back(static_cast<errc>(value));
    }
  }
  std::array<std::uint8_t, highest> numbers_{};
  std::vector<errc> codes_;
};

const std::size_t metrics_of_workers = add_library_client({
    .attach = [](worker_core&) -> std::shared_ptr<worker_attachment> { return std::make_shared<metrics_client>(); },
});

}  // namespace

// ---------------------------------------------------------------- counts

[[gnu::always_inline]] inline void thread_histogram::add(std::int64_t ns) noexcept {
  const auto value = static_cast<std::uint64_t>(std::clamp<std::int64_t>(ns, 0, latency_histogram::longest.count()));
  counts_[latency_histogram::bucket_of(value)].add(1);
  sum_ns_.add(value);
}

void thread_histogram::add_to(latency_histogram& sum) const {
  for (std::size_t i = 0; i != counts_.size(); ++i) sum.add_to_bucket(i, counts_[i].get());
  sum.add_to_sum(sum_ns_.get());
}

void error_counts::add(errc code) noexcept {
  const std::size_t number = code_numbers::all().of(code);
  of_code_[number < of_code_.size() ? number : 0].fetch_add(1, std::memory_order_relaxed);
}

std::vector<std::pair<errc, std::uint64_t>> error_counts::all() const {
  const std::vector<errc>& codes = code_numbers::all().codes();
  std::vector<std::pair<errc, std::uint64_t>> result;
  for (std::size_t i = 0; i != std::min(codes.size(), of_code_.size()); ++i) {
    if (const std::uint64_t count = of_code_[i].load(std::memory_order_relaxed)) result.emplace_back(codes[i], count);
  }
  return result;
}

// ---------------------------------------------------------------- the shards of threads

// What a thread needs for most calls: looking for thread-local variables costs as much as all the rest, so that they are one.
struct metrics_table::thread_state {
  // The series that it counted last, by hash; of any table, which the stamp says. Each lies within a cache line.
  struct alignas(32) recent_series {
    std::uint64_t stamp = 0;  // of none
    series_id id;
    thread_series* counts = nullptr;
  };
  std::array<recent_series, 16> series;
  // The tables that it used last, by their serials.
  struct recent_shard {
    std::uint64_t serial = 0;
    shard* which = nullptr;
  };
  std::array<recent_shard, 4> shards;
  kept_tick_scale scale;
  bool has_ended = false;  // its shards are given back

  [[nodiscard]] static thread_state& of_caller() noexcept { return of_this_thread_; }

 private:
  static constinit thread_local thread_state of_this_thread_;
};
constinit thread_local metrics_table::thread_state metrics_table::thread_state::of_this_thread_{};

// Gives the shards of a thread back when it ends.
class metrics_table::shards_of_thread {
 public:
  shards_of_thread() = default;
  ~shards_of_thread() {
    thread_state& here = thread_state::of_caller();
    here = {};
    here.has_ended = true;
    for (const held& each : all_) {
      if (const auto table = each.table.lock()) table->give_back(*each.which);
    }
  }
  shards_of_thread(const shards_of_thread&) = delete;
  shards_of_thread& operator=(const shards_of_thread&) = delete;

  [[nodiscard]] shard* find(std::uint64_t serial) const noexcept {
    for (const held& each : all_) {
      if (each.serial == serial) return each.which;
    }
    return nullptr;
  }
  // Before the shard is taken: add() does not throw then.
  void make_room() {
    std::erase_if(all_, [](const held& each) { return each.table.expired(); });
    all_.reserve(all_.size() + 1);
  }
  void add(std::uint64_t serial, std::weak_ptr<metrics_table> table, shard& which) noexcept {
    all_.push_back({serial, std::move(table), &which});
  }

 private:
  struct held {
    std::uint64_t serial;
    std::weak_ptr<metrics_table> table;
    shard* which;
  };
  std::vector<held> all_;
};

namespace {
std::uint64_t new_number() noexcept {
  static constinit std::atomic<std::uint64_t> last{0};
  return ++last;
}
}  // namespace

metrics_table::metrics_table() noexcept : serial_(new_number()), since_(never), stamp_(new_number()) {}
metrics_table::~metrics_table() = default;

void metrics_table::forget_peers() noexcept { stamp_.store(new_number(), std::memory_order_relaxed); }

metrics_table::shard* metrics_table::shard_of(thread_state& here) noexcept {
  thread_state::recent_shard& recent = here.shards[serial_ % here.shards.size()];
  if (recent.serial == serial_) [[likely]]
    return recent.which;
  if (here.has_ended) return nullptr;
  try {
    shard* mine = take_shard();
    recent = {serial_, mine};
    return mine;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

metrics_table::shard* metrics_table::take_shard() {
  static thread_local shards_of_thread own;
  if (shard* mine = own.find(serial_)) return mine;
  own.make_room();
  shard* mine = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (free_shards_.empty()) {
      free_shards_.reserve(shards_.size() + 1);  // giving back does not throw
      mine = shards_.emplace_back(std::make_unique<shard>()).get();
    } else {
      mine = free_shards_.back();
      free_shards_.pop_back();
    }
  }
  own.add(serial_, weak_from_this(), *mine);
  return mine;
}

void metrics_table::give_back(shard& which) noexcept {
  const std::lock_guard lock(mutex_);
  free_shards_.push_back(&which);
}

// ---------------------------------------------------------------- series

[[gnu::always_inline]] inline thread_series* metrics_table::find(thread_state& here, const call_event& event,
                                                                 call_side side) noexcept {
  const series_id id(event, side);
  const thread_state::recent_series& recent = here.series[id.quick_hash() % here.series.size()];
  if (recent.stamp == stamp_.load(std::memory_order_relaxed) && recent.id == id) [[likely]]
    return recent.counts;
  return look_up(here, event, side);
}

[[gnu::noinline]] thread_series* metrics_table::look_up(thread_state& here, const call_event& event,
                                                        call_side side) noexcept {
  const series_id id(event, side);
  const std::uint64_t stamp = stamp_.load(std::memory_order_relaxed);
  thread_series* counts = nullptr;
  if (shard* const mine = shard_of(here)) [[likely]] {
    if (mine->stamp != stamp) [[unlikely]] {
      std::fill(mine->known.begin(), mine->known.end(), shard::entry{});
      mine->known_count = 0;
      mine->stamp = stamp;
    }
    if (!mine->known.empty()) [[likely]] {
      const std::size_t mask = mine->known.size() - 1;
      for (std::size_t at = id.hash(); mine->known[at & mask].counts; ++at) {
        const shard::entry& each = mine->known[at & mask];
        if (each.id != id) continue;
        counts = each.counts;
        break;
      }
    }
    if (!counts) {
      try {
        counts = make(*mine, event, side);
        remember(*mine, {id, counts});
      } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): counted below
        counts = nullptr;
      }
    }
  }
  if (counts) {
    here.series[id.quick_hash() % here.series.size()] = {stamp, id, counts};
  } else {
    lost_.fetch_add(1, std::memory_order_relaxed);
  }
  return counts;
}

void metrics_table::remember(shard& mine, const shard::entry& what) {
  constexpr std::size_t fewest = 64;
  constexpr std::size_t most = std::size_t{1} << 14U;  // a flood of names: the thread learns them anew
  const auto place = [&](const shard::entry& each) {
    const std::size_t mask = mine.known.size() - 1;
    std::size_t at = each.id.hash();
    while (mine.known[at & mask].counts) ++at;
    mine.known[at & mask] = each;
  };
  if ((mine.known_count + 1) * 2 > mine.known.size()) {
    std::vector<shard::entry> old;
    if (mine.known.size() < most) old = std::vector<shard::entry>(std::max(fewest, mine.known.size() * 2));
    old.swap(mine.known);
    if (mine.known.empty()) {
      old.assign(old.size(), {});
      old.swap(mine.known);
      mine.known_count = 0;
    }
    for (const shard::entry& each : old) {
      if (each.counts) place(each);
    }
  }
  place(what);
  ++mine.known_count;
}

namespace {

std::string peer_of(const call_event& event) {
  const worker_info* who = event.facts ? &event.facts->peer : event.request ? event.request->sender() : nullptr;
  return who && !who->name().empty() ? who->name() : fmt::format("worker {}", event.peer.value);
}

}  // namespace

thread_series* metrics_table::make(shard& mine, const call_event& event, call_side side) {
  std::string method(event.entry ? std::string_view(event.entry->name) : "unknown");
  std::string peer = peer_of(event);
  const std::lock_guard lock(mutex_);
  metrics_series& of = series_of(side, std::move(method), std::move(peer));
  if (mine.series.size() <= of.number) mine.series.resize(of.number + 1);
  std::unique_ptr<thread_series>& counts = mine.series[of.number];
  if (!counts) {
    auto fresh = std::make_unique<thread_series>(of);
    if (side == call_side::server) fresh->queued = std::make_unique<thread_histogram>();
    counts = std::move(fresh);
  }
  return counts.get();
}

metrics_series& metrics_table::series_of(call_side side, std::string method, std::string peer) {
  series_name name(side, std::move(method), std::move(peer));
  if (const auto at = by_name_.find(name); at != by_name_.end()) return *at->second;
  const bool folds = series_.size() - others_ >= max_series_;
  if (folds) {
    if (folded_.size() < most_folded) {
      const std::hash<std::string_view> hash;
      folded_.insert(hash(std::get<1>(name)) * 31 + hash(std::get<2>(name)) * 2 + static_cast<std::size_t>(side));
    }
    name = series_name(side, other_name, other_name);
    if (const auto at = by_name_.find(name); at != by_name_.end()) return *at->second;
  }
  series_.reserve(series_.size() + 1);
  auto fresh = std::make_unique<metrics_series>(series_.size(), side, std::get<1>(name), std::get<2>(name));
  by_name_.emplace(std::move(name), fresh.get());
  series_.push_back(std::move(fresh));
  if (folds) ++others_;
  return *series_.back();
}

// ---------------------------------------------------------------- calls

[[gnu::noinline]] void metrics_table::begin_call(thread_state& here, const call_event& event) noexcept {
  if (!counts(event.made)) return;
  thread_series* const it = find(here, event, call_side::client);
  if (!it) return;
  if (event.what == call_moment::started) [[likely]] {
    it->calls.add(1);
  } else {
    it->one_way.add(1);
  }
  it->sent_bytes.add(event.bytes);
}

// What is told of a call at its end, then the end.
[[gnu::noinline]] void metrics_table::end_call(thread_state& here, const call_event& event) noexcept {
  if (!counts(event.made)) return;
  thread_series* const it = find(here, event, call_side::client);
  if (!it) return;
  it->duration.add(ns_of(event.when(), here.scale) - ns_of(event.made));
  if (event.what == call_moment::replied) it->received_bytes.add(event.bytes);
  if (event.code != errc{}) [[unlikely]]
    it->of.errors.add(event.code);
  it->ended.publish(1);
}

void metrics_table::count_not_sent(thread_state& here, const call_event& event) noexcept {
  if (since_.load(std::memory_order_relaxed) == never) return;
  thread_series* const it = find(here, event, call_side::client);
  if (!it) return;
  it->not_sent.add(1);
  it->of.errors.add(event.code);
}

[[gnu::noinline]] void metrics_table::begin_request(thread_state& here, const call_event& event) noexcept {
  if (!counts(event.at)) return;
  thread_series* const it = find(here, event, call_side::server);
  if (!it) return;
  (event.request->one_way() ? it->one_way : it->calls).add(1);
  it->received_bytes.add(event.bytes);
}

[[gnu::noinline]] void metrics_table::end_request(thread_state& here, const call_event& event) noexcept {
  if (!counts(event.request->arrived())) return;
  thread_series* const it = find(here, event, call_side::server);
  if (!it) return;
  it->sent_bytes.add(event.bytes);
  if (event.what == call_moment::refused) [[unlikely]]
    it->of.errors.add(event.code);
  if (event.told_before || event.what == call_moment::error_sent) return;
  if (event.begun != clock::time_point{}) {
    if (event.begun == event.request->arrived()) [[likely]] {
      it->at_once.add(1);
    } else {
      it->queued->add(ns_of(event.begun) - ns_of(event.request->arrived()));
    }
    it->duration.add(ns_of(event.when(), here.scale) - ns_of(event.begun));
  }
  it->ended.publish(1);
}

// With mutex_ held.
void metrics_table::count_late_reply(const link_event& event) {
  std::string method = event.method == 0 ? "unknown" : readable_name(event.method);
  series_of(call_side::client, std::move(method), event.who.name())
      .late_replies.fetch_add(1, std::memory_order_relaxed);
}

// The usual moments come first: a jump by a table costs more than these branches.
void metrics_table::on_call(const worker_core&, const call_event& event) noexcept {
  thread_state& here = thread_state::of_caller();
  const call_moment what = event.what;
  if (what == call_moment::started || what == call_moment::one_way_sent) return begin_call(here, event);
  if (what == call_moment::replied || what == call_moment::failed || what == call_moment::timed_out ||
      what == call_moment::cancelled)
    return end_call(here, event);
  if (what == call_moment::received) return begin_request(here, event);
  if (what == call_moment::answered || what == call_moment::refused || what == call_moment::done ||
      what == call_moment::error_sent)
    return end_request(here, event);
  if (what == call_moment::not_sent) count_not_sent(here, event);
}

// Rare: under the mutex.
void metrics_table::on_connection(const link_event& event) noexcept {
  if (since_.load(std::memory_order_relaxed) == never) return;
  try {
    const std::lock_guard lock(mutex_);
    if (event.what == link_event::kind::late_reply) return count_late_reply(event);
    const auto known = connections_.find(std::string_view(event.who.name()));
    const bool folds = known == connections_.end() && connections_.size() >= max_series_;
    profiler::peer_metrics& of =
        known != connections_.end() ? known->second : connections_[folds ? std::string(other_name) : event.who.name()];
    if (event.what == link_event::kind::lost) {
      ++of.connections_lost;
      return;
    }
    ++of.connections_opened;
    if (of.reconnects < of.connections_lost) ++of.reconnects;
  } catch (const std::bad_alloc&) {
    lost_.fetch_add(1, std::memory_order_relaxed);
  }
}

// ---------------------------------------------------------------- on, off, and what was counted

// A thread that was held up within on_call() while the metrics were off and on again may count a call of the time before.
void metrics_table::switch_on(worker_core& of, std::size_t max_series, totals& before) {
  const std::lock_guard switching(switch_mutex_);
  if (on_) {
    throw_error(errc::invalid_argument,
                to_string(of.agent_unchecked().self()) + " has a ferry::profiler::metrics already; read that one");
  }
  before = read();
  {
    const std::lock_guard lock(mutex_);
    max_series_ = max_series;
  }
  on_ = true;
  of.observers().switch_to(this);
  since_.store(steady_now_ns(), std::memory_order_relaxed);
}

void metrics_table::switch_off(worker_core* of) noexcept {
  const std::lock_guard switching(switch_mutex_);
  on_ = false;
  since_.store(never, std::memory_order_relaxed);
  if (of) of->observers().switch_to(nullptr);
}

metrics_table::totals metrics_table::read() const {
  totals result;
  std::vector<const metrics_series*> names;
  std::vector<std::pair<std::size_t, const thread_series*>> parts;
  {
    const std::lock_guard lock(mutex_);
    result.folded = folded_.size();
    for (const auto& [name, counts] : connections_) result.connections.emplace_back(counts).peer = name;
    for (const auto& each : series_) names.push_back(each.get());
    for (const auto& each : shards_) {
      for (std::size_t i = 0; i != each->series.size(); ++i) {
        if (each->series[i]) parts.emplace_back(i, each->series[i].get());
      }
    }
  }
  // Both live as long as the table. First what begins calls, then their ends, then what was counted before these: so none seems to be
  // in flight that is not, and all of a call that has ended is seen.
  for (const metrics_series* each : names) {
    call_metrics& row = result.series.emplace_back();
    row.side = each->side;
    row.method = each->method;
    row.peer = each->peer;
    row.late_replies = each->late_replies.load(std::memory_order_relaxed);
  }
  for (const auto& [number, counts] : parts) {
    result.series[number].calls += counts->calls.get_published();
    result.series[number].one_way += counts->one_way.get();
  }
  for (const auto& [number, counts] : parts) result.series[number].ended += counts->ended.get_published();
  for (const auto& [number, counts] : parts) {
    call_metrics& row = result.series[number];
    row.not_sent += counts->not_sent.get();
    row.sent_bytes += counts->sent_bytes.get();
    row.received_bytes += counts->received_bytes.get();
    counts->duration.add_to(row.duration);
    if (!counts->queued) continue;
    row.queued.add_to_bucket(0, counts->at_once.get());
    counts->queued->add_to(row.queued);
  }
  for (std::size_t i = 0; i != names.size(); ++i) result.series[i].errors = names[i]->errors.all();
  result.lost = lost_.load(std::memory_order_relaxed);
  return result;
}

// ---------------------------------------------------------------- the worker

std::shared_ptr<metrics_table> metrics_client::table_of(worker_core& worker) {
  auto* own = static_cast<metrics_client*>(worker.attached().of_library(metrics_of_workers));
  if (!own)
    throw_error(errc::not_initialized,
                to_string(worker.agent_unchecked().self()) + " was made before metrics were loaded");
  const std::lock_guard lock(own->mutex_);
  if (!own->table_) own->table_ = std::make_shared<metrics_table>();
  return own->table_;
}

void metrics_client::on_member_event(const member_event&) noexcept {
  const std::lock_guard lock(mutex_);
  if (table_) table_->forget_peers();
}

}  // namespace ferry::inline v0::detail
