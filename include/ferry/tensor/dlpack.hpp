#pragma once

// Tensors of other libraries without a copy, through DLPack (https://dmlc.github.io/dlpack): NumPy, PyTorch, JAX, CuPy
// and others exchange a pointer to one of two structs. <dlpack/dlpack.h> is not needed; where it is included as well,
// its DLManagedTensor and DLManagedTensorVersioned are accepted directly.
//
//   ferry::tensor t = ferry::from_dlpack(managed);                             // takes it over
//   DLManagedTensorVersioned* m = ferry::to_dlpack<DLManagedTensorVersioned>(t).release();
//   DLManagedTensor* old = ferry::to_dlpack<DLManagedTensor>(t).release();     // for libraries before DLPack 1.0
//
// Both sides then use the same memory, and each observes the other's writes; code that writes on ferry's behalf calls
// mark_written(). On a CUDA device the consumer's stream must come after the producer's work: the protocol around
// DLPack passes the consumer's stream to the producer (to_dlpack's second form); nothing else is synchronised.

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

/// Returns a DLPack tensor to its producer.
template <class M>
struct release {
  void operator()(M* tensor) const noexcept {
    if (tensor->deleter) tensor->deleter(tensor);
  }
};
/// An owned DLPack tensor; release() transfers it to a consumer, which then calls its deleter.
template <managed M>
using owned = std::unique_ptr<M, release<M>>;

/// What the consumer of an export may do.
enum class access : std::uint8_t { read_write, read_only };
/// How to import a tensor whose producer forbids writing; tensors of ferry can always be written.
enum class if_read_only : std::uint8_t {
  refuse,  ///< errc::invalid_argument
  copy,    ///< the elements are copied, and the import is returned at once
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
/// called, on any thread. Strides are always set; data points at the first element, byte_offset is 0. The versioned
/// form has version 1.1. Memory that is only borrowed (from_blob without an owner) must outlive the consumer. Throws
/// errc::invalid_argument for an undefined tensor, one that requires gradients (export a clone()), and for read_only in
/// the older form, which cannot express it. Thread-safe.
template <dlpack::managed M = dlpack::managed_tensor_versioned>
[[nodiscard]] dlpack::owned<M> to_dlpack(const tensor& t, dlpack::access allowed = dlpack::access::read_write) {
  dlpack::detail::check_layout<M>();
  if constexpr (dlpack::versioned<M>) {
    return dlpack::owned<M>(reinterpret_cast<M*>(detail::export_versioned(t, allowed)));
  } else {
    return dlpack::owned<M>(reinterpret_cast<M*>(detail::export_unversioned(t, allowed)));
  }
}

/// The same for a consumer that works on `consumer`, a stream of the tensor's device (no effect for the CPU): it waits
/// for the work queued on the calling thread's current stream, and ferry does not reuse the memory before `consumer` is
/// done with it. The host does not wait. Also throws errc::device_failure.
template <dlpack::managed M = dlpack::managed_tensor_versioned>
[[nodiscard]] dlpack::owned<M> to_dlpack(const tensor& t, const stream& consumer,
                                         dlpack::access allowed = dlpack::access::read_write) {
  dlpack::owned<M> result = to_dlpack<M>(t, allowed);
  detail::give_to(t, consumer);
  return result;
}

/// A tensor over the memory of `managed`, whose ownership it takes: the deleter is called once, when the last tensor
/// over the memory is destroyed, on whatever thread. If this throws, `managed` is untouched and still the caller's.
///
/// CPU memory (CUDA's and ROCm's page-locked host memory, too) and memory of CUDA devices; all dtypes of ferry. On a
/// CUDA device the calling thread's current stream is the consumer's, which the producer has ordered after its work;
/// the deleter runs once ferry's work with the tensor is done there, and other streams that storage().record_use() was
/// told of have come as far.
/// Throws errc::bad_dtype for other types and for vector types (lanes), errc::bad_device for other devices,
/// errc::bad_shape for more than 32 axes, sizes that overflow and negative strides, errc::invalid_argument for a null
/// or misaligned pointer, another major version than 1, and a read-only tensor (see `policy`). Thread-safe.
template <dlpack::managed M>
[[nodiscard]] tensor from_dlpack(M* managed, dlpack::if_read_only policy = dlpack::if_read_only::refuse) {
  dlpack::detail::check_layout<M>();
  if constexpr (dlpack::versioned<M>) {
    return detail::import_versioned(reinterpret_cast<dlpack::managed_tensor_versioned*>(managed), policy);
  } else {
    return detail::import_unversioned(reinterpret_cast<dlpack::managed_tensor*>(managed));
  }
}

/// The same for an owned tensor: it is returned also if this throws.
template <dlpack::managed M>
[[nodiscard]] tensor from_dlpack(dlpack::owned<M> managed, dlpack::if_read_only policy = dlpack::if_read_only::refuse) {
  tensor result = from_dlpack(managed.get(), policy);
  static_cast<void>(managed.release());
  return result;
}

}  // namespace ferry::inline v0
