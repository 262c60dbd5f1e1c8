#include <ferry/adapters/libtorch/tensor.hpp>

#include "bridge.hpp"
#include "elements.hpp"

namespace ferry::inline v0 {

tensor from_torch(const at::Tensor& t) {
  if (!t.defined()) return {};
  tensor result = detail::elements_of(t);
  detail::lead_to_torch(result, t);
  return result;
}

at::Tensor to_torch(const tensor& t) {
  if (!t.defined()) return {};
  at::Tensor result = detail::torch_elements_of(t);
  detail::lead_from_torch(result, t);
  return result;
}

}  // namespace ferry::inline v0
