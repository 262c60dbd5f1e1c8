#include "gradient_record.hpp"

#include <algorithm>
#include <typeinfo>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ferry/autograd/detail/memory.hpp>
#include <ferry/autograd/grad_mode.hpp>
#include <ferry/base/error.hpp>
#include <ferry/tensor/operations.hpp>

#include "accumulator.hpp"
#include "view_nodes.hpp"

namespace ferry::inline v0::detail {
namespace {

bool needs_input(const derivative_entry& formula, std::size_t number) noexcept {
  return number >= 32 || (formula.keeps.which >> number & 1U) != 0;
}

// The node of the operation in place that this thread runs, between mutated() and computed(). Weak: what throws in between
// leaves it here.
thread_local std::weak_ptr<operation_node> writing;

// Elements that the formula needs, as they are before the target is written.
saved_tensor saved_before(const tensor& each, const tensor& target) {
  return each.storage().same_as(target.storage()) ? saved_tensor(each.clone()) : saved_tensor(each);
}

std::int64_t end_of(const view_place& place) { return end_of_elements(place.shape, place.strides, place.offset); }

view_place place_of(const tensor& t) { return {t.shape(), t.strides(), t.storage_offset()}; }

std::vector<value_facts> facts_of_values(std::span<const tensor> all) {
  std::vector<value_facts> facts;
  facts.reserve(all.size());
  for (const tensor& each : all) facts.push_back(value_facts::of(each));
  return facts;
}

bool any_required(std::span<const tensor> inputs) noexcept {
  return std::any_of(inputs.begin(), inputs.end(), [](const tensor& each) { return each.requires_grad(); });
}

std::vector<graph_edge> edges_of(std::span<const tensor> inputs) {
  std::vector<graph_edge> edges;
  edges.reserve(inputs.size());
  for (const tensor& each : inputs) edges.push_back(gradient_edge(each));
  return edges;
}

[[noreturn]] void refuse_unknown(const operation& what) {
  throw_error(
      errc::invalid_argument,
      fmt::format("{} has no formula for gradients, and one of its inputs requires a gradient: run it within "
                  "ferry::no_grad or on detach()ed inputs, or specialise ferry::derivative for it and register that",
                  what.name()));
}

}  // namespace

std::shared_ptr<gradient_record> gradient_record::of(const tensor& t) noexcept {
  if (!t.has_slot()) return nullptr;
  const tensor_hooks& hooks = *t.slot();
  return typeid(hooks) == typeid(gradient_record) ? std::static_pointer_cast<gradient_record>(t.slot()) : nullptr;
}

std::shared_ptr<gradient_record> gradient_record::of_or_new(const tensor& t) {
  auto record = of(t);
  if (record) return record;
  if (t.has_slot()) {
    throw_error(errc::invalid_argument,
                "the tensor's slot is in use by another library (tensor::set_slot), so that it cannot have a gradient");
  }
  record = std::make_shared<gradient_record>();
  t.set_slot(record);
  return record;
}

void gradient_record::set_history(const tensor& t, graph_edge from) { of_or_new(t)->set_history(std::move(from)); }

void gradient_record::set_history(graph_edge from) {
  {
    std::lock_guard lock(mutex_);
    std::swap(history_, from);
  }
  is_value_ = true;
  ++rewritten_;
  keep_retaining();
}

bool gradient_record::requires_grad(const tensor&) const noexcept { return required(); }

// Several threads may use a view at once, none of which has written its base.
graph_edge gradient_record::history() {
  std::lock_guard lock(mutex_);
  if (part_ && is_value_ && part_->followed != part_->base->rewritten_) {
    const value_facts facts{part_->place.shape, part_->base_facts.type, part_->base_facts.where};
    history_ = {std::make_shared<part_node>(part_->base->is_leaf() ? part_->leaf : part_->base->history(),
                                            part_->base_facts, part_->base_place, facts, part_->place),
                0};
    part_->followed = part_->base->rewritten_;
  }
  return history_;
}

graph_edge gradient_record::edge_of(const tensor& t) {
  if (is_value_) return history();
  if (!leaf_required_) return {};
  std::lock_guard lock(mutex_);
  auto made = leaf_.lock();
  if (!made) {
    made = std::make_shared<accumulator>(t, shared_from_this());
    leaf_ = made;
  }
  return {std::move(made), 0};
}

// ---------------------------------------------------------------- hooks; the gradient is in kept_gradient.cpp

void gradient_record::retain() {
  if (is_leaf()) return;
  retained_ = true;
  keep_retaining();
}

// The value that the tensor has now.
void gradient_record::keep_retaining() {
  if (!retained_) return;
  retaining_.remove();
  const graph_edge to = history();
  retaining_ = gradient_hooks::of(*to.to).add(
      to.value,
      [self = weak_from_this()](const tensor& gradient) -> tensor {
        if (const auto record = self.lock()) record->kept().add(tensor(gradient));
        return {};
      },
      true);
}

gradient_hook gradient_record::add_hook(std::function<tensor(const tensor&)> hook) {
  if (is_leaf()) return own_hooks().add(0, std::move(hook));
  const graph_edge to = history();
  return gradient_hooks::of(*to.to).add(to.value, std::move(hook));
}

gradient_hook gradient_record::add_accumulated_hook(std::function<void(const tensor&)> hook) {
  return own_hooks().add(1, [call = std::move(hook)](const tensor& leaf) -> tensor {
    call(leaf);
    return {};
  });
}

gradient_hook gradient_record::add_failure_hook(std::function<void()> hook) {
  return own_hooks().add(2, [call = std::move(hook)](const tensor&) -> tensor {
    call();
    return {};
  });
}

std::shared_ptr<gradient_hooks> gradient_record::leaf_hooks() const {
  std::lock_guard lock(mutex_);
  return leaf_hooks_;
}

gradient_hooks& gradient_record::own_hooks() {
  std::lock_guard lock(mutex_);
  if (!leaf_hooks_) leaf_hooks_ = std::make_shared<gradient_hooks>();
  return *leaf_hooks_;
}

// ---------------------------------------------------------------- what operations report

void gradient_record::viewed(const operation& what, const tensor& base, tensor& view) {
  if (!required() && !outside_) return;
  auto record = std::make_shared<gradient_record>();
  if (!grad_enabled() || !required()) {
    record->outside_ = true;  // writes through it later would not be seen
    view.set_slot(std::move(record));
    return;
  }
  // An as_strided of a view may show more than that does: it is a part of the whole.
  const bool of_whole = part_ && what.is<op::as_strided>();
  if (of_whole) {
    const view_place place = place_of(view);
    if (place.offset < part_->base_place.offset || end_of(place) > end_of(part_->base_place)) {
      throw_error(errc::invalid_argument,
                  "as_strided reaches elements beyond the tensor that requires a gradient: detach() it first");
    }
  } else {
    const derivative_entry* const formula = find_derivative(what.info());
    if (!formula || !formula->make) refuse_unknown(what);
    if (what.is<op::as_strided>() && overlapping_axis(base.shape(), base.strides())) {
      throw_error(errc::invalid_argument,
                  "as_strided of a leaf whose elements share memory (after expand) has no gradient: take a clone() of "
                  "it first");
    }
    const auto made = formula->make(what, edges_of({&base, 1}), {value_facts::of(view)});
    if (formula->keeps.inputs) made->inputs_.emplace_back(base);
    record->history_ = {made, 0};
  }
  record->part_ = std::make_unique<part>(
      part_ ? part{part_->base, part_->base_facts, part_->base_place, place_of(view), part_->leaf}
            : part{shared_from_this(), value_facts::of(base), place_of(base), place_of(view),
                   is_leaf() ? edge_of(base) : graph_edge()});
  // Otherwise what is to be followed first makes the history.
  record->part_->followed = record->part_->base->rewritten_ - (of_whole ? 1 : 0);
  record->is_value_ = true;
  view.set_slot(std::move(record));
}

// All that may fail is done here: then nothing has been written.
void gradient_record::mutated(const operation& what, const tensor& target, std::span<const tensor> inputs) {
  writing.reset();
  if (!grad_enabled()) return;
  const auto record = of(target);
  const auto refuse = [&](const char* target_is, const char* remedy) {
    throw_error(errc::invalid_argument, fmt::format("{} in place on {}: {}", what.name(), target_is, remedy));
  };
  if (record && record->outside_)
    refuse("a view that was made within ferry::no_grad of a tensor that requires a gradient",
           "that would not hear of it. Make the view outside, or write within ferry::no_grad");
  if (!any_required(inputs)) return;
  constexpr const char* old_value =
      "its old value is what the gradient is for. Write within ferry::no_grad (as optimizers do), or into a clone()";
  if (record && record->leaf_required_ && record->is_leaf()) refuse("a leaf that requires a gradient", old_value);
  if (record && record->part_ && record->part_->base->leaf_required_ && record->part_->base->is_leaf())
    refuse("a view of a leaf that requires a gradient", old_value);
  if (what.is<op::external_write>()) {
    throw_error(
        errc::invalid_argument,
        "elements were written by hand in a tensor that requires a gradient, which cannot follow that: write within "
        "ferry::no_grad, or into a detach()ed clone()");
  }
  const derivative_entry* const formula = find_derivative(what.info());
  if (!formula || formula->none) refuse_unknown(what);
  if (!has_gradients(target.dtype())) {
    throw_error(errc::bad_dtype,
                fmt::format("{} in place on a tensor of {} with an input that requires a gradient: convert the "
                            "target with to()",
                            what.name(), dtype_name(target.dtype())));
  }
  // Views and aliases that were made before would keep the old value, or lose the gradient, in silence.
  if ((!record || !record->required()) && target.storage().use_count() != 1)
    refuse(
        "a tensor that requires no gradient and shares its elements with others (views, detach()ed ones, what a graph "
        "saved)",
        "they would not have the gradient of the new elements. Write into a clone(), or make the whole require a "
        "gradient first");
  const auto made = formula->make(what, edges_of(inputs), {value_facts::of(target)});
  if (formula->keeps.inputs) {
    made->inputs_.reserve(inputs.size());
    for (std::size_t i = 0; i != inputs.size(); ++i)
      made->inputs_.push_back(needs_input(*formula, i) ? saved_before(inputs[i], target) : saved_tensor());
  }
  made->finished_ = false;
  writing = made;
  const auto own = record ? record : of_or_new(target);
  if (own->part_) {
    own->write_through(made);
  } else {
    own->set_history(graph_edge{made, 0});
  }
}

void gradient_record::computed(const operation& what, std::span<const tensor> inputs, std::span<tensor> outputs) {
  if (what.kind() == operation_kind::in_place) {
    const auto written = writing.lock();
    if (!written) return;  // outside of the graph
    writing.reset();
    const derivative_entry* const formula = find_derivative(what.info());
    if (formula->keeps.outputs) written->outputs_.assign(outputs.begin(), outputs.end());
    written->finished_ = true;
    return;
  }
  if (!grad_enabled() || !any_required(inputs)) return;
  const derivative_entry* const formula = find_derivative(what.info());
  if (formula && formula->none) return;
  const auto counts = [](const tensor& each) { return is_integral(each.dtype()) || each.dtype() == dtype::bool_; };
  if (std::all_of(outputs.begin(), outputs.end(), counts)) return;
  if (!formula) refuse_unknown(what);
  for (const tensor& each : outputs) {
    if (counts(each) || has_gradients(each.dtype())) continue;
    throw_error(errc::bad_dtype,
                fmt::format("{} computed {} from a tensor that requires a gradient, and only f32 and f64 have one: "
                            "detach() the input first",
                            what.name(), dtype_name(each.dtype())));
  }
  const auto made = formula->make(what, edges_of(inputs), facts_of_values(outputs));
  if (formula->keeps.inputs) {
    made->inputs_.reserve(inputs.size());
    for (std::size_t i = 0; i != inputs.size(); ++i)
      made->inputs_.push_back(needs_input(*formula, i) ? saved_tensor(inputs[i]) : saved_tensor());
  }
  if (formula->keeps.outputs) made->outputs_.assign(outputs.begin(), outputs.end());
  for (std::uint32_t i = 0; i != outputs.size(); ++i) {
    if (has_gradients(outputs[i].dtype())) set_history(outputs[i], {made, i});
  }
}

// A write through a view: the base's new history is its old one with this part replaced.
void gradient_record::write_through(const std::shared_ptr<operation_node>& written) {
  gradient_record& base = *part_->base;
  if (!base.required()) {  // it was told so since the view was made
    part_.reset();
    return set_history(graph_edge{written, 0});
  }
  base.set_history(graph_edge{
      std::make_shared<written_part_node>(base.history(), part_->base_facts, part_->base_place, part_->place, written),
      0});
  keep_retaining();
}

}  // namespace ferry::inline v0::detail
