#include <array>
#include <string>
#include <utility>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <ferry/adapters/libtorch/tensor.hpp>
#include <ferry/base/error.hpp>

namespace ferry::inline v0 {
namespace detail {
namespace {

constexpr std::array torch_types {
  std::pair{dtype::bool_, at::ScalarType::Bool}, std::pair{dtype::u8, at::ScalarType::Byte},
      std::pair{dtype::i8, at::ScalarType::Char}, std::pair{dtype::i16, at::ScalarType::Short},
      std::pair{dtype::i32, at::ScalarType::Int}, std::pair{dtype::i64, at::ScalarType::Long},
      std::pair{dtype::f16, at::ScalarType::Half}, std::pair{dtype::bf16, at::ScalarType::BFloat16},
      std::pair{dtype::f32, at::ScalarType::Float}, std::pair{dtype::f64, at::ScalarType::Double},
      std::pair{dtype::c64, at::ScalarType::ComplexFloat}, std::pair{dtype::c128, at::ScalarType::ComplexDouble},
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1)
      std::pair{dtype::f8_e4m3, at::ScalarType::Float8_e4m3fn},  // without infinities
      std::pair{dtype::f8_e5m2, at::ScalarType::Float8_e5m2},
#endif
};

}  // namespace
}  // namespace detail

dtype from_torch(at::ScalarType type) {
  for (const auto& [own, torch_type] : detail::torch_types) {
    if (torch_type == type) return own;
  }
  throw_error(errc::bad_dtype, fmt::format("ferry has no dtype for elements of libtorch's type {}; convert the tensor "
                                           "(to() or dequantize()) before it is sent",
                                           c10::toString(type)));
}

at::ScalarType to_torch(dtype type) {
  for (const auto& [own, torch_type] : detail::torch_types) {
    if (own == type) return torch_type;
  }
  throw_error(errc::bad_dtype, fmt::format("libtorch {} has no element type for {}", TORCH_VERSION, dtype_name(type)));
}

device from_torch(at::Device where) {
  if (where.is_cpu()) return {};
  if (where.is_cuda()) {
    const int index =
        where.has_index() ? where.index() : c10::impl::getDeviceGuardImpl(where.type())->getDevice().index();
    return {device_kind::cuda, index};
  }
  throw_error(errc::bad_device,
              fmt::format("ferry has no device for libtorch's {}; copy the tensor to the CPU or a CUDA "
                          "device before it is sent",
                          where.str()));
}

at::Device to_torch(device where) {
  if (where.is_cpu()) return at::kCPU;
  if (!where.is_cuda()) {
    throw_error(errc::bad_device,
                fmt::format("libtorch has no device for {}; copy the tensor to the CPU first", to_string(where)));
  }
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) {
    throw_error(errc::bad_device,
                fmt::format("a tensor on {} cannot become one of libtorch, because this libtorch {} was built "
                            "without CUDA; have the device map, or a placement, put it on the CPU",
                            to_string(where), TORCH_VERSION));
  }
  return {at::kCUDA, static_cast<c10::DeviceIndex>(where.index)};
}

}  // namespace ferry::inline v0
