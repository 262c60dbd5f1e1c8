#pragma once

// What a higher layer (gradients, lineage, tracing) keeps in the slot of a tensor.

#include <span>

#include <ferry/tensor/operation.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// Implemented by a higher layer and stored in the one slot of a tensor (tensor::set_slot). Its functions are called on
/// the thread that runs the operation, once for each operation with an input that has a slot: on the slot of the first
/// such input. The others are found through the inputs. One object may be the slot of several tensors, which then may
/// call it from several threads at once.
///
/// Operations that these functions use themselves, and those that an operation is made of, are not reported. What they
/// throw goes to the caller of the operation. `what` and the spans are valid during the call; tensors may be kept, but a
/// slot that keeps its own tensor keeps it for ever (weak_tensor).
class tensor_hooks {
 public:
  virtual ~tensor_hooks() = default;
  /// `view` was made from `base`, which has this slot. It has no slot yet: without another, writes through it are not
  /// reported.
  virtual void viewed(const operation& what, const tensor& base, tensor& view) = 0;
  /// An operation in place is about to write the elements of `target`, the first input; they still have their old values,
  /// and the version of the storage has not been raised. An exception refuses the operation: nothing is written then.
  /// `what` is op::external_write for elements written through data() or at(), which mark_written() reports; there they
  /// may have been written already, and computed() is not called.
  virtual void mutated(const operation& what, const tensor& target, std::span<const tensor> inputs) = 0;
  /// `outputs` were computed from `inputs`, or are being computed in the order of the current streams. New ones have no
  /// slot yet. In place, the output is the first input, with its new elements.
  virtual void computed(const operation& what, std::span<const tensor> inputs, std::span<tensor> outputs) = 0;
  [[nodiscard]] virtual bool requires_grad(const tensor& target) const noexcept = 0;
};

}  // namespace ferry::inline v0
