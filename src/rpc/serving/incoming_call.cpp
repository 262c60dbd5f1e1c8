#include <ferry/rpc/detail/incoming_call.hpp>

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/log.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/rpc/interceptor.hpp>

#include "../../base/peer_log.hpp"
#include "../../base/thread_exit.hpp"
#include "../futures/thread_values.hpp"
#include "../methods/method_table.hpp"
#include "../pipeline/interceptor_table.hpp"
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
  set_call(this);
  run = [](work* self) noexcept {
    auto* call = static_cast<incoming_call*>(self);
    // A second time, if it was held back.
    call->had_to_wait_ = call->tried_ || handler_pool::runs_what_was_queued();
    call->tried_ = true;
    if (!call->one_way() && !call->channel_->may_begin(*call, *call->worker_)) return;
    call->serve();
    call->drop_reference();
  };
  call_event event{.what = call_moment::received, .at = now, .peer = from, .call = request_.header.call_id};
  event.method = request_.header.method;
  event.entry = method();
  event.bytes = bytes_;
  event.request = this;
  worker_->observers().tell(*worker_, event);
  // Before more is read from the connection: the next frame may be a cancellation, long before a thread runs the handler.
  if (one_way()) {
    worker_->enlist_one_way(*this);
  } else {
    channel_->begin_call(request_.header.call_id, *this);
  }
}

