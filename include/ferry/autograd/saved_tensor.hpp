#pragma once

#include <cstdint>

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// Elements that a backward formula needs later. Keeps them, but not the tensor: neither its identity nor its place in the
/// graph, so that a node that keeps a result of its own operation does not keep itself.
class saved_tensor {
 public:
  saved_tensor() noexcept = default;
  saved_tensor(const tensor& t);  // NOLINT: saves it

  /// False for one that saves nothing, or an undefined tensor, and when it was released.
  [[nodiscard]] bool defined() const noexcept { return elements_.defined(); }
  /// The elements, as a tensor that requires no gradient. Throws errc::invalid_argument if they were written since, or
  /// released by a pass that did not keep the graph.
  [[nodiscard]] const tensor& get() const {
    if (released_ || (elements_.defined() && elements_.version() != version_)) refuse();
    return elements_;
  }
  /// The same without a look at the version: for shape and strides. Throws if they were released.
  [[nodiscard]] const tensor& layout() const {
    if (released_) refuse();
    return elements_;
  }
  void release() noexcept {
    elements_ = {};
    released_ = true;
  }

 private:
  [[noreturn]] void refuse() const;

  tensor elements_;
  std::uint64_t version_ = 0;
  bool released_ = false;
};

}  // namespace ferry::inline v0
