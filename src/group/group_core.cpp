#include "group_core.hpp"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ferry/base/log.hpp>
#include <ferry/group/all_gather.hpp>
#include <ferry/rpc/named.hpp>
#include <ferry/rpc/worker.hpp>
#include <ferry/tensor/dims.hpp>

#include "../rpc/diagnostics/collective_sources.hpp"
#include "../rpc/worker/worker_core.hpp"
#include "collective_purpose.hpp"
#include "gather_rounds.hpp"
#include "group_table.hpp"
#include "nccl_group.hpp"
#include "segment_agreement.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::seconds abort_limit{10};   // of the calls that tell others of an error
constexpr std::chrono::seconds inquiry_limit{5};  // of those that ask others why nothing comes
constexpr std::chrono::milliseconds wake_pause{5};
constexpr std::size_t most_outcomes = 4096;         // from one member, of collectives that this one has not begun
constexpr std::size_t most_outcome_text = 4096;     // bytes
constexpr std::size_t most_ended_collectives = 64;  // of those that it has begun, for members that ask
constexpr std::size_t most_chunk = std::size_t{1} << 40U;  // times the members it is still a number of bytes

constexpr std::uint64_t group_hash(std::uint64_t hash, std::uint64_t value) noexcept {
  return (hash ^ value) * 0x100000001b3U;
}
std::uint64_t group_hash(std::uint64_t hash, std::string_view text) noexcept {
  for (const char c : text) hash = group_hash(hash, static_cast<unsigned char>(c));
  return group_hash(hash, text.size());
}

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

std::shared_ptr<group_core> group_core::make(std::shared_ptr<worker_core> worker, const members& among,
                                             const group_options& wanted) {
  group_facts facts;
  facts.options = wanted;
  facts.options.limit = wanted.limit.value_or(worker->default_timeout());
  if (wanted.chunk == 0 || wanted.window == 0) {
    throw_error(errc::invalid_argument,
                fmt::format("group '{}': group_options::{} is 0", wanted.name, wanted.chunk == 0 ? "chunk" : "window"));
  }
  facts.options.chunk = std::min(wanted.chunk, most_chunk);
  for (const plan_rule& each : wanted.plan) {
    if (!has_algorithm(each.op, each.use)) {
      throw_error(errc::invalid_argument, fmt::format("group '{}': there is no {} by {}", wanted.name,
                                                      to_string(each.op), to_string(each.use)));
    }
  }
  const ferry::agent& agent = worker->agent();
  if (among.all()) {
    facts.members = agent.members().workers();
    std::sort(facts.members.begin(), facts.members.end(),
              [](const worker_info& a, const worker_info& b) { return a.id() < b.id(); });
  } else {
    for (const std::string& name : among.names()) facts.members.push_back(agent.members().find(name));
  }
  for (const worker_info& each : facts.members) facts.names.push_back(each.name());
  if (std::find(facts.names.begin(), facts.names.end(), agent.self().name()) == facts.names.end()) {
    throw_error(errc::invalid_argument,
                facts.names.empty() ? fmt::format("group '{}' has no members", wanted.name)
                                    : fmt::format("group '{}': this worker, {}, is not one of its members: {}",
                                                  wanted.name, to_string(agent.self()), fmt::join(facts.names, ", ")));
  }
  const deadline until = deadline::after(facts.options.limit);
  const auto left = [&]() -> timeout {
    if (until.is_never()) return no_timeout;
    return std::max(until.remaining(), std::chrono::nanoseconds(1));
  };

  // All must mean the same group. The first by name makes its id up.
  std::uint64_t agreed = group_hash(0xcbf29ce484222325U, facts.options.name);
  for (const std::string& name : facts.names) agreed = group_hash(agreed, name);
  agreed = group_hash(group_hash(agreed, facts.options.chunk), facts.options.window);
  agreed = group_hash(agreed, facts.options.shared_bytes);
  agreed = group_hash(agreed, static_cast<std::uint64_t>(facts.options.nccl));
  for (const plan_rule& each : facts.options.plan) {
    agreed = group_hash(group_hash(agreed, each.up_to_bytes), static_cast<std::uint64_t>(each.up_to_members));
    agreed = group_hash(group_hash(agreed, static_cast<std::uint64_t>(each.op)), static_cast<std::uint64_t>(each.use));
  }
  std::random_device source;
  const std::uint64_t proposal = (static_cast<std::uint64_t>(source()) << 32U) | source();
  const auto all = all_gather_at(worker, std::vector<std::uint64_t>{proposal, agreed}, members(facts.names), left());
  for (const auto& [name, contribution] : all) {
    if (contribution.size() != 2 || contribution[1] != agreed) {
      throw_error(errc::group_mismatch,
                  fmt::format("group '{}': {} makes it with another order of members, name or options than {}",
                              facts.options.name, name, agent.self().name()));
    }
  }
  facts.id = all.begin()->second[0];
  facts.rank =
      static_cast<int>(std::find(facts.names.begin(), facts.names.end(), agent.self().name()) - facts.names.begin());
  auto made = std::make_shared<group_core>(worker, std::move(facts));
  made->table_->add(made);
  // From here on every member knows the id. A call to each opens the connections: a worker that dies is noticed by those that are
  // connected to it.
  (void)gathering(worker, members(made->facts_.names), left(), "process_group").run(0, {});
  std::vector<std::pair<int, future<void>>> greetings;
  for (int rank = 0; rank != made->size(); ++rank) {
    if (rank == made->rank()) continue;
    greetings.emplace_back(rank, call_async<named<"ferry/group/hello", serve_group_hello>>(
                                     worker, to(made->name_of(rank), {.timeout = left()}), made->facts_.id,
                                     static_cast<std::int32_t>(made->rank())));
  }
  for (auto& [rank, greeting] : greetings) {
    try {
      greeting.get();
    } catch (const error& problem) {
      throw_error(problem.kind(),
                  fmt::format("group '{}': {}: {}", made->facts_.options.name, made->name_of(rank), problem.message()));
    }
  }
  // A member that is done with the group at once must not drop it before all others have greeted it: they gather once more.
  made->share_memory(until);
  return made;
}

