#pragma once

// Values to bytes and back.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ferry/base/bytes.hpp>
#include <ferry/base/error.hpp>
#include <ferry/wire/archive.hpp>
#include <ferry/wire/message.hpp>
#include <ferry/wire/serialisable.hpp>
#include <ferry/wire/standard_types.hpp>
#include <ferry/wire/tensor_archive.hpp>

namespace ferry::inline v0 {

namespace detail {

template <class T>
struct wire_type_of {
  using type = T;
};
template <class C, class Traits>
struct wire_type_of<std::basic_string_view<C, Traits>> {
  using type = std::basic_string<C, Traits>;
};
template <class T>
struct wire_type_of<std::span<T>> {
  using type = std::vector<std::remove_cv_t<T>>;
};
template <class T, std::size_t N>
  requires(N != std::dynamic_extent)
struct wire_type_of<std::span<T, N>> {
  using type = std::array<std::remove_cv_t<T>, N>;
};

// A type that can be sent where a foreign tensor is received: its view, for example.
template <class T>
concept as_tensor = requires(const T& value) {
  { tensor_traits<T>::to_tensor(value) } -> std::same_as<tensor>;
};

template <class Wire, class T>
concept written_as_vector = requires {
  typename Wire::value_type;
  requires std::is_same_v<Wire, std::vector<typename Wire::value_type>>;
  requires std::is_convertible_v<const T&, std::span<const typename Wire::value_type>>;
};

template <class Wire>
struct span_of_array;  // of another type: none
template <class E, std::size_t N>
struct span_of_array<std::array<E, N>> {
  using type = std::span<const E, N>;
};
template <class Wire, class T>
concept written_as_array = std::is_convertible_v<const T&, typename span_of_array<Wire>::type>;
template <class Wire>
Wire array_of(typename span_of_array<Wire>::type elements) {
  Wire copy{};
  for (std::size_t i = 0; i != elements.size(); ++i) copy[i] = elements[i];
  return copy;
}

/// Whether the encoding of a `Wire` can be made of a T: a T is one, or converts to one implicitly, as an argument does.
template <class Wire, class T>
inline constexpr bool encodable_as = !(std::is_null_pointer_v<T> && std::is_same_v<Wire, std::string>)&&(
    std::is_same_v<T, Wire> || std::is_convertible_v<const T&, Wire> ||
    (std::is_same_v<Wire, std::string> && std::is_convertible_v<const T&, std::string_view>) ||
    written_as_vector<Wire, T> || written_as_array<Wire, T> || (foreign_tensor<Wire> && as_tensor<T>));

[[noreturn]] void throw_null_text();
[[noreturn]] void rethrow_encode_error(const cereal::Exception& problem);
[[noreturn]] void rethrow_decode_error(const cereal::Exception& problem);

/// Writes `value` in the encoding of type Wire, without constructing one where that can be avoided: text for a string,
/// a contiguous range for a vector, a view for a matrix.
template <class Wire, class T>
inline void encode_as(wire_output_archive& archive, const T& value) {
  if constexpr (std::is_same_v<Wire, T>) {
    archive(value);
  } else if constexpr (std::is_same_v<Wire, std::string> && std::is_convertible_v<const T&, std::string_view>) {
    if constexpr (std::is_pointer_v<T>) {
      if (value == nullptr) throw_null_text();
    }
    archive(static_cast<std::string_view>(value));
  } else if constexpr (written_as_vector<Wire, T>) {
    archive(static_cast<std::span<const typename Wire::value_type>>(value));
  } else if constexpr (written_as_array<Wire, T>) {
    archive(array_of<Wire>(value));
  } else if constexpr (foreign_tensor<Wire> && as_tensor<T>) {
    archive.write_tensor(tensor_traits<T>::to_tensor(value));
  } else {
    const Wire converted = static_cast<Wire>(value);
    archive(converted);
  }
}

template <class... Wire, class... Ts>
inline void encode_with(byte_buffer& bytes, std::vector<tensor>& tensors, handle_writer* handles, const Ts&... values) {
  static_assert(sizeof...(Wire) == sizeof...(Ts));
  (require_wire_serialisable<Wire>(), ...);
  if constexpr (sizeof...(Ts) != 0) {
    wire_output_archive archive(bytes, tensors, handles);
    try {
      (encode_as<Wire>(archive, values), ...);
    } catch (const cereal::Exception& problem) {
      rethrow_encode_error(problem);
    }
  }
}

}  // namespace detail

/// What a parameter or result of type T is decoded as: T without const and reference; a string for a string_view, a
/// vector for a span, an array for a span of fixed extent.
template <class T>
using wire_type = typename detail::wire_type_of<std::remove_cvref_t<T>>::type;

/// Appends the encodings of `values` to `bytes` and the tensors among them to `tensors`, which must be empty.
/// `Wire...` are the types that the receiver decodes; values of other types are converted. Throws
/// errc::not_serialisable, errc::limit_exceeded, and what the values' serialisers throw; then `bytes` holds part of the
/// encoding.
template <class... Wire, class... Ts>
inline void encode_values(byte_buffer& bytes, std::vector<tensor>& tensors, const Ts&... values) {
  detail::encode_with<Wire...>(bytes, tensors, nullptr, values...);
}

/// The same as the payload of a message, before its first extension record.
template <class... Wire, class... Ts>
inline void encode_payload(outgoing_message& message, const Ts&... values) {
  detail::encode_with<Wire...>(message.bytes, message.tensors, message.handles, values...);
}
namespace detail {
template <class... Ts>
inline void decode_with(std::span<const std::byte> bytes, std::span<const tensor> tensors, const wire_limits& limits,
                        const handle_reader* handles, Ts&... values) {
  (require_wire_serialisable<Ts>(), ...);
  wire_input_archive archive(bytes, tensors, limits, handles);
  try {
    if constexpr (sizeof...(Ts) != 0) (archive(values), ...);
  } catch (const cereal::Exception& problem) {
    rethrow_decode_error(problem);
  }
  archive.finish();
}
}  // namespace detail

/// Decodes `values`, in order, from the whole of `bytes` and `tensors`. Throws errc::truncated, errc::malformed,
/// errc::limit_exceeded, and what the values' serialisers throw; then the values are in any valid state.
template <class... Ts>
inline void decode_values(std::span<const std::byte> bytes, std::span<const tensor> tensors, const wire_limits& limits,
                          Ts&... values) {
  detail::decode_with(bytes, tensors, limits, nullptr, values...);
}

/// The same from the payload of a message.
template <class... Ts>
inline void decode_payload(const inbound_message& message, const wire_limits& limits, Ts&... values) {
  detail::decode_with(message.payload, message.tensors, limits, message.handles.get(), values...);
}

namespace detail {

/// A list of tensors in any archive, read one by one: a wrong count fails at the end of the archive's data.
struct archived_tensors {
  std::vector<tensor> list;

