#include "dist_context.hpp"

#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <ferry/autograd/detail/memory.hpp>
#include <ferry/autograd/grad_mode.hpp>
#include <ferry/base/error.hpp>
#include <ferry/device/current.hpp>

#include "../graph/gradient_record.hpp"
#include "dist_pass.hpp"
#include "dist_worker.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t most_failed_passes = 256;

// Whether a worker began a pass before, or as, another one of its own. The numbers of its incarnations are far apart, and not in order.
bool is_no_later(std::uint64_t pass, std::uint64_t than) {
  constexpr std::uint64_t most_at_once = std::uint64_t{1} << 24U;
  return pass <= than && than - pass < most_at_once;
}

// At the caller of a recorded call.
class recorded_call final : public caller_hooks {
 public:
  recorded_call(std::shared_ptr<dist_context> context, const autograd_record& record, worker_id to) noexcept
      : context_(std::move(context)), message_(record.message), to_(to), over_(record.over) {}
  void not_sent() noexcept override { context_->take_back(message_); }
  void replied(incoming_reply& reply) override {
    if (!reply.has_value()) return context_->unused(message_);
    context_->home().heard_there(to_, over_);
  }
  void ended(const call_end& how) noexcept override {
    if (how.code != errc{}) context_->unused(message_);
  }

 private:
  const std::shared_ptr<dist_context> context_;
  const std::uint64_t message_;
  const worker_id to_;
  const contexts_over over_;
};

}  // namespace

std::shared_ptr<dist_context> context_of_thread() noexcept {
  const context_in_force* present = current_value(current_dist_context);
  return present && !present->which()->is_over() ? present->which() : nullptr;
}

void context_in_force::on_request(outgoing_request& request) const {
  if (!grad_enabled()) return;
  if (dist_worker::of(request.core()).get() != &which_->home()) {
    if (which_->is_over()) return;
    throw_error(
        errc::invalid_argument,
        fmt::format("a context of {} is in force, and the call is made by another worker of the process: attach that "
                    "thread to a context of the caller",
                    to_string(which_->home().info())));
  }
  const worker_id to = request.destination().id();
  std::optional<autograd_record> record = which_->leave(request.tensors(), to);
  if (!record) return;
  which_->home().note_over(*record);
  if (!record->tensors.empty()) request.keep(std::make_unique<recorded_call>(which_, *record, to));
  const byte_buffer content = encode_autograd_record(*record);
  request.add_record(autograd_record_type, true, {content.data(), content.size()});
}

dist_context::dist_context(std::shared_ptr<dist_worker> home, dist_autograd::context_id id)
    : home_(std::move(home)), id_(id) {}
dist_context::~dist_context() = default;

void dist_context::refuse_over() const {
  throw_error(errc::invalid_argument, fmt::format("context {} of distributed autograd is over", to_string(id_)));
}

// ---------------------------------------------------------------- the way forward

std::optional<autograd_record> dist_context::leave(std::span<tensor> tensors, worker_id to) {
  autograd_record record;
  record.context = id_.value;
  auto sent = std::make_shared<sent_message>();
  sent->to = to;
  for (std::size_t i = 0; i != tensors.size(); ++i) {
    if (!tensors[i].requires_grad()) continue;
    held_edge edge = gradient_edge_of(tensors[i]);
    if (!edge) continue;  // a slot of another library
    sent->edges.push_back(std::move(edge));
    sent->facts.push_back(value_facts::of(tensors[i]));
    record.tensors.push_back({static_cast<std::uint32_t>(i), tensors[i].device()});
  }
  std::uint64_t first_received = last_message_number;
  if (!record.tensors.empty()) {
    record.message = home_->next_message();
    {
      const std::lock_guard lock(mutex_);
      first_received = first_received_;
    }
    if (first_received != last_message_number)
      record.upstream = messages_before(sent->edges, id_.value, first_received);
  }
  const std::lock_guard lock(mutex_);
  if (over_) return std::nullopt;
  known_.insert(to);
  if (!record.tensors.empty()) sent_.emplace(record.message, std::move(sent));
  return record;
}

