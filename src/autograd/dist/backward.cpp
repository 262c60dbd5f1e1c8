#include <ferry/autograd/dist/backward.hpp>

#include <algorithm>
#include <mutex>
#include <utility>

#include <fmt/format.h>
#include <ferry/autograd/detail/memory.hpp>
#include <ferry/autograd/grad_mode.hpp>
#include <ferry/autograd/gradient.hpp>
#include <ferry/base/error.hpp>
#include <ferry/base/traced_range.hpp>
#include <ferry/device/current.hpp>
#include <ferry/rpc/named.hpp>
#include <ferry/rpc/rref.hpp>
#include <ferry/rpc/worker.hpp>

#include "../../rpc/worker/worker_core.hpp"
#include "../engine/roots.hpp"
#include "dist_pass.hpp"
#include "dist_worker.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

constexpr range_description dist_backward_range{"dist_autograd::backward", range_kind::autograd};
constexpr range_description wait_range{"dist_autograd::wait", range_kind::wait};

std::shared_ptr<dist_worker> autograd_of_current() { return dist_worker::of(*current_worker()); }

std::vector<dist_pass::root> roots_of(std::span<const tensor> roots, std::span<const tensor> given) {
  need_roots("a distributed pass", roots, given);
  const no_grad outside;
  std::vector<dist_pass::root> all;
  for (std::size_t i = 0; i != roots.size(); ++i) {
    need_defined_root(roots[i], i);
    held_edge to = gradient_edge_of(roots[i]);
    if (!to) refuse_root_without_gradient(i);
    if (is_leaf(roots[i])) {
      throw_error(errc::invalid_argument,
                  fmt::format("root {} is a leaf: there is no graph to go back through from it", i));
    }
    all.push_back({std::move(to), gradient_of_root(roots[i], i, given)});
  }
  return all;
}

dist_pass::root_options pass_options_of(const dist_autograd::backward_options& options) {
  dist_pass::root_options own;
  own.exact = options.mode == dist_autograd::backward_mode::smart;
  own.keeps_graph = options.retain_graph;
  own.until = deadline::after(options.limit);
  if (!options.then) return own;
  for (const dist_autograd::update_after::updater& each : options.then->updaters())
    own.updaters.push_back(static_cast<std::uint64_t>(each.at.value) << message_counter_bits | each.number);
  return own;
}

void wait_for_pass(const std::shared_ptr<dist_context>& context, dist_pass& pass) {
  const pass_failure how = [&] {
    const traced_range range(wait_range);
    pass.help();
    return pass.whole().get().how;
  }();
  if (how.failed()) std::rethrow_exception(how.exception());
  context->let_streams_wait();
}

void backward_in(const std::shared_ptr<dist_context>& context, std::span<const tensor> roots,
                 const dist_autograd::backward_options& options) {
  const traced_range range(dist_backward_range);
  dist_pass::root_options own = pass_options_of(options);
  own.waits = true;
  wait_for_pass(context, *dist_pass::begin(context, roots_of(roots, options.gradients), own));
}

// The end of a pass. Cancelling it ends the pass, on every worker, and is complete when nothing is added any more.
class pass_end final : public future_state<void> {
 public:
  explicit pass_end(std::weak_ptr<dist_pass> of) : of_(std::move(of)) {}

 private:
  void on_cancel() override {
    if (const auto pass = of_.lock()) pass->on_cancelled();
  }
  const std::weak_ptr<dist_pass> of_;
};

future<void> backward_later(const std::shared_ptr<dist_context>& context, std::span<const tensor> roots,
                            const dist_autograd::backward_options& options) {
  const auto pass = dist_pass::begin(context, roots_of(roots, options.gradients), pass_options_of(options));
  auto end = ref_ptr<pass_end>::adopt(new pass_end(pass));
  add_inline_callback(pass->whole(), [end](const future<pass_answer>& whole) {
    const auto failure = caught([&] {
      const pass_answer& answer = whole.get();
      if (answer.how.failed()) std::rethrow_exception(answer.how.exception());
      (void)end->try_set_value();
    });
    if (failure) (void)end->try_set_error(failure);
  });
  return future<void>(std::move(end));
}

