#include "dist_worker.hpp"

#include <algorithm>
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
#include <ferry/rpc/worker.hpp>

#include "../../rpc/pipeline/library_clients.hpp"
#include "../../rpc/worker/worker_core.hpp"
#include "dist_pass.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t most_contexts = std::size_t{1} << 20U;

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

void dist_worker::add_watcher(const std::shared_ptr<const leaf_watcher>& watcher) {
  const std::lock_guard lock(mutex_);
  std::erase_if(watchers_, [](const auto& each) { return each.expired(); });
  watchers_.push_back(watcher);
}

std::vector<std::shared_ptr<const leaf_watcher>> dist_worker::watchers() const {
  std::vector<std::shared_ptr<const leaf_watcher>> all;
  const std::lock_guard lock(mutex_);
  for (const auto& each : watchers_) {
    if (auto present = each.lock()) all.push_back(std::move(present));
  }
  return all;
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
