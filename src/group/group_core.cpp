#include "group_core.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/log.hpp>
#include <ferry/rpc/named.hpp>
#include <ferry/rpc/worker.hpp>
#include <ferry/tensor/dims.hpp>

#include "../rpc/diagnostics/collective_sources.hpp"
#include "../rpc/worker/worker_core.hpp"
#include "collective_purpose.hpp"
#include "group_hash.hpp"
#include "group_table.hpp"
#include "nccl_group.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::milliseconds wake_pause{5};
constexpr std::size_t most_ended_collectives = 64;  // of those that it has begun, for members that ask

struct posted_function : work {
  std::function<void()> what;
};

}  // namespace

std::string to_string(const collective_signature& signature) {
  std::string text(to_string(signature.op));
  switch (signature.op) {
    case collective::all_reduce:
    case collective::reduce:
    case collective::reduce_scatter: text += fmt::format("({})", to_string(signature.how)); break;
    default: break;
  }
  if (signature.op != collective::barrier) {
    text += fmt::format(" of {} {}", dtype_name(signature.type), to_string(dims(signature.shape)));
  }
  if (signature.root >= 0) text += fmt::format(" with root {}", signature.root);
  if (signature.purpose != 0) text += fmt::format(" ({})", describe_purpose(signature.purpose));
  return text;
}

group_core::group_core(std::shared_ptr<worker_core> worker, group_facts facts)
    : worker_(std::move(worker)),
      table_(group_table::of(*worker_)),
      facts_(std::move(facts)),
      early_from_(facts_.names.size()),
      ended_from_(facts_.names.size()) {
  if (facts_.options.nccl && size() > 1) nccl_ = std::make_unique<nccl_group>(*this, nccl_in_use());
}

group_core::~group_core() {
  if (segment_queue_) segment_queue_->close();
  const std::exception_ptr gone = make_error(errc::invalid_argument, group_table::none);
  for (auto& [key, messages] : early_) {
    for (early_message& each : messages) each.taken.try_set_exception(gone);
  }
  table_->remove(facts_.id);
}

void group_core::set_limit(collective_start& start, timeout limit) const {
  start.limit = limit.value_or(facts_.options.limit);
  start.until = deadline::after(start.limit);
  if (const call_context* context = thread_context(); context && context->deadline() < start.until) {
    start.until = context->deadline();
    start.limit = std::max(start.until.remaining(), std::chrono::nanoseconds(1));
  }
}

std::uint64_t group_core::begin(collective_start start) {
  collective_key key{start.channel, 0};
  const std::string refusal = std::move(start.refusal);
  if (start.by_nccl) nccl_->prepare();
  std::shared_ptr<group_collective> made;
  std::deque<early_message> early;
  outcome before;
  int lost = -1;
  bool refused = false;
  bool wakes_others = false;
  {
    const std::lock_guard lock(mutex_);
    key.sequence = next_[key.channel];
    made = std::make_shared<group_collective>(shared_from_this(), key, std::move(start));
    const auto place = open_.emplace(key, made).first;
    try {
      pass_to_segment(key, made, wakes_others);
      if (made->wants_nccl()) nccl_->expect(key.sequence);
    } catch (...) {  // no memory: it was not begun
      open_.erase(place);
      throw;
    }
    ++next_[key.channel];
    early = take_early(key);
    before = take_ended(key);
    if (closed_) {
      before = {errc::not_initialized, "the worker has been shut down"};
    } else if (before.text.empty() && !lost_.empty()) {
      int needed = -1;
      if (key.channel != collective_key::all) {
        needed = key.channel / size() == rank() ? key.channel % size() : key.channel / size();
      }
      if (needed < 0 || lost_.contains(needed)) {
        lost = needed < 0 ? lost_.begin()->first : needed;
        before = {errc::peer_lost, fmt::format("{}: {}; shrink() gives a group without it",
                                               describe(key, made->signature()), text_of_lost())};
      }
    }
    if (before.text.empty() && !refusal.empty()) {
      before = {errc::remote_exception, fmt::format("{}: {}", describe(key, made->signature()), refusal)};
      refused = true;
    }
  }
  if (wakes_others) segment()->wake_all();
  if (!before.text.empty()) {
    const std::exception_ptr error = make_error(before.error, before.text);
    const group_abort told{facts_.id, rank(), key, static_cast<std::uint32_t>(before.error), before.text, lost};
    if (refused) abort_others(told);  // before they hear of it from answers to their messages
    for (early_message& each : early) each.taken.try_set_exception(error);
    table_->note_failed(facts_.id, key, before.error, before.text);
    // Others may wait for this member, and have nothing to do with the lost one.
    if (made->end(error) && lost >= 0) abort_others(told);
    return key.sequence;
  }
  made->start(std::move(early));
  return key.sequence;
}

