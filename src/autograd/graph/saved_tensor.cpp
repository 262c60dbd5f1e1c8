#include <ferry/autograd/saved_tensor.hpp>

#include <fmt/format.h>

#include <ferry/autograd/detail/memory.hpp>
#include <ferry/base/error.hpp>

namespace ferry::inline v0 {

saved_tensor::saved_tensor(const tensor& t) {
  if (!t.defined()) return;
  elements_ = detail::alias_of(t);
  version_ = t.version();
}

void saved_tensor::refuse() const {
  if (released_) {
    throw_error(
        errc::invalid_argument,
        "the elements that the formula needs were released by an earlier backward pass over this graph; give that pass "
        ".retain_graph = true, or compute the roots again");
  }
  throw_error(
      errc::invalid_argument,
      fmt::format(
          "a tensor of shape {} that the formula needs was written in place after the operation: its version is {} "
          "instead of {}; writes to any part of its storage count; write into a clone(), or before the operation",
          to_string(elements_.shape()), elements_.version(), version_));
}

}  // namespace ferry::inline v0
