#include "profiler_client.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <ferry/base/detail/little_endian.hpp>
#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/rpc/detail/incoming_call.hpp>
#include <ferry/rpc/exceptions.hpp>

#include "../rpc/diagnostics/collective_methods.hpp"
#include "../rpc/pipeline/interceptor_table.hpp"
#include "../rpc/pipeline/library_clients.hpp"
#include "../rpc/worker/worker_core.hpp"
#include "../wire/extension_format.hpp"
#include "process_recordings.hpp"
#include "recorded_ranges.hpp"
#include "thread_store.hpp"

namespace ferry::inline v0::detail {
namespace {

// Of the bytes that all records of a reply may have, with their headers; and no more than this, whatever these are.
constexpr std::size_t share_of_profile = 4;
constexpr std::size_t longest_profile = std::size_t{1} << 20U;
constexpr std::size_t record_overhead = record_header + record_alignment;  // at most

// The profiler's among the records of a message. In most messages that have one there is no other: it is found without a look at
// more than its header.
std::optional<std::span<const std::byte>> find_profile(const extension_records& records) {
  const std::span<const std::byte> block = records.block();
  if (block.size() >= record_header && load_le<std::uint16_t>(block.data()) == profile_record_type &&
      load_le<std::uint32_t>(block.data() + record_length_at) == block.size() - record_header)
    return block.subspan(record_header);
  return records.find(profile_record_type);
}

[[maybe_unused]] const std::size_t profiler_of_workers = add_library_client({
    .rank = 4,
    .attach = [](worker_core&) -> std::shared_ptr<worker_attachment> { return std::make_shared<profiler_client>(); },
    .intercept = [](worker_attachment* state) -> interceptor* { return static_cast<profiler_client*>(state); },
    .watches_arrivals = true,
});

// ---------------------------------------------------------------- at the caller

class profiled_call final : public caller_hooks, public hooks_of_store {
 public:
  // Null: it goes to no such recording.
  struct names {
    const range_description* own = nullptr;
    const range_description* in_whole = nullptr;
  };
  profiled_call(event_targets to, const names& what, profiled_thread& thread, std::uint64_t parent, std::int32_t caller,
                std::int32_t callee) noexcept
      : to_(std::move(to)),
        what_(what),
        number_(new_event_number(thread)),
        parent_(parent),
        caller_(caller),
        callee_(callee),
        thread_(number_of(thread)),
        began_(ticks_now()) {
    to_.begin();
  }
  // Until the call ends, for which its thread waits.
  void show(const timeline& on, std::string_view name) noexcept { shown_.begin(on, name, true); }

  void replied(incoming_reply& reply) override {
    const std::int64_t now = ticks_now();
    shown_.end();
    if (!to_) return;
    recorded_event event = event_until(now, !reply.has_value());
    event.call = reply.message().header.call_id;
    take_profile(reply, event);
    add(std::move(event));
  }

  void ended(const call_end& how) noexcept override {
    const std::int64_t now = ticks_now();
    shown_.end();
    if (!to_) return;
    recorded_event event = event_until(now, how.code != errc{});
    if (event.failed) {
      try {
        set_error(event, fmt::format("{}{}{}", errc_name(how.code), how.text.empty() ? "" : ": ", how.text));
      } catch (const std::exception&) {
        event.details.reset();  // that it failed suffices
      }
    }
    add(std::move(event));
  }

 private:
  [[nodiscard]] recorded_event event_until(std::int64_t now, bool failed) const noexcept {
    recorded_event event{.what = what_.own, .number = number_, .parent = parent_, .began = began_, .ended = now};
    event.node = caller_;
    event.peer = callee_;
    event.began_thread = thread_;
    event.failed = failed;
    return event;
  }

  static void set_error(recorded_event& of, std::string text) {
    of.details = std::make_unique<event_details>();
    of.details->error = std::move(text);
  }

