#include "accumulator.hpp"

#include <ferry/base/log.hpp>
#include <ferry/rpc/detail/future_state.hpp>

namespace ferry::inline v0::detail {

void accumulator::call_hooks(tensor& gradient, bool only_finds) const {
  if (const auto hooks = record_->leaf_hooks()) hooks->call(*this, 0, gradient, only_finds);
}

void accumulator::apply(std::span<tensor> gradients, std::span<tensor>) {
  if (!required()) return;
  record_->kept().add(std::move(gradients[0]));
  call_accumulated();
}

bool accumulator::required() const noexcept { return record_->required(); }

bool accumulator::has_hooks() const {
  const auto hooks = record_->leaf_hooks();
  return hooks && hooks->has_any_of(0);
}

void accumulator::apply_rows(std::vector<sparse_tensor>&& rows) const {
  if (!required()) return;
  record_->kept().add_rows(std::move(rows));
  call_accumulated();
}

void accumulator::call_accumulated() const {
  if (const auto hooks = record_->leaf_hooks()) {
    tensor leaf = leaf_;
    hooks->call(*this, 1, leaf, false);
  }
}

void accumulator::call_failed() const noexcept {
  const auto problem = caught([&] {
    const auto hooks = record_->leaf_hooks();
    if (!hooks || !hooks->has_any_of(2)) return;
    tensor leaf = leaf_;
    hooks->call(*this, 2, leaf, false);
  });
  if (problem) log(log_level::error, "a hook of a leaf does not hear that a pass has failed");
}

}  // namespace ferry::inline v0::detail
