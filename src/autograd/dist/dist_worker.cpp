#include "dist_worker.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/base/ids.hpp>
#include <ferry/base/log.hpp>
#include <ferry/rpc/call.hpp>
#include <ferry/rpc/debug.hpp>
#include <ferry/rpc/named.hpp>

#include "../../rpc/pipeline/library_clients.hpp"
#include "../../rpc/worker/worker_core.hpp"
#include "dist_pass.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t most_contexts = std::size_t{1} << 20U;
constexpr int release_attempts = 20;
// Long beside the calls of a loop that makes one context after the other, short for memory that nothing uses.
constexpr std::chrono::milliseconds release_pause{5};

std::vector<debug_figure> figures_of_autograd(const dist_worker& own) {
  return {{"autograd.num_current_backward_passes", [&own] { return std::to_string(own.running_passes()); }},
          {"autograd.num_autograd_contexts", [&own] { return std::to_string(own.context_count()); }}};
}

const std::size_t autograd_of_workers = add_library_client({
    .rank = 3,
    .attach = [](worker_core& worker) -> std::shared_ptr<worker_attachment> {
      auto own = std::make_shared<dist_worker>(worker);
      worker.add_debug_info("autograd", figures_of_autograd(*own));
      return own;
    },
    .intercept = [](worker_attachment* state) -> interceptor* { return static_cast<dist_worker*>(state); },
});

const bool pass_methods = [] {
  add_library_methods({usable_method<named<"ferry/autograd/gradients", serve_gradients>>().id,
                       usable_method<named<"ferry/autograd/failure", serve_failure>>().id,
                       usable_method<named<"ferry/autograd/release", serve_release>>().id});
  return true;
}();

// What is kept of a request that belongs to a context, at its callee.
class recorded_request final : public callee_hooks {
 public:
  recorded_request(std::shared_ptr<dist_worker> own, autograd_record record)
      : own_(std::move(own)), record_(std::move(record)) {}

  void before_handler(handler_start& start) override {
    context_ = own_->find_or_make({record_.context});
    if (!context_) return;  // over meanwhile: the handler runs outside of it
    caller_ = start.caller();
    worker_info from = start.sender() ? *start.sender() : own_->core()->agent().members().find(caller_);
    context_->arrive(record_, start.tensors(), from);
    start.set_value(current_dist_context, context_in_force(context_));
  }
  void on_reply(outgoing_reply& reply) override {
    if (!context_ || !reply.has_value()) return;
    const auto needs = [](const tensor& each) { return each.requires_grad(); };
    if (std::none_of(reply.tensors().begin(), reply.tensors().end(), needs)) return;
    const std::optional<autograd_record> record = context_->leave(reply.tensors(), caller_);
    if (!record) return;
    const byte_buffer content = encode_autograd_record(*record);
    reply.add_record(autograd_record_type, true, {content.data(), content.size()});
  }
  // The reply is on its way: this may free large graphs.
  void ended() noexcept override { own_->on_over(record_.over); }

 private:
  const std::shared_ptr<dist_worker> own_;
  const autograd_record record_;
  std::shared_ptr<dist_context> context_;
  worker_id caller_;
};

autograd_record one_record(const extension_records& records) {
  const extension_record* found = nullptr;
  const std::vector<extension_record> all = records.all();
  for (const extension_record& each : all) {
    if (each.type != autograd_record_type) continue;
    if (std::exchange(found, &each)) throw_error(errc::malformed, "a message has two records of gradients");
  }
  return decode_autograd_record(found->content);
}

// The ids of a worker's contexts, messages and passes are from here on, and below that of the next worker.
std::uint64_t ids_of(worker_id whose) noexcept {
  return static_cast<std::uint64_t>(whose.value) << message_counter_bits;
}

}  // namespace

std::uint64_t first_number_of_incarnation() { return incarnation_id::random().value & (last_message_number >> 1U); }

// ---------------------------------------------------------------- updates

std::uint64_t update_table::add(update apply) {
  auto kept = std::make_shared<const update>(std::move(apply));
  const std::lock_guard lock(mutex_);
  all_.emplace(next_, std::move(kept));
  return next_++;
}

