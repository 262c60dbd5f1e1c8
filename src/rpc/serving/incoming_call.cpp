#include <ferry/rpc/detail/incoming_call.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/log.hpp>
#include <ferry/device/stream.hpp>

#include "../../base/peer_log.hpp"
#include "../../base/thread_exit.hpp"
#include "../../wire/read_marks.hpp"
#include "../objects/call_references.hpp"
#include "../objects/object_order.hpp"
#include "../references/table/reference_table.hpp"
#include "../worker/worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {

thread_local constinit const call_context* serving = nullptr;  // the call whose handler is on the stack of this thread

struct serving_scope {
  explicit serving_scope(const call_context* call) noexcept : outer(std::exchange(serving, call)) {}
  ~serving_scope() { serving = outer; }
  serving_scope(const serving_scope&) = delete;
  serving_scope& operator=(const serving_scope&) = delete;
  const call_context* outer;
};

deadline deadline_of(const frame_header& request, clock::time_point now) noexcept {
  if ((request.flags & frame_no_deadline) != 0) return {};
  constexpr std::uint64_t most = 100ULL * 365 * 24 * 3600 * 1'000'000;  // microseconds; more means never
  if (request.timeout_us >= most) return {};
  return deadline(now + std::chrono::microseconds(request.timeout_us));
}

void trace_handler(trace_event::kind what, const method_entry& method, const worker_core& worker, worker_id caller,
                   std::uint64_t id) noexcept {
  const std::string peer = std::to_string(caller.value);
  trace({what, method.name, worker.agent_unchecked().self().name(), peer, id,
         std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now().time_since_epoch()).count()});
}

}  // namespace

incoming_call::incoming_call(std::shared_ptr<worker_core> worker, std::shared_ptr<reply_channel> channel,
                             worker_id from, inbound_message&& request, clock::time_point now)
    : held_method{worker->serves(request.header.method) ? method_hold::find(request.header.method) : method_hold()},
      call_context(worker, deadline_of(request.header, now), from),
      worker_(std::move(worker)),
      channel_(std::move(channel)),
      request_(std::move(request)),
      arrived_(now),
      bytes_(request_.header.message_bytes()),
      is_one_way_((request_.header.flags & frame_one_way) != 0) {
  run = [](work* self) noexcept {
    auto* call = static_cast<incoming_call*>(self);
    // A second time, if it was held back.
    call->had_to_wait_ = call->tried_ || handler_pool::runs_what_was_queued();
    call->tried_ = true;
    if (!call->one_way() && !call->channel_->may_begin(*call, *call->worker_)) return;
    call->serve();
    call->drop_reference();
  };
  worker_->recorder().add(flight_event::request_received, flight_time(now), from, request_.header.call_id,
                          request_.header.method, bytes_);
  // Before more is read from the connection: the next frame may be a cancellation, long before a thread runs the handler.
  if (one_way()) {
    worker_->enlist_one_way(*this);
  } else {
    channel_->begin_call(request_.header.call_id, *this);
  }
}

incoming_call::~incoming_call() {
  if (stage_ != stage::done) done();  // never started: the worker could not queue it
}

const worker_info* incoming_call::sender() const noexcept { return channel_ ? channel_->sender() : nullptr; }

incarnation_id incoming_call::sender_incarnation() const noexcept {
  return channel_ ? channel_->sender_incarnation() : incarnation_id{};
}

const wire_limits& incoming_call::limits() const noexcept { return worker_->limits(); }

std::string incoming_call::describe() const {
  return fmt::format("{}: '{}' called by worker {}", to_string(worker_->agent_unchecked().self()),
                     method() ? method()->name : fmt::format("method {:016x}", request_.header.method), caller().value);
}

std::string incoming_call::describe_plainly() const {
  return fmt::format("'{}' called by worker {}", method() ? method()->name : "a method that it does not serve",
                     caller().value);
}

// Of a call on an object.
std::string incoming_call::describe_target() const {
  const object_id& object = references_->target_id;
  std::string text = fmt::format("object {}@{}", object.number, object.creator.id.value);
  if (references_->target->has_value()) text += fmt::format(" ({})", references_->target->value_made().type_name());
  return text;
}

const call_context* incoming_call::on_this_thread() noexcept { return serving; }

