#pragma once

// CUDA devices: how many this process can see.

#include <string_view>

#include <ferry/device/traits.hpp>

namespace ferry::inline v0 {

/// Tag of NVIDIA GPUs.
struct cuda {};

/// Only discovery: no memory is allocated on a GPU, so this is not a device_type, and tensors on "cuda:0" are refused
/// by check_device and operations_of.
template <>
struct device_traits<cuda> {
  static constexpr std::string_view name = "cuda";
  static constexpr device_kind kind = device_kind::cuda;
  /// The number of CUDA devices that this process may use. 0 if ferry was built without CUDA, or if the machine has no
  /// GPU or no usable driver. Does not create a CUDA context. Asked once, then remembered. Thread-safe.
  static int count() noexcept;
};

}  // namespace ferry::inline v0