void update_table::remove(std::uint64_t number) noexcept {
  std::shared_ptr<const update> last;  // destroyed outside of the lock
  const std::lock_guard lock(mutex_);
  const auto found = all_.find(number);
  if (found == all_.end()) return;
  last = std::move(found->second);
  all_.erase(found);
}

std::shared_ptr<const update_table::update> update_table::find(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = all_.find(number);
  return found == all_.end() ? nullptr : found->second;
}

// ---------------------------------------------------------------- the worker

dist_worker::dist_worker(worker_core& core) noexcept : core_(core) {}
dist_worker::~dist_worker() = default;

std::shared_ptr<dist_worker> dist_worker::of(worker_core& core) {
  worker_attachment* const state = core.attached().of_library(autograd_of_workers);
  if (!state) throw_error(errc::not_initialized, "the worker was started before the library ferry-autograd was loaded");
  return static_cast<dist_worker*>(state)->shared_from_this();
}

std::shared_ptr<worker_core> dist_worker::core() const {
  const std::lock_guard lock(mutex_);
  if (!closed_) return core_.shared_from_this();
  throw_error(errc::not_initialized, fmt::format("{} has been shut down", to_string(info_)));
}

const worker_info& dist_worker::known_info() const {
  if (info_.id().value < 0 && !closed_) {
    info_ = core_.agent_unchecked().self();
    id_.store(info_.id().value, std::memory_order_relaxed);
  }
  return info_;
}

worker_id dist_worker::id() const {
  const worker_id known{id_.load(std::memory_order_relaxed)};
  return known.value >= 0 ? known : info().id();
}

worker_info dist_worker::info() const {
  const std::lock_guard lock(mutex_);
  return known_info();
}

std::uint64_t dist_worker::number_of_worker(std::atomic<std::uint64_t>& counter) const {
  const std::uint64_t number = counter.fetch_add(1, std::memory_order_relaxed);
  if (number > last_message_number)
    throw_error(errc::resource_exhausted, "the numbers of distributed autograd are used up");
  return ids_of(id()) | number;
}

std::uint64_t dist_worker::next_message() { return number_of_worker(next_message_); }
std::uint64_t dist_worker::next_pass() { return number_of_worker(next_pass_); }

std::size_t dist_worker::context_count() const {
  const std::lock_guard lock(mutex_);
  return contexts_.size();
}

std::shared_ptr<dist_context> dist_worker::make_context() {
  const std::lock_guard lock(mutex_);
  if (closed_) throw_error(errc::not_initialized, fmt::format("{} has been shut down", to_string(info_)));
  if (next_context_ > last_message_number) throw_error(errc::resource_exhausted, "the ids of contexts are used up");
  const std::uint64_t id = ids_of(known_info().id()) | next_context_;
  auto made = std::make_shared<dist_context>(shared_from_this(), dist_autograd::context_id{id});
  contexts_.emplace(id, made);
  ++next_context_;
  return made;
}

std::shared_ptr<dist_context> dist_worker::find(dist_autograd::context_id id) const {
  const std::lock_guard lock(mutex_);
  const auto found = contexts_.find(id.value);
  return found == contexts_.end() ? nullptr : found->second;
}

std::shared_ptr<dist_context> dist_worker::need(dist_autograd::context_id id) const {
  if (auto found = find(id)) return found;
  throw_error(
      errc::invalid_argument,
      fmt::format("could not find context {} of distributed autograd at {}: it is over, or no call of it was here",
                  to_string(id), to_string(info())));
}

std::shared_ptr<dist_context> dist_worker::find_or_make(dist_autograd::context_id id) {
  const std::lock_guard lock(mutex_);
  if (const auto found = contexts_.find(id.value); found != contexts_.end()) return found->second;
  // A late message does not bring one back.
  if (closed_ || id.made_by() == known_info().id() || gone_.contains(id.made_by())) return nullptr;
  if (is_over(id.value)) return nullptr;
  if (contexts_.size() == most_contexts) {
    throw_error(errc::resource_exhausted,
                fmt::format("{} has {} contexts of distributed autograd: no call of another one is "
                            "served before some are over",
                            to_string(info_), most_contexts));
  }
  auto made = std::make_shared<dist_context>(shared_from_this(), id);
  contexts_.emplace(id.value, made);
  return made;
}

