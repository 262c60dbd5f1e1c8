#pragma once

// Gradients of tensors.
//
// A tensor requires a gradient because the user says so (a leaf: a parameter) or because it was computed from one that does.
// backward() adds the gradient of each leaf to that of earlier passes.

#include <cstdint>
#include <functional>
#include <memory>

#include <ferry/autograd/node.hpp>
#include <ferry/ops/sparse.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// Makes `t` a leaf whose gradient backward() computes, or, unless `required`, one that has none. Views made before do not know of it. A
/// tensor that was computed from one that requires a gradient does so already, and stays as it is (retain_grad() keeps its gradient).
/// Returns `t`. Throws errc::bad_dtype unless the elements are f32 or f64, errc::invalid_argument for a computed tensor that is
/// to require none (detach() it).
const tensor& require_grad(const tensor& t, bool required = true);

/// Whether `t` was not computed from a tensor that requires a gradient.
[[nodiscard]] bool is_leaf(const tensor& t);

/// The gradient of a leaf (of another tensor: see retain_grad), undefined before the first pass. Later passes add to the same
/// tensor in place. Undefined for a leaf that has a sparse gradient: sparse_grad(t).to_dense() is that as a whole.
[[nodiscard]] tensor grad(const tensor& t);
/// Replaces the gradient, sparse or not, by this tensor (by a copy, if it is not contiguous or in the graph); an undefined one clears it. Throws errc::bad_shape, errc::bad_dtype, errc::bad_device unless it
/// looks like `t`, errc::invalid_argument if `t` requires none.
void set_grad(const tensor& t, const tensor& gradient);

/// Whether the gradient of `t` is sparse: it is a leaf, and all that passes have added since its gradient was cleared are
/// rows of it (embedding() with .sparse_gradient). The first dense gradient that is added makes the whole dense, and so does a
/// hook on_gradient().
[[nodiscard]] bool has_sparse_grad(const tensor& t);
/// Such a gradient, with one sparse axis; else undefined. It has the entries of all passes, in no order: a row may come several
/// times, until coalesce(). Passes coalesce it where it has more than twice as many entries as `t` has rows; then the host waits for
/// a device. Its tensors are those that are kept: a later pass does not write them, but add_() and clip_grad_norm_() may.
[[nodiscard]] sparse_tensor sparse_grad(const tensor& t);
/// Replaces the gradient, sparse or not, by this one; an undefined one clears it. Throws errc::bad_shape, errc::bad_dtype,
/// errc::bad_device unless it looks like `t` and has one sparse axis, errc::invalid_argument if `t` requires none or is no leaf.
void set_sparse_grad(const tensor& t, const sparse_tensor& gradient);

/// The next passes keep the gradient of `t`, which is not a leaf, too. No effect on a leaf.
void retain_grad(const tensor& t);

/// A tensor with the elements of `t` that requires no gradient. Shares the storage: writes through either are seen by both.
[[nodiscard]] tensor detach(const tensor& t);

/// Where the gradient of `t` goes: the node of the operation that computed it; for a leaf, the node that adds to grad(t).
/// Empty if `t` requires none.
[[nodiscard]] graph_edge gradient_edge(const tensor& t);

/// A registered hook; copies name the same one. The hook stays, whatever becomes of this.
class gradient_hook {
 public:
  gradient_hook() noexcept = default;
  /// It is not called any more; at once, unless a pass runs on another thread. Idempotent.
  void remove() noexcept;

 private:
  friend class detail::gradient_hooks;
  std::weak_ptr<detail::gradient_hooks> list_;
  std::uint64_t number_ = 0;
};

/// Calls `hook` in each pass with the whole gradient of `t`, as its value is now (not after later writes in place), once; what it
/// returns takes the place of that gradient, unless undefined. It sees a dense gradient: that of a leaf is not kept sparse then. The
/// hook must not write the tensor that it is given, which others may have, too; and if it keeps `t`, it keeps itself. Hooks of one
/// tensor are called in order of registration, on the thread of the pass. What they throw ends the pass. Register and remove while no pass runs through `t`. Throws errc::invalid_argument if `t` requires no gradient.
gradient_hook on_gradient(const tensor& t, std::function<tensor(const tensor& gradient)> hook);
/// Calls `hook` in each pass after the whole gradient of the leaf was added to grad(leaf) or sparse_grad(leaf); in a distributed
/// pass, to those of its context, dist_autograd::running_pass(). The same rules.
gradient_hook on_accumulated(const tensor& leaf, std::function<void(const tensor& leaf)> hook);

}  // namespace ferry::inline v0