void incoming_call::launch() noexcept {
  progress_.store(progress::queued, std::memory_order_relaxed);
  worker_->post(this);
}

void incoming_call::request_stop() noexcept {
  call_context::request_stop();
  if ((ends_.fetch_or(stopped_bit, std::memory_order_acq_rel) & returned_bit) != 0) return give_up();
  if (progress_.load(std::memory_order_acquire) == progress::held) worker_->references().give_up(*this);
}

// The caller's own error cannot say what happens here.
void incoming_call::log_given_up() const noexcept {
  try {
    std::string what = references_->target ? references_->target->turns().describe_wait(*this) : "";
    if (what.empty()) what = references_->what_is_missing();
    if (what.empty()) return;
    const auto waited = clock::now() - arrived_;
    const ferry::deadline until = call_context::deadline();
    const bool in_time = until.is_never() || until.remaining() > waited / 4;  // then it was cancelled
    log_about(caller(), in_time ? log_level::info : log_level::warning, [&] {
      return fmt::format("{}: {} was given up by its caller after {:.3g} s, in which it waited for {}",
                         to_string(worker_->agent_unchecked().self()), describe_plainly(), in_seconds(waited), what);
    });
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): only a log line is lost
  }
}

// Valid while the request exists: until done().
void incoming_call::record(flight_event what, std::uint64_t bytes, errc code) noexcept {
  flight_recorder& recorder = worker_->recorder();
  if (!recorder.on()) return;
  recorder.add(what, flight_time::now(), caller(), request_.header.call_id, request_.header.method, bytes, code);
}

void incoming_call::take_streams() {
  std::vector<stream> streams = std::move(request_.streams);
  for (const device& each : worker_->agent_unchecked().members().devices()) {
    const bool has_one =
        std::any_of(streams.begin(), streams.end(), [&](const stream& own) { return own.device() == each; });
    if (has_one) continue;
    try {
      streams.push_back(pool_stream(each));
    } catch (const error& problem) {  // only a problem for handlers that use that device
      log_about(caller(), log_level::debug,
                [&] { return fmt::format("{} has no stream: {}", describe(), problem.message()); });
    }
  }
  set_streams(std::move(streams));
}

void incoming_call::serve() noexcept {
  progress_.store(progress::running, std::memory_order_relaxed);
  std::exception_ptr no_streams;
  if (!request_.streams.empty() || worker_->agent_unchecked().members().uses_devices())
    no_streams = caught([&] { take_streams(); });
  const context_scope scope(this);
  const serving_scope on_stack(this);
  const method_entry* called = method();
  const bool traced = trace_enabled() && called;
  const std::uint64_t id = request_.header.call_id;  // the answer, perhaps on another thread, consumes the request
  if (had_to_wait_) record(flight_event::handler_begun, 0);
  if (traced) trace_handler(trace_event::kind::handler_begin, *called, *worker_, caller(), id);
  std::exception_ptr thrown;
  try {
    if (request_.failure) std::rethrow_exception(request_.failure);
    if (no_streams) std::rethrow_exception(no_streams);
    if (references_ && references_->refusal) std::rethrow_exception(references_->refusal);
    if (references_ && references_->late) std::rethrow_exception(references_->late);
    if (references_ && references_->made_before) {
      outgoing_message answer;
      answer.begin_payload();
      return send(std::move(answer));
    }
    if (!called) {
      throw_error(errc::unknown_method, worker_->serves(request_.header.method)
                                            ? ""
                                            : "it serves a list of methods (ferry::serve<...>() or "
                                              "worker_config::serve), which does not contain this one");
    }
    if (called->signature != request_.header.signature) throw_error(errc::signature_mismatch, called->signature_text);
    if (references_ && references_->target && !references_->takes_no_turn) references_->target->use_here();
    called->serve(*this);
  } catch (...) {
    thrown = current_error();
  }
  if (thrown && !later_) fail(thrown);
  if (later_) {
    worker_->recorder().add(flight_event::handler_returned, flight_time::now(), caller(), id, called->id, 0);
  }
  if (traced) trace_handler(trace_event::kind::handler_end, *called, *worker_, caller(), id);
}