// ---------------------------------------------------------------- what it does

group_plan group_core::plan(collective op, std::size_t bytes, device_kind memory) const {
  const int n = size();
  const plan_rule* const rule = own_rule(op, bytes);
  int levels = 0;
  while ((std::int64_t{1} << levels) < n) ++levels;
  const auto others = static_cast<std::size_t>(n - 1);
  const auto each = static_cast<std::size_t>(n);
  group_plan made;
  made.op = op;
  made.bytes = bytes;
  made.members = n;
  made.memory = memory;
  made.use = message_algorithm(op, bytes);
  made.chunk = facts_.options.chunk;
  made.not_shared = why_no_segment_;
  made.shared_failed = segment_failed_;
  if (!runs_in_segment(op)) {
    made.not_shared = "it is between two members";
    made.shared_failed = false;
  } else if (memory != device_kind::cpu) {
    made.not_shared = "the tensor is on a device";
    made.shared_failed = false;
  } else if (rule && rule->use != algorithm::shared && rule->use != algorithm::nccl) {
    made.not_shared = "a rule of the group says otherwise";
    made.shared_failed = false;
  } else if (segment() && segment()->has_left()) {
    made.not_shared = "a collective has failed in it, or had tensors on devices at some of its members";
    made.shared_failed = true;
  } else if (goes_through_segment(op, bytes)) {
    made.use = algorithm::shared;
    made.chunk = segment()->layout().slot_bytes;
  }
  if (memory == device_kind::cuda) {
    made.not_nccl = why_not_nccl(op, bytes);
    if (made.not_nccl.empty()) made.use = algorithm::nccl;
  }
  made.window = facts_.options.window;
  made.busbw_factor = 1;
  std::size_t of_piece = made.chunk;
  if (made.use == algorithm::shared) levels = 1;
  switch (op) {
    case collective::barrier: made.steps = levels; break;
    case collective::broadcast:
    case collective::reduce:
      made.steps = made.use == algorithm::chain ? n - 1 : levels;
      made.bytes_per_process =
          made.use == algorithm::tree && op == collective::broadcast ? static_cast<std::size_t>(levels) * bytes : bytes;
      break;
    case collective::all_reduce:
      made.busbw_factor = 2.0 * (n - 1) / n;
      if (made.use == algorithm::ring) {
        made.steps = 2 * (n - 1);
        made.bytes_per_process = 2 * others * bytes / each;
        of_piece *= each;
      } else if (made.use == algorithm::shared) {
        made.steps = takes_two_phases(op, bytes, n) ? 2 : 1;
        made.bytes_per_process = bytes;
      } else {
        made.steps = n > 1 ? 1 : 0;
        made.bytes_per_process = others * bytes;
      }
      break;
    case collective::all_gather:
    case collective::reduce_scatter:
    case collective::all_to_all:
      made.busbw_factor = static_cast<double>(n - 1) / n;
      made.steps = made.use == algorithm::ring ? n - 1 : std::min(n - 1, 1);
      made.bytes_per_process = others * bytes / each;
      if (made.use == algorithm::shared && op == collective::all_gather) made.bytes_per_process = bytes / each;
      if (made.use != algorithm::shared || op == collective::all_gather) of_piece *= each;
      break;
    case collective::send:
      made.steps = 1;
      made.bytes_per_process = bytes;
      break;
    case collective::receive: made.steps = 1; break;
  }
  if (made.use == algorithm::nccl) {
    made.steps = levels + 1;
    made.chunk = of_piece = std::max<std::size_t>(bytes, 1);
    if (op == collective::all_reduce) made.bytes_per_process = 2 * others * bytes / each;
    if (op == collective::broadcast) made.bytes_per_process = bytes;
  }
  made.pieces =
      op == collective::barrier ? 1 : std::max<std::size_t>(1, bytes / of_piece + (bytes % of_piece != 0 ? 1 : 0));
  if (n == 1) made.bytes_per_process = 0;
  return made;
}

