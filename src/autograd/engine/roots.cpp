#include "roots.hpp"

#include <fmt/format.h>

#include <ferry/autograd/grad_mode.hpp>
#include <ferry/autograd/gradient.hpp>
#include <ferry/autograd/node.hpp>
#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>

#include "../graph/facts_difference.hpp"

namespace ferry::inline v0::detail {

void need_roots(const char* pass, std::span<const tensor> roots, std::span<const tensor> given) {
  if (roots.empty()) throw_error(errc::invalid_argument, fmt::format("{} without a root", pass));
  if (given.size() <= roots.size()) return;
  throw_error(errc::invalid_argument, fmt::format("{} gradients were given for {} roots", given.size(), roots.size()));
}

void need_defined_root(const tensor& root, std::size_t number) {
  if (!root.defined()) throw_error(errc::invalid_argument, fmt::format("root {} is an undefined tensor", number));
}

void refuse_root_without_gradient(std::size_t number) {
  throw_error(errc::invalid_argument,
              fmt::format("root {} requires no gradient: it was not computed from a tensor that does, or within "
                          "ferry::no_grad",
                          number));
}

tensor gradient_of_root(const tensor& root, std::size_t number, std::span<const tensor> given) {
  const value_facts facts = value_facts::of(root);
  if (number < given.size() && given[number].defined()) {
    const value_facts own = value_facts::of(given[number]);
    if (own == facts) return detach(given[number]);
    throw_error(difference_of(own, facts), fmt::format("the gradient given for root {} is {}, and the root is {}",
                                                       number, own.describe(), facts.describe()));
  }
  if (root.numel() != 1) {
    throw_error(
        errc::invalid_argument,
        fmt::format("root {} is {}: only for one with a single element there is a gradient to begin with. Reduce it "
                    "(to a loss), or give its gradient",
                    number, facts.describe()));
  }
  return ones(root.shape(), root.dtype(), root.device());
}

}  // namespace ferry::inline v0::detail