// ---------------------------------------------------------------- the end of contexts

bool dist_worker::is_over(std::uint64_t context) const {
  const auto next = over_.upper_bound(context);
  return next != over_.begin() && std::prev(next)->second.contains(context);
}

std::uint64_t dist_worker::first_context() const { return ids_of(known_info().id()) | first_number_; }

std::uint64_t dist_worker::oldest_kept() const {
  const auto first = contexts_.lower_bound(ids_of(known_info().id()));
  const bool own = first != contexts_.end() && sender_of(first->first) == info_.id();
  return own ? first->first : ids_of(info_.id()) | next_context_;
}

void dist_worker::end_context(const std::shared_ptr<dist_context>& which) noexcept {
  release_message what;
  {
    const std::lock_guard lock(mutex_);
    contexts_.erase(which->id().value);
    what = {which->id().value, first_context(), oldest_kept()};
  }
  const bool ends_pass = which->running_pass() != nullptr;
  const std::vector<worker_id> whom = which->release();
  ends_pass ? tell_release(whom, what) : owe_release(whom, what);
}

// A maker has one incarnation at a time, and messages of a former one may still come: of more, which it cannot have, the oldest is
// forgotten, and with it that its contexts are over.
dist_worker::over& dist_worker::over_of(std::uint64_t first) {
  const std::uint64_t maker = ids_of(sender_of(first));
  const std::uint64_t next_maker = ids_of({sender_of(first).value + 1});
  const auto begin = over_.lower_bound(maker);
  const auto end = over_.lower_bound(next_maker);
  if (static_cast<std::size_t>(std::distance(begin, end)) >= most_incarnations && !over_.contains(first)) {
    const auto oldest =
        std::min_element(begin, end, [](const auto& a, const auto& b) { return a.second.told < b.second.told; });
    over_.erase(oldest);
  }
  over& its = over_[first];
  its.told = ++releases_;
  return its;
}

void dist_worker::check_over(std::uint64_t context, const contexts_over& told) {
  const worker_id maker = sender_of(context);
  if (sender_of(told.first) != maker || sender_of(told.oldest_kept) != maker ||
      told.first > std::min(context, told.oldest_kept)) {
    throw_error(errc::malformed, fmt::format("a message of context {} names contexts that its maker cannot have made",
                                             to_string(dist_autograd::context_id{context})));
  }
}

std::vector<std::shared_ptr<dist_context>> dist_worker::take_over(const release_message& told) {
  const worker_id maker = sender_of(told.first);
  std::vector<std::shared_ptr<dist_context>> ended;
  const std::lock_guard lock(mutex_);
  if (closed_ || maker == known_info().id() || gone_.contains(maker)) return ended;
  over& its = over_of(told.first);
  const auto of_maker = [&](const auto& entry) { return sender_of(entry.first) == maker; };
  ended.reserve(static_cast<std::size_t>(
      std::distance(contexts_.lower_bound(told.first),
                    std::find_if_not(contexts_.lower_bound(told.first), contexts_.end(), of_maker))));
  if (told.context >= std::max(its.below, told.oldest_kept)) its.others.insert(told.context);
  its.below = std::max(its.below, told.oldest_kept);  // nothing is thrown from here on
  its.others.erase(its.others.begin(), its.others.lower_bound(its.below));
  if (its.others.size() > most_over) its.others.erase(its.others.begin());
  for (auto each = contexts_.lower_bound(told.first); each != contexts_.end() && sender_of(each->first) == maker;) {
    if (!its.contains(each->first)) {
      ++each;
      continue;
    }
    ended.push_back(std::move(each->second));
    each = contexts_.erase(each);
  }
  return ended;
}

void dist_worker::on_release(const release_message& told) {
  check_over(told.context, {told.first, told.oldest_kept});
  for (const auto& each : take_over(told))
    tell_release(each->release(), {each->id().value, told.first, told.oldest_kept});
}

