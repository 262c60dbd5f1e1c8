#pragma once

// Tensors of other libraries without a copy, through DLPack (https://dmlc.github.io/dlpack): NumPy, PyTorch, JAX, CuPy
// and others give and take a pointer to one of two structs. <dlpack/dlpack.h> is not needed; where it is included as
// well, its DLManagedTensor and DLManagedTensorVersioned are taken as they are.
//
//   ferry::tensor t = ferry::from_dlpack(managed);                             // takes it over
//   DLManagedTensorVersioned* m = ferry::to_dlpack<DLManagedTensorVersioned>(t).release();
//   DLManagedTensor* old = ferry::to_dlpack<DLManagedTensor>(t).release();     // for libraries before DLPack 1.0
//
// Both sides then use the same memory, and a write of one is seen by the other; who writes on ferry's behalf calls
// mark_written(). On a CUDA device the consumer's stream must come after the producer's work: the protocol around DLPack hands
// the consumer's stream to the producer (to_dlpack's second form); nothing else is synchronised.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include <ferry/device/stream.hpp>
#include <ferry/tensor/dlpack_abi.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {
namespace dlpack {

/// DLManagedTensor, of ferry or of dlpack.h: the older form, without version and flags.
template <class M>
concept unversioned = detail::managed_form<M> && !requires(M& m) { m.flags; } && sizeof(M) == sizeof(managed_tensor);
/// DLManagedTensorVersioned, of ferry or of dlpack.h: the form of DLPack 1.x.
template <class M>
concept versioned = detail::managed_form<M> && requires(M& m) {
  m.version.major;
  m.flags;
} && sizeof(M) == sizeof(managed_tensor_versioned);
template <class M>
concept managed = unversioned<M> || versioned<M>;

/// Gives a tensor of DLPack back to its maker.
template <class M>
struct release {
  void operator()(M* tensor) const noexcept {
    if (tensor->deleter) tensor->deleter(tensor);
  }
};
/// A tensor of DLPack on its way; release() hands it to a consumer, which then calls its deleter.
template <managed M>
using owned = std::unique_ptr<M, release<M>>;

/// What the consumer of an export may do.
enum class access : std::uint8_t { read_write, read_only };
/// What becomes of an import whose maker forbids writing; tensors of ferry can always be written.
enum class if_read_only : std::uint8_t {
  refuse,  ///< errc::invalid_argument
  copy,    ///< the elements are copied, and the import is given back at once
};

}  // namespace dlpack

namespace detail {
dlpack::managed_tensor* export_unversioned(const tensor& t, dlpack::access allowed);
dlpack::managed_tensor_versioned* export_versioned(const tensor& t, dlpack::access allowed);
void give_to(const tensor& t, const stream& consumer);
tensor import_unversioned(dlpack::managed_tensor* managed);
tensor import_versioned(dlpack::managed_tensor_versioned* managed, dlpack::if_read_only policy);
}  // namespace detail

/// `t` for another library, as a DLPack struct that refers to the same memory and keeps it alive until its deleter is
/// called, on whatever thread. Strides are always given; data points at the first element, byte_offset is 0. The
/// versioned form says 1.1. Memory that is only borrowed (from_blob without an owner) must outlive the consumer.
/// Throws errc::invalid_argument for an undefined tensor, one that requires gradients (export a clone()), and for
/// read_only in the older form, which cannot say so. Thread-safe.
template <dlpack::managed M = dlpack::managed_tensor_versioned>
[[nodiscard]] dlpack::owned<M> to_dlpack(const tensor& t, dlpack::access allowed = dlpack::access::read_write) {
  dlpack::detail::check_layout<M>();
  if constexpr (dlpack::versioned<M>) {
    return dlpack::owned<M>(reinterpret_cast<M*>(detail::export_versioned(t, allowed)));
  } else {
    return dlpack::owned<M>(reinterpret_cast<M*>(detail::export_unversioned(t, allowed)));
  }
}

/// The same for a consumer that works on `consumer`, a stream of the tensor's device (of the CPU's, nothing is done): it waits for
/// what the calling thread's current stream was given, and ferry's memory is not used again before `consumer` is done with
/// it. The host does not wait. Throws also errc::device_failure.
template <dlpack::managed M = dlpack::managed_tensor_versioned>
[[nodiscard]] dlpack::owned<M> to_dlpack(const tensor& t, const stream& consumer,
                                         dlpack::access allowed = dlpack::access::read_write) {
  dlpack::owned<M> result = to_dlpack<M>(t, allowed);
  detail::give_to(t, consumer);
  return result;
}

/// A tensor over the memory of `managed`, which it takes over: the deleter is called once, when the last tensor over
/// the memory goes, on whatever thread that happens. If this throws, `managed` is untouched and still the caller's.
///
/// Memory of the CPU (CUDA's and ROCm's page-locked host memory, too) and of CUDA devices; all dtypes of ferry. On a CUDA device
/// the calling thread's current stream is the consumer's, which the producer has ordered after its work; the deleter does not
/// wait for what that stream was given: keep the tensor until it is done, or synchronise.
/// Throws errc::bad_dtype for other types and for vector types (lanes), errc::bad_device for other devices,
/// errc::bad_shape for more than 32 axes, sizes that overflow and negative strides, errc::invalid_argument for a null or
/// misaligned pointer, another major version than 1, and a read-only tensor (see `policy`). Thread-safe.
template <dlpack::managed M>
[[nodiscard]] tensor from_dlpack(M* managed, dlpack::if_read_only policy = dlpack::if_read_only::refuse) {
  dlpack::detail::check_layout<M>();
  if constexpr (dlpack::versioned<M>) {
    return detail::import_versioned(reinterpret_cast<dlpack::managed_tensor_versioned*>(managed), policy);
  } else {
    return detail::import_unversioned(reinterpret_cast<dlpack::managed_tensor*>(managed));
  }
}

/// The same for a tensor with an owner: given back also if this throws.
template <dlpack::managed M>
[[nodiscard]] tensor from_dlpack(dlpack::owned<M> managed, dlpack::if_read_only policy = dlpack::if_read_only::refuse) {
  tensor result = from_dlpack(managed.get(), policy);
  static_cast<void>(managed.release());
  return result;
}

}  // namespace ferry::inline v0
