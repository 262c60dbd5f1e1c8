#pragma once

// What is asked of the roots of a pass, on one worker or on several.

#include <cstddef>
#include <span>

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::detail {

/// `pass` is what begins so: "backward". Throws errc::invalid_argument for no roots, and for more gradients than roots.
void need_roots(const char* pass, std::span<const tensor> roots, std::span<const tensor> given);
/// Throws errc::invalid_argument.
void need_defined_root(const tensor& root, std::size_t number);
[[noreturn]] void refuse_root_without_gradient(std::size_t number);
/// The one given for it, outside of the graph, or one. Throws errc::bad_shape, errc::bad_dtype or errc::bad_device for
/// one that does not look like its root, errc::invalid_argument if none is given for a root with several elements. Under no_grad.
tensor gradient_of_root(const tensor& root, std::size_t number, std::span<const tensor> given);

}  // namespace ferry::inline v0::detail