// ---------------------------------------------------------------- the same, with requests

void dist_worker::note_over(autograd_record& record) const {
  const worker_id maker = sender_of(record.context);
  const std::lock_guard lock(mutex_);
  if (maker == known_info().id()) {
    record.over = {first_context(), oldest_kept()};
    return;
  }
  auto its = over_.upper_bound(record.context);
  if (its == over_.begin()) return;
  --its;
  if (sender_of(its->first) == maker && its->second.below != 0) record.over = {its->first, its->second.below};
}

void dist_worker::on_over(const contexts_over& told) noexcept {
  if (told.first == told.oldest_kept) return;  // none
  auto problem = caught([&] {
    {
      const std::lock_guard lock(mutex_);
      const auto known = over_.find(told.first);
      if (known != over_.end() && known->second.below >= told.oldest_kept) return;
    }
    // A context of that number was never made here, or is over like the others.
    std::vector<std::shared_ptr<dist_context>> over = take_over({told.first, told.first, told.oldest_kept});
    const auto ends_pass = [](const auto& each) { return each->running_pass() != nullptr; };
    if (std::any_of(over.begin(), over.end(), ends_pass)) {  // that runs users' continuations: on a handler thread
      struct end_of_passes final : work {
        std::shared_ptr<dist_worker> of;
        std::vector<std::shared_ptr<dist_context>> over;
        contexts_over told;
      };
      auto item = std::make_unique<end_of_passes>();
      item->of = shared_from_this();
      item->over = std::move(over);
      item->told = told;
      item->run = [](work* self) noexcept {
        const std::unique_ptr<end_of_passes> own(static_cast<end_of_passes*>(self));
        for (const auto& each : own->over)
          own->of->tell_release(each->release(), {each->id().value, own->told.first, own->told.oldest_kept});
      };
      return core()->post(item.release());
    }
    for (const auto& each : over) owe_release(each->release(), {each->id().value, told.first, told.oldest_kept});
  });
  if (problem) log(log_level::info, "contexts that are over stay for now: " + describe_exception(problem));
}

void dist_worker::heard_there(worker_id whom, const contexts_over& told) noexcept {
  const std::lock_guard lock(mutex_);
  const auto owed = owed_.find(whom);
  if (owed == owed_.end()) return;
  std::erase_if(owed->second, [&](const owed_release& each) { return told.contains(each.what.context); });
}

void dist_worker::owe_release(const std::vector<worker_id>& whom, const release_message& what) noexcept {
  const worker_id maker = sender_of(what.context);
  bool starts = false;
  auto problem = caught([&] {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    for (const worker_id each : whom) {
      if (each == known_info().id() || each == maker) continue;
      owed_[each].push_back({what, release_tick_});
      starts = starts || !std::exchange(release_ticks_, true);
    }
  });
  if (problem) return tell_release(whom, what);  // some of them twice
  if (starts) start_release_timer();
}

void dist_worker::start_release_timer() noexcept {
  auto problem = caught([&] {
    const auto due = [weakly = weak_from_this()] {
      const auto own = weakly.lock();
      if (!own) return;
      struct round final : work {
        std::shared_ptr<dist_worker> of;
      };
      const auto problem = caught([&] {
        auto item = std::make_unique<round>();
        item->of = own;
        item->run = [](work* self) noexcept {
          std::unique_ptr<round>(static_cast<round*>(self))->of->tell_owed(false);
        };
        own->core()->post(item.release());
      });
      if (problem) own->stop_release_timer();  // the next one that is owed starts it again
    };
    release_timer_.start(core()->agent().reactor(), deadline::after(release_pause), due);
  });
  if (problem) tell_owed(true);
}

