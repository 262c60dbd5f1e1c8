#include <ferry/autograd/dist/context.hpp>

#include <utility>

#include <fmt/format.h>
#include <ferry/autograd/dist/backward.hpp>
#include <ferry/base/error.hpp>
#include <ferry/rpc/worker.hpp>

#include "../../rpc/worker/worker_core.hpp"
#include "dist_context.hpp"
#include "dist_worker.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

std::shared_ptr<dist_worker> autograd_here() { return dist_worker::of(*current_worker()); }

void refuse_nesting() {
  const auto present = context_of_thread();
  if (!present) return;
  throw_error(errc::invalid_argument,
              fmt::format("context {} of distributed autograd is in force on this thread already: contexts do not nest",
                          to_string(present->id())));
}

std::shared_ptr<dist_context> new_context(dist_worker& of) {
  refuse_nesting();
  return of.make_context();
}

context_values values_with(const std::shared_ptr<dist_context>& state) {
  return current_values().with(current_dist_context, context_in_force(state));
}

const std::shared_ptr<dist_context>& attachable(const std::shared_ptr<dist_context>& state) {
  refuse_nesting();
  return state;
}

}  // namespace
}  // namespace detail

namespace dist_autograd {

std::string to_string(context_id id) {
  return fmt::format("{}.{}", id.value >> detail::message_counter_bits, id.value & detail::last_message_number);
}

context::context() : context(detail::new_context(*detail::autograd_here())) {}
context::context(const worker& of) : context(detail::new_context(*detail::dist_worker::of(detail::core_of(of)))) {}
context::context(std::shared_ptr<detail::dist_context> made)
    : state_(std::move(made)), scope_(detail::values_with(state_)) {}
context::~context() { state_->home().end_context(state_); }

context_id context::id() const noexcept { return state_->id(); }
void context::backward(tensor_span roots, const backward_options& options) const {
  dist_autograd::backward(*this, roots, options);
}
void context::backward(tensor_span roots) const { dist_autograd::backward(*this, roots); }
gradient_map context::gradients() const { return state_->gradients(); }

attached_scope::attached_scope(const std::shared_ptr<detail::dist_context>& state)
    : scope_(detail::values_with(detail::attachable(state))) {}
attached_scope::attached_scope(context_id id) : attached_scope(detail::autograd_here()->need(id)) {}
attached_scope::attached_scope(context_id id, const worker& of)
    : attached_scope(detail::dist_worker::of(detail::core_of(of))->need(id)) {}
attached_scope::attached_scope(const context& shared) : attached_scope(shared.state()) {}

std::optional<context_id> current() noexcept {
  const auto present = detail::context_of_thread();
  if (!present) return std::nullopt;
  return present->id();
}

bool exists(context_id id) { return detail::autograd_here()->find(id) != nullptr; }
bool exists(context_id id, const worker& of) {
  return detail::dist_worker::of(detail::core_of(of))->find(id) != nullptr;
}
context_info inspect(context_id id) { return detail::autograd_here()->need(id)->info(); }
context_info inspect(context_id id, const worker& of) {
  return detail::dist_worker::of(detail::core_of(of))->need(id)->info();
}

}  // namespace dist_autograd
}  // namespace ferry::inline v0
