#pragma once

// Tensors in archives: out of band on ferry's own, whole on any other archive of cereal (checkpoints).

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <cereal/types/vector.hpp>

#include <ferry/base/type_name.hpp>
#include <ferry/tensor/pack.hpp>
#include <ferry/tensor/tensor.hpp>
#include <ferry/tensor/traits.hpp>
#include <ferry/wire/archive.hpp>

namespace ferry::inline v0 {

template <>
struct type_name_traits<tensor> {
  static constexpr std::string_view name = "tensor";
};

template <foreign_tensor T>
struct type_name_traits<T> {
  static constexpr std::string_view name = "tensor";
};

inline void save(wire_output_archive& archive, const tensor& value) { archive.write_tensor(value); }
inline void load(wire_input_archive& archive, tensor& value) { value = archive.read_tensor(); }

template <foreign_tensor T>
inline void save(wire_output_archive& archive, const T& value) {
  archive.write_tensor(tensor_traits<T>::to_tensor(value));
}
template <foreign_tensor T>
inline void load(wire_input_archive& archive, T& value) {
  value = tensor_traits<T>::from_tensor(archive.read_unshared_tensor());
}

namespace detail {

/// What an archive that is not ferry's stores of a tensor; dtype 0 stands for an undefined one.
struct tensor_record {
  std::uint8_t dtype = 0;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};
/// Packs `value`; the tensor that is returned holds the bytes to store. Throws errc::bad_device for device tensors.
tensor describe_tensor(const tensor& value, tensor_record& record);
/// The uninitialised tensor of that description. Throws errc::malformed.
tensor make_described_tensor(const tensor_record& record);

// JSON and XML have text for binary data of their own.
template <class Archive>
void archive_block(Archive& archive, std::span<const std::byte> bytes) {
  if constexpr (requires { archive.saveBinaryValue(bytes.data(), bytes.size(), "data"); }) {
    archive.saveBinaryValue(bytes.data(), bytes.size(), "data");
  } else {
    archive(cereal::binary_data(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()));
  }
}
template <class Archive>
void archive_block(Archive& archive, std::span<std::byte> bytes) {
  if constexpr (requires { archive.loadBinaryValue(bytes.data(), bytes.size(), "data"); }) {
    archive.loadBinaryValue(bytes.data(), bytes.size(), "data");
  } else {
    archive(cereal::binary_data(reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()));
  }
}

template <class Archive>
concept other_output_archive =
    std::derived_from<Archive, cereal::detail::OutputArchiveBase> && !std::same_as<Archive, wire_output_archive>;
template <class Archive>
concept other_input_archive =
    std::derived_from<Archive, cereal::detail::InputArchiveBase> && !std::same_as<Archive, wire_input_archive>;

}  // namespace detail

/// Stores dtype, shape, strides and elements: a view becomes exactly its visible elements. Tensors that share memory
/// are stored once each. Throws errc::bad_device for a tensor that is not on the CPU.
template <detail::other_output_archive Archive>
void save(Archive& archive, const tensor& value) {
  detail::tensor_record record;
  const tensor packed = detail::describe_tensor(value, record);
  archive(cereal::make_nvp("dtype", record.dtype), cereal::make_nvp("shape", record.shape),
          cereal::make_nvp("strides", record.strides));
  if (packed.defined() && packed.numel() != 0) detail::archive_block(archive, packed_bytes(packed));
}
template <detail::other_input_archive Archive>
void load(Archive& archive, tensor& value) {
  detail::tensor_record record;
  archive(cereal::make_nvp("dtype", record.dtype), cereal::make_nvp("shape", record.shape),
          cereal::make_nvp("strides", record.strides));
  value = detail::make_described_tensor(record);
  if (value.defined() && value.numel() != 0) detail::archive_block(archive, writable_packed_bytes(value));
}

}  // namespace ferry::inline v0

// A foreign tensor type may have a serialiser of its own, for files: between workers it travels as a tensor.
namespace cereal {
template <ferry::foreign_tensor T>
struct specialize<ferry::wire_output_archive, T, specialization::non_member_load_save> : std::true_type {};
template <ferry::foreign_tensor T>
struct specialize<ferry::wire_input_archive, T, specialization::non_member_load_save> : std::true_type {};
}  // namespace cereal
