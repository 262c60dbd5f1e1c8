#include "accumulator.hpp"

namespace ferry::inline v0::detail {

void accumulator::call_hooks(tensor& gradient, bool only_finds) const {
  if (const auto hooks = record_->leaf_hooks()) hooks->call(*this, 0, gradient, only_finds);
}

void accumulator::apply(std::span<tensor> gradients, std::span<tensor>) {
  record_->add_gradient(std::move(gradients[0]));
  if (const auto hooks = record_->leaf_hooks()) {
    tensor leaf = leaf_;
    hooks->call(*this, 1, leaf, false);
  }
}

}  // namespace ferry::inline v0::detail