  // A profile does not make the call fail.
  void take_profile(incoming_reply& reply, recorded_event& event) {
    try {
      const auto content = find_profile(reply.records());
      if (!content) return;
      if (const auto brief = decode_brief_answer(*content)) {
        event.answer = *brief;
        event.answered = true;
      } else {
        take_batch(reply, *content, event);
      }
    } catch (const std::exception& problem) {
      log(log_level::warning, fmt::format("the profile that came with the reply to {} cannot be read: {}",
                                          (what_.own ? what_.own : what_.in_whole)->name, problem.what()));
    }
  }
  void take_batch(incoming_reply& reply, std::span<const std::byte> content, recorded_event& event) {
    if (event.failed) {
      for (const profiler::event& each : decode_profile_batch(content).events) {
        if (each.kind == range_kind::handler && each.parent == 0) set_error(event, each.error);
      }
    }
    to_.add_reply(number_, what_.own, what_.in_whole, event.began, event.ended, reply.sender().id().value, content);
  }

  void add(recorded_event&& event) const noexcept { to_.add(profiled_thread_here(), std::move(event), what_.in_whole); }

  const event_targets to_;
  const names what_;
  const std::uint64_t number_;
  const std::uint64_t parent_;
  const std::int32_t caller_;
  const std::int32_t callee_;
  const std::uint32_t thread_;
  const std::int64_t began_;
  shown_range shown_;
};
static_assert(sizeof(profiled_call) <= thread_store::bytes_of_block);

// What to_here() and to_here_async() call at the owner.
bool fetches_object(std::string_view method) noexcept {
  constexpr std::string_view here = "ferry::v0::detail::";
  if (method.size() < here.size() || !method.starts_with(here)) return false;
  method.remove_prefix(here.size());
  return method.starts_with("value_of<") || method.starts_with("await_object");
}

profiled_mode mode_of(const outgoing_request& request) noexcept {
  if (request.one_way()) return profiled_mode::notify;
  if (!request.awaited()) return profiled_mode::remote;
  if (fetches_object(request.method())) return profiled_mode::to_here;
  return request.blocks_caller() ? profiled_mode::sync : profiled_mode::async;
}

// Of the calls that a tool shows.
profile_names& names_in_timeline() {
  static auto* instance = new profile_names;  // calls may end while the process exits
  return *instance;
}

std::unique_ptr<caller_hooks> record_call(outgoing_request& request, const recording_in_force* here) {
  event_targets to = event_targets::at(here);
  const timeline* const on = request.blocks_caller() ? timeline_here() : nullptr;
  // Collectives are events themselves. The handlers of their messages last until this member has come, too.
  if ((!to && !on) || is_of_collective(request.method())) return nullptr;
  profiled_thread& thread = profiled_thread_here();
  const worker_info& caller = request.core().agent_unchecked().self();
  const worker_info& peer = request.destination();
  const called_method call{request.message().header.method, caller.id().value, peer.id().value, mode_of(request)};
  const auto texts = [&] { return profile_names::call_texts{request.method(), caller.name(), peer.name()}; };
  profiled_call::names what;
  if (to.own) what.own = &to.own->names().name_call(thread, call, texts);
  if (to.whole) what.in_whole = &to.whole->names().name_call(thread, call, texts);
  const range_description* const shown = on ? &names_in_timeline().name_call(thread, call, texts) : nullptr;
  if (to.remote() && call.mode != profiled_mode::notify && call.mode != profiled_mode::to_here) {
    profile_wishes wishes = to.wishes();
    wishes.brief = true;
    request.add_record(profile_record_type, false, encode_profile_wishes(wishes));
  }
  auto made =
      std::make_unique<profiled_call>(std::move(to), what, thread, event_within(thread, here), call.caller, call.peer);
  if (shown) made->show(*on, shown->name);
  return made;
}

}  // namespace

void recording_in_force::on_request(outgoing_request& request) const {
  if (auto hooks = record_call(request, this)) request.keep(std::move(hooks));
}

// Of code that no value is in force for; the others see their requests themselves.
std::unique_ptr<caller_hooks> profiler_client::on_request(outgoing_request& request) {
  return current_value(current_recording) ? nullptr : record_call(request, nullptr);
}

// ---------------------------------------------------------------- at the callee

namespace {

class profiled_request final : public callee_hooks, public hooks_of_store {
 public:
  explicit profiled_request(std::optional<profile_wishes> asked) noexcept
      : asked_(asked.value_or(profile_wishes{})), is_asked_(asked.has_value()) {}

