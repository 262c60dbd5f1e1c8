#include "dist_pass.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <ferry/autograd/detail/memory.hpp>
#include <ferry/autograd/grad_mode.hpp>
#include <ferry/base/error.hpp>
#include <ferry/base/traced_range.hpp>
#include <ferry/device/current.hpp>
#include <ferry/ops/arithmetic.hpp>
#include <ferry/rpc/call.hpp>
#include <ferry/rpc/named.hpp>
#include <ferry/tensor/factories.hpp>

#include "../../rpc/worker/worker_core.hpp"
#include "../../transport/reactor/time_limit.hpp"
#include "../graph/gradient_record.hpp"
#include "dist_worker.hpp"

namespace ferry::inline v0::detail {
namespace {

thread_local constinit const dist_pass* running_pass_of_thread = nullptr;
thread_local constinit const dist_pass* awaited_pass_of_thread = nullptr;

class pass_scope {
 public:
  pass_scope(const dist_pass*& of_thread, const dist_pass* pass) noexcept
      : of_thread_(of_thread), former_(std::exchange(of_thread, pass)) {}
  ~pass_scope() { of_thread_ = former_; }
  pass_scope(const pass_scope&) = delete;
  pass_scope& operator=(const pass_scope&) = delete;

 private:
  const dist_pass*& of_thread_;
  const dist_pass* const former_;
};

// On a thread whose current worker is another one, as several workers of a process have it: that of the context.
class home_scope {
 public:
  explicit home_scope(const dist_context& of) noexcept {
    const auto problem = caught([&] {
      const std::shared_ptr<worker_core> home = of.home().core();
      const auto none = caught([&] { is_home_ = current_worker() == home; });  // none, on a thread of no worker
      if (is_home_) return;
      context_ = context_ptr(new call_context(home));
      scope_.emplace(context_);
    });
    if (problem) log(log_level::warning, "hooks of a pass see another worker: " + describe_exception(problem));
  }

