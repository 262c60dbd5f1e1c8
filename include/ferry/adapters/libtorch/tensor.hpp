#pragma once

// Tensors of libtorch as arguments, results and members, and as views of ferry's tensors.
//
//   at::Tensor scaled(const at::Tensor& t, double by);               // callable: rpc_sync<scaled>("worker1", t, 2.0)
//   at::Tensor same = ferry::to_torch(t);                            // the same memory, seen by libtorch
//   ferry::tensor t = ferry::from_torch(torch::rand({2, 3}));        // and the other way round
//
// Nothing is copied in either direction: both sides see each other's writes, and the memory lives until both have released
// it. A view is sent as exactly its visible elements. An at::Tensor is sent as a ferry::tensor, so a method may take the one
// where its caller passes the other.
//
// CUDA: from_torch() and to_torch() put what follows on the one library's current stream after what was queued on the
// other's; the host does not wait. A thread that makes another stream than the default one current in libtorch, and takes a
// tensor out of a future there, calls let_torch_wait() (below).
//
// Link ferry-libtorch. libtorch 1.13 or newer. No other header of ferry includes this one.

#include <ATen/core/Tensor.h>

#include <ferry/device/device.hpp>
#include <ferry/tensor/dtype.hpp>
#include <ferry/tensor/tensor.hpp>
#include <ferry/tensor/traits.hpp>

namespace ferry::inline v0 {

/// A tensor over the memory of `t`, which is kept until the result and its views are gone; undefined if `t` is. The elements
/// are copied if `t` is lazily conjugated or negated. Resizing `t` in place (resize_, set_) while the result is in use is
/// undefined, as it is for other tensors that share its storage. Throws errc::bad_dtype for element types that ferry does not have
/// (quantised ones), errc::bad_device for other devices than the CPU and CUDA, errc::invalid_argument for tensors that are
/// not strided elements in memory (sparse, mkldnn, nested, batched ones). Thread-safe.
[[nodiscard]] tensor from_torch(const at::Tensor& t);

/// A tensor of libtorch over the memory of `t`, which is kept until libtorch releases its storage, on whatever thread; undefined if
/// `t` is. The storage cannot be resized. Throws errc::bad_dtype for element types that this libtorch does not have (those of 8 bits
/// before 2.1), errc::bad_device for kinds of devices other than the CPU and CUDA, and for CUDA if this libtorch has none.
/// Thread-safe.
[[nodiscard]] at::Tensor to_torch(const tensor& t);

/// The same device for the other library. Throw errc::bad_device if it has no such kind.
[[nodiscard]] device from_torch(at::Device where);
[[nodiscard]] at::Device to_torch(device where);

/// The same element type for the other library. Throw errc::bad_dtype if it has none.
[[nodiscard]] dtype from_torch(at::ScalarType type);
[[nodiscard]] at::ScalarType to_torch(dtype type);

/// Work queued later on libtorch's current stream of a CUDA device waits for the work queued so far on ferry's current stream of
/// it; the host does not. No effect for the CPU. Throws errc::bad_device, errc::device_failure.
void let_torch_wait(device where);
/// The same with the libraries exchanged.
void let_ferry_wait(device where);

template <>
struct tensor_traits<at::Tensor> {
  static tensor to_tensor(const at::Tensor& value) { return from_torch(value); }
  static at::Tensor from_tensor(tensor t) { return to_torch(t); }
};

}  // namespace ferry::inline v0