std::string group_core::why_not_nccl(collective op, std::size_t bytes) const {
  if (!has_algorithm(op, algorithm::nccl)) return fmt::format("it makes no {}", to_string(op));
  if (!nccl_) return size() == 1 ? "there is one member" : "the group does without: group_options::nccl";
  if (bytes == 0) return "there are no elements";
  if (!may_go_by_nccl(op, bytes)) return "a rule of the group says otherwise";
  return nccl_->why_not();
}

const plan_rule* group_core::own_rule(collective op, std::size_t bytes) const noexcept {
  const std::span<const plan_rule> chosen = facts_.options.plan;
  const std::size_t at = find_rule(chosen, op, bytes, size());
  return at != chosen.size() ? &chosen[at] : nullptr;
}

algorithm group_core::message_algorithm(collective op, std::size_t bytes) const {
  const plan_rule* const rule = own_rule(op, bytes);
  if (rule && rule->use != algorithm::shared && rule->use != algorithm::nccl) return rule->use;
  return default_plan[find_rule(default_plan, op, bytes, size())].use;
}

bool group_core::goes_through_segment(collective op, std::size_t bytes) const noexcept {
  if (!segment() || !runs_in_segment(op)) return false;
  const plan_rule* const rule = own_rule(op, bytes);
  return !rule || rule->use == algorithm::shared || rule->use == algorithm::nccl;
}

