// How passes fail: what an error becomes, and how the workers that take part hear of it.

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/rpc/call.hpp>
#include <ferry/rpc/combinators.hpp>
#include <ferry/rpc/named.hpp>

#include "../../rpc/worker/worker_core.hpp"
#include "../../transport/reactor/time_limit.hpp"
#include "dist_pass.hpp"
#include "dist_worker.hpp"

namespace ferry::inline v0::detail {
namespace {

// How long the end of a failed pass is held back for other workers to hear of it and to end an addition under way: they are ready
// for the next one then.
constexpr std::chrono::seconds failure_limit{2};
// How often they are told, until they answer.
constexpr int failure_attempts = 20;

pass_failure failure_of_code(errc code, std::string text) {
  return {static_cast<std::uint32_t>(code), {}, std::move(text)};
}

void log_untold(const std::exception_ptr& problem) {
  log(log_level::error, "other workers are not told that a pass failed: " + describe_exception(problem));
}

// Is ready when all were told, or were not reached in time.
class told_all {
 public:
  told_all() = default;
  ~told_all() { done_.try_set_value(); }
  told_all(const told_all&) = delete;
  told_all& operator=(const told_all&) = delete;
  [[nodiscard]] future<void> done() const { return done_.get_future(); }

 private:
  promise<void> done_;
};

// Whether a message that has failed so may arrive when it is sent again.
bool may_arrive(const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const peer_lost&) {
    return false;
  } catch (const error& e) {
    const errc code = e.kind();
    return code == errc::rpc_timeout || code == errc::connection_lost || code == errc::injected_failure;
  } catch (...) {
    return false;
  }
}

// In the background. `waits` until the first attempt has ended.
void send_failure(const std::shared_ptr<worker_core>& from, worker_id whom, const failure_message& what,
                  const std::shared_ptr<told_all>& waits, int attempts_left) noexcept {
  const auto failed = [from, whom, what, attempts_left](const std::exception_ptr& why) noexcept {
    if (attempts_left > 1 && may_arrive(why)) return send_failure(from, whom, what, nullptr, attempts_left - 1);
    log(log_level::debug,
        fmt::format("worker {} is not told that a pass failed: {}", whom.value, describe_exception(why)));
  };
  auto unsent = caught([&] {
    failure_message message = what;
    message.again = attempts_left != failure_attempts;
    call_async<named<"ferry/autograd/failure", serve_failure>>(from, to(whom, {.timeout = timeout(failure_limit)}),
                                                               message)
        .add_done_callback([waits, failed](const future<void>& answer) {
          if (answer.failed()) failed(answer.error());
        });
  });
  if (unsent) failed(unsent);
}

// Tells these workers and the root of the pass. The future is ready when each of them has answered once, or was not reached in time.
future<void> tell(const dist_context& context, const failure_message& message, std::vector<worker_id> whom) {
  whom.push_back(sender_of(message.pass));
  std::sort(whom.begin(), whom.end());
  whom.erase(std::unique(whom.begin(), whom.end()), whom.end());
  const auto last = std::make_shared<told_all>();
  const worker_id here = context.home().id();
  // Not bound by the handler in which the pass runs, whose deadline may be why it failed.
  const std::shared_ptr<worker_core> worker = context.home().core();
  const context_ptr background(new call_context(worker));
  const context_scope outside(background);
  for (const worker_id each : whom) {
    if (each != here) send_failure(worker, each, message, last, failure_attempts);
  }
  return last->done();
}

}  // namespace

// ---------------------------------------------------------------- errors

pass_failure pass_failure::of(const std::exception_ptr& error, const std::string& where) {
  try {
    std::rethrow_exception(error);
  } catch (const remote_error& e) {
    return {static_cast<std::uint32_t>(errc::remote_exception), e.type_name(),
            fmt::format("{}: {}", where, e.message())};
  } catch (const ferry::error& e) {
    return failure_of_code(e.kind(), fmt::format("{}: {}", where, e.message()));
  } catch (const std::bad_alloc& e) {
    return failure_of_code(errc::out_of_memory, fmt::format("{}: {}", where, e.what()));
  } catch (...) {
    const std::string text = describe_exception(error);  // "type: text"
    return {static_cast<std::uint32_t>(errc::remote_exception), text.substr(0, text.find(": ")),
            fmt::format("{}: {}", where, text)};
  }
}

std::exception_ptr pass_failure::exception() const {
  if (!type.empty()) return std::make_exception_ptr(remote_error(type, text));
  const auto known = static_cast<errc>(code);
  return make_error(errc_name(known) == "unknown" ? errc::remote_exception : known, text);
}

// ---------------------------------------------------------------- its end

bool dist_pass::takes_part(worker_id who) const {
  if (sender_of(header_->pass) == who) return true;
  if (header_->exact) return header_->reached.has_sender(who);
  const std::vector<worker_id> known = context_->known_workers();
  return std::find(known.begin(), known.end(), who) != known.end();
}

