#pragma once

// Tensors in archives: out of band in ferry's own, complete in any other cereal archive (checkpoints).

#include <ferry/config.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <cereal/cereal.hpp>

#include <ferry/base/type_name.hpp>
#include <ferry/tensor/dims.hpp>
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

/// Sizes or strides as a list of numbers of any archive. A list longer than a tensor's rank limit is refused before
/// anything is allocated for it.
struct archived_dims {
  dims values;

  template <class Archive>
  void save(Archive& archive) const {
    archive(cereal::make_size_tag(static_cast<cereal::size_type>(values.size())));
    for (const std::int64_t value : values) archive(value);
  }
  template <class Archive>
  void load(Archive& archive) {
    cereal::size_type count = 0;
    archive(cereal::make_size_tag(count));
    if (count > max_rank) refuse_rank(count);
    values = dims(static_cast<std::size_t>(count), 0);
    for (std::int64_t& value : values) archive(value);
  }

 private:
  [[noreturn]] static void refuse_rank(std::uint64_t count);
};

/// What an archive other than ferry's stores of a tensor before the elements; dtype 0 denotes an undefined one.
struct tensor_record {
  std::uint8_t dtype = 0;
  archived_dims shape;
  archived_dims strides;
};
/// Packs `value`; the returned tensor holds the bytes to store. Throws errc::bad_device for device tensors.
tensor describe_tensor(const tensor& value, tensor_record& record);
/// The number of bytes of elements that follow. Throws errc::malformed.
std::uint64_t described_bytes(const tensor_record& record);
/// The uninitialised tensor of that description. Throws errc::malformed.
tensor make_described_tensor(const tensor_record& record);
/// Throws errc::malformed for elements that are not values of their dtype (a bool that is 2).
void check_elements(const tensor& value);
/// Throws errc::malformed unless a text of that length can hold as many bytes.
void check_base64_length(std::size_t characters, std::uint64_t bytes);
/// Fills `out`. Throws errc::malformed.
void decode_base64(std::string_view text, std::span<std::byte> out);

// JSON and XML write binary data as text.
template <class Archive>
concept text_output_archive = requires(Archive& archive) { archive.saveBinaryValue("", std::size_t{}, "data"); };
template <class Archive>
concept text_input_archive =
    requires(Archive& archive, void* out) { archive.loadBinaryValue(out, std::size_t{}, "data"); };

template <class Archive>
void save_block(Archive& archive, std::span<const std::byte> bytes) {
  if constexpr (text_output_archive<Archive>) {
    archive.saveBinaryValue(bytes.data(), bytes.size(), "data");
  } else {
    archive(cereal::binary_data(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()));
  }
}

/// Reads that many bytes into the memory returned by make_room(), which is called once they, or at least a quarter of
/// them, are known to be present: an archive cannot report how much it has left, and its own counts may be wrong.
template <class Archive, class MakeRoom>
void load_block(Archive& archive, std::uint64_t bytes, MakeRoom&& make_room) {
  if constexpr (text_input_archive<Archive>) {
    std::string text;
    archive(cereal::make_nvp("data", text));
    check_base64_length(text.size(), bytes);
    decode_base64(text, make_room());
  } else {
    constexpr std::uint64_t always = std::uint64_t{16} << 20;
    const auto read = [&](std::byte* to, std::uint64_t count) {
      archive(cereal::binary_data(reinterpret_cast<std::uint8_t*>(to), static_cast<std::size_t>(count)));
    };
    std::unique_ptr<std::byte[]> begun;
    std::uint64_t have = 0;
    while (bytes > always && have < bytes / 4) {
      const std::uint64_t next = have == 0 ? always : have * 4;
      std::unique_ptr<std::byte[]> larger(new std::byte[next]);
      if (have != 0) std::memcpy(larger.get(), begun.get(), have);
      read(larger.get() + have, next - have);
      begun = std::move(larger);
      have = next;
    }
    const std::span<std::byte> room = make_room();
    if (have != 0) std::memcpy(room.data(), begun.get(), have);
    begun.reset();
    read(room.data() + have, bytes - have);
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
/// are stored once each. In text (JSON, XML) the elements are base64. Throws errc::bad_device for a tensor that is not
/// on the CPU.
template <detail::other_output_archive Archive>
void save(Archive& archive, const tensor& value) {
  detail::tensor_record record;
  const tensor packed = detail::describe_tensor(value, record);
  archive(cereal::make_nvp("dtype", record.dtype), cereal::make_nvp("shape", record.shape),
          cereal::make_nvp("strides", record.strides));
  if (packed.defined() && packed.numel() != 0) detail::save_block(archive, packed_bytes(packed));
}
/// Reads it back, on the CPU. The archive is untrusted: memory is allocated for the data present, not for what the
/// archive claims. Throws errc::malformed for an invalid tensor record, and what the archive throws (cereal::Exception
/// where it ends early); then `value` is unchanged.
template <detail::other_input_archive Archive>
void load(Archive& archive, tensor& value) {
  detail::tensor_record record;
  archive(cereal::make_nvp("dtype", record.dtype), cereal::make_nvp("shape", record.shape),
          cereal::make_nvp("strides", record.strides));
  const std::uint64_t bytes = detail::described_bytes(record);
  tensor loaded;
  if (bytes == 0) {
    loaded = detail::make_described_tensor(record);
  } else {
    detail::load_block(archive, bytes, [&] {
      loaded = detail::make_described_tensor(record);
      return writable_packed_bytes(loaded);
    });
    detail::check_elements(loaded);
  }
  value = std::move(loaded);
}

}  // namespace ferry::inline v0

// A foreign tensor type may have its own serialiser, for files: between workers it is sent as a tensor.
namespace cereal {
template <ferry::foreign_tensor T>
struct specialize<ferry::wire_output_archive, T, specialization::non_member_load_save> : std::true_type {};
template <ferry::foreign_tensor T>
struct specialize<ferry::wire_input_archive, T, specialization::non_member_load_save> : std::true_type {};
}  // namespace cereal