// Those that were owed before the last round, or all. Goes on as long as some are left.
void dist_worker::tell_owed(bool all) noexcept {
  std::vector<std::pair<worker_id, release_message>> due;
  bool goes_on = false;
  auto problem = caught([&] {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    for (auto& [whom, owed] : owed_) {
      const auto late = [&](const owed_release& each) { return all || each.since < release_tick_; };
      std::map<std::uint64_t, std::uint64_t> below;  // by incarnation of the maker: one message says it of all of these
      for (const owed_release& each : owed) {
        if (late(each)) below[each.what.first] = std::max(below[each.what.first], each.what.oldest_kept);
      }
      std::set<std::uint64_t> said;
      for (const owed_release& each : owed) {
        if (!late(each)) continue;
        release_message what = each.what;
        what.oldest_kept = below[what.first];
        if (what.context < what.oldest_kept && !said.insert(what.first).second) continue;
        due.emplace_back(whom, what);
      }
      std::erase_if(owed, late);
      goes_on = goes_on || !owed.empty();
    }
    ++release_tick_;
    release_ticks_ = goes_on;
  });
  for (const auto& [whom, what] : due) send_release(whom, what, release_attempts);
  if (problem) {
    log(log_level::info, "workers do not hear that contexts are over: " + describe_exception(problem));
    stop_release_timer();
  }
  if (goes_on) start_release_timer();
}

void dist_worker::stop_release_timer() noexcept {
  const std::lock_guard lock(mutex_);
  release_ticks_ = false;
}

void dist_worker::tell_release(const std::vector<worker_id>& whom, const release_message& what) noexcept {
  const worker_id maker = sender_of(what.context);
  for (const worker_id each : whom) {
    if (each == id() || each == maker) continue;
    send_release(each, what, release_attempts);
  }
}

// In the background. The answer tells whether it was received.
void dist_worker::send_release(worker_id whom, const release_message& what, int attempts_left) noexcept {
  const auto failed = [whom, what](const std::exception_ptr& error) {
    log(log_level::info, fmt::format("worker {} does not hear that context {} is over: {}", whom.value,
                                     to_string(dist_autograd::context_id{what.context}), describe_exception(error)));
  };
  auto problem = caught([&] {
    std::shared_ptr<worker_core> worker;
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      worker = core_.shared_from_this();
    }
    // Not bound by the handler that ends the context or passes its end on, which may be over.
    const context_ptr background(new call_context(worker));
    const context_scope outside(background);
    const future<void> call =
        call_unhurried<named<"ferry/autograd/release", serve_release>>(std::move(worker), whom, what);
    const auto again = [self = shared_from_this(), whom, what, attempts_left, failed](const future<void>& answer) {
      try {
        std::rethrow_exception(answer.error());
      } catch (const peer_lost&) {
        return;  // with all that it had
      } catch (const error& e) {
        const errc code = e.kind();
        const bool in_vain = code == errc::unknown_worker || code == errc::not_initialized || code == errc::fenced ||
                             code == errc::shutting_down || code == errc::unknown_method;
        if (!in_vain && attempts_left > 1) return self->send_release(whom, what, attempts_left - 1);
      } catch (...) {  // NOLINT(bugprone-empty-catch): reported below
      }
      failed(answer.error());
    };
    // No thread is woken up to hear that all is well.
    add_inline_callback(call, [again, background](const future<void>& answer) {
      if (!answer.failed()) return;
      const context_scope there(background);
      answer.add_done_callback(again);
    });
  });
  if (!problem) return;
  // Not sent at all, as a fault injector does.
  if (attempts_left > 1) {
    try {
      std::rethrow_exception(problem);
    } catch (const error& e) {
      const errc code = e.kind();
      if (code == errc::injected_failure || code == errc::connection_lost)
        return send_release(whom, what, attempts_left - 1);
    } catch (...) {  // NOLINT(bugprone-empty-catch): reported below
    }
  }
  failed(problem);
}

// ---------------------------------------------------------------- messages

std::unique_ptr<callee_hooks> dist_worker::on_arrival(incoming_request& request) {
  autograd_record record = one_record(request.records());
  if (record.over.said()) check_over(record.context, record.over);
  return std::make_unique<recorded_request>(shared_from_this(), std::move(record));
}

void dist_worker::on_reply_records(incoming_reply& reply) {
  const autograd_record record = one_record(reply.records());
  if (const auto context = find({record.context})) context->arrive(record, reply.tensors(), reply.sender());
}