// The answer may exist already.
void incoming_call::answer_later() noexcept {
  later_ = true;
  if (gives_turn_away()) {
    pause_use();
    references_->target->turns().pause(*this);
  }
  worker_->count_later(1);
  auto expected = progress::running;
  if (!progress_.compare_exchange_strong(expected, progress::later)) return worker_->count_later(-1);
  if (one_way()) return;
  if ((ends_.fetch_or(returned_bit, std::memory_order_acq_rel) & stopped_bit) != 0) return give_up();
  worker_->late_calls().watch(call_context::deadline());
}

void incoming_call::begin_answer() noexcept {
  const progress before = progress_.exchange(progress::answering, std::memory_order_acq_rel);
  if (before == progress::later) worker_->count_later(-1);
  given_up_ = before == progress::given_up;
}

void incoming_call::give_up() noexcept {
  auto expected = progress::later;
  if (!progress_.compare_exchange_strong(expected, progress::given_up, std::memory_order_acq_rel)) return;
  worker_->count_later(-1);
  record(flight_event::request_failed, 0,
         call_context::deadline().expired() ? errc::rpc_timeout : errc::call_cancelled);
  const context_scope scope(this);  // frees memory in the order of its streams
  release_request();
}

served_call_info incoming_call::describe_now(const worker_info& from, std::uint64_t id, clock::time_point now) const {
  const progress reached = progress_.load(std::memory_order_relaxed);
  return {.id = id,
          .method = method() ? method()->name : "a method that it does not serve",
          .caller = from,
          .phase = reached == progress::queued                  ? served_phase::queued
                   : reached == progress::held                  ? served_phase::held
                   : waits_.load(std::memory_order_relaxed) > 0 ? served_phase::waiting
                   : reached == progress::later                 ? served_phase::later
                                                                : served_phase::running,
          .age = std::max(now - arrived_, clock::duration{}),
          .until = call_context::deadline(),
          .bytes = bytes_,
          .one_way = is_one_way_,
          .unwanted = stop_requested()};
}

incoming_call::answer_message::answer_message(incoming_call& call)
    : call_(call), references_(*call.worker_, {call.caller(), call.sender_incarnation()}) {
  message.begin_payload();
  message.handles = &references_;
}

incoming_call::answer_message::~answer_message() = default;

void incoming_call::place(outgoing_message& answer) const {
  if (answer.tensors.empty()) return;
  const device_map* placed = references_ && references_->way_back ? &*references_->way_back : nullptr;
  worker_->agent_unchecked().place_response({caller(), sender_incarnation()}, answer, placed);
}

void incoming_call::answer_message::send() {
  call_.place(message);
  const bool reads = std::any_of(message.tensors.begin(), message.tensors.end(),
                                 [](const tensor& each) { return !operations_of(each.device().kind).immediate; });
  if (reads && call_.works_on_objects()) message.reads = std::make_shared<read_marks>();
  call_.end_uses(message.reads);
  references_.seal(message);
  call_.send(std::move(message));
  references_.sent();
}

owned_object& incoming_call::target() const {
  if (!references_ || !references_->target) {
    throw_error(errc::bad_arguments, "the request names no object for a function of objects");
  }
  return *references_->target;
}

owned_object& incoming_call::creation() const {
  if (!references_ || !references_->creation) {
    throw_error(errc::bad_arguments, "the request names no object that it is to make");
  }
  return *references_->creation;
}

const call_chain* incoming_call::chain() const noexcept {
  // After the answer no caller waits for this call.
  if (!references_ || references_->answered.load()) return nullptr;
  return references_->chain.empty() ? nullptr : &references_->chain;
}

// A waiting handler gives up its turn at the object, if the object is reentrant.
void incoming_call::count_wait(int change) noexcept {
  waits_.fetch_add(change, std::memory_order_relaxed);
  if (!gives_turn_away()) return;
  if (change > 0) {
    pause_use();
    references_->target->turns().pause(*this);
  } else {
    references_->target->turns().resume(*this);
    resume_use();
  }
}

bool incoming_call::gives_turn_away() const noexcept {
  return references_ && references_->turn.running && references_->turn.in_lane &&
         references_->target->value_made().policy().reentrant;
}

// ---------------------------------------------------------------- objects that it works on

namespace {

template <class Describe>
void tell_quietly(const Describe& describe, std::string_view what, const std::exception& problem) noexcept {
  try {
    log(log_level::error, fmt::format("{}: {}: {}", describe(), what, problem.what()));
  } catch (const std::exception&) {  // no memory for more
    log(log_level::error, what);
  }
}

}  // namespace