incoming_call::~incoming_call() {
  if (stage_ != stage::done) done();  // never started: the worker could not queue it
  for (callee_hooks* each = hooks_.load(std::memory_order_relaxed); each;) {
    const std::unique_ptr<callee_hooks> dropped(each);
    each = dropped->next_;
  }
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

const call_context* incoming_call::on_this_thread() noexcept { return serving; }

// ---------------------------------------------------------------- arrival and hooks

void incoming_call::add_hooks(std::unique_ptr<callee_hooks> hooks) noexcept {
  callee_hooks* const added = hooks.release();
  added->next_ = hooks_.load(std::memory_order_relaxed);
  while (!hooks_.compare_exchange_weak(added->next_, added, std::memory_order_acq_rel)) {
  }
}

callee_hooks* incoming_call::find_hooks(const void* key) const noexcept {
  for (callee_hooks* each = hooks_.load(std::memory_order_acquire); each; each = each->next_) {
    if (each->key() == key) return each;
  }
  return nullptr;
}

callee_hooks& incoming_call::find_or_add_hooks(const void* key,
                                               std::unique_ptr<callee_hooks> (*make)(incoming_call& call)) {
  if (callee_hooks* known = find_hooks(key)) return *known;
  std::unique_ptr<callee_hooks> fresh = make(*this);
  callee_hooks* first = hooks_.load(std::memory_order_acquire);
  for (;;) {
    if (callee_hooks* known = find_hooks(key)) return *known;  // another thread of the call was faster
    fresh->next_ = first;
    if (hooks_.compare_exchange_weak(first, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
  }
}

template <class Tell>
void incoming_call::tell_in_reverse(const Tell& tell) {
  for (callee_hooks* each = hooks_.load(std::memory_order_acquire); each; each = each->next_) tell(*each);
}

// Later hooks stand first: the list is walked to its end before the first of them is told.
template <class Tell>
void incoming_call::tell_in_order(const Tell& tell) {
  const auto walk = [&](const auto& self, callee_hooks* each) -> void {
    if (!each) return;
    self(self, each->next_);
    tell(*each);
  };
  walk(walk, hooks_.load(std::memory_order_acquire));
}

template <class Tell>
std::exception_ptr incoming_call::tell_all(const Tell& tell) noexcept {
  std::exception_ptr first;
  tell_in_reverse([&](callee_hooks& each) {
    try {
      tell(each);
    } catch (...) {
      if (!first) first = current_error();
    }
  });
  return first;
}

std::exception_ptr incoming_call::tell_handler_ended(handler_result& result) noexcept {
  return tell_all([&](callee_hooks& each) { each.handler_ended(result); });
}

std::exception_ptr incoming_call::tell_reply(outgoing_reply& reply) noexcept {
  return tell_all([&](callee_hooks& each) { each.on_reply(reply); });
}

void incoming_call::on_nested_request(outgoing_request& request) {
  tell_in_order([&](callee_hooks& each) { each.on_nested_request(request); });
}

void incoming_call::place_answer_by(device_map placement) {
  reply_placement_ = std::make_unique<const device_map>(std::move(placement));
}

void incoming_call::arrive() noexcept {
  refusal_ = caught([&] { worker_->interceptors().on_arrival(*this); });
  if (holds_.load(std::memory_order_acquire) != 1) {
    mark_held();  // hooks are told of stops from here on, and now of an earlier one
    if (is_stopped()) tell_stopped();
    if (refusal_) tell_in_reverse([&](callee_hooks& each) { each.refused(refusal_); });
  }
  if (holds_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const method_entry* called = method();
  if (called && called->inline_handler && !has_records()) {
    run(this);
  } else {
    launch();
  }
}

void incoming_call::release() noexcept {
  if (holds_.fetch_sub(1, std::memory_order_acq_rel) == 1) launch();
}

void incoming_call::launch() noexcept {
  progress_.store(progress::queued, std::memory_order_relaxed);
  worker_->post(this);
}

void incoming_call::tell_stopped() noexcept {
  if ((ends_.fetch_or(stop_told_bit, std::memory_order_acq_rel) & stop_told_bit) != 0) return;
  tell_in_reverse([](callee_hooks& each) { each.stopped(); });
}

void incoming_call::request_stop() noexcept {
  call_context::request_stop();
  if ((ends_.fetch_or(stopped_bit, std::memory_order_acq_rel) & returned_bit) != 0) return give_up();
  if (progress_.load(std::memory_order_acquire) == progress::held) tell_stopped();
}

void incoming_call::count_wait(int change) noexcept {
  waits_.fetch_add(change, std::memory_order_relaxed);
  tell_in_reverse([&](callee_hooks& each) { each.waiting(change); });
}

// Valid while the request exists: until done().
void incoming_call::report(call_moment what, std::uint64_t bytes, errc code) noexcept {
  call_event event{.what = what, .peer = caller(), .call = request_.header.call_id};
  event.method = request_.header.method;
  event.entry = method();
  event.bytes = bytes;
  event.code = code;
  event.request = this;
  event.begun = handler_began_;
  event.told_before = end_reported_;
  if (what != call_moment::error_sent) end_reported_ = true;
  worker_->observers().tell(*worker_, event);
}

// ---------------------------------------------------------------- the handler

void incoming_call::take_streams() {
  set_streams(std::move(request_.streams), worker_->agent_unchecked().members().devices());
}

// What the hooks say before the handler may run.
void incoming_call::begin_handler(handler_start& start) {
  stage_ = stage::intercepting;
  if (refusal_) std::rethrow_exception(refusal_);
  tell_in_order([&](callee_hooks& each) { each.before_handler(start); });
  stage_ = stage::decoding;
}

void incoming_call::refuse_unknown_method() const {
  const std::uint64_t method = request_.header.method;
  std::string others;
  for (const auto& [id, signature] : namesakes(method)) {
    if (worker_->serves(id)) others += (others.empty() ? "" : " and ") + signature;
  }
  if (!others.empty()) throw_error(errc::signature_mismatch, others);
  throw_error(errc::unknown_method, worker_->serves(method)
                                        ? std::string(no_such_method)
                                        : "it serves a list of methods (ferry::serve<...>() or worker_config::serve), "
                                          "which does not contain this one");
}

// A worker that is behind does not work for callers that have given up. What the library tells, as that a pass has failed, is
// heard at any time, and an object that is not made would be one that other workers may know of already.
void incoming_call::refuse_if_too_late() const {
  if (!method() || creates(method()->flavour) || worker_->is_library_method(request_.header.method)) return;
  if (deadline().expired()) throw_error(errc::rpc_timeout, "its deadline had passed before its handler began");
  if (stop_requested()) throw_error(errc::call_cancelled, "its caller had given it up before its handler began");
}

void incoming_call::serve() noexcept {
  progress_.store(progress::running, std::memory_order_relaxed);
  stage_ = stage::decoding;
  std::exception_ptr no_streams;
  if (!request_.streams.empty() || worker_->agent_unchecked().members().uses_devices())
    no_streams = caught([&] { take_streams(); });
  const context_scope scope(this);
  const serving_scope on_stack(this);
  const method_entry* called = method();
  // The answer, perhaps on another thread, consumes the request.
  const auto moment = [this, called, method = request_.header.method, id = request_.header.call_id](call_moment what) {
    call_event event{.what = what, .peer = caller(), .call = id, .method = method};
    event.entry = called;
    return event;
  };
  call_event begun = moment(had_to_wait_ ? call_moment::handler_begun_late : call_moment::handler_begun);
  if (!had_to_wait_) {
    handler_began_ = arrived_;
  } else if (worker_->observers().is_switched_on()) {
    begun.at = clock::now();
    handler_began_ = begun.at;
  }
  worker_->observers().tell(*worker_, begun);
  std::exception_ptr thrown;
  try {
    if (request_.failure) std::rethrow_exception(request_.failure);
    if (no_streams) std::rethrow_exception(no_streams);
    if (had_to_wait_ && !one_way()) refuse_if_too_late();
    bool skipped = false;
    if (refusal_ || has_hooks()) {
      handler_start start(*this);
      begin_handler(start);
      skipped = start.skipped();
      if (!start.values().empty()) {
        set_initial_values(start.values());
        thread_values::exchange(find_current_thread(), start.take_values());  // until the end of the context's scope
      }
    }
    if (skipped) {
      skipped_ = true;
      answer();
    } else {
      if (!called) refuse_unknown_method();
      if (called->signature != request_.header.signature) throw_error(errc::signature_mismatch, called->signature_text);
      called->serve(*this);
    }
  } catch (...) {
    thrown = current_error();
  }
  if (thrown && !later_) fail(thrown);
  if (later_) worker_->observers().tell(*worker_, moment(call_moment::handler_suspended));
  worker_->observers().tell(*worker_, moment(call_moment::handler_ended));
}

// The answer may exist already.
void incoming_call::answer_later() noexcept {
  later_ = true;
  tell_in_reverse([](callee_hooks& each) { each.suspended(); });
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
  report(call_moment::refused, 0, call_context::deadline().expired() ? errc::rpc_timeout : errc::call_cancelled);
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

// ---------------------------------------------------------------- the answer

void incoming_call::tell_result() {
  if (result_told_ || !hooks_.load(std::memory_order_acquire)) return;
  result_told_ = true;
  handler_result result(nullptr, !skipped_);
  if (auto thrown = tell_handler_ended(result)) {
    stage_ = stage::intercepting;
    std::rethrow_exception(thrown);
  }
}

bool incoming_call::gives_values(const outgoing_message& answer) const noexcept {
  return answer.keeps_its_tensors() && channel_->within_process();
}

void incoming_call::send(reply_writer& reply) {
  reply.send();
  done();
}

void incoming_call::done() noexcept {
  stage_ = stage::done;
  over_.store(true);  // before hooks are told: those that are added from now on see it
  if (late_ && progress_.exchange(progress::done, std::memory_order_relaxed) == progress::later) {
    worker_->count_later(-1);
  }
  tell_in_reverse([](callee_hooks& each) { each.ended(); });
  if (given_up_) return;
  if (one_way()) {
    report(call_moment::done, 0);
  } else if (!end_reported_) {  // dropped with its worker
    report(call_moment::refused, 0, errc::shutting_down);
  }
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
  log_about(caller(), log_level::info, [&] {
    return fmt::format("{} failed after its caller had given it up: {}", describe(), describe_exception(thrown));
  });
  if (!std::exchange(result_told_, true)) {
    handler_result result(thrown, stage_ == stage::running);
    if (auto failure = tell_handler_ended(result))
      log_about(caller(), log_level::warning,
                [&] { return fmt::format("{}: an interceptor threw {}", describe(), describe_exception(failure)); });
  }
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

// What the caller is told, and the log.
struct incoming_call::failure {
  errc code{};
  std::string detail;  // for the caller, which has the rest
  std::string logged;
  bool thrown = false;  // an exception that keeps its type; otherwise a failure with the code
};

incoming_call::failure incoming_call::failure_of(const std::exception_ptr& reason) const {
  failure what;
  what.logged = what.detail = describe_exception(reason);
  what.thrown = stage_ == stage::running;
  if (what.thrown) {
    what.code = errc::remote_exception;
    return what;
  }
  what.code = stage_ == stage::encoding ? errc::bad_result : errc::bad_arguments;
  const auto passes_on = [&](errc kind) {
    switch (kind) {
      case errc::unknown_method:
      case errc::signature_mismatch:
      case errc::unknown_extension:
      case errc::reference_deleted:
      case errc::would_deadlock:
      case errc::rpc_timeout:
      case errc::call_cancelled:
      case errc::device_failure:
      case errc::device_timeout:
      case errc::out_of_memory: return true;
      case errc::bad_device: return stage_ == stage::encoding || static_cast<bool>(request_.failure);
      case errc::malformed:
      case errc::truncated: return false;
      // Of the result it is a limit of this worker; of the arguments, it is one that their sender does not know.
      case errc::limit_exceeded: return stage_ == stage::encoding;
      default: return stage_ == stage::intercepting;  // what an interceptor decides
    }
  };
  try {
    std::rethrow_exception(reason);
  } catch (const error& e) {
    if (passes_on(e.kind())) {
      what.code = e.kind();
      what.detail = e.message();
    }
    if (e.kind() == errc::signature_mismatch) {
      what.logged = fmt::format("signature_mismatch: here it is {}, and the caller has another signature", what.detail);
    }
  } catch (const std::bad_alloc&) {
    what.code = errc::out_of_memory;
    what.detail = "the callee ran out of memory";
  } catch (...) {  // `detail` suffices, but for what an interceptor throws
    what.thrown = stage_ == stage::intercepting;
    if (what.thrown) what.code = errc::remote_exception;
  }
  return what;
}

// A call that its caller has given up is not a failure, nor is a wait that cannot succeed.
void incoming_call::log_failure(const failure& what, bool expected) const noexcept {
  const bool ran = stage_ == stage::running;
  const bool in_vain = ran || what.code == errc::would_deadlock || what.code == errc::rpc_timeout;
  const auto level = expected || what.code == errc::call_cancelled ? log_level::info
                     : in_vain                                     ? log_level::warning
                                                                   : log_level::error;
  log_about(caller(), level, [&] {
    return fmt::format("{} {}: {}", describe(),
                       stage_ == stage::encoding ? "has a result that cannot be sent"
                       : ran                     ? "threw"
                                                 : "was not run",
                       what.logged);
  });
}

void incoming_call::fail(const std::exception_ptr& thrown) noexcept {
  if (stage_ == stage::done) return;  // the answer has been sent
  if (given_up_) return fail_unanswered(thrown);
  // An encoder of a user's exception may throw, or a hook: that is then what the caller is told.
  std::exception_ptr left = send_failure(thrown, false);
  if (left) left = send_failure(left, true);
  if (left) fail_plainly(left);
}

// Returns what kept the error from being sent.
std::exception_ptr incoming_call::send_failure(const std::exception_ptr& thrown, bool again) noexcept {
  return caught([&] {
    const std::exception_ptr reason = name_method(thrown);
    const failure what = failure_of(reason);
    handler_result result(what.thrown ? reason : make_error(what.code, what.detail), stage_ == stage::running);
    std::exception_ptr refused;
    if (!std::exchange(result_told_, true)) {
      refused = tell_handler_ended(result);
    }
    log_failure(what, result.expected());
    if (!again) report(call_moment::refused, 0, what.code);
    if (refused) {
      stage_ = stage::intercepting;
      std::rethrow_exception(refused);
    }
    if (one_way()) return done();
    reply_writer reply(*this);
    if (!result.absorbed()) {
      if (what.thrown || result.replaced()) {
        reply.be_exception(result.error());
      } else {
        reply.be_failure(what.code, what.detail);
      }
    }
    send(reply);
  });
}

void incoming_call::fail_plainly(const std::exception_ptr& thrown) noexcept {
  log_about(caller(), log_level::error,
            [&] { return describe() + ": the error could not be encoded: " + describe_exception(thrown); });
  const auto failure = caught([&] {
    if (one_way()) return;
    reply_writer reply(*worker_, *channel_, {caller(), sender_incarnation()}, request_.header.call_id);
    reply.be_failure(errc::remote_exception, "the method failed, and its error could not be encoded");
    reply.send();
  });
  if (failure) {
    log_about("callers", log_level::error,
              [&] { return "an error could not be sent to the caller: " + describe_exception(failure); });
  }
  done();
}

// ---------------------------------------------------------------- what hooks see
}  // namespace ferry::inline v0::detail

namespace ferry::inline v0 {

std::string_view served_request::method() const noexcept {
  return call_.method() ? std::string_view(call_.method()->name) : std::string_view();
}
const worker_info* served_request::sender() const noexcept { return call_.sender(); }
worker_id served_request::caller() const noexcept { return call_.caller(); }
incarnation_id served_request::incarnation() const noexcept { return call_.sender_incarnation(); }
ferry::deadline served_request::deadline() const noexcept { return static_cast<const call_context&>(call_).deadline(); }
bool served_request::one_way() const noexcept { return call_.one_way(); }
std::uint64_t served_request::bytes() const noexcept { return call_.bytes(); }
extension_records served_request::records() const noexcept { return extension_records(call_.request().extensions); }
std::span<tensor> served_request::tensors() noexcept { return call_.request().tensors; }
detail::worker_core& served_request::core() const noexcept { return *call_.worker(); }

request_hold incoming_request::hold() {
  call().hold();
  call().add_reference();
  return request_hold(&call());
}

void request_hold::release() noexcept {
  if (detail::incoming_call* call = std::exchange(call_, nullptr)) {
    call->release();
    call->drop_reference();
  }
}

}  // namespace ferry::inline v0