void dist_context::take_back(std::uint64_t message) noexcept {
  std::shared_ptr<const sent_message> last;  // destroyed outside of the lock
  const std::lock_guard lock(mutex_);
  const auto found = sent_.find(message);
  if (found == sent_.end()) return;
  last = std::move(found->second);
  sent_.erase(found);
}

void dist_context::unused(std::uint64_t message) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    unused_.insert(message);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): a fast pass would wait for it, until its limit
  }
}

void dist_context::arrive(const autograd_record& record, std::span<tensor> tensors, const worker_info& from) {
  {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    known_.insert(from.id());
  }
  if (record.tensors.empty()) return;
  if (sender_of(record.message) != from.id()) {
    throw_error(errc::malformed, fmt::format("{} sent message {} of distributed autograd, whose number is of worker {}",
                                             to_string(from), record.message, sender_of(record.message).value));
  }
  received_node::origin origin;
  std::vector<value_facts> facts;
  for (const autograd_record::tensor_entry& each : record.tensors) {
    const bool fits = each.index < tensors.size() && has_gradients(tensors[each.index].dtype());
    if (!fits) {
      throw_error(errc::malformed,
                  fmt::format("a record of gradients names tensor {} of a message with {}, or one of a type "
                              "that has no gradients",
                              each.index, tensors.size()));
    }
    facts.push_back(value_facts::of(tensors[each.index]));
    origin.devices.push_back(each.where);
  }
  origin.context = id_.value;
  origin.message = record.message;
  origin.sender = from;
  origin.upstream = record.upstream;
  const auto node = std::make_shared<received_node>(std::move(origin), std::move(facts));
  {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    received_[record.message] = {from.id(), record.tensors.size()};
    first_received_ = std::min(first_received_, node->number());
  }
  for (std::uint32_t value = 0; value != record.tensors.size(); ++value)
    gradient_record::set_history(tensors[record.tensors[value].index], {node, value});
}

// ---------------------------------------------------------------- passes

void dist_context::begin_pass(const std::shared_ptr<dist_pass>& pass, pass_header& header) {
  const std::lock_guard lock(mutex_);
  if (over_) refuse_over();
  if (pass_) {
    throw_error(errc::invalid_argument,
                fmt::format("a pass of context {} runs already: passes of one context come one after the other",
                            to_string(id_)));
  }
  header.pass = home_->next_pass();  // in the order in which passes of the context begin
  pass_ = pass;
}

dist_context::joined dist_context::join_pass(std::uint64_t number,
                                             const std::function<std::shared_ptr<dist_pass>()>& make) {
  std::shared_ptr<dist_pass> former;
  joined result;
  {
    const std::lock_guard lock(mutex_);
    if (over_) refuse_over();
    if (const auto failed = failed_passes_.find(number); failed != failed_passes_.end())
      return {nullptr, false, failed->second.why};
    if (pass_ && pass_->number() == number) return {pass_, false, {}};
    if (const auto last = last_ended_.find(sender_of(number));
        last != last_ended_.end() && is_no_later(number, last->second)) {
      const auto late =
          fmt::format("{}: gradients came for a pass of context {} that is over", home_->info().name(), to_string(id_));
      return {nullptr, false, {static_cast<std::uint32_t>(errc::invalid_argument), {}, late}};
    }
    if (pass_ && (sender_of(pass_->number()) != sender_of(number) || is_no_later(number, pass_->number()))) {
      const auto refused =
          fmt::format("{}: another pass of context {} runs: passes of one context come one after the other",
                      home_->info().name(), to_string(id_));
      return {nullptr, false, {static_cast<std::uint32_t>(errc::invalid_argument), {}, refused}};
    }
    // Its root has begun another one: the one here has failed there.
    former = std::move(pass_);
    result = {make(), true, {}};
    pass_ = result.pass;
  }
  if (former) former->supersede();
  return result;
}