// ---------------------------------------------------------------- members

void dist_worker::on_member_event(const member_event& event) noexcept {
  using kind = member_event::kind;
  auto problem = caught([&] {
    std::vector<std::shared_ptr<dist_context>> concerned;
    std::shared_ptr<worker_core> worker;
    {
      const std::lock_guard lock(mutex_);
      if (event.what == kind::joined) {
        joined_[event.who.id()] = event.incarnation;
        gone_.erase(event.who.id());
        return;
      }
      if (closed_ || contexts_.empty()) return;
      worker = core_.shared_from_this();
      for (const auto& [id, each] : contexts_) concerned.push_back(each);
    }
    // Ends of passes run users' continuations: on a handler thread.
    struct end_of_member final : work {
      std::shared_ptr<worker_core> worker;
      member_event event;
      std::vector<std::shared_ptr<dist_context>> concerned;
    };
    auto item = std::make_unique<end_of_member>();
    item->worker = worker;
    item->event = event;
    item->concerned = std::move(concerned);
    item->run = [](work* self) noexcept {
      const std::unique_ptr<end_of_member> own(static_cast<end_of_member*>(self));
      for (const auto& each : own->concerned) {
        if (const auto pass = each->running_pass()) pass->on_lost(own->event);
      }
    };
    worker->post(item.release());
  });
  if (problem) log(log_level::error, "passes do not hear of the end of a worker: " + describe_exception(problem));
}

// Until then a worker that leaves may still make calls in its contexts.
void dist_worker::on_member_end(worker_id id, incarnation_id incarnation) noexcept {
  auto problem = caught([&] {
    struct end_of_maker final : work {
      std::shared_ptr<worker_core> worker;
      std::vector<std::shared_ptr<dist_context>> orphans;
    };
    auto item = std::make_unique<end_of_maker>();
    {
      const std::lock_guard lock(mutex_);
      const auto joined = joined_.find(id);
      if (joined != joined_.end()) {
        if (joined->second != incarnation) return;  // a successor has joined
        joined_.erase(joined);
      }
      gone_.insert(id);
      // Its successors count from elsewhere.
      over_.erase(over_.lower_bound(ids_of(id)), over_.lower_bound(ids_of({id.value + 1})));
      owed_.erase(id);
      if (closed_) return;
      for (auto each = contexts_.lower_bound(ids_of(id)); each != contexts_.end() && sender_of(each->first) == id;) {
        item->orphans.push_back(std::move(each->second));
        each = contexts_.erase(each);
      }
      if (item->orphans.empty()) return;
      item->worker = core_.shared_from_this();
    }
    // They end passes, too.
    item->run = [](work* self) noexcept {
      const std::unique_ptr<end_of_maker> own(static_cast<end_of_maker*>(self));
      for (const auto& each : own->orphans) (void)each->release();
    };
    const std::shared_ptr<worker_core> worker = item->worker;
    worker->post(item.release());
  });
  if (problem) log(log_level::error, "contexts of a worker that is gone stay: " + describe_exception(problem));
}

void dist_worker::close() noexcept {
  std::map<std::uint64_t, std::shared_ptr<dist_context>> left;
  {
    const std::lock_guard lock(mutex_);
    (void)known_info();
    closed_ = true;
    left = std::move(contexts_);
    contexts_.clear();
    owed_.clear();
  }
  release_timer_.close();
  for (const auto& [id, each] : left) (void)each->release();
}

// ---------------------------------------------------------------- methods

future<pass_answer> serve_gradients(gradient_message&& arriving) {
  const auto own = dist_worker::of(*current_worker());
  const auto context = own->need({arriving.header->context});
  return dist_pass::serve(context, this_call().caller(), std::move(arriving));
}

future<void> serve_failure(const failure_message& told) {
  const auto own = dist_worker::of(*current_worker());
  const auto context = own->find({told.context});
  return context ? dist_pass::on_failure_elsewhere(context, told) : make_ready_future();
}

void serve_release(const release_message& told) { dist_worker::of(*current_worker())->on_release(told); }

}  // namespace ferry::inline v0::detail
