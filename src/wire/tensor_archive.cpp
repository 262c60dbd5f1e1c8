#include <ferry/wire/tensor_archive.hpp>

#include <string>

#include <ferry/base/error.hpp>

namespace ferry::inline v0::detail {

tensor describe_tensor(const tensor& value, tensor_record& record) {
  if (!value.defined()) return {};
  if (!value.device().is_cpu()) {
    throw_error(errc::bad_device,
                "a tensor on " + to_string(value.device()) + " cannot be archived; copy it to the CPU first");
  }
  tensor packed = pack(value);
  record.dtype = static_cast<std::uint8_t>(packed.dtype());
  record.shape = packed.shape().to_vector();
  record.strides = packed.strides().to_vector();
  return packed;
}

tensor make_described_tensor(const tensor_record& record) {
  if (record.dtype == 0) return {};
  const auto type = dtype_from_code(record.dtype);
  if (!type) throw_error(errc::malformed, "an archived tensor has the unknown dtype " + std::to_string(record.dtype));
  try {
    return empty_packed(*type, record.shape, record.strides);
  } catch (const error& problem) {
    if (problem.kind() != errc::bad_shape) throw;
    throw_error(errc::malformed, "an archived tensor: " + std::string(problem.message()));
  }
}

}  // namespace ferry::inline v0::detail
