// Asynchronous calls: those with a future, and those that make an object.

#include <atomic>
#include <memory>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <ferry/rpc/call.hpp>

#include "../../transport/reactor/io_threads.hpp"
#include "../references/table/reference_table.hpp"
#include "../worker/worker_core.hpp"
#include "call_report.hpp"

namespace ferry::inline v0::detail {

async_call::~async_call() = default;

void async_call::start(outgoing_call& call) {
  facts_ = {call.worker(), &call.method(),   call.to_whom().who,
            call.limit(),  call.inherited(), call.to_whom().incarnation};
  code_ = method_hold(call.method());
  began = call.began();
  keep();  // until finish()
  try {
    if (call.stop() && call.stop()->stop_possible()) stop_.emplace(*call.stop(), stopper{this});
    // Before the call can complete; it may be complete when this returns.
    object_ = call.object();
    if (!call.references().empty()) references_.emplace(std::move(call.references()));
    ticket_ = call.to_whom().call(std::move(call.message), *this, call.until(), false);
  } catch (...) {
    references_.reset();
    stop_.reset();
    drop();
    throw;
  }
  record_start(facts_, *this);
  trace_call(trace_event::kind::call_begin, facts_, call_id);
  sent_.store(true);
  if (unwanted_.load()) give_up();
}

struct async_call::decoding : work {
  async_call* call = nullptr;
  inbound_message reply;
};

// A thread reads until its call has a value, or a reply that it decodes itself once it has stopped reading.
struct async_call::helping final : drive_condition {
  explicit helping(const async_call& c, const future_state_base& s) noexcept
      : call(c), state(s), outer(std::exchange(current, this)) {}
  ~helping() { current = outer; }
  helping(const helping&) = delete;
  helping& operator=(const helping&) = delete;
  [[nodiscard]] bool done() const noexcept override { return state.ready() || reply; }

  const async_call& call;
  const future_state_base& state;
  helping* const outer;
  work* reply = nullptr;
  static thread_local helping* current;
};
thread_local async_call::helping* async_call::helping::current = nullptr;

bool async_call::help(const future_state_base& state, deadline until) {
  const blocking_scope blocking;
  work* reply = nullptr;
  {
    const helping scope(*this, state);
    facts_.worker->agent_unchecked().wait(ticket_, scope, until);
    reply = scope.reply;
  }
  if (reply) reply->run(reply);
  return state.ready();
}

void async_call::give_up() noexcept {
  unwanted_.store(true);
  if (!sent_.load()) return;  // start() looks at unwanted_ next
  // The call goes on: it is the parent process's, like the connection and the locks.
  if (is_forked_child()) return set_cancelled(caught([] { check_not_forked(); }));
  call_phase phase{};
  if (!facts_.worker->agent_unchecked().abandon(ticket_, phase)) return;
  record_failure(facts_, *this, errc::call_cancelled, phase, "");
  if (references_) references_->query();
  set_cancelled(failure_of(facts_, errc::call_cancelled, phase, ""));
  wake_helper();
  finish();
}

// Runs on a thread that reads the connection. User code must not block it: it may call the same peer.
void async_call::on_reply(inbound_message&& reply) noexcept {
  record_reply(facts_, *this, reply);
  if (references_) settle(*references_, reply);
  if (!decodes_alone_ || reply.header.kind == frame_kind::exception) {
    if (auto* item = new (std::nothrow) decoding) {
      item->call = this;
      item->reply = std::move(reply);
      item->run = [](work* self) noexcept {
        const std::unique_ptr<decoding> owned(static_cast<decoding*>(self));
        owned->call->complete(owned->reply);
        owned->call->wake_helper();
        owned->call->finish();
      };
      if (helping::current && &helping::current->call == this) {
        helping::current->reply = item;
      } else {
        facts_.worker->agent_unchecked().reactor()->post(item);  // on a reactor thread: runs after what it reads
      }
      return;
    }
  }
  complete(reply);
  finish();
}

void async_call::on_failure(errc code, call_phase phase, const std::string& detail) noexcept {
  record_failure(facts_, *this, code, phase, detail);
  if (references_) references_->query();
  set_error(failure_of(facts_, code, phase, detail));
  wake_helper();
  finish();
}

// The call was completed, but not by a reply that the waiting thread would have read: wake the thread in help(). Before
// sent_ is set no handle of the future exists, and each later one finds it complete.
void async_call::wake_helper() noexcept {
  if (sent_.load()) facts_.worker->agent_unchecked().interrupt(ticket_);
}

void async_call::finish() noexcept {
  stop_.reset();
  object_ = {};  // a kept result keeps no object
  trace_call(trace_event::kind::call_end, facts_, call_id);
  const method_hold code = std::move(code_);                  // until no code of the state runs
  const std::shared_ptr<worker_core> worker = facts_.worker;  // dropping the reference may destroy the state
  worker->agent_unchecked().finished_calls(1);
  drop();
}

// ---------------------------------------------------------------- calls that make an object

namespace {

// The reference tracks the object from here on.
class creation_call final : public async_call {
 public:
  explicit creation_call(reference_handle made) : async_call(true), made_(std::move(made)) {}
  void send(outgoing_call& call) { start(call); }
  void drop() noexcept override {
    if (references_count_.fetch_sub(1) == 1) delete this;
  }

 private:
  ~creation_call() = default;
  reference_table& table() noexcept { return *made_.get()->table; }
  void complete(inbound_message& reply) noexcept override {
    auto failure = caught([&] {
      check_reply(facts_, reply);
      table().created(made_);
    });
    if (failure) table().creation_refused(made_, explain(failure));
  }
  void set_error(std::exception_ptr error) noexcept override { table().creation_lost(made_, explain(error)); }
  void set_cancelled(std::exception_ptr error) noexcept override { table().creation_lost(made_, explain(error)); }
  void keep() noexcept override { references_count_.fetch_add(1); }

  // The error of the call, worded for later uses of the reference.
  static std::exception_ptr explain(const std::exception_ptr& why) noexcept {
    try {
      std::rethrow_exception(why);
    } catch (const error& e) {
      return make_error(e.kind(),
                        fmt::format("the creation by remote failed, and the object may not exist: {}", e.message()));
    } catch (...) {
      return why;
    }
  }

  reference_handle made_;
  std::atomic<int> references_count_{1};
};

}  // namespace

void outgoing_call::run_creation(const reference_handle& object) {
  auto* call = new creation_call(object);
  try {
    call->send(*this);
  } catch (...) {
    object.get()->table->not_created(object);
    call->drop();
    throw;
  }
  call->drop();
}

}  // namespace ferry::inline v0::detail
