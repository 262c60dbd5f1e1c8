#include <ferry/autograd/derivative.hpp>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

namespace ferry::inline v0::detail {

void operation_node::release_saved() noexcept {
  for (saved_tensor& each : inputs_) each.release();
  for (saved_tensor& each : outputs_) each.release();
}

const saved_tensor& operation_node::saved(const std::vector<saved_tensor>& all, std::size_t number) const {
  if (number < all.size()) return all[number];
  throw_error(errc::invalid_argument,
              "its formula asks for an input or result that its derivative_keeps does not name");
}

void operation_node::refuse_count(std::size_t returned, std::size_t inputs) {
  throw_error(errc::invalid_argument,
              fmt::format("its formula returned {} gradients for {} inputs of the operation", returned, inputs));
}

void operation_node::refuse_unfinished() {
  throw_error(errc::invalid_argument,
              "the operation has thrown while it wrote its target in place, whose elements are not known since");
}

}  // namespace ferry::inline v0::detail