void dist_context::end_pass(const dist_pass& pass) noexcept {
  std::shared_ptr<dist_pass> last;  // dropped outside of the lock
  const std::lock_guard lock(mutex_);
  if (pass_.get() != &pass) return;
  last = std::move(pass_);
  try {
    std::uint64_t& ended = last_ended_[sender_of(pass.number())];
    if (!is_no_later(pass.number(), ended)) ended = pass.number();
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): a message that comes twice would begin it again
  }
}

bool dist_context::note_failure(std::uint64_t pass, const pass_failure& failure) {
  const std::lock_guard lock(mutex_);
  if (over_ || !failed_passes_.try_emplace(pass, failed_pass{failure}).second) return false;
  failed_in_order_.push_back(pass);
  if (failed_in_order_.size() > most_failed_passes) {
    failed_passes_.erase(failed_in_order_.front());
    failed_in_order_.pop_front();
  }
  return true;
}

bool dist_context::begin_echo(std::uint64_t pass) noexcept {
  const std::lock_guard lock(mutex_);
  const auto failed = failed_passes_.find(pass);
  return failed != failed_passes_.end() && !std::exchange(failed->second.echoed, true);
}

std::shared_ptr<dist_pass> dist_context::running_pass() const {
  const std::lock_guard lock(mutex_);
  return pass_;
}

std::map<std::uint64_t, std::shared_ptr<const sent_message>> dist_context::taking_part(
    const pass_header& header) const {
  std::map<std::uint64_t, std::shared_ptr<const sent_message>> found;
  const std::lock_guard lock(mutex_);
  for (const auto& [message, sent] : sent_) {
    const bool takes_part = header.exact ? header.reached.contains(message) : !unused_.contains(message);
    if (takes_part) found.emplace(message, sent);
  }
  return found;
}

std::vector<std::shared_ptr<const sent_message>> dist_context::sent_of(const message_set& messages) const {
  std::vector<std::shared_ptr<const sent_message>> found;
  const std::lock_guard lock(mutex_);
  for (const auto& [message, sent] : sent_) {
    if (messages.contains(message)) found.push_back(sent);
  }
  return found;
}

std::vector<worker_id> dist_context::known_workers() const {
  const std::lock_guard lock(mutex_);
  return {known_.begin(), known_.end()};
}

std::uint64_t dist_context::first_received() const {
  const std::lock_guard lock(mutex_);
  return first_received_;
}

// ---------------------------------------------------------------- gradients

std::shared_ptr<dist_context::kept_leaf> dist_context::place_of(const engine_leaf& leaf) {
  const std::lock_guard lock(mutex_);
  if (over_) refuse_over();
  std::shared_ptr<kept_leaf>& place = leaves_[leaf.identity];
  if (!place) {
    place = std::make_shared<kept_leaf>();
    place->leaf = leaf.value;
  } else {
    // What was done to it meanwhile, as clipping does, may have been on another stream.
    wait_for_gradients(leaf.value.device());
  }
  return place;
}

void dist_context::replace(const engine_leaf& leaf, const sparse_tensor& rows) {
  place_of(leaf)->gradient.set_rows(rows);
}

dist_autograd::leaf_gradient dist_context::accumulate(const engine_leaf& leaf, tensor&& dense,
                                                      std::vector<sparse_tensor>&& rows) {
  const std::shared_ptr<kept_leaf> kept = place_of(leaf);
  if (!rows.empty()) kept->gradient.add_rows(std::move(rows));
  if (dense.defined()) kept->gradient.add(std::move(dense));
  return {kept->leaf, kept->gradient.dense(), kept->gradient.rows()};
}