// ---------------------------------------------------------------- shared memory

// With the mutex held.
void group_core::pass_to_segment(const collective_key& key, const std::shared_ptr<group_collective>& made,
                                 bool& wakes_others) {
  if (!segment() || key.channel != collective_key::all) return;
  if (made->wants_segment()) {
    made->set_in_segment(segment()->add(key.sequence, made));
  } else if (made->is_staged()) {
    wakes_others = segment()->skip(key.sequence);
  }
}

// No other member sees that it sleeps any more.
void group_core::wake(int sleeper) noexcept {
  const auto problem = caught([&] {
    const context_scope outside(static_cast<call_context*>(nullptr));
    call_one_way<named<"ferry/group/wake", serve_group_wake>>(worker_, to(name_of(sleeper), {}), facts_.id,
                                                              static_cast<std::int32_t>(rank()));
  });
  if (!problem) return;
  log(log_level::info, fmt::format("group '{}': {} is not woken: {}", facts_.options.name, name_of(sleeper),
                                   describe_exception(problem)));
  try {
    std::rethrow_exception(problem);
  } catch (const error& why) {
    // Its loss ends what needs it.
    if (why.kind() != errc::resource_exhausted && why.kind() != errc::limit_exceeded) return;
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory: tried again like a queue that is full
  }
  const auto hopeless = caught([&] {
    const auto again = [weak = weak_from_this(), sleeper] {
      if (const auto self = weak.lock()) self->post([self, sleeper] { self->wake(sleeper); });
    };
    renewed_time_limit* wakes = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      wakes = &wakes_[sleeper];
    }
    wakes->start(worker_->agent().reactor(), deadline::after(wake_pause), again);
  });
  if (hopeless) log(log_level::error, "a member of a group that sleeps is not woken: " + describe_exception(hopeless));
}

void group_core::drive_segment() const noexcept {
  if (segment_queue* const queue = segment()) queue->drive();
}

std::deque<early_message> group_core::take_early(const collective_key& key) {
  auto found = early_.extract(key);
  if (!found) return {};
  for (const early_message& each : found.mapped()) --early_from_[static_cast<std::size_t>(each.what.from)];
  return std::move(found.mapped());
}

group_core::outcome group_core::take_ended(const collective_key& key) {
  auto found = ended_.extract(key);
  if (!found) return {};
  --ended_from_[static_cast<std::size_t>(found.mapped().from)];
  return std::move(found.mapped());
}

bool group_core::knows_end_of(const collective_key& key) const {
  const std::lock_guard lock(mutex_);
  return ended_.contains(key);
}

void group_core::set_most_early(std::size_t messages) {
  const std::lock_guard lock(mutex_);
  most_early_ = messages;
}

std::uint64_t group_core::next_number() const {
  const std::lock_guard lock(mutex_);
  const auto found = next_.find(collective_key::all);
  return found == next_.end() ? 0 : found->second;
}

std::string group_core::begun_as(const collective_key& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = next_.find(key.channel);
  if (found == next_.end() || key.sequence >= found->second) return "";
  if (const auto open = open_.find(key); open != open_.end()) return to_string(open->second->signature());
  for (const auto& [known, signature] : ended_as_) {
    if (known == key) return to_string(signature);
  }
  return "?";
}

std::shared_ptr<group_collective> group_core::find(const collective_key& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(key);
  return found == open_.end() ? nullptr : found->second;
}

void group_core::forget(const collective_key& key) noexcept {
  std::shared_ptr<group_collective> dropped;  // destroyed without the mutex
  const std::lock_guard lock(mutex_);
  auto found = open_.extract(key);
  if (!found) return;
  dropped = std::move(found.mapped());
  ended_as_.emplace_back(key, dropped->signature());
  if (ended_as_.size() > most_ended_collectives) ended_as_.pop_front();
}

// ---------------------------------------------------------------- messages

void group_core::check_sender(int from) const {
  const incoming_call* call = thread_call();
  const worker_info* sender = call ? call->sender() : nullptr;
  const std::string name = sender ? sender->name() : worker_->agent().members().find(this_call().caller()).name();
  if (from < 0 || from >= size() || name_of(from) != name) {
    throw_error(errc::invalid_argument,
                fmt::format("{} is not member {} of group '{}'", name, from, facts_.options.name));
  }
}

