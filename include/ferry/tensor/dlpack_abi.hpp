#pragma once

// DLPack's binary interface, declared here so that no other header is needed. Its structs are what dlpack.h calls
// DLTensor, DLManagedTensor and so on; both may be used in one program.

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace ferry::inline v0::dlpack {

/// DLDevice; the kinds are those of DLDeviceType (1 is the CPU, 2 CUDA).
struct device {
  std::int32_t kind;
  std::int32_t index;
};

/// DLDataType; the codes are those of DLDataTypeCode (0 signed, 1 unsigned, 2 floating point, ...).
struct data_type {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

/// DLTensor. Strides are in elements.
struct tensor_view {
  void* data;
  dlpack::device device;
  std::int32_t ndim;
  data_type dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< null: row-major without gaps
  std::uint64_t byte_offset;
};

/// DLManagedTensor: the form before DLPack 1.0.
struct managed_tensor {
  tensor_view dl_tensor;
  void* manager_ctx;
  void (*deleter)(managed_tensor* self);
};

/// DLPackVersion.
struct version_number {
  std::uint32_t major;
  std::uint32_t minor;
};

inline constexpr std::uint64_t flag_read_only = 1;
inline constexpr std::uint64_t flag_is_copied = 2;

/// DLManagedTensorVersioned: the form since DLPack 1.0.
struct managed_tensor_versioned {
  version_number version;
  void* manager_ctx;
  void (*deleter)(managed_tensor_versioned* self);
  std::uint64_t flags;
  tensor_view dl_tensor;
};

namespace detail {

template <class M>
concept managed_form = std::is_standard_layout_v<M> && requires(M& m) {
  m.dl_tensor.byte_offset;
  m.manager_ctx;
  m.deleter(&m);
};

// Whether M, which may come from dlpack.h, has the layout that ferry expects.
template <class M>
constexpr void check_layout() {
  using mine = std::conditional_t<sizeof(M) == sizeof(managed_tensor), managed_tensor, managed_tensor_versioned>;
  using their_tensor = decltype(M::dl_tensor);
  static_assert(sizeof(M) == sizeof(mine) && offsetof(M, dl_tensor) == offsetof(mine, dl_tensor) &&
                    offsetof(M, manager_ctx) == offsetof(mine, manager_ctx) &&
                    offsetof(M, deleter) == offsetof(mine, deleter),
                "ferry: this struct has not the layout of DLManagedTensor or DLManagedTensorVersioned");
  static_assert(sizeof(their_tensor) == sizeof(tensor_view) &&
                    offsetof(their_tensor, device) == offsetof(tensor_view, device) &&
                    offsetof(their_tensor, ndim) == offsetof(tensor_view, ndim) &&
                    offsetof(their_tensor, dtype) == offsetof(tensor_view, dtype) &&
                    offsetof(their_tensor, shape) == offsetof(tensor_view, shape) &&
                    offsetof(their_tensor, strides) == offsetof(tensor_view, strides) &&
                    offsetof(their_tensor, byte_offset) == offsetof(tensor_view, byte_offset),
                "ferry: the dl_tensor of this struct has not the layout of DLTensor");
}
static_assert(sizeof(tensor_view) == 48 && sizeof(managed_tensor) == 64 && sizeof(managed_tensor_versioned) == 80);

}  // namespace detail
}  // namespace ferry::inline v0::dlpack