 private:
  bool is_home_ = false;
  context_ptr context_;
  std::optional<context_scope> scope_;
};

// What a node threw, and where.
struct node_failure {
  pass_failure failure;
};

stream valid_stream(const tensor& t) { return t.device().is_cpu() ? stream() : current_stream(t.device()); }

}  // namespace

// ---------------------------------------------------------------- its beginning

dist_pass::dist_pass(std::shared_ptr<dist_context> context, std::shared_ptr<const pass_header> header,
                     std::optional<worker_id> asker)
    : context_(std::move(context)),
      header_(std::move(header)),
      asker_(asker),
      began_with_(current_values().without(current_dist_context)) {
  context_->home().count_passes(1);
}

dist_pass::~dist_pass() = default;

std::string dist_pass::place() const { return context_->home().info().name(); }

const dist_pass* dist_pass::running_here() noexcept { return running_pass_of_thread; }
bool dist_pass::is_waited_for_here() const noexcept { return awaited_pass_of_thread == this; }

bool dist_pass::updates_at(worker_id who) const noexcept {
  return std::any_of(header_->updaters.begin(), header_->updaters.end(),
                     [&](std::uint64_t each) { return sender_of(each).value == who.value; });
}

std::shared_ptr<dist_pass> dist_pass::begin(const std::shared_ptr<dist_context>& context, std::vector<root> roots,
                                            const root_options& options) {
  auto header = std::make_shared<pass_header>();
  header->context = context->id().value;
  header->exact = options.exact;
  header->keeps_graph = options.keeps_graph;
  header->accumulates = options.accumulates;
  header->updaters = options.updaters;
  if (options.exact) {
    std::vector<held_edge> places;
    places.reserve(roots.size());
    for (const root& each : roots) places.push_back(each.to);
    header->reached = messages_before(places, header->context, context->first_received());
  }
  auto pass = std::make_shared<dist_pass>(context, header, std::nullopt);
  pass->wanted_ = options.wanted;
  pass->found_.resize(options.wanted.size());
  if (auto refused = caught([&] { context->begin_pass(pass, *header); })) {
    context->home().count_passes(-1);
    pass->over_ = true;
    std::rethrow_exception(refused);
  }
  auto problem = caught([&] {
    if (!options.until.is_never()) {
      const auto late = [weakly = std::weak_ptr(pass)] {
        if (const auto running = weakly.lock()) running->on_limit();
      };
      auto limit = std::make_shared<time_limit>(context->home().core()->agent().reactor(), options.until, late);
      const std::lock_guard lock(pass->mutex_);
      if (!pass->over_) pass->limit_ = std::move(limit);  // else a worker was lost, or the limit is over already
    }
    pass->discover(roots);
    arrival first;
    first.roots = std::move(roots);
    const std::lock_guard lock(pass->mutex_);
    pass->inbox_.push_back(std::move(first));
  });
  if (problem) pass->fail(pass_failure::of(problem, pass->place()), heard::here);
  const pass_scope waiting(awaited_pass_of_thread, options.waits ? pass.get() : awaited_pass_of_thread);
  pass->drive(thread_of::caller);
  return pass;
}

dist_pass::arrival dist_pass::arrival::of(std::uint64_t message, std::vector<tensor>&& gradients) {
  arrival own;
  own.message = message;
  own.gradients = std::move(gradients);
  own.valid_on.reserve(own.gradients.size());
  for (const tensor& each : own.gradients) own.valid_on.push_back(each.defined() ? valid_stream(each) : stream());
  return own;
}

future<pass_answer> dist_pass::serve(const std::shared_ptr<dist_context>& context, worker_id asker,
                                     gradient_message&& arriving) {
  arrival own = arrival::of(arriving.message, std::move(arriving.gradients));
  const auto made = [&] { return std::make_shared<dist_pass>(context, arriving.header, asker); };
  auto [pass, is_new, failed] = context->join_pass(arriving.header->pass, made);
  if (!pass) return make_ready_future(pass_answer{failed, nullptr});
  future<pass_answer> whole = pass->whole();
  if (is_new) {
    const auto problem = caught([&] {
      pass->discover({});
      const std::lock_guard lock(pass->mutex_);
      pass->inbox_.push_back(std::move(own));
    });
    if (problem) pass->fail(pass_failure::of(problem, pass->place()), heard::here);
    pass->drive(thread_of::worker);
    return whole;
  }
  pass->deliver(std::move(own));
  return make_ready_future(pass_answer{});
}

std::uint32_t dist_pass::number_of(const node_ref& what) {
  const auto [place, is_new] = numbers_.try_emplace(what.node(), static_cast<std::uint32_t>(nodes_.size()));
  if (!is_new) return place->second;
  const engine_interface& engine = what.engine();
  entry added;
  added.what = what;
  added.on = engine.on(what.node());
  added.order = engine.order(what.node());
  added.value_count = static_cast<std::uint32_t>(engine.value_count(what.node()));
  added.first = static_cast<std::uint32_t>(values_.size());
  values_.resize(values_.size() + added.value_count);
  nodes_.push_back(std::move(added));
  return place->second;
}

// Counts the gradients that will arrive at each node: one for each edge, root, and tensor of a message of this worker.
void dist_pass::discover(std::span<const root> roots) {
  awaited_ = context_->taking_part(*header_);
  for (const root& each : roots) {
    kept_roots_.push_back(each.to.keeps);
    ++nodes_[number_of(each.to.edge.to)].missing;
  }
  for (const auto& [message, sent] : awaited_) {
    kept_messages_.push_back(sent);
    for (const held_edge& each : sent->edges) ++nodes_[number_of(each.edge.to)].missing;
  }
  std::vector<node_edge> found;
  for (std::size_t next = 0; next != nodes_.size(); ++next) {  // number_of() adds to nodes_
    const node_ref what = nodes_[next].what;
    if (const received_node* received = as_received(what); received && received->from().context != header_->context) {
      throw_error(
          errc::invalid_argument,
          fmt::format("a tensor that came from {} in context {} is part of the graph: gradients do not go from one "
                      "context to another; detach() it",
                      to_string(received->from().sender),
                      to_string(dist_autograd::context_id{received->from().context})));
    }
    found.clear();
    what.engine().edges(what.node(), found);
    nodes_[next].first_edge = static_cast<std::uint32_t>(edges_.size());
    nodes_[next].edge_count = static_cast<std::uint32_t>(found.size());
    for (const node_edge& each : found) {
      numbered_edge to;
      if (each) {
        to = {number_of(each.to), each.value};
        ++nodes_[to.to].missing;
      }
      edges_.push_back(to);
    }
  }
  find_watchers();
  left_ = nodes_.size();
  if (asker_) {
    left_for_asker_ = static_cast<std::size_t>(
        std::count_if(nodes_.begin(), nodes_.end(), [this](const entry& each) { return goes_to_asker(each.what); }));
  }
  for (std::size_t i = 0; i != wanted_.size(); ++i) {
    const auto number = numbers_.find(wanted_[i].edge.to.node());
    if (number != numbers_.end()) wanted_of_[number->second].push_back({wanted_[i].edge.value, i});
  }
}

void dist_pass::find_watchers() {
  if (!header_->accumulates) return;
  std::vector<std::shared_ptr<const leaf_watcher>> found = context_->home().watchers();
  std::erase_if(found, [this](const auto& each) {
    return std::none_of(each->leaves.begin(), each->leaves.end(),
                        [this](const void* leaf) { return numbers_.contains(leaf); });
  });
  if (found.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (!over_) return watchers_.swap(found);
  }
  const pass_failure why{static_cast<std::uint32_t>(errc::call_cancelled), {}, "it was over before it began"};
  for (const auto& each : found) each->failed(header_->pass, why);
}

bool dist_pass::goes_to_asker(const node_ref& what) const noexcept {
  const received_node* received = as_received(what);
  return received && received->from().sender.id() == asker_;
}

// ---------------------------------------------------------------- its run

void dist_pass::deliver(arrival&& arrived) {
  {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    inbox_.push_back(std::move(arrived));
    if (std::exchange(driving_, true)) return;
  }
  drive(thread_of::worker);
}

bool dist_pass::drive_elsewhere() noexcept {
  struct rest final : work {
    std::shared_ptr<dist_pass> pass;
    captured_context where;  // the deadline of a handler, for example, holds there, too
  };
  try {
    const std::shared_ptr<worker_core> worker = context_->home().core();
    auto item = std::make_unique<rest>();
    item->pass = shared_from_this();
    item->where = captured_context::current();
    if (!item->where.context) item->where.context = context_ptr(new call_context(worker));
    item->run = [](work* self) noexcept {
      const std::unique_ptr<rest> own(static_cast<rest*>(self));
      const context_scope scope(own->where);
      own->pass->drive(thread_of::worker);
    };
    worker->post(item.release());
    return true;
  } catch (...) {  // no memory, or the worker shuts down: the calling thread goes on
    return false;
  }
}

// The calling thread has set driving_.
void dist_pass::drive(thread_of which) {
  const auto self = shared_from_this();
  const no_grad outside;
  const home_scope at_home(*context_);  // hooks look at the worker's contexts
  const context_values_scope values(began_with_);
  const pass_scope here(running_pass_of_thread, this);
  std::vector<arrival> arrived;
  bool straggled = false;
  for (bool more = false;; more = true) {
    arrived.clear();
    {
      const std::lock_guard lock(mutex_);
      if (inbox_.empty() || over_) {
        std::swap(arrived, inbox_);  // dropped outside of the lock
        driving_ = false;
        straggled = std::exchange(straggles_, false);
        break;
      }
    }
    // What other workers have sent meanwhile does not hold up a thread that began the pass and goes on.
    if (more && which == thread_of::caller && !is_waited_for_here() && drive_elsewhere()) return;
    {
      const std::lock_guard lock(mutex_);
      std::swap(arrived, inbox_);
    }
    try {
      for (arrival& each : arrived) take(std::move(each));
      run_ready();
    } catch (const node_failure& e) {
      fail(e.failure, heard::here);
    } catch (...) {
      fail(pass_failure::of(current_error(), place()), heard::here);
    }
  }
  if (straggled) context_->home().count_stragglers(-1);
  finish_if_whole();
}

template <class Addition>
void dist_pass::unless_over(const Addition& add) {
  {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    adding_ = true;
  }
  auto problem = caught(add);
  std::optional<late_end> late;
  {
    const std::lock_guard lock(mutex_);
    adding_ = false;
    late.swap(late_end_);
  }
  if (late) end(late->why, late->where);
  if (problem) std::rethrow_exception(problem);
}

// A node that an ended pass still runs reads what another pass of the same graph, begun since, would drop.
void dist_pass::release(const node_ref& what) {
  unless_over([&] {
    if (context_->home().stragglers() == 0) what.engine().release(what.node());
  });
}

// Named after what they are the backward of: the gradients of a message that this worker sent have come, and those of one that
// it received go.
constexpr range_description send_range{"dist_autograd::send backward", range_kind::autograd};
constexpr range_description receive_range{"dist_autograd::recv backward", range_kind::autograd};

void dist_pass::take(arrival&& arrived) {
  if (!arrived.roots.empty()) {
    for (root& each : arrived.roots) {
      const stream from = valid_stream(each.gradient);
      const std::uint32_t number = numbers_.at(each.to.edge.to.node());
      arrive(number, each.to.edge.value, std::move(each.gradient), from);
      one_arrived(number);
    }
    return;
  }
  const traced_range range(send_range);
  const auto found = awaited_.find(arrived.message);
  if (found == awaited_.end()) {
    throw_error(
        errc::invalid_argument,
        fmt::format("gradients came for message {} of worker {}, which takes no part in the pass, or has had them",
                    arrived.message & last_message_number, sender_of(arrived.message).value));
  }
  const std::shared_ptr<const sent_message> sent = std::move(found->second);
  awaited_.erase(found);
  if (arrived.gradients.size() != sent->edges.size()) {
    throw_error(errc::malformed, fmt::format("{} gradients came for a message with {} tensors that have one",
                                             arrived.gradients.size(), sent->edges.size()));
  }
  for (std::size_t i = 0; i != sent->edges.size(); ++i) {
    const node_edge& at = sent->edges[i].edge;
    const std::uint32_t number = numbers_.at(at.to.node());
    tensor& gradient = arrived.gradients[i];
    if (gradient.defined()) {
      const value_facts& wanted = sent->facts[i];
      const value_facts facts = value_facts::of(gradient);
      if (facts.shape != wanted.shape || facts.type != wanted.type) {
        throw_error(errc::bad_shape, fmt::format("the gradient that came for a tensor of {} is {}", wanted.describe(),
                                                 facts.describe()));
      }
      stream from = arrived.valid_on[i];
      if (facts.where != wanted.where) {  // the tensor went to another kind of device: no map leads back from there
        std::optional<stream_guard> there;
        if (!facts.where.is_cpu()) there.emplace(from);
        gradient = gradient.to(wanted.where);
        from = valid_stream(gradient);
      }
      arrive(number, at.value, std::move(gradient), from);
    }
    one_arrived(number);
  }
}

void dist_pass::one_arrived(std::uint32_t number) {
  if (--nodes_[number].missing != 0) return;
  ready_.push_back(number);
  std::push_heap(ready_.begin(), ready_.end(),
                 [this](std::uint32_t a, std::uint32_t b) { return nodes_[a].order < nodes_[b].order; });
}

void dist_pass::run_ready() {
  while (!ready_.empty() && !over_) {
    std::pop_heap(ready_.begin(), ready_.end(),
                  [this](std::uint32_t a, std::uint32_t b) { return nodes_[a].order < nodes_[b].order; });
    const std::uint32_t number = ready_.back();
    ready_.pop_back();
    try {
      run_node(number);
    } catch (...) {
      const node_ref what = nodes_[number].what;
      throw node_failure{pass_failure::of(
          current_error(), fmt::format("{}: backward of {}", place(), what.engine().describe(what.node())))};
    }
    --left_;
    if (left_for_asker_ != 0 && goes_to_asker(nodes_[number].what)) --left_for_asker_;
  }
}

void dist_pass::use_stream(const stream& on) {
  if (std::find(streams_.begin(), streams_.end(), on) != streams_.end()) return;
  const std::lock_guard lock(mutex_);
  streams_.push_back(on);
}

void dist_pass::run_node(std::uint32_t number) {
  const entry node = nodes_[number];
  const std::span<gradient_value> gradients(values_.data() + node.first, node.value_count);
  std::vector<sparse_tensor> rows;
  if (!rows_.empty()) {
    if (const auto found = rows_.find(number); found != rows_.end()) rows = std::move(found->second);
  }
  const bool any = !rows.empty() || std::any_of(gradients.begin(), gradients.end(),
                                                [](const gradient_value& each) { return each.dense.defined(); });
  std::optional<stream_guard> on;
  if (any && !node.on.device().is_cpu()) {
    on.emplace(node.on);
    use_stream(node.on);
  }
  results_.assign(node.edge_count, gradient_value());
  if (as_received(node.what)) {
    send_back(node, gradients);
  } else if (any) {
    const std::optional<engine_leaf> leaf =
        node.edge_count == 0 ? node.what.engine().leaf(node.what.node()) : std::nullopt;
    const auto wanted = wanted_of_.find(number);
    if (leaf) {
      run_leaf(node, *leaf, gradients[0], std::move(rows));
    } else {
      if (wanted != wanted_of_.end()) {
        for (const wanted_value& each : wanted->second) found_[each.place] = gradients[each.value].dense;
      }
      node.what.engine().apply(node.what.node(), gradients, results_);
      if (!header_->keeps_graph) release(node.what);
    }
  }
  for (gradient_value& each : gradients) each = {};
  for (std::uint32_t i = 0; i != node.edge_count; ++i) {
    const numbered_edge to = edges_[node.first_edge + i];
    if (to.to == numbered_edge::none) continue;
    gradient_value& result = results_[i];
    const entry& next = nodes_[to.to];
    if (result.rows.defined()) {
      if (next.edge_count == 0 && next.what.engine().leaf(next.what.node())) {
        for (const tensor& part : {result.rows.indices(), result.rows.values()}) {
          const stream from = valid_stream(part);
          if (part.device().is_cpu() || from == next.on) continue;
          next.on.wait(from);
          part.storage().record_use(next.on);
        }
        rows_[to.to].push_back(std::move(result.rows));
      } else {
        result.dense = result.rows.to_dense();
      }
    }
    if (result.dense.defined()) {
      // On another device than its value (the operation was a copy), it is on the thread's own stream there.
      const stream from = valid_stream(result.dense);
      arrive(to.to, to.value, std::move(result.dense), from);
    }
    one_arrived(to.to);
  }
}

// `gradient` is valid on `from`, and is used on the stream of the node.
void dist_pass::arrive(std::uint32_t number, std::uint32_t value, tensor&& gradient, const stream& from) {
  const entry& node = nodes_[number];
  tensor& place = values_[node.first + value].dense;
  const bool on_device = !gradient.device().is_cpu();
  if (on_device && gradient.device() == node.on.device() && from != node.on) {
    node.on.wait(from);
    gradient.storage().record_use(node.on);
  }
  if (!place.defined()) {
    place = std::move(gradient);
    return;
  }
  std::optional<stream_guard> on;
  if (on_device) on.emplace(node.on);
  if (is_only_owner(place)) {
    add_(place, gradient);
  } else {
    place = add(place, gradient);
  }
}

void dist_pass::run_leaf(const entry& leaf, const engine_leaf& facts, gradient_value& gradient,
                         std::vector<sparse_tensor>&& rows) {
  const engine_interface& engine = leaf.what.engine();
  void* const node = leaf.what.node();
  tensor dense = std::move(gradient.dense);
  if (engine.needs_dense(node)) {
    if (!rows.empty()) {
      if (!dense.defined()) {
        dense = zeros(facts.value.shape(), facts.value.dtype(), facts.value.device());
      } else if (!is_only_owner(dense)) {
        dense = dense.clone();
      }
      for (const sparse_tensor& each : rows) add_(dense, each);
      rows.clear();
    }
    engine.before_accumulation(node, dense);
  }
  if (!wanted_of_.empty()) {
    if (const auto wanted = wanted_of_.find(numbers_.at(node)); wanted != wanted_of_.end()) {
      for (const sparse_tensor& each : rows) dense = dense.defined() ? add(dense, each.to_dense()) : each.to_dense();
      for (const wanted_value& each : wanted->second) found_[each.place] = dense;
    }
  }
  if (!header_->accumulates) return;
  // It may have been frozen since it was used.
  if (leaf.what.as<graph_engine>() && !facts.value.requires_grad()) return;
  std::optional<dist_autograd::leaf_gradient> whole;
  unless_over([&] { whole = context_->accumulate(facts, std::move(dense), std::move(rows)); });
  if (!whole) return;
  engine.after_accumulation(node);
  if (header_->updaters.empty()) return;
  const std::int32_t here = context_->home().id().value;
  for (const std::uint64_t each : header_->updaters) {
    if (sender_of(each).value != here) continue;
    if (const auto apply = context_->home().updates()->find(each & last_message_number))
      unless_over([&] { (*apply)(*whole); });
  }
}

// ---------------------------------------------------------------- other workers

// Only what sends gradients to the asker is left of this part, so that they are not held up by anything.
bool dist_pass::can_wait_for_answer() {
  if (left_for_asker_ == 0 || left_ != left_for_asker_ || !awaited_.empty()) return false;
  const std::lock_guard lock(mutex_);
  return unanswered_ == 0;
}

void dist_pass::send_back(const entry& at, std::span<gradient_value> gradients) {
  const traced_range range(receive_range);
  const received_node& node = *as_received(at.what);
  const received_node::origin& from = node.from();
  gradient_message message{header_, from.message, {}};
  std::vector<device_pair> pairs;
  for (std::uint32_t i = 0; i != gradients.size(); ++i) {
    tensor gradient = std::move(gradients[i].dense);
    if (gradient.defined()) {
      if (const gradient_hooks* hooks = gradient_hooks::existing(node))
        hooks->call(node, i, gradient, !header_->accumulates);
      if (!gradient.device().is_cpu()) pairs.emplace_back(gradient.device(), from.devices[i]);
    }
    message.gradients.push_back(std::move(gradient));
  }
  if (pairs.empty() && can_wait_for_answer()) {
    held_.push_back({from.message, std::move(message.gradients)});
    return;
  }
  const device_map placement = pairs.empty() ? device_map() : device_map(pairs);
  call_options options{.timeout = no_timeout};
  if (!pairs.empty()) options.placement = placement;
  bool only_one = false;
  {
    const std::lock_guard lock(mutex_);
    if (calls_.size() == calls_.capacity()) calls_.reserve(2 * calls_.size() + 4);  // what is sent has to be kept there
    only_one = ++unanswered_ == 1;
  }
  const bool read_here = only_one && is_waited_for_here();  // next, by help()
  auto not_sent = caught([&] {
    constexpr auto method = named<"ferry/autograd/gradients", serve_gradients>;
    const to whither(from.sender.id(), options);
    future<pass_answer> call = read_here ? call_unhurried<method>(context_->home().core(), whither, message)
                                         : call_async<method>(context_->home().core(), whither, message);
    on_answer(call, from.sender);
    bool late = false;
    {
      const std::lock_guard lock(mutex_);
      late = over_;
      if (!late && !call.ready()) calls_.push_back(call);
    }
    if (late) call.cancel();
  });
  if (!not_sent) return;
  {
    const std::lock_guard lock(mutex_);
    --unanswered_;
  }
  std::rethrow_exception(not_sent);
}

void dist_pass::on_answer(const future<pass_answer>& call, const worker_info& whom) {
  // On the thread that decodes the answer, or on one that reads a connection.
  add_inline_callback(
      call, [self = shared_from_this(), whom, where = captured_context::current()](const future<pass_answer>& answer) {
        const context_scope there(where);
        if (!answer.failed()) return self->answered(answer.value());
        const auto failed = [self, whom](const future<pass_answer>& call_of_it) {
          const auto place = fmt::format("{}: sending gradients back to {}", self->place(), to_string(whom));
          self->answered({pass_failure::of(call_of_it.error(), place), nullptr});
        };
        if (caught([&] { answer.add_done_callback(failed); })) failed(answer);
      });
}

// The thread that waits for the pass goes on with what an answer brings; any other leaves that to a thread for handlers.
void dist_pass::answered(const pass_answer& answer) {
  std::vector<arrival> arrived;
  auto problem = caught([&] {
    if (!answer.back) return;
    arrived.reserve(answer.back->size());
    for (pass_answer::gradients_back& each : *answer.back)
      arrived.push_back(arrival::of(each.message, std::move(each.gradients)));
  });
  bool drives = false;
  {
    const std::lock_guard lock(mutex_);
    --unanswered_;
    if (!problem && !over_ && !answer.how.failed() && !arrived.empty()) {
      problem = caught([&] { inbox_.reserve(inbox_.size() + arrived.size()); });
      if (!problem) {
        std::move(arrived.begin(), arrived.end(), std::back_inserter(inbox_));
        drives = !std::exchange(driving_, true);
      }
    }
  }
  if (answer.how.failed()) return fail(answer.how, heard::elsewhere);
  if (problem) return fail(pass_failure::of(problem, place()), heard::here);
  if (!drives) return finish_if_whole();
  if (!is_waited_for_here() && drive_elsewhere()) return;
  drive(thread_of::worker);
}

void dist_pass::help() {
  const pass_scope waiting(awaited_pass_of_thread, this);
  for (std::size_t next = 0;;) {
    future<pass_answer> call;
    {
      const std::lock_guard lock(mutex_);
      if (over_) return;
      while (next < calls_.size() && calls_[next].ready()) ++next;
      if (next >= calls_.size()) return;
      call = calls_[next];
    }
    (void)call.wait_until(deadline());  // its error is the business of its callback
  }
}

void dist_pass::finish_if_whole() {
  {
    const std::lock_guard lock(mutex_);
    if (over_ || driving_ || unanswered_ != 0 || left_ != 0 || !awaited_.empty() || !inbox_.empty()) return;
    over_ = true;
    calls_.clear();
  }
  pass_answer answer;
  auto problem = caught([&] {
    context_->gradients_on(streams_);
    if (!held_.empty()) answer.back = std::make_shared<std::vector<pass_answer::gradients_back>>(std::move(held_));
  });
  if (problem) answer.how = pass_failure::of(problem, place());
  context_->home().count_passes(-1);  // before others find that it is over
  context_->end_pass(*this);
  limit_.reset();
  whole_.try_set_value(std::move(answer));
}

}  // namespace ferry::inline v0::detail