void dist_context::gradients_on(std::span<const stream> streams) {
  const std::lock_guard lock(mutex_);
  for (const stream& each : streams) {
    const auto known =
        std::find_if(ready_.begin(), ready_.end(), [&](const auto& entry) { return entry.first == each; });
    if (known != ready_.end()) {
      known->second.record(each);
    } else {
      ready_.emplace_back(each, each.record());
    }
  }
}

void dist_context::wait_for_gradients(device where) const {
  if (where.is_cpu()) return;
  for (const auto& [on, mark] : ready_) {
    if (on.device() == where) current_stream(where).wait(mark);
  }
}

void dist_context::let_streams_wait() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [on, mark] : ready_) current_stream(on.device()).wait(mark);
}

dist_autograd::gradient_map dist_context::gradients() const {
  std::vector<dist_autograd::leaf_gradient> all;
  std::vector<std::shared_ptr<kept_leaf>> kept;
  {
    const std::lock_guard lock(mutex_);
    if (over_) refuse_over();
    for (const auto& [on, mark] : ready_) current_stream(on.device()).wait(mark);
    kept.reserve(leaves_.size());
    for (const auto& [identity, each] : leaves_) kept.push_back(each);
  }
  all.reserve(kept.size());
  for (const auto& each : kept) all.push_back(read(*each));
  return dist_autograd::gradient_map(std::move(all));
}

std::optional<dist_autograd::leaf_gradient> dist_context::gradient_of(std::uintptr_t leaf) const {
  std::shared_ptr<kept_leaf> kept;
  {
    const std::lock_guard lock(mutex_);
    if (over_) refuse_over();
    const auto found = leaves_.find(leaf);
    if (found == leaves_.end()) return std::nullopt;
    kept = found->second;
    wait_for_gradients(kept->leaf.device());
  }
  return read(*kept);
}

dist_autograd::leaf_gradient dist_context::read(const kept_leaf& kept) {
  dist_autograd::leaf_gradient one{kept.leaf, kept.gradient.dense(), kept.gradient.rows()};
  for (const tensor& part : {one.dense, one.rows.defined() ? one.rows.values() : tensor(),
                             one.rows.defined() ? one.rows.indices() : tensor()}) {
    if (part.defined() && !part.device().is_cpu()) part.storage().record_use(current_stream(part.device()));
  }
  return one;
}

// ---------------------------------------------------------------- the end

std::vector<worker_id> dist_context::release() noexcept {
  // Destroyed outside of the lock: graphs may be large.
  std::map<std::uint64_t, std::shared_ptr<const sent_message>> sent;
  std::unordered_map<std::uintptr_t, std::shared_ptr<kept_leaf>> leaves;
  std::set<worker_id> known;
  std::shared_ptr<dist_pass> pass;
  {
    const std::lock_guard lock(mutex_);
    if (over_) return {};
    over_ = true;
    sent.swap(sent_);
    leaves.swap(leaves_);
    known.swap(known_);
    pass = std::move(pass_);
    received_.clear();
    unused_.clear();
    failed_passes_.clear();
    failed_in_order_.clear();
    last_ended_.clear();
    ready_.clear();
  }
  if (pass) pass->on_release();
  std::vector<worker_id> whom;
  if (auto problem = caught([&] { whom.assign(known.begin(), known.end()); })) return {};
  return whom;
}

dist_autograd::context_info dist_context::info() const {
  dist_autograd::context_info all;
  const std::lock_guard lock(mutex_);
  for (const auto& [message, sent] : sent_) {
    dist_autograd::context_send one{message, sent->to, {}};
    for (const held_edge& each : sent->edges) one.edges.push_back(each.edge.to.engine().describe(each.edge.to.node()));
    all.sends.push_back(std::move(one));
  }
  for (const auto& [message, from] : received_) all.receives.push_back({message, from.first, from.second});
  all.known_workers.assign(known_.begin(), known_.end());
  all.pass_runs = pass_ != nullptr;
  return all;
}

}  // namespace ferry::inline v0::detail