void dist_pass::fail(const pass_failure& why, heard where) {
  std::vector<arrival> dropped;  // outside of the lock
  {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    over_ = true;
    dropped.swap(inbox_);
    if (driving_) {
      straggles_ = true;
      context_->home().count_stragglers(1);
    }
    if (adding_) {
      late_end_ = late_end{why, where};
      return;
    }
  }
  end(why, where);
}

// It is over, and nothing more is added to gradients or parameters.
void dist_pass::end(const pass_failure& why, heard where) {
  std::vector<future<pass_answer>> calls;
  std::vector<stream> streams;
  std::vector<std::shared_ptr<const leaf_watcher>> watchers;
  {
    const std::lock_guard lock(mutex_);
    calls.swap(calls_);
    watchers.swap(watchers_);
    streams = streams_;
  }
  // What was added stays: readers, and later passes, come after it.
  if (auto problem = caught([&] { context_->gradients_on(streams); }))
    log(log_level::error, "gradients of a failed pass are not ordered: " + describe_exception(problem));
  for (const auto& each : watchers) {
    if (auto problem = caught([&] { each->failed(header_->pass, why); }))
      log(log_level::error, "a module does not hear that a pass has failed: " + describe_exception(problem));
  }
  (void)context_->note_failure(header_->pass, why);
  context_->home().count_passes(-1);  // before others find that it is over
  context_->end_pass(*this);
  limit_.reset();
  // Their answers are of no use, and may never come: shutdowns wait for calls.
  for (const future<pass_answer>& each : calls) each.cancel();
  // The worker that has failed, and the one that began the pass, tell all: one of them may be cut off from some.
  if (where == heard::here || is_root() || (where == heard::elsewhere && !header_->exact)) return tell_failure(why);
  whole_.try_set_value(pass_answer{why, nullptr});
}

// The root waits for the others.
void dist_pass::tell_failure(const pass_failure& why) {
  const auto complete = [self = shared_from_this(), why]() noexcept {
    if (auto problem = caught([&] { self->whole_.try_set_value(pass_answer{why, nullptr}); }))
      self->whole_.try_set_exception(std::move(problem));
  };
  auto problem = caught([&] {
    failure_message message{header_->context, header_->pass, !header_->exact, why};
    message.echoes = is_root() && message.floods && context_->begin_echo(header_->pass);
    const future<void> told =
        tell(*context_, message, header_->exact ? header_->reached.senders() : context_->known_workers());
    if (is_root()) add_inline_callback(told, [complete](const future<void>&) { complete(); });
  });
  if (problem) log_untold(problem);
  if (problem || !is_root()) complete();
}

future<void> dist_pass::on_failure_elsewhere(const std::shared_ptr<dist_context>& context,
                                             const failure_message& told) {
  // Noted first: gradients of the pass that come at the same moment find either the note, or a pass that ends here.
  const bool is_news = context->note_failure(told.pass, told.failure);
  const bool echoes = told.floods && told.echoes && context->begin_echo(told.pass);
  future<void> own_part = make_ready_future();
  const auto pass = context->running_pass();
  const bool runs = pass && pass->number() == told.pass;
  if (runs) {
    pass->fail(told.failure, echoes ? heard::in_echo : heard::elsewhere);
    // Its root waits for others.
    if (!pass->is_root() && !told.again) own_part = pass->whole().then([](const pass_answer&) {});
  }
  if (!echoes && (runs || !is_news || !told.floods)) return own_part;
  future<void> others;
  auto problem = caught([&] {
    failure_message onwards = told;
    onwards.again = false;
    others = tell(*context, onwards, context->known_workers());
  });
  if (problem) log_untold(problem);
  if (problem || !echoes) return own_part;
  return when_all(std::vector<future<void>>{std::move(own_part), std::move(others)});
}

void dist_pass::on_lost(const member_event& event) {
  const bool fenced = event.what == member_event::kind::fenced;
  if (!fenced && !takes_part(event.who.id())) return;
  const char* how = fenced ? "was declared dead" : event.what == member_event::kind::left ? "left" : "was lost";
  fail(failure_of_code(fenced ? errc::fenced : errc::peer_lost,
                       fmt::format("{}: {} {} during the pass{}{}", place(),
                                   fenced ? std::string("this worker") : to_string(event.who), how,
                                   event.reason.empty() ? "" : ": ", event.reason)),
       heard::here);
}

void dist_pass::on_release() {
  fail(failure_of_code(errc::invalid_argument,
                       fmt::format("{}: context {} ended during the pass", place(), to_string(context_->id()))),
       heard::here);
}

void dist_pass::supersede() {
  fail(failure_of_code(errc::invalid_argument,
                       fmt::format("{}: another pass of context {} has begun", place(), to_string(context_->id()))),
       heard::elsewhere);
}

void dist_pass::on_limit() {
  fail(
      failure_of_code(errc::rpc_timeout,
                      fmt::format("{}: the pass took longer than its limit: a worker is slow{}", place(),
                                  header_->exact ? "" : ", or a message has no part in it (use backward_mode::smart)")),
      heard::here);
}

void dist_pass::on_cancelled() {
  fail(failure_of_code(errc::call_cancelled, fmt::format("{}: the pass was cancelled", place())), heard::here);
}

}  // namespace ferry::inline v0::detail