bool incoming_call::uses_object(owned_object& object) {
  if (streams().empty() && object.order().idle()) return true;
  const std::lock_guard lock(uses_mutex_);
  if (uses_ended_) return false;
  auto use =
      std::find_if(uses_.begin(), uses_.end(), [&](const object_use& each) { return each.object.get() == &object; });
  if (use == uses_.end()) use = uses_.insert(use, {ref_ptr<owned_object>::share(&object), {}});
  use->before = object.order().let_streams_wait(streams(), true);
  return true;
}

bool incoming_call::works_on_objects() {
  const std::lock_guard lock(uses_mutex_);
  return !uses_.empty();
}

void incoming_call::end_uses(const std::shared_ptr<read_marks>& reads) {
  std::vector<object_use> ended;  // destroyed without the mutex: destructors run user code
  const std::lock_guard lock(uses_mutex_);
  ended.reserve(uses_.size());
  while (!uses_.empty()) {
    uses_.back().object->order().leave_mark(streams(), uses_.back().before, reads);
    ended.push_back(std::move(uses_.back()));
    uses_.pop_back();
  }
  uses_ended_ = true;
}

void incoming_call::end_uses_quietly() noexcept {
  try {
    end_uses(nullptr);
  } catch (const std::exception& problem) {
    {
      std::vector<object_use> ended;
      const std::lock_guard lock(uses_mutex_);
      ended.swap(uses_);
      uses_ended_ = true;
    }
    tell_quietly([&] { return describe(); }, "calls on its objects do not wait for what devices still do for it",
                 problem);
  }
}

void incoming_call::pause_use() noexcept {
  try {
    const std::lock_guard lock(uses_mutex_);
    for (object_use& each : uses_) {
      if (each.object.get() != references_->target.get()) continue;
      each.object->order().leave_mark(streams(), each.before);
      each.before.clear();
    }
  } catch (const std::exception& problem) {
    tell_quietly([&] { return describe(); }, "those who have its turn meanwhile do not wait for its devices", problem);
  }
}

void incoming_call::resume_use() noexcept {
  try {
    const std::lock_guard lock(uses_mutex_);
    for (object_use& each : uses_) {
      if (each.object.get() == references_->target.get())
        each.before = each.object->order().let_streams_wait(streams(), thread_context() == this);
    }
  } catch (const std::exception& problem) {
    tell_quietly([&] { return describe(); }, "it does not wait for the devices of those who have had its turn",
                 problem);
  }
}

void incoming_call::keep_value(std::unique_ptr<owned_value> made) {
  stage_ = stage::encoding;
  end_uses(nullptr);
  creation().finish(std::move(made));
  answer();
}

void incoming_call::send(outgoing_message&& reply) {
  reply.header.kind = frame_kind::reply;
  record(flight_event::request_answered, reply.size());
  channel_->reply(request_.header.call_id, std::move(reply));
  done();
}

void incoming_call::done() noexcept {
  end_uses_quietly();
  stage_ = stage::done;
  if (late_ && progress_.exchange(progress::done, std::memory_order_relaxed) == progress::later) {
    worker_->count_later(-1);
  }
  if (references_) worker_->references().done(*this);
  if (given_up_) return;
  if (one_way()) record(flight_event::request_done, 0);
  release_request();
  channel_.reset();
}

// It counts as being served no more.
void incoming_call::release_request() noexcept {
  if (one_way()) {
    worker_->delist_one_way(*this);
  } else {
    channel_->end_call(request_.header.call_id, *this);
  }
  const std::uint64_t held = request_.header.held_bytes();
  request_ = {};  // continuations may keep the context; free what was received
  channel_->handled(held);
  worker_->request_done();
}

// No caller waits for it any more.
void incoming_call::fail_unanswered(const std::exception_ptr& thrown) noexcept {
  end_uses_quietly();
  log_about(caller(), log_level::info, [&] {
    return fmt::format("{} failed after its caller had given it up: {}", describe(), describe_exception(thrown));
  });
  if (references_ && references_->creation) references_->creation->fail(thrown);
  done();
}