  void before_handler(handler_start& start) override {
    if (start.method() == device_times_method) {  // of the profiler itself
      if (const timeline* on = timeline_here())   // where there is no memory, it is not shown
        (void)caught([&] { watched_by_others().shown.begin(*on, name_of(start), false); });
      return;
    }
    if (is_of_collective(start.method())) return;
    if (interceptor_table::arrivals_watched()) {
      begin_watched(start);
    } else if (is_asked_) {
      begin_for_caller(start);
    }
  }

  void handler_ended(handler_result& result) override {
    if (others_) others_->shown.end();
    if (!to_) return;
    ended_ = ticks_now();
    profiled_thread& thread = profiled_thread_here();
    thread_ = number_of(thread);
    failed_ = result.error() != nullptr;
    if (failed_) error_ = describe_exception(result.error());
    has_ended_ = true;
    if (to_.whole) targets_in_whole().add(thread, own_event(), others_->what_in_whole);
  }

  // A call is answered although its profile cannot be.
  void on_reply(outgoing_reply& reply) override {
    if (!to_.own || !has_ended_) return;
    if (const std::exception_ptr problem = caught([&] { add_profile(reply); }))
      log(log_level::warning, fmt::format("the reply to {} goes without the profile that was asked for: {}", what_.name,
                                          describe_exception(problem)));
  }

  void ended() noexcept override {
    if (others_) others_->shown.end();
    if (to_.own && !taken_) (void)caught([this] { (void)take(); });
    if (to_.whole && has_begun_ && !has_ended_) targets_in_whole().give_up();
  }

 private:
  // For others than its caller.
  struct watched {
    entered_scopes scopes;
    std::weak_ptr<worker_core> worker;
    const range_description* what_in_whole = nullptr;
    shown_range shown;
  };
  watched& watched_by_others() {
    if (!others_) others_ = std::make_unique<watched>();
    return *others_;
  }
  [[nodiscard]] event_targets targets_in_whole() const noexcept { return {.own = {}, .whole = to_.whole}; }

  void note_request(handler_start& start, profiled_thread& thread) noexcept {
    worker_core& core = start.core();
    node_ = core.agent_unchecked().self().id().value;
    limits_ = &core.limits();
    what_ = {name_of(start), range_kind::handler};
    arrived_ns_ = start.call().arrived().time_since_epoch().count();
    number_ = new_event_number(thread);
    began_thread_ = number_of(thread);
  }

  // Nothing but its caller wants to know of it.
  void begin_for_caller(handler_start& start) {
    profiled_thread& thread = profiled_thread_here();
    note_request(start, thread);
    thread_store* const store = thread_store::of(thread);
    context_values values =
        store ? store->begin_request(number_, node_, asked_) : thread_store::make_request(number_, node_, asked_);
    to_.own = values.get(current_recording)->to;
    start.set_value_of(current_recording, std::move(values));
    began_ = ticks_now();
  }

  void begin_watched(handler_start& start) {
    watched& others = watched_by_others();
    others.scopes = server_scopes_now();
    to_.whole = process_recordings::now();
    // Its end may be on another thread, where the future is ready that it returns.
    if (const timeline* on = timeline_here()) others.shown.begin(*on, name_of(start), false);
    const bool alone = is_asked_ || !others.scopes.all.empty();  // it has a recording of its own
    if (!alone && !to_.whole) return;                            // exited meanwhile
    note_request(start, profiled_thread_here());
    others.worker = start.core().weak_from_this();
    if (to_.whole) {
      others.what_in_whole = &to_.whole->names().name_range(what_.name, range_kind::handler);
      if (const worker_info* caller = start.sender())
        to_.whole->names().note_worker(caller->id().value, caller->name());
    }
    if (alone) record_alone();
    call_ = start.call().request().header.call_id;
    caller_ = start.caller().value;
    start.set_value(current_recording, recording_in_force(to_.own, number_, node_));
    to_.begin();
    has_begun_ = true;
    began_ = ticks_now();
  }

