// Control messages of reference_table: sent in batches, resent until they are answered, and the timer for that.

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/rpc/detail/incoming_call.hpp>
#include <ferry/rpc/named.hpp>
#include <ferry/rpc/worker.hpp>

#include "../../../base/peer_log.hpp"
#include "../../calls/request_builder.hpp"
#include "../../worker/worker_core.hpp"
#include "reference_client.hpp"
#include "reference_table.hpp"

namespace ferry::inline v0 {

// The handler is short, and must run before any later message of the connection.
template <>
struct method_traits<&detail::serve_references> {
  static constexpr bool inline_handler = true;
  static constexpr bool protocol = true;
};

namespace detail {
namespace {

// Timeouts of one batch. If the first attempt takes longer, the peer may not be reading that connection.
constexpr std::chrono::seconds first_limit{1};
constexpr std::chrono::seconds answer_limit{3};
// Of more transfers that it does not know, a worker says at once that they are lost.
constexpr std::size_t most_doubted = 65536;
// Consecutive failures before the group is asked whether that incarnation has ended.
constexpr int failures_before_query = 6;

const bool references_served_by_all = [] {
  add_library_methods({usable_method<named<"ferry/references", serve_references>>().id});
  return true;
}();

}  // namespace

reference_answers serve_references(const reference_batch& batch) {
  const incoming_call* call = thread_call();
  return references_of(*current_worker())
      ->serve({this_call().caller(), call ? call->sender_incarnation() : incarnation_id{}}, batch);
}

reference_answers reference_table::serve(const call_target& from, const reference_batch& batch) {
  reference_answers result;
  if (incarnations_known_ && batch.to != self_.incarnation) return result;
  const peer_incarnation sender = sender_of(from, batch.from);
  result.answers.reserve(batch.controls.size());
  const std::vector<std::uint64_t> awaited = awaited_replies(sender, batch);
  change([&](reference_effects& effects, consequences&) {
    effects.reserve(batch.controls.size());  // a control takes effect entirely, or not at all: it is sent again
    for (const reference_control& each : batch.controls) {
      const bool may_come = may_still_come(sender, each, awaited);
      result.answers.push_back(may_come ? reference_answer::not_yet : protocol_.on_control(sender, each, effects));
    }
  });
  return result;
}

// Whether a reference that is asked for may still come with a reply. A reply whose call has just ended may not have been looked at
// yet: once more. With the mutex held.
bool reference_table::may_still_come(const peer_incarnation& from, const reference_control& query,
                                     const std::vector<std::uint64_t>& awaited) {
  if (query.what != reference_control::kind::transfer_query || query.object.number == 0) return false;
  if (!protocol_.knows_transfer(from, query.number)) {
    if (std::binary_search(awaited.begin(), awaited.end(), query.object.number)) return true;
    if (doubted_.size() < most_doubted && doubted_.emplace(from, query.number).second) return true;
  }
  doubted_.erase({from, query.number});
  return false;
}

// Of the calls whose replies the batch asks about, those that still wait for them, in order.
std::vector<std::uint64_t> reference_table::awaited_replies(const peer_incarnation& from,
                                                            const reference_batch& batch) const {
  std::vector<std::uint64_t> awaited;
  std::unique_lock lock(mutex_);
  const bool asks = std::any_of(batch.controls.begin(), batch.controls.end(), [&](const reference_control& each) {
    return each.what == reference_control::kind::transfer_query && each.object.number != 0 &&
           !protocol_.knows_transfer(from, each.number);
  });
  lock.unlock();
  const auto own = asks ? worker_.lock() : nullptr;
  if (!own) return awaited;
  for (const open_call& each : own->agent_unchecked().inspection().open_calls()) {
    if (each.peer.id() == from.id) awaited.push_back(each.id);
  }
  std::sort(awaited.begin(), awaited.end());
  return awaited;
}

// One batch in flight. The table keeps one of them, with its memory, for the next batch.
struct reference_table::control_call final : pending_call {
  std::shared_ptr<reference_table> table;
  std::shared_ptr<worker_core> worker;
  peer_incarnation to;
  reference_batch batch;
  reference_answers answers;