future<void> group_core::deliver(const group_message& message, const tensor& bytes) {
  if (message.key.channel != collective_key::all && message.key.channel != message.from * size() + rank()) {
    throw_error(errc::invalid_argument, fmt::format("{} sends what is not for this member", name_of(message.from)));
  }
  std::shared_ptr<group_collective> open;
  {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(message.key);
    if (found != open_.end()) {
      open = found->second;
    } else if (message.key.sequence < next_[message.key.channel]) {
      // Its sender may hear of this answer before it hears of the end of the collective.
      if (auto error = table_->error_of(facts_.id, message.key)) return make_failed_future<void>(std::move(error));
      return make_failed_future<void>(
          make_error(errc::call_cancelled, fmt::format("{} has ended the collective", name_of(rank()))));
    } else if (const auto ended = ended_.find(message.key); ended != ended_.end()) {
      return make_failed_future<void>(make_error(ended->second.error, ended->second.text));
    } else {
      std::size_t& kept = early_from_[static_cast<std::size_t>(message.from)];
      if (kept >= most_early_) {
        return make_failed_future<void>(
            make_error(errc::limit_exceeded, fmt::format("{} has sent {} messages of collectives that {} has not begun",
                                                         name_of(message.from), kept, name_of(rank()))));
      }
      auto& early = early_[message.key];
      early.push_back({message, bytes, {}});
      ++kept;
      return early.back().taken.get_future();
    }
  }
  return open->deliver(message, bytes);
}

future<void> group_core::send(const group_message& message, int to_rank, const tensor& bytes) const {
  return call_async<named<"ferry/group/message", serve_group_message>>(
      worker_, to(name_of(to_rank), {.timeout = no_timeout}), message, bytes);
}

void group_core::post(std::function<void()> what) const noexcept {
  try {
    auto item = std::make_unique<posted_function>();
    item->what = std::move(what);
    item->run = [](work* self) noexcept {
      const std::unique_ptr<posted_function> owned(static_cast<posted_function*>(self));
      try {
        owned->what();
      } catch (const std::exception& problem) {
        log(log_level::error, fmt::format("process_group: {}", problem.what()));
      }
    };
    worker_->post(item.release());
  } catch (const std::bad_alloc&) {
    log(log_level::error, "process_group: no memory for work that follows an error");
  }
}

// ---------------------------------------------------------------- what it shows

std::string group_core::describe(const collective_key& key) const {
  if (key.channel == collective_key::all)
    return fmt::format(", collective {} of group '{}'", key.sequence, facts_.options.name);
  return fmt::format(" from {} to {}, number {} in group '{}'", name_of(key.channel / size()),
                     name_of(key.channel % size()), key.sequence, facts_.options.name);
}

std::string group_core::describe(const collective_key& key, const collective_signature& signature) const {
  return to_string(signature) + describe(key);
}

std::uint64_t group_core::trace_number(const collective_key& key) const noexcept {
  const auto channel = static_cast<std::uint64_t>(static_cast<std::uint32_t>(key.channel));
  return group_hash(group_hash(group_hash(empty_group_hash, facts_.id), channel), key.sequence) | 1U;
}

void group_core::describe(clock::time_point now, collectives_of_worker& to) const {
  to.groups.push_back({.id = facts_.id, .name = facts_.options.name, .members = facts_.names, .begun = next_number()});
  std::vector<std::shared_ptr<group_collective>> open;  // outlives the lock: perhaps the last to know them
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, each] : open_) open.push_back(each);
  }
  for (const auto& each : open) {
    pending_collective_info& one = to.pending.emplace_back();
    one.group = facts_.options.name;
    one.group_id = facts_.id;
    one.channel = each->key().channel;
    one.number = each->key().sequence;
    one.operation = to_string(each->signature());
    if (one.channel != collective_key::all) {
      const int from = one.channel / size();
      const int to_rank = one.channel % size();
      one.members = {name_of(from), name_of(to_rank)};
      collective_signature of_message = each->signature();
      of_message.root = -1;  // the other end
      if (to_rank == rank()) of_message.op = collective::receive;
      one.operation = fmt::format("{} {} {}", to_string(of_message), to_rank == rank() ? "from" : "to",
                                  name_of(to_rank == rank() ? from : to_rank));
    }
    one.age = std::max(now - each->began(), clock::duration{});
    one.until = each->until();
  }
}

}  // namespace ferry::inline v0::detail