  static std::string_view name_of(const handler_start& start) noexcept {
    return start.method().empty() ? "an unknown method" : start.method();
  }

  // For the caller that asks, and for server scopes.
  void record_alone() {
    const entered_scopes& scopes = others_->scopes;
    recording::properties how;
    how.brief = true;
    how.node = node_;
    how.events_per_thread = scopes.events_per_thread;
    how.remote = scopes.remote;
    how.wishes = scopes.wishes;
    if (is_asked_) {
      how.events_per_thread = std::max(how.events_per_thread, thread_store::most_events_of_request);
      how.remote = true;
      how.wishes.shapes |= asked_.shapes;
      how.wishes.memory |= asked_.memory;
      how.wishes.device_times |= asked_.device_times;
    }
    to_.own = recording::make(how);
  }

  [[nodiscard]] bool in_scopes() const noexcept { return others_ && !others_->scopes.all.empty(); }

  void add_profile(outgoing_reply& reply) {
    const bool nothing_else = is_asked_ && !in_scopes() && to_.own->end_without_events();
    if (!is_asked_) return (void)take();
    // Behind the records of others, which go first.
    const std::size_t most = std::min(limits_->max_extension_bytes, wire_limits().max_extension_bytes);
    const std::size_t used = reply.message().extension_bytes() + record_overhead;
    const std::size_t room = most > used ? most - used : 0;
    const std::size_t limit = std::min({most / share_of_profile, longest_profile, room});
    if (nothing_else) {
      taken_ = true;
      add_handler(reply, limit, room);
      return;
    }
    std::vector<awaited_time> awaited;
    profiler::profile found = take(&awaited);
    profile_batch batch;
    batch.node = found.node;
    batch.received_ns = arrived_ns_;
    batch.lost = found.lost + found.unfinished;
    batch.events = std::move(found.events);
    // The handler itself first: it is kept if not all are.
    const auto own = std::find_if(batch.events.begin(), batch.events.end(),
                                  [this](const profiler::event& each) { return each.number == number_; });
    if (own != batch.events.end()) std::swap(*own, batch.events.front());
    if (asked_.device_times) add_device_times(batch, awaited);
    batch.answered_ns = steady_now_ns();
    add_batch(reply, batch, limit, room);
  }
  static void add_batch(outgoing_reply& reply, const profile_batch& batch, std::size_t limit, std::size_t room) {
    const byte_buffer content = encode_profile_batch(batch, limit);
    if (content.size() <= room) reply.add_record(profile_record_type, false, content.bytes());
  }

  // Of a handler that has done nothing which is recorded: most small ones.
  void add_handler(outgoing_reply& reply, std::size_t limit, std::size_t room) {
    const std::int64_t now = ticks_now();
    const tick_scale& scale = tick_scale::recent(now);
    const std::int64_t began_ns = std::max(arrived_ns_, scale.steady_ns(began_));
    const std::int64_t ended_ns = std::max(began_ns, scale.steady_ns(ended_));
    const std::int64_t answered_ns = std::max(ended_ns, scale.steady_ns(now));
    constexpr std::int64_t longest = std::numeric_limits<std::uint32_t>::max();
    if (asked_.brief && !failed_ && began_thread_ == thread_ && answered_ns - arrived_ns_ <= longest &&
        limit >= bytes_of_brief_answer) {
      const brief_answer brief{.received_ns = arrived_ns_,
                               .queued_ns = static_cast<std::uint32_t>(began_ns - arrived_ns_),
                               .ran_ns = static_cast<std::uint32_t>(ended_ns - began_ns),
                               .answered_ns = static_cast<std::uint32_t>(answered_ns - ended_ns),
                               .thread = thread_};
      return reply.add_record(profile_record_type, false, encode_brief_answer(brief));
    }
    profile_batch batch;
    batch.node = node_;
    batch.received_ns = arrived_ns_;
    batch.answered_ns = answered_ns;
    profiler::event& own = batch.events.emplace_back();
    own.name = what_.name;
    own.kind = range_kind::handler;
    own.node = node_;
    own.thread = thread_;
    own.began_thread = began_thread_ == thread_ ? 0 : began_thread_;
    own.number = number_;
    own.began_ns = began_ns;
    own.ended_ns = ended_ns;
    own.queued_ns = began_ns - arrived_ns_;
    own.failed = failed_;
    own.error = std::move(error_);
    add_batch(reply, batch, limit, room);  // lost, if its error is too long
  }