// What the owner of a root is asked for. Gradients of roots are not sent: the owner's value begins with 1.
struct remote_root_options {
  std::uint64_t context = 0;
  bool retain_graph = false;
  bool exact = true;
  std::int64_t limit_ns = 0;  // 0: none
  std::vector<std::uint64_t> updaters;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(context, retain_graph, exact, limit_ns, updaters);
  }
};

future<void> backward_from_object(const tensor& root, const remote_root_options& asked) {
  const auto context = autograd_of_current()->need({asked.context});
  dist_pass::root_options own;
  own.exact = asked.exact;
  own.keeps_graph = asked.retain_graph;
  own.updaters = asked.updaters;
  if (asked.limit_ns != 0) own.until = deadline::after(std::chrono::nanoseconds(asked.limit_ns));
  return dist_pass::begin(context, roots_of({&root, 1}, {}), own)->whole().then([](const pass_answer& answer) {
    if (answer.how.failed()) std::rethrow_exception(answer.how.exception());
  });
}

const bool root_methods = [] {
  add_library_methods(
      {usable_method<named<"ferry/autograd/backward", backward_from_object>, method_flavour::object_call>().id});
  return true;
}();

}  // namespace
}  // namespace detail

namespace dist_autograd {

void backward(context_id in, tensor_span roots, const backward_options& options) {
  detail::backward_in(detail::autograd_of_current()->need(in), roots, options);
}
void backward(const context& in, tensor_span roots, const backward_options& options) {
  detail::backward_in(in.state(), roots, options);
}
void backward(tensor_span roots, const backward_options& options) {
  const auto present = detail::context_of_thread();
  if (!present) {
    throw_error(errc::invalid_argument,
                "no context of distributed autograd is in force on this thread: make a ferry::dist_autograd::context");
  }
  detail::backward_in(present, roots, options);
}
future<void> backward_async(context_id in, tensor_span roots, const backward_options& options) {
  return detail::backward_later(detail::autograd_of_current()->need(in), roots, options);
}
future<void> backward_async(const context& in, tensor_span roots, const backward_options& options) {
  return detail::backward_later(in.state(), roots, options);
}

void backward(const rref<tensor>& root, context_id in, const backward_options& options) {
  if (!options.gradients.empty())
    throw_error(errc::invalid_argument, "a pass from the object of a reference takes no gradients of its own");
  const detail::dist_pass::root_options own = detail::pass_options_of(options);
  detail::remote_root_options asked{in.value, own.keeps_graph, own.exact, 0, own.updaters};
  if (!own.until.is_never())
    asked.limit_ns = std::max<std::int64_t>(1, std::chrono::nanoseconds(own.until.remaining()).count());
  // The limit holds while the object is awaited, too; within the pass the owner's own report of it comes first.
  constexpr std::chrono::milliseconds for_the_report{500};
  const timeout whole = own.until.is_never() ? no_timeout : timeout(own.until.remaining() + for_the_report);
  root.rpc_sync<named<"ferry/autograd/backward", detail::backward_from_object>>(call_options{.timeout = whole}, asked);
}

void backward(const rref<tensor>& root, bool retain_graph) {
  if (!root.is_owner()) {
    throw_error(errc::not_owner, "a reference at a worker that does not own its object needs a context for backward");
  }
  ferry::backward(root.local_value(), {.retain_graph = retain_graph});
}

std::vector<tensor> gradients(const context& in, tensor_span roots, tensor_span inputs,
                              const backward_options& options) {
  // Hooks see the whole gradient of a tensor once, after the hooks before them. Passes of other contexts may run, too, and a hook
  // on a leaf would make theirs dense.
  struct finder {
    std::mutex mutex;
    std::vector<tensor> found;
  };
  const auto kept = std::make_shared<finder>();
  kept->found.resize(inputs.size());
  std::vector<gradient_hook> hooks;
  const auto remove_hooks = [&] {
    for (gradient_hook& each : hooks) each.remove();
  };
  const std::uint64_t context_here = in.id().value;
  std::shared_ptr<detail::dist_pass> pass;
  std::vector<std::size_t>
      wanted;  // of leaves, and other engines than ferry's: the places of inputs whose gradients the pass itself keeps
  auto problem = detail::caught([&] {
    detail::dist_pass::root_options own = detail::pass_options_of(options);
    own.accumulates = false;
    own.waits = true;
    own.updaters.clear();
    for (std::size_t i = 0; i != inputs.size(); ++i) {
      if (!inputs[i].requires_grad())
        throw_error(errc::invalid_argument, fmt::format("input {} requires no gradient", i));
      held_edge edge = gradient_edge_of(inputs[i]);
      if (edge && (!edge.edge.to.as<graph_engine>() || edge.edge.to.engine().leaf(edge.edge.to.node()))) {
        wanted.push_back(i);
        own.wanted.push_back(std::move(edge));
        continue;
      }
      hooks.push_back(on_gradient(inputs[i], [kept, i, context_here](const tensor& gradient) -> tensor {
        const detail::dist_pass* here = detail::dist_pass::running_here();
        if (!here || here->context_number() != context_here) return {};
        const std::lock_guard lock(kept->mutex);
        kept->found[i] = gradient;
        return {};
      }));
    }
    pass = detail::dist_pass::begin(in.state(), detail::roots_of(roots, options.gradients), own);
    detail::wait_for_pass(in.state(), *pass);
  });
  remove_hooks();
  if (problem) std::rethrow_exception(problem);
  const no_grad outside;
  std::vector<tensor> found;
  {
    const std::lock_guard lock(kept->mutex);
    found = std::move(kept->found);
  }
  std::vector<tensor> of_others = pass->found();
  pass.reset();
  for (std::size_t i = 0; i != wanted.size(); ++i) found[wanted[i]] = std::move(of_others[i]);
  for (tensor& each : found) {
    if (!each.defined()) continue;
    if (!each.device().is_cpu()) each.storage().record_use(current_stream(each.device()));
    if (!detail::is_only_owner(each)) each = each.clone();
  }
  return found;
}

// ---------------------------------------------------------------- gradients

const leaf_gradient* gradient_map::find(const tensor& leaf) const noexcept {
  const auto found =
      std::find_if(all_.begin(), all_.end(), [&](const leaf_gradient& each) { return each.leaf.same_as(leaf); });
  return found == all_.end() ? nullptr : &*found;
}

tensor gradient_map::operator[](const tensor& leaf) const noexcept {
  const leaf_gradient* found = find(leaf);
  return found ? found->dense : tensor();
}

tensor gradient_map::at(const tensor& leaf) const {
  const leaf_gradient* found = find(leaf);
  if (!found) throw_error(errc::invalid_argument, "the context has no gradient of this tensor");
  return found->dense.defined() ? found->dense : found->rows.to_dense();
}

std::optional<context_id> running_pass() noexcept {
  const detail::dist_pass* pass = detail::dist_pass::running_here();
  if (!pass) return std::nullopt;
  return context_id{pass->context_number()};
}

gradient_map get_gradients(context_id in) { return detail::autograd_of_current()->need(in)->gradients(); }
gradient_map get_gradients(context_id in, const worker& of) {
  return detail::dist_worker::of(detail::core_of(of))->need(in)->gradients();
}

// ---------------------------------------------------------------- updates within passes

registered_update::registered_update(const worker& at, std::function<void(const leaf_gradient& whole)> apply)
    : table_(detail::dist_worker::of(detail::core_of(at))->updates()) {
  number_ = std::static_pointer_cast<detail::update_table>(table_)->add(std::move(apply));
}
registered_update::registered_update(std::function<void(const leaf_gradient& whole)> apply)
    : table_(detail::autograd_of_current()->updates()) {
  number_ = std::static_pointer_cast<detail::update_table>(table_)->add(std::move(apply));
}
registered_update::~registered_update() { std::static_pointer_cast<detail::update_table>(table_)->remove(number_); }

}  // namespace dist_autograd
}  // namespace ferry::inline v0
