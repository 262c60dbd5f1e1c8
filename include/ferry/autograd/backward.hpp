#pragma once

// Going back through the graph.

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <vector>

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// One tensor or several, as an argument: tensors that live while the call runs.
class tensor_span : public std::span<const tensor> {
 public:
  constexpr tensor_span() noexcept = default;
  tensor_span(const tensor& one) noexcept : span(&one, 1) {}                                  // NOLINT
  tensor_span(std::initializer_list<tensor> all) noexcept : span(all.begin(), all.size()) {}  // NOLINT
  tensor_span(const std::vector<tensor>& all) noexcept : span(all) {}                         // NOLINT
  tensor_span(std::span<const tensor> all) noexcept : span(all) {}                            // NOLINT
};

struct backward_options {
  /// Of the roots, one each, of their shapes; undefined ones and missing ones stand for 1, for roots with one element.
  std::vector<tensor> gradients = {};
  /// Another pass over the same graph will follow: what the formulas need is kept.
  bool retain_graph = false;
};

/// Adds the gradient of the sum of the roots to grad() of every leaf from which they were computed. Runs on the calling
/// thread; on devices, in stream order: the current streams of the caller wait for it, the host does not.
///
/// Throws errc::invalid_argument for a root that requires no gradient, or one with several elements and no gradient given,
/// for a formula whose inputs an earlier pass has released, and for elements that a formula needs and that were written since;
/// errc::bad_shape, errc::bad_dtype or errc::bad_device for a gradient that does not look like its root; and what a formula or a hook throws, where errors of ferry
/// name the node. Gradients added before the error stay.
void backward(tensor_span roots, const backward_options& options = {});

/// The gradients of the sum of the roots for these inputs, which may be leaves or tensors on the way; undefined for an input
/// that does not reach a root. They share memory with nothing. grad() is neither read nor written, and only the part of the
/// graph that leads to the inputs is used; that is released, too, unless .retain_graph. Throws as backward(), and errc::invalid_argument for an input that requires no gradient.
[[nodiscard]] std::vector<tensor> gradients(tensor_span roots, tensor_span inputs,
                                            const backward_options& options = {});

}  // namespace ferry::inline v0