  void on_reply(inbound_message&& reply) noexcept override {
    owned_control_call owned(this);
    try {
      if (reply.header.kind != frame_kind::reply) {
        throw_error(errc::bad_result, "it answered reference controls with an error");
      }
      decode_payload(reply, worker->limits(), answers);
      table->answered(to, batch.controls, answers);
    } catch (const std::exception& e) {
      log_about(to.id, log_level::warning, [&] {
        return fmt::format("{}: reference controls for {} are sent again: {}",
                           to_string(worker->agent_unchecked().self()), table->name_of(to), e.what());
      });
      table->unanswered(to);
    }
    end(std::move(owned));
  }
  void on_failure(errc, call_phase, const std::string&) noexcept override {
    owned_control_call owned(this);
    table->unanswered(to);
    end(std::move(owned));
  }

 private:
  static void end(owned_control_call call) noexcept {
    const auto table_of = std::move(call->table);
    const auto of = std::move(call->worker);
    table_of->recycle(std::move(call));
    of->agent_unchecked().finished_calls(1);
  }
};

// With the mutex held.
reference_table::owned_control_call reference_table::new_control_call() {
  if (spare_call_) return std::move(spare_call_);
  return owned_control_call(new control_call);
}

void reference_table::end_control_call::operator()(control_call* call) const noexcept { delete call; }

void reference_table::recycle(owned_control_call call) noexcept {
  call->answers.answers.clear();
  const std::lock_guard lock(mutex_);
  if (!closed_ && !spare_call_) spare_call_ = std::move(call);
}

void reference_table::send_controls() noexcept {
  const auto own = worker_.lock();
  if (!own) return;
  for (;;) {
    owned_control_call call;
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      const auto now = clock::now();
      const auto due =
          std::find_if(outboxes_.begin(), outboxes_.end(), [&](const auto& each) { return each.second.due(now); });
      if (due == outboxes_.end()) return;
      try {
        call = new_control_call();
        call->table = shared_from_this();
        call->worker = own;
        call->to = due->first;
        call->urgency = due->second.failures() == 0 ? call_urgency::high : call_urgency::apart;
        call->reaches_leaving = true;  // a leaving worker may need these controls before it can terminate
        call->batch.from = self_.incarnation;
        call->batch.to = due->first.incarnation;
        const bool again = due->second.failures() != 0;
        due->second.begin(call->batch.controls);
        if (again) repeated_controls_ += call->batch.controls.size();
      } catch (const std::bad_alloc&) {
        due->second.failed(now);
        arm(due->second.due_at());
        return;
      }
    }
    const peer_incarnation to = call->to;
    try {
      const method_entry& method = usable_method<named<"ferry/references", serve_references>>();
      const timeout limit = call->urgency == call_urgency::high ? first_limit : answer_limit;
      call->began = clock::now();
      const deadline until = deadline::after(limit, call->began);
      outgoing_message message;
      message.header = request_header(method, until, call->began);
      encode_payload<reference_batch>(message, call->batch);
      (void)own->agent_unchecked().call({to.id, to.incarnation}, std::move(message), *call, until, reply_wait::none);
      (void)call.release();
    } catch (const error& problem) {
      if (problem.kind() == errc::limit_exceeded) {
        if (send_fewer(to)) continue;
        log_about(to.id, log_level::warning, [&] {
          return fmt::format("{}: a control of references does not reach {}: {}",
                             to_string(own->agent_unchecked().self()), to.id.value, problem.what());
        });
      }
      unanswered(to);
    } catch (const std::exception&) {  // no memory, for example: retried later
      unanswered(to);
    }
  }
}

// The peer takes smaller messages only.
bool reference_table::send_fewer(const peer_incarnation& to) noexcept {
  const std::lock_guard lock(mutex_);
  const auto outbox = outboxes_.find(to);
  return outbox != outboxes_.end() && outbox->second.shrink();
}

// Asks the group about a peer that does not answer. If it terminated before this worker joined, no notification
// follows.
bool reference_table::is_over(const peer_incarnation& peer, std::uint64_t& question) const noexcept {
  const auto own = worker_.lock();
  if (!own || !incarnations_known_) return false;
  try {
    return own->agent_unchecked().members().is_over({peer.id, peer.incarnation}, question);
  } catch (const std::exception&) {
    return false;
  }
}

void reference_table::answered(const peer_incarnation& by, const std::vector<reference_control>& controls,
                               const reference_answers& answers) {
  if (answers.answers.empty() && !controls.empty()) return gone(by.id, by.incarnation);  // that incarnation has ended
  if (answers.answers.size() != controls.size()) {
    throw_error(errc::bad_result,
                fmt::format("{} answers to {} reference controls", answers.answers.size(), controls.size()));
  }
  change([&](reference_effects& effects, consequences&) {
    const auto outbox = outboxes_.find(by);
    if (outbox == outboxes_.end()) return;
    effects.reserve(controls.size());  // without memory the batch stays, and is sent again
    for (std::size_t i = 0; i != controls.size(); ++i) {
      if (answers.answers[i] == reference_answer::not_yet &&
          controls[i].what == reference_control::kind::transfer_query)
        watch_again(by, controls[i]);
    }
    outbox->second.answered();
    for (std::size_t i = 0; i != controls.size(); ++i) {
      protocol_.on_answer(by, controls[i], answers.answers[i], effects);
    }
    if (outbox->second.empty() && outboxes_.size() > most_idle_outboxes) {
      outboxes_.erase(outbox);
    } else if (outbox->second.waits() && outbox->second.due_at() > clock::now()) {
      arm(outbox->second.due_at());
    }
  });
  send_controls();
}

void reference_table::unanswered(const peer_incarnation& by) noexcept {
  int failures = 0;
  std::uint64_t question = 0;
  {
    const std::lock_guard lock(mutex_);
    if (const auto outbox = outboxes_.find(by); outbox != outboxes_.end()) {
      failures = outbox->second.failures();
      question = outbox->second.question();
    }
  }
  if (failures >= failures_before_query) {
    if (is_over(by, question)) return gone(by.id, by.incarnation);
    if (const auto own = worker_.lock()) own->agent_unchecked().members().seek({by.id, by.incarnation});
  }
  const std::lock_guard lock(mutex_);
  const auto outbox = outboxes_.find(by);
  if (outbox == outboxes_.end()) return;
  outbox->second.ask(question);
  outbox->second.failed(clock::now());
  arm(outbox->second.due_at());
}

// ---------------------------------------------------------------- the timer

struct reference_table::timer_item : work {
  std::shared_ptr<reference_table> table;
};

// With the mutex held. on_timer() runs at that time or earlier; without memory, whatever it has to do is done at the next
// event.
void reference_table::arm(clock::time_point at) noexcept {
  if (closed_ || (timer_work_ && timer_at_ <= at)) return;
  try {
    auto item = std::make_unique<timer_item>();
    item->table = shared_from_this();
    item->run = [](work* self) noexcept {
      const std::unique_ptr<timer_item> owned(static_cast<timer_item*>(self));
      owned->table->on_timer(owned.get());
    };
    const timer_id timer = timers_->start_timer(deadline(at), item.get());
    disarm();
    timer_ = timer;
    timer_at_ = at;
    timer_work_ = item.release();
  } catch (const std::exception&) {
    unarmed_ = true;
  }
}

// With the mutex held.
void reference_table::arm_for_all() noexcept {
  unarmed_ = false;
  for (const auto* each : {&watched_, &late_}) {
    if (!each->empty()) arm(each->front().due);
  }
  for (const auto& [peer, outbox] : outboxes_) {
    if (outbox.waits()) arm(outbox.due_at());
  }
}

// With the mutex held.
void reference_table::disarm() noexcept {
  if (timer_work_ && timers_->cancel_timer(timer_)) delete timer_work_;
  timer_work_ = nullptr;
}

void reference_table::on_timer(const timer_item* item) noexcept {
  end([&](reference_effects& effects, consequences&) {
    if (timer_work_ == item) timer_work_ = nullptr;
    unarmed_ = true;  // until all of this is done
    const auto now = clock::now();
    for (; !watched_.empty() && watched_.front().due <= now; watched_.pop_front()) {
      watched& each = watched_.front();
      if (each.call != 0) {
        protocol_.query(each.to, each.transfer, effects, each.call);
      } else if (!protocol_.settled(each.to, each.transfer)) {
        each.due += one_way_watch_time - watch_time;
        late_.push_back(each);
      }
    }
    for (; !late_.empty() && late_.front().due <= now; late_.pop_front())
      protocol_.query(late_.front().to, late_.front().transfer, effects);
    unarmed_ = false;
    for (const auto* each : {&watched_, &late_}) {
      if (!each->empty()) arm(each->front().due);
    }
    for (const auto& [peer, outbox] : outboxes_) {
      if (outbox.waits() && outbox.due_at() > now) arm(outbox.due_at());
    }
  });
  send_controls();
}

}  // namespace detail
}  // namespace ferry::inline v0
