#include <ferry/autograd/gradient.hpp>

#include <utility>

#include <fmt/format.h>

#include <ferry/autograd/detail/memory.hpp>
#include <ferry/autograd/function.hpp>
#include <ferry/base/error.hpp>

#include "facts_difference.hpp"
#include "gradient_record.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

std::shared_ptr<gradient_record> required_record(const tensor& t, const char* what) {
  auto record = gradient_record::of(t);
  if (record && record->required()) return record;
  throw_error(errc::invalid_argument, fmt::format("{} of a tensor that requires no gradient: it is no leaf made so by "
                                                  "require_grad(), and was not computed from one",
                                                  what));
}

void need_gradient_of(const tensor& t, const value_facts& given) {
  const value_facts wanted = value_facts::of(t);
  if (given == wanted) return;
  throw_error(difference_of(given, wanted),
              fmt::format("a gradient of {} for a tensor of {}", given.describe(), wanted.describe()));
}

}  // namespace
}  // namespace detail

using detail::gradient_record;

const tensor& require_grad(const tensor& t, bool required) {
  if (!required) {
    const auto record = gradient_record::of(t);
    if (!record) return t;
    if (!record->is_leaf()) {
      throw_error(errc::invalid_argument,
                  "this tensor was computed from one that requires a gradient; detach() makes one that requires none");
    }
    record->require(false);
    return t;
  }
  if (!detail::has_gradients(t.dtype())) {
    throw_error(errc::bad_dtype, fmt::format("only tensors of f32 and f64 have gradients, not of {}; convert with to()",
                                             dtype_name(t.dtype())));
  }
  const auto record = gradient_record::of_or_new(t);
  if (record->is_leaf()) record->require(true);
  return t;
}

bool is_leaf(const tensor& t) {
  const auto record = gradient_record::of(t);
  return !record || record->is_leaf();
}

tensor grad(const tensor& t) {
  const auto record = gradient_record::of(t);
  return record ? record->kept().dense() : tensor();
}

void set_grad(const tensor& t, const tensor& gradient) {
  if (!gradient.defined()) {  // also of a leaf that was frozen since
    if (const auto record = gradient_record::of(t)) record->kept().set({});
    return;
  }
  const auto record = detail::required_record(t, "set_grad");
  detail::need_gradient_of(t, value_facts::of(gradient));
  // Passes add to it in place.
  const bool writable = gradient.is_contiguous() && !gradient.storage().same_as(t.storage()) && !gradient.has_slot();
  const detail::unreported copy;
  record->kept().set(writable ? gradient : gradient.clone());
}

bool has_sparse_grad(const tensor& t) {
  const auto record = gradient_record::of(t);
  return record && record->kept().has_rows();
}

sparse_tensor sparse_grad(const tensor& t) {
  const auto record = gradient_record::of(t);
  const detail::unreported parts;
  return record ? record->kept().rows() : sparse_tensor();
}

void set_sparse_grad(const tensor& t, const sparse_tensor& gradient) {
  if (!gradient.defined()) return set_grad(t, {});
  const auto record = detail::required_record(t, "set_sparse_grad");
  if (!record->is_leaf()) {
    throw_error(errc::invalid_argument, "set_sparse_grad of a tensor that is not a leaf: its gradient is dense");
  }
  if (gradient.sparse_axes() != 1) {
    throw_error(errc::bad_shape, fmt::format("a sparse gradient has one sparse axis, not {}", gradient.sparse_axes()));
  }
  const value_facts given{gradient.shape(), gradient.dtype(), gradient.device()};
  detail::need_gradient_of(t, given);
  const bool in_graph = gradient.values().has_slot();
  record->kept().set_rows(in_graph ? sparse_tensor(gradient.indices(), detach(gradient.values()), gradient.shape())
                                   : gradient);
}

void retain_grad(const tensor& t) { detail::required_record(t, "retain_grad")->retain(); }

tensor detach(const tensor& t) { return detail::alias_of(t); }

graph_edge gradient_edge(const tensor& t) {
  const auto record = gradient_record::of(t);
  return record ? record->edge_of(t) : graph_edge();
}

gradient_hook on_gradient(const tensor& t, std::function<tensor(const tensor& gradient)> hook) {
  if (!hook) throw_error(errc::invalid_argument, "on_gradient needs a function");
  return detail::required_record(t, "on_gradient")->add_hook(std::move(hook));
}

gradient_hook on_accumulated(const tensor& leaf, std::function<void(const tensor& leaf)> hook) {
  if (!hook) throw_error(errc::invalid_argument, "on_accumulated needs a function");
  const auto record = detail::required_record(leaf, "on_accumulated");
  if (!record->is_leaf()) {
    throw_error(errc::invalid_argument,
                "on_accumulated of a tensor that is not a leaf: nothing is added to its gradient");
  }
  return record->add_accumulated_hook(std::move(hook));
}

// ---------------------------------------------------------------- users' functions

namespace detail {

bool enters_graph(std::span<const tensor* const> inputs) noexcept {
  if (!grad_enabled()) return false;
  for (const tensor* each : inputs) {
    if (each->defined() && each->requires_grad()) return true;
  }
  return false;
}

std::vector<value_facts> facts_of_results(std::string_view function, std::span<const tensor> results) {
  std::vector<value_facts> facts;
  facts.reserve(results.size());
  for (const tensor& each : results) {
    facts.push_back(value_facts::of(each));
    if (has_gradients(each.dtype())) continue;
    throw_error(
        errc::bad_dtype,
        fmt::format(
            "{} returned {}: results of differentiable functions are of f32 or f64; detach() its inputs, or leave "
            "that result out",
            function, facts.back().describe()));
  }
  return facts;
}

void enter_graph(const std::shared_ptr<graph_node>& made, std::span<const tensor* const> inputs,
                 std::span<tensor> results) {
  for (std::uint32_t i = 0; i != results.size(); ++i) {
    bool shares = false;
    for (const tensor* each : inputs) shares |= each->defined() && each->storage().same_as(results[i].storage());
    for (std::uint32_t before = 0; before != i; ++before)
      shares |= results[before].storage().same_as(results[i].storage());
    if (shares) {
      const unreported copy;
      results[i] = results[i].clone();
    } else if (results[i].has_slot() || results[i].use_count() != 1) {
      results[i] = alias_of(results[i]);
    }
    gradient_record::set_history(results[i], {made, i});
  }
}

void refuse_used_up() {
  throw_error(errc::invalid_argument,
              "what the function has saved was released by an earlier backward pass over this graph; give that pass "
              ".retain_graph = true, or compute the roots again");
}

}  // namespace detail
}  // namespace ferry::inline v0