// The error says only what user code did; this one says whose it was.
std::exception_ptr incoming_call::name_method(const std::exception_ptr& reason) const {
  try {
    std::rethrow_exception(reason);
  } catch (const thread_exit_error& e) {
    return std::make_exception_ptr(thread_exit_error(fmt::format("{}: {}", describe(), e.message())));
  } catch (...) {
    return reason;
  }
}

void incoming_call::fail(const std::exception_ptr& thrown) noexcept {
  if (stage_ == stage::done) return;  // the answer has been sent
  if (given_up_) return fail_unanswered(thrown);
  end_uses_quietly();
  try {
    const std::exception_ptr reason = name_method(thrown);
    const std::string text = describe_exception(reason);
    errc code = stage_ == stage::decoding ? errc::bad_arguments : errc::bad_result;
    std::string detail = text;  // for the caller, which has the rest
    std::string logged = text;
    if (stage_ != stage::running) {
      try {
        std::rethrow_exception(reason);
      } catch (const error& e) {
        if (e.kind() == errc::unknown_method || e.kind() == errc::signature_mismatch ||
            e.kind() == errc::unknown_extension || e.kind() == errc::reference_deleted ||
            e.kind() == errc::would_deadlock || e.kind() == errc::rpc_timeout || e.kind() == errc::call_cancelled ||
            e.kind() == errc::device_failure || e.kind() == errc::out_of_memory ||
            (e.kind() == errc::bad_device && (stage_ == stage::encoding || request_.failure))) {
          code = e.kind();
          detail = e.message();
        }
        if (e.kind() == errc::signature_mismatch) {
          logged = fmt::format("signature_mismatch: here it is {}, and the caller has another signature", detail);
        }
      } catch (const std::bad_alloc&) {
        code = errc::out_of_memory;
        detail = "the callee ran out of memory";
      } catch (...) {  // NOLINT(bugprone-empty-catch): `text` suffices
      }
    }
    // A call that its caller has given up is not a failure, nor is a wait that cannot succeed.
    const bool given_up = code == errc::call_cancelled || (references_ && references_->given_up);
    const bool in_vain = stage_ == stage::running || code == errc::would_deadlock || code == errc::rpc_timeout;
    const auto level = given_up ? log_level::info : in_vain ? log_level::warning : log_level::error;
    log_about(caller(), level, [&] {
      return fmt::format("{} {}: {}", describe(),
                         stage_ == stage::decoding  ? "was not run"
                         : stage_ == stage::running ? "threw"
                                                    : "has a result that cannot be sent",
                         logged);
    });
    record(flight_event::request_failed, 0, stage_ == stage::running ? errc::remote_exception : code);
    // An exception of the function is recorded as the state of the object: its creation has been attempted.
    const bool creation = references_ && references_->creation;
    if (creation) references_->creation->fail(stage_ == stage::running ? reason : make_error(code, detail));
    if (one_way()) return done();
    outgoing_message answer;
    if (stage_ == stage::running && creation) {
      answer.begin_payload();
      return send(std::move(answer));
    }
    if (stage_ == stage::running) {
      answer.header.kind = frame_kind::exception;
      answer.begin_payload();
      encode_exception(reason, answer);
      place(answer);
    } else {
      answer.header.kind = frame_kind::failure;
      answer.header.code = static_cast<std::uint32_t>(code);
      answer.begin_payload();
      encode_values<std::string>(answer.bytes, answer.tensors, detail);
    }
    channel_->reply(request_.header.call_id, std::move(answer));
    done();
  } catch (...) {  // an encoder of a user's exception threw, or the text is above the limits
    fail_plainly();
  }
}

void incoming_call::fail_plainly() noexcept {
  try {
    log_about(caller(), log_level::error,
              [&] { return describe() + ": the error could not be encoded: " + describe_exception(current_error()); });
    outgoing_message answer;
    answer.header.kind = frame_kind::failure;
    answer.header.code = static_cast<std::uint32_t>(errc::remote_exception);
    answer.begin_payload();
    encode_values<std::string>(answer.bytes, answer.tensors,
                               std::string("the method failed, and its error could not be encoded"));
    channel_->reply(request_.header.call_id, std::move(answer));
  } catch (const std::exception& e) {
    log_about("callers", log_level::error,
              [&] { return std::string("an error could not be sent to the caller: ") + e.what(); });
  }
  done();
}

}  // namespace ferry::inline v0::detail
