#include <ferry/wire/tensor_archive.hpp>

#include <array>
#include <string>

#include <ferry/base/error.hpp>

namespace ferry::inline v0::detail {

tensor describe_tensor(const tensor& value, tensor_record& record) {
  if (!value.defined()) return {};
  if (!value.device().is_cpu()) {
    throw_error(errc::bad_device,
                "a tensor on " + to_string(value.device()) + " cannot be archived; copy it to the CPU first");
  }
  tensor packed = packed_to_send(value);
  record.dtype = static_cast<std::uint8_t>(packed.dtype());
  record.shape.values = packed.shape();
  record.strides.values = packed.strides();
  return packed;
}

namespace {

dtype described_dtype(const tensor_record& record) {
  const auto type = dtype_from_code(record.dtype);
  if (!type) throw_error(errc::malformed, "an archived tensor has the unknown dtype " + std::to_string(record.dtype));
  return *type;
}

// The value of a character of base64, or 255.
constexpr std::array<std::uint8_t, 256> base64_values = [] {
  std::array<std::uint8_t, 256> values{};
  values.fill(255);
  constexpr std::string_view characters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::size_t i = 0; i != characters.size(); ++i) {
    values[static_cast<unsigned char>(characters[i])] = static_cast<std::uint8_t>(i);
  }
  return values;
}();

}  // namespace

void archived_dims::refuse_rank(std::uint64_t count) {
  throw_error(errc::malformed, "an archived tensor has " + std::to_string(count) + " axes; a tensor has at most " +
                                   std::to_string(max_rank));
}

std::uint64_t described_bytes(const tensor_record& record) {
  if (record.dtype == 0) return 0;
  try {
    return packed_size(described_dtype(record), record.shape.values, record.strides.values);
  } catch (const error& problem) {
    if (problem.kind() != errc::bad_shape) throw;
    throw_error(errc::malformed, "an archived tensor: " + std::string(problem.message()));
  }
}

tensor make_described_tensor(const tensor_record& record) {
  if (record.dtype == 0) return {};
  described_bytes(record);
  return empty_packed(described_dtype(record), record.shape.values, record.strides.values);
}

void check_elements(const tensor& value) {
  if (value.dtype() != dtype::bool_) return;
  for (const std::byte each : packed_bytes(value)) {
    if (each > std::byte{1}) {
      throw_error(errc::malformed, "an archived tensor of bool has an element " +
                                       std::to_string(static_cast<int>(each)) + ", not 0 or 1");
    }
  }
}

void check_base64_length(std::size_t characters, std::uint64_t bytes) {
  // Divided rather than multiplied: `bytes` is unchecked and could overflow.
  if (characters % 4 == 0 && characters / 4 == bytes / 3 + (bytes % 3 != 0 ? 1 : 0)) return;
  throw_error(errc::malformed, "an archived tensor or payload of " + std::to_string(bytes) + " bytes comes with " +
                                   std::to_string(characters) + " characters of base64");
}

void decode_base64(std::string_view text, std::span<std::byte> out) {
  const auto value_at = [&](std::size_t at) {
    const std::uint8_t value = base64_values[static_cast<unsigned char>(text[at])];
    if (value == 255) {
      throw_error(errc::malformed, "character " + std::to_string(at) + " of archived elements is not base64");
    }
    return std::uint32_t{value};
  };
  for (std::size_t done = 0, at = 0; done < out.size(); done += 3, at += 4) {
    const std::size_t left = out.size() - done;
    std::uint32_t bits = value_at(at) << 18 | value_at(at + 1) << 12;
    if (left > 1) bits |= value_at(at + 2) << 6;
    if (left > 2) bits |= value_at(at + 3);
    out[done] = static_cast<std::byte>(bits >> 16);
    if (left > 1) out[done + 1] = static_cast<std::byte>(bits >> 8);
    if (left > 2) out[done + 2] = static_cast<std::byte>(bits);
  }
}

}  // namespace ferry::inline v0::detail