bool group_core::may_go_by_nccl(collective op, std::size_t bytes) const noexcept {
  if (!nccl_ || bytes == 0 || !has_algorithm(op, algorithm::nccl)) return false;
  const plan_rule* const rule = own_rule(op, bytes);
  return !rule || rule->use == algorithm::nccl || rule->use == algorithm::shared;
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

void group_core::share_memory(deadline until) {
  segment_agreement agreed = agree_on_segment(worker_, facts_, until);
  why_no_segment_ = std::move(agreed.why_not);
  segment_failed_ = agreed.failed;
  if (!agreed.memory) return;
  segment_queue::outside calls;
  calls.wake = [this](int sleeper) { wake(sleeper); };  // the queue is a part of this
  calls.later = [weak = weak_from_this()](std::function<void()> what) {
    const auto self = weak.lock();
    if (!self) return;
    self->post([self, what = std::move(what)] { what(); });
  };
  segment_queue_ = std::make_unique<segment_queue>(std::move(agreed.memory), rank(),
                                                   worker_->agent().options().transport.max_spin, std::move(calls));
  segment_.store(segment_queue_.get());
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

// ---------------------------------------------------------------- errors

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
  return group_hash(group_hash(group_hash(0xcbf29ce484222325U, facts_.id), channel), key.sequence) | 1U;
}

std::string group_core::reason_of(const collective_key& key, int member, std::string_view text) const {
  const std::string of_it = describe(key) + ": ";
  if (const auto at = text.find(of_it); at != std::string_view::npos)
    return std::string(text.substr(at + of_it.size()));
  return fmt::format("{}: {}", name_of(member), text);
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

std::vector<int> group_core::others_in(const collective_key& key) const {
  std::vector<int> others;
  for (int each = 0; each != size(); ++each) {
    const bool in = key.channel == collective_key::all || each == key.channel / size() || each == key.channel % size();
    if (in && each != rank()) others.push_back(each);
  }
  return others;
}

void group_core::abort_others(const group_abort& what) const noexcept {
  const context_scope outside(static_cast<call_context*>(nullptr));
  for (const int each : others_in(what.key)) {
    {
      const std::lock_guard lock(mutex_);
      if (lost_.contains(each)) continue;
    }
    try {
      // What becomes of it does not matter: a member that cannot be told ends by its own limit, or the connection's.
      (void)call_async<named<"ferry/group/abort", serve_group_abort>>(
          worker_, to(name_of(each), {.timeout = timeout(abort_limit)}), what);
    } catch (const std::exception& problem) {
      log(log_level::info, fmt::format("group '{}': {} is not told of an error: {}", facts_.options.name, name_of(each),
                                       problem.what()));
    }
  }
}

void group_core::fail(const collective_key& key, errc error, const std::string& reason, int lost) noexcept {
  const auto open = find(key);
  if (!open) return;
  try {
    group_abort what;
    what.group = facts_.id;
    what.from = rank();
    what.key = key;
    what.error = static_cast<std::uint32_t>(error);
    what.text = fmt::format("{}: {}", describe(key, open->signature()), reason);
    what.lost = lost;
    table_->note_failed(facts_.id, key, error, what.text);
    // The others first: the caller may let go of the group when it hears of the end.
    open->end(make_error(error, what.text), [&] { abort_others(what); });
  } catch (const std::bad_alloc&) {
    open->end(make_error(error, ""));
  }
}

void group_core::on_abort(const group_abort& what) {
  const std::int32_t channel = what.key.channel;
  if (channel != collective_key::all && channel != what.from * size() + rank() &&
      channel != rank() * size() + what.from) {
    throw_error(errc::invalid_argument, fmt::format("{} ends what is not for this member", name_of(what.from)));
  }
  const std::string text = what.text.substr(0, most_outcome_text);
  const auto code = static_cast<errc>(what.error);
  const errc error = errc_name(code) == "unknown" ? errc::remote_exception : code;
  if (what.lost >= 0 && what.lost < size() && what.lost != rank())
    note_lost(what.lost, "is lost to " + name_of(what.from));
  std::deque<early_message> early;
  std::shared_ptr<group_collective> open;
  bool too_many = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(what.key);
    if (found != open_.end()) {
      open = found->second;
    } else if (what.key.sequence >= next_[what.key.channel]) {
      early = take_early(what.key);
      std::size_t& kept = ended_from_[static_cast<std::size_t>(what.from)];
      if (kept < most_outcomes) {
        if (ended_.try_emplace(what.key, outcome{error, text, what.from}).second) ++kept;
      } else {
        too_many = !ended_.contains(what.key);
      }
    }
  }
  const std::exception_ptr problem = make_error(error, text);
  for (early_message& each : early) each.taken.try_set_exception(problem);
  if (too_many) {
    throw_error(errc::limit_exceeded, fmt::format("{} has ended {} collectives that {} has not begun",
                                                  name_of(what.from), most_outcomes, name_of(rank())));
  }
  if (!open) return;
  table_->note_failed(facts_.id, what.key, error, text);
  open->end(problem);
}

// Asks the others, then ends it with the answers.
void group_core::time_out(const collective_key& key, timeout limit) noexcept {
  post([self = shared_from_this(), key, limit] {
    const context_scope outside(static_cast<call_context*>(nullptr));
    struct answers {
      std::mutex mutex;
      std::size_t left = 0;
      std::vector<std::string> missing;
      std::vector<std::string> silent;
      std::string odd;  // a member that calls something else, and what
    };
    std::string own;
    if (const auto open = self->find(key)) own = to_string(open->signature());
    const std::vector<int> others = self->others_in(key);
    const auto all = std::make_shared<answers>();
    all->left = others.size() + 1;
    const auto count = [self, key, limit, own, all](const std::string& name, bool answered, const std::string& begun) {
      {
        const std::lock_guard lock(all->mutex);
        if (!answered) all->silent.push_back(name);
        if (answered && begun.empty()) all->missing.push_back(name);
        if (!begun.empty() && begun != own && begun != "?") all->odd = name + " " + begun;
        if (--all->left != 0) return;
      }
      self->post([self, key, limit, own, all] {
        if (!all->odd.empty()) {
          self->fail(key, errc::group_mismatch,
                     fmt::format("{} calls {}, {}", self->name_of(self->rank()), own, all->odd));
          return;
        }
        std::string reason = fmt::format("timed out after {:.2f} seconds, the limit of {}",
                                         in_seconds(limit.duration()), self->name_of(self->rank()));
        if (!all->missing.empty()) reason += "; not called by " + list_names(all->missing);
        if (!all->silent.empty()) reason += "; no answer from " + list_names(all->silent);
        if (all->missing.empty() && all->silent.empty()) reason += "; every member has called it";
        self->fail(key, errc::rpc_timeout, reason);
      });
    };
    group_inquiry inquiry;
    inquiry.group = self->facts_.id;
    inquiry.from = self->rank();
    inquiry.key = key;
    for (const int each : others) {
      const std::string& name = self->name_of(each);
      try {
        call_async<named<"ferry/group/inquiry", serve_group_inquiry>>(
            self->worker_, to(name, {.timeout = timeout(inquiry_limit)}), inquiry)
            .add_done_callback([count, name](const future<std::string>& answer) {
              count(name, !answer.failed(), answer.failed() ? std::string() : answer.value());
            });
      } catch (const error&) {
        count(name, false, "");
      }
    }
    count("", true, own);
  });
}

std::string group_core::text_of_lost() const {
  std::string text;
  for (const auto& [rank, what] : lost_) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(rank), what);
  return text;
}