  template <class Archive>
  void save(Archive& archive) const {
    archive(cereal::make_size_tag(static_cast<cereal::size_type>(list.size())));
    for (const tensor& each : list) archive(each);
  }
  template <class Archive>
  void load(Archive& archive) {
    cereal::size_type count = 0;
    archive(cereal::make_size_tag(count));
    list.clear();
    for (; count != 0; --count) {
      tensor next;
      archive(next);
      list.push_back(std::move(next));
    }
  }
};

}  // namespace detail

/// Encoded values: bytes, and the tensors among the values (handles; the data is not copied).
struct serialized {
  std::vector<std::byte> bytes;
  std::vector<tensor> tensors;

  // It can be a member of a value that is sent, and any cereal archive can write it to a file.
  template <class Archive>
  void save(Archive& archive) const {
    if constexpr (detail::other_output_archive<Archive>) {
      archive(cereal::make_nvp("size", std::uint64_t{bytes.size()}));
      if (!bytes.empty()) detail::save_block(archive, bytes);
      const detail::archived_tensors list{tensors};
      archive(cereal::make_nvp("tensors", list));
    } else {
      archive(bytes, tensors);
    }
  }
  /// Throws as load of a tensor does.
  template <class Archive>
  void load(Archive& archive) {
    if constexpr (detail::other_input_archive<Archive>) {
      std::uint64_t size = 0;
      archive(cereal::make_nvp("size", size));
      bytes.clear();
      const auto make_room = [&] {
        bytes.resize(static_cast<std::size_t>(size));
        return std::span<std::byte>(bytes);
      };
      if (size != 0) detail::load_block(archive, size, make_room);
      detail::archived_tensors list;
      archive(cereal::make_nvp("tensors", list));
      tensors = std::move(list.list);
    } else {
      archive(bytes, tensors);
    }
  }
};

namespace detail {

// An object, not a function: cereal looks for functions of this name beside every type of this namespace.
struct serialize_fn {
  template <class... Ts>
  [[nodiscard]] serialized operator()(const Ts&... values) const {
    byte_buffer bytes;
    serialized result;
    encode_values<wire_type<Ts>...>(bytes, result.tensors, values...);
    result.bytes.assign(bytes.data(), bytes.data() + bytes.size());
    return result;
  }
};

}  // namespace detail

/// serialize(values...): their encoding. Throws as encode_values does.
inline constexpr detail::serialize_fn serialize{};

/// deserialize<T>(from) and deserialize<A, B>(from): the value, or a std::tuple of them, that serialize wrote. The
/// types must be those that were written. The bytes are untrusted: what decoding allocates is charged against `limits`
/// first. Throws as decode_values does.
template <class... Ts>
  requires(sizeof...(Ts) != 0)
[[nodiscard]] auto deserialize(std::span<const std::byte> bytes, std::span<const tensor> tensors,
                               const wire_limits& limits = {}) {
  static_assert((std::is_same_v<Ts, std::remove_cvref_t<Ts>> && ...),
                "ferry: deserialize returns values: give their types without const and reference");
  std::tuple<Ts...> values;
  std::apply([&](Ts&... each) { decode_values(bytes, tensors, limits, each...); }, values);
  if constexpr (sizeof...(Ts) == 1) {
    return std::get<0>(std::move(values));
  } else {
    return values;
  }
}

template <class... Ts>
  requires(sizeof...(Ts) != 0)
[[nodiscard]] auto deserialize(const serialized& from, const wire_limits& limits = {}) {
  return deserialize<Ts...>(from.bytes, from.tensors, limits);
}

}  // namespace ferry::inline v0