  [[nodiscard]] recorded_event own_event() const noexcept {
    recorded_event event{.what = &what_, .number = number_, .parent = 0, .began = began_, .ended = ended_};
    event.queued_ns = std::max<std::int64_t>(0, tick_scale::recent().steady_ns(began_) - arrived_ns_);
    event.call = call_;
    event.node = node_;
    event.peer = caller_;
    event.thread = thread_;
    event.began_thread = began_thread_;
    event.failed = failed_;
    if (!failed_) return event;
    try {
      event.details = std::make_unique<event_details>();
      event.details->error = error_;
    } catch (const std::bad_alloc&) {
      event.details.reset();  // that it failed suffices
    }
    return event;
  }

  // What devices have not done yet the caller asks for later: the reply does not wait for them.
  static void add_device_times(profile_batch& batch, const std::vector<awaited_time>& awaited) {
    std::unordered_map<std::uint64_t, const awaited_time*> later;
    for (const awaited_time& each : awaited) later.emplace(each.event, &each);
    for (std::size_t i = 0; i != batch.events.size(); ++i) {
      const profiler::event& each = batch.events[i];
      if (!each.device) continue;
      told_device_time told{.event = i, .on = *each.device};
      if (each.device_time) {
        told.time_ns = each.device_time->count();
      } else if (const auto found = later.find(each.number); found != later.end()) {
        told.time_ns = device_time_pending;
        told.token = found->second->here ? keep_for_asking(found->second->here) : found->second->token;
      }
      batch.device_times.push_back(told);
    }
  }

  // `awaited` gets what devices have not told yet; null: it is not asked for.
  profiler::profile take(std::vector<awaited_time>* awaited = nullptr) {
    std::vector<awaited_time> own;
    if (!awaited) awaited = &own;
    taken_ = true;
    if (has_ended_) to_.own->add(own_event());
    profiler::profile found = to_.own->finish(awaited);
    if (!in_scopes()) return found;
    for (const auto& each : others_->scopes.all) add_to_scope(*each, {found, *awaited, others_->worker});
    return found;
  }

  const profile_wishes asked_;
  const bool is_asked_;
  bool failed_ = false;
  bool has_begun_ = false;  // in the recordings of the process
  bool has_ended_ = false;
  bool taken_ = false;
  std::uint32_t thread_ = 0;
  std::uint32_t began_thread_ = 0;
  event_targets to_;
  std::unique_ptr<watched> others_;             // null: there are none
  const ferry::wire_limits* limits_ = nullptr;  // of the worker
  range_description what_;  // its name is the method's, whose code stays loaded until the request is over
  std::int64_t arrived_ns_ = 0;
  std::int64_t began_ = 0;
  std::int64_t ended_ = 0;
  std::uint64_t number_ = 0;
  std::uint64_t call_ = 0;
  std::int32_t node_ = -1;
  std::int32_t caller_ = -1;
  std::string error_;
};
static_assert(sizeof(profiled_request) <= thread_store::bytes_of_block);

}  // namespace

std::unique_ptr<callee_hooks> profiler_client::on_arrival(incoming_request& request) {
  std::optional<profile_wishes> asked;
  if (const extension_records records = request.records(); !records.empty()) {
    if (const auto content = find_profile(records)) asked = decode_profile_wishes(*content);
  }
  if (!asked && !interceptor_table::arrivals_watched()) return nullptr;
  return std::make_unique<profiled_request>(asked);
}

}  // namespace ferry::inline v0::detail