std::vector<int> group_core::lost() const {
  std::vector<int> ranks;
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, what] : lost_) ranks.push_back(rank);
  return ranks;
}

// Collectives that can still succeed without the member, which has done its part, go on.
void group_core::note_lost(int rank, const std::string& what) {
  std::vector<std::shared_ptr<group_collective>> open;
  {
    const std::lock_guard lock(mutex_);
    if (!lost_.emplace(rank, what).second) return;
    for (const auto& [key, each] : open_) open.push_back(each);
  }
  // It may have taken on to wake this one.
  if (segment()) post([self = shared_from_this()] { self->drive_segment(); });
  for (const auto& each : open) {
    if (!each->needs(rank)) continue;
    const std::string why = fmt::format("{} {}", name_of(rank), what);
    const auto late = [weak = weak_from_this(), key = each->key(), why, rank] {
      const auto self = weak.lock();
      const auto open_still = self ? self->find(key) : nullptr;
      if (open_still && open_still->needs(rank)) self->fail(key, errc::peer_lost, why, rank);
    };
    if (!each->ends_on_device(late)) fail(each->key(), errc::peer_lost, why, rank);
  }
}

void group_core::describe(clock::time_point now, collectives_of_worker& to) const {
  to.groups.push_back({.id = facts_.id, .name = facts_.options.name, .begun = next_number()});
  std::vector<std::shared_ptr<group_collective>> open;  // outlives the lock: perhaps the last to know them
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, each] : open_) open.push_back(each);
  }
  for (const auto& each : open) {
    pending_collective_info& one = to.pending.emplace_back();
    one.operation = to_string(each->signature());
    one.group = facts_.options.name;
    one.group_id = facts_.id;
    one.channel = each->key().channel;
    one.number = each->key().sequence;
    if (one.channel == collective_key::all) {
      one.members = facts_.names;
    } else {
      one.members = {name_of(one.channel / size()), name_of(one.channel % size())};
    }
    one.age = std::max(now - each->began(), clock::duration{});
    one.until = each->until();
  }
}

void group_core::on_gone(const worker_info& who, const std::string& what) noexcept {
  for (int each = 0; each != size(); ++each) {
    const worker_info& member = facts_.members[static_cast<std::size_t>(each)];
    if (member.name() != who.name() || member.id() != who.id() || each == rank()) continue;
    try {
      note_lost(each, what);
    } catch (const std::bad_alloc&) {
      log(log_level::error, "process_group: no memory to note that a member is lost");
    }
  }
}

void group_core::close() noexcept {
  std::map<collective_key, std::shared_ptr<group_collective>> open;
  std::map<collective_key, std::deque<early_message>> early;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    open = open_;
    early.swap(early_);
    std::fill(early_from_.begin(), early_from_.end(), 0);
  }
  for (auto& [sleeper, again] : wakes_) again.close();  // none is added any more
  const std::exception_ptr error = make_error(errc::not_initialized, "the worker has been shut down");
  for (const auto& [key, each] : open) each->end(error);
  for (auto& [key, messages] : early) {
    for (early_message& each : messages) each.taken.try_set_exception(error);
  }
}

}  // namespace ferry::inline v0::detail
