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

// Completes the pass at its root when all others were told, or were not reached in time.
class told_all {
 public:
  told_all(promise<pass_answer>& whole, pass_failure why, std::shared_ptr<dist_pass> keeps)
      : whole_(whole), why_(std::move(why)), keeps_(std::move(keeps)) {}
  ~told_all() { whole_.try_set_value(pass_answer{std::move(why_), nullptr}); }
  told_all(const told_all&) = delete;
  told_all& operator=(const told_all&) = delete;

 private:
  promise<pass_answer>& whole_;
  pass_failure why_;
  std::shared_ptr<dist_pass> keeps_;
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
  {
    const std::lock_guard lock(mutex_);
    calls.swap(calls_);
    streams = streams_;
  }
  // What was added stays: readers, and later passes, come after it.
  if (auto problem = caught([&] { context_->gradients_on(streams); }))
    log(log_level::error, "gradients of a failed pass are not ordered: " + describe_exception(problem));
  (void)context_->note_failure(header_->pass, why);
  context_->home().count_passes(-1);  // before others find that it is over
  context_->end_pass(*this);
  limit_.reset();
  // Their answers are of no use, and may never come: shutdowns wait for calls.
  for (const future<pass_answer>& each : calls) each.cancel();
  // The worker that has failed, and the one that began the pass, tell all: one of them may be cut off from some.
  if (is_root()) return tell_failure(why, true);
  if (where == heard::here || !header_->exact) tell_failure(why, false);
  whole_.try_set_value(pass_answer{why, nullptr});
}

void dist_pass::tell_failure(const pass_failure& why, bool waits) {
  std::shared_ptr<told_all> last;
  if (waits) last = std::make_shared<told_all>(whole_, why, shared_from_this());
  auto problem = caught([&] {
    std::vector<worker_id> whom = header_->exact ? header_->reached.senders() : context_->known_workers();
    whom.push_back(sender_of(header_->pass));
    std::sort(whom.begin(), whom.end());
    whom.erase(std::unique(whom.begin(), whom.end()), whom.end());
    const worker_id here = context_->home().id();
    const failure_message message{header_->context, header_->pass, !header_->exact, why};
    // Not bound by the handler in which the pass runs, whose deadline may be why it failed.
    const std::shared_ptr<worker_core> worker = context_->home().core();
    const context_ptr background(new call_context(worker));
    const context_scope outside(background);
    for (const worker_id each : whom) {
      if (each != here) send_failure(worker, each, message, last, failure_attempts);
    }
  });
  if (problem) log(log_level::error, "other workers are not told that a pass failed: " + describe_exception(problem));
}

future<void> dist_pass::on_failure_elsewhere(const std::shared_ptr<dist_context>& context,
                                             const failure_message& told) {
  // Noted first: gradients of the pass that come at the same moment find either the note, or a pass that ends here.
  const bool is_news = context->note_failure(told.pass, told.failure);
  if (const auto pass = context->running_pass(); pass && pass->number() == told.pass) {
    pass->fail(told.failure, heard::elsewhere);
    // Its root waits for others.
    return pass->is_root() || told.again ? make_ready_future() : pass->whole().then([](const pass_answer&) {});
  }
  if (!is_news || !told.floods) return make_ready_future();
  auto header = std::make_shared<pass_header>();
  header->context = told.context;
  header->pass = told.pass;
  header->exact = false;
  const auto never_ran = std::make_shared<dist_pass>(context, std::move(header), std::nullopt);
  never_ran->over_ = true;
  context->home().count_passes(-1);
  never_ran->tell_failure(told.failure, false);
  return make_ready_future();
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

}  // namespace ferry::inline v0::detail
