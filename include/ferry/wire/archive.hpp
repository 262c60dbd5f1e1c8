#pragma once

// cereal archives over contiguous memory. Numbers are little-endian at their own width, containers a 64-bit count and
// the elements; tensors go beside the payload, which holds their index. docs/protocol.md specifies every byte.
//
// Every type with a cereal serialiser works. Of cereal's own, those for string, vector, array, pair, tuple and optional
// are included with <ferry/wire/serialize.hpp>; for others include <cereal/types/map.hpp> and so on.

#include <ferry/config.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include <cereal/cereal.hpp>

#include <ferry/base/bytes.hpp>
#include <ferry/base/detail/little_endian.hpp>
#include <ferry/tensor/tensor.hpp>
#include <ferry/wire/detail/element_cost.hpp>
#include <ferry/wire/limits.hpp>

namespace ferry::inline v0 {
namespace detail {

struct saved_pointers;  // objects behind shared_ptr seen so far
struct loaded_pointers;
struct saved_tensors;

/// Transports values of a higher layer beside the payload, as tensors are: the payload holds their index. The rpc layer
/// implements both interfaces, for references to objects of other workers.
class handle_writer {
 public:
  virtual std::uint32_t put(const void* handle) = 0;

 protected:
  ~handle_writer() = default;
};
class handle_reader {
 public:
  virtual ~handle_reader() = default;
  /// The handle lives as long as the reader. Throws errc::malformed.
  [[nodiscard]] virtual void* get(std::uint32_t index) const = 0;
};

/// Numbers with one encoding on every machine.
template <class T>
concept wire_number = std::is_arithmetic_v<T> && sizeof(T) <= 8;

}  // namespace detail

/// Appends values to a byte_buffer and the tensors among them to a list. One archive encodes one payload. Not
/// thread-safe. Throws errc::limit_exceeded for nesting beyond the limit, errc::not_serialisable, and what serialisers
/// of users throw.
class wire_output_archive : public cereal::OutputArchive<wire_output_archive, cereal::AllowEmptyClassElision> {
 public:
  /// All must outlive the archive. `tensors` must be empty. Without `handles` the encoding is not a message between
  /// workers.
  wire_output_archive(byte_buffer& bytes, std::vector<tensor>& tensors, detail::handle_writer* handles = nullptr,
                      std::uint32_t max_depth = wire_limits{}.max_depth);
  ~wire_output_archive() noexcept override;
  wire_output_archive(const wire_output_archive&) = delete;
  wire_output_archive& operator=(const wire_output_archive&) = delete;

  void write(const void* data, std::size_t bytes) { bytes_.append(data, bytes); }
  template <detail::wire_number T>
  void write_number(T value) {
    detail::store_le(bytes_.extend(sizeof(T)), value);
  }
  /// A count and as many contiguous elements: the encoding of a vector.
  template <class T>
  void write_counted(const T* data, std::size_t count) {
    std::byte* out = bytes_.extend(sizeof(std::uint64_t) + count * sizeof(T));
    detail::store_le(out, std::uint64_t{count});
    if (count != 0) std::memcpy(out + sizeof(std::uint64_t), data, count * sizeof(T));
  }
  /// The same tensor twice is one tensor at the receiver, too. An undefined tensor arrives undefined.
  void write_tensor(const tensor& value);
  /// Null outside messages.
  [[nodiscard]] detail::handle_writer* handles() const noexcept { return handles_; }

  void enter() {
    if (++depth_ > max_depth_) too_deep();
  }
  void leave() noexcept { --depth_; }

  /// Called by cereal's serialisers: the number of the object, with the top bit set if it is new. Objects of different
  /// types at one address (a struct and its first member) are different objects.
  template <class T>
  std::uint32_t registerSharedPointer(const std::shared_ptr<T>& pointer) {  // NOLINT: cereal's name
    return pointer ? register_pointer(std::shared_ptr<const void>(pointer), typeid(std::remove_cv_t<T>)) : 0;
  }

 private:
  std::uint32_t register_pointer(std::shared_ptr<const void> pointer, const std::type_info& type);
  [[noreturn]] void too_deep() const;

  byte_buffer& bytes_;
  std::vector<tensor>& tensors_;
  detail::handle_writer* handles_;
  std::uint32_t depth_ = 0;
  std::uint32_t max_depth_;
  std::unique_ptr<detail::saved_pointers> pointers_;
  std::unique_ptr<detail::saved_tensors> many_tensors_;
};

/// Reads what wire_output_archive wrote. The bytes are untrusted: counts are charged against `limits` before memory is
/// allocated for them. Not thread-safe. Throws errc::truncated, errc::limit_exceeded, errc::malformed; exceptions of
/// users' serialisers pass through (cereal's own errors are cereal::Exception).
class wire_input_archive : public cereal::InputArchive<wire_input_archive, cereal::AllowEmptyClassElision> {
 public:
  /// All must outlive the archive.
  wire_input_archive(std::span<const std::byte> bytes, std::span<const tensor> tensors, const wire_limits& limits = {},
                     const detail::handle_reader* handles = nullptr);
  ~wire_input_archive() noexcept override;
  wire_input_archive(const wire_input_archive&) = delete;
  wire_input_archive& operator=(const wire_input_archive&) = delete;

  /// Bytes not yet read.
  [[nodiscard]] std::size_t left() const noexcept { return static_cast<std::size_t>(end_ - next_); }
  /// Moves past `count` bytes and returns where they start.
  const std::byte* take(std::size_t count) {
    if (count > left()) ran_out(count);
    const std::byte* at = next_;
    next_ += count;
    return at;
  }
  template <detail::wire_number T>
  [[nodiscard]] T read_number() {
    if constexpr (std::is_same_v<T, bool>) {
      const auto value = detail::load_le<std::uint8_t>(take(1));
      if (value > 1) bad_bool(value);
      return value != 0;
    } else {
      return detail::load_le<T>(take(sizeof(T)));
    }
  }
  /// Reads a count of elements and charges for them.
  [[nodiscard]] std::size_t read_count(detail::element_cost cost) {
    const auto count = read_number<std::uint64_t>();
    if (count > left() && cost.wire != 0) count_beyond_end(count, cost.wire);
    if (count * cost.wire > left()) count_beyond_end(count, cost.wire);
    charge(count, cost.memory);
    return static_cast<std::size_t>(count);
  }
  /// As read_count, for the container entered last.
  [[nodiscard]] std::size_t read_size_tag() {
    const detail::element_cost cost = elements_;
    elements_ = {};
    return read_count(cost);
  }
  [[nodiscard]] tensor read_tensor();
  /// As read_tensor, but a tensor that was read before is returned as a copy, which has the same slot: to the sender both
  /// are one tensor.
  [[nodiscard]] tensor read_unshared_tensor();
  /// Null outside messages, and in messages without handles.
  [[nodiscard]] const detail::handle_reader* handles() const noexcept { return handles_; }
  void check_bools(const std::byte* data, std::size_t count) const;
  /// Call at the end: bytes or tensors left over are errc::malformed.
  void finish() const {
    if (next_ != end_) left_over();
    if (tensors_used_ != tensors_.size()) tensors_left_over();
  }

  // Called around every value (see below).
  void enter(detail::element_cost elements, std::size_t bytes) {
    if (++depth_ > max_depth_) too_deep();
    elements_ = elements;
    if (pointee_) {
      pointee_ = false;
      charge(1, bytes);
    }
  }
  void leave() noexcept {
    --depth_;
    elements_ = {};
  }
  void enter_unique_pointer() noexcept { pointee_ = true; }
  /// `constructed`: the object exists before its contents are read, so that these may refer back to it.
  void enter_shared_pointer(const std::type_info& type, bool constructed);
  void leave_unique_pointer() noexcept { pointee_ = false; }
  void leave_shared_pointer(bool constructed) noexcept;

  // Called by cereal's serialisers. The base class would return any object as any type.
  std::shared_ptr<void> getSharedPointer(std::uint32_t id);                            // NOLINT: cereal's name
  void registerSharedPointer(std::uint32_t id, const std::shared_ptr<void>& pointer);  // NOLINT: cereal's name

 private:
  void charge(std::uint64_t count, std::uint64_t bytes) {
    if (bytes != 0 && count > budget_ / bytes) over_budget(count, bytes);
    budget_ -= count * bytes;
  }
  [[nodiscard]] std::string where() const;
  [[noreturn]] void ran_out(std::size_t wanted) const;
  [[noreturn]] void bad_bool(std::uint8_t value) const;
  [[noreturn]] void count_beyond_end(std::uint64_t count, std::size_t bytes) const;
  [[noreturn]] void over_budget(std::uint64_t count, std::uint64_t bytes) const;
  [[noreturn]] void too_deep() const;
  [[noreturn]] void left_over() const;
  [[noreturn]] void tensors_left_over() const;

  const std::byte* begin_;
  const std::byte* next_;
  const std::byte* end_;
  std::uint64_t budget_;
  std::uint32_t depth_ = 0;
  std::uint32_t max_depth_;
  detail::element_cost elements_;  // of the container entered last
  bool pointee_ = false;           // the next value is the object behind a pointer
  bool constructed_ = false;
  const std::type_info* expected_ = nullptr;  // what the shared_ptr entered last points to
  std::span<const tensor> tensors_;
  std::size_t tensors_used_ = 0;
  const detail::handle_reader* handles_;
  std::unique_ptr<detail::loaded_pointers> pointers_;
};

namespace detail {
template <class Wrapper>
inline constexpr bool constructed_first =
    !cereal::traits::has_load_and_construct<pointee_t<Wrapper>, wire_input_archive>::value;
}  // namespace detail

// cereal calls these, found by argument-dependent lookup, around every value; for the value's own type, before any of
// it is read: this is where a container's element type is known.

template <class T>
inline void prologue(wire_output_archive& archive, const T&) {
  if constexpr (detail::nests<T>) archive.enter();
}
template <class T>
inline void epilogue(wire_output_archive& archive, const T&) {
  if constexpr (detail::nests<T>) archive.leave();
}
template <class T>
inline void prologue(wire_input_archive& archive, const T&) {
  if constexpr (detail::nests<T>) archive.enter(detail::cost_of_elements<T>, detail::object_size<T>);
  if constexpr (detail::unique_pointer_wrapper<T>) archive.enter_unique_pointer();
  if constexpr (detail::shared_pointer_wrapper<T>) {
    archive.enter_shared_pointer(typeid(detail::pointee_t<T>), detail::constructed_first<T>);
  }
}
template <class T>
inline void epilogue(wire_input_archive& archive, const T&) {
  if constexpr (detail::nests<T>) archive.leave();
  if constexpr (detail::unique_pointer_wrapper<T>) archive.leave_unique_pointer();
  if constexpr (detail::shared_pointer_wrapper<T>) archive.leave_shared_pointer(detail::constructed_first<T>);
}

template <detail::wire_number T>
inline void save(wire_output_archive& archive, const T& value) {
  archive.write_number(value);
}
template <detail::wire_number T>
inline void load(wire_input_archive& archive, T& value) {
  static_assert(
      !std::is_const_v<T>,
      "ferry: a const object cannot be decoded into. A serialize() that reads and writes is not a const member "
      "function; where reading differs from writing, there are save() const and load()");
  if constexpr (!std::is_const_v<T>) value = archive.read_number<T>();
}

template <class T>
inline void save(wire_output_archive& archive, const cereal::NameValuePair<T>& pair) {
  archive(pair.value);
}
template <class T>
inline void load(wire_input_archive& archive, cereal::NameValuePair<T>& pair) {
  archive(pair.value);
}

template <class T>
inline void save(wire_output_archive& archive, const cereal::SizeTag<T>& tag) {
  archive.write_number(static_cast<std::uint64_t>(tag.size));
}
template <class T>
inline void load(wire_input_archive& archive, cereal::SizeTag<T>& tag) {
  tag.size = static_cast<std::remove_reference_t<T>>(archive.read_size_tag());
}

template <class T>
inline void save(wire_output_archive& archive, const cereal::BinaryData<T>& data) {
  if (data.data) archive.write(data.data, static_cast<std::size_t>(data.size));  // std::array<T, 0>: none, of one byte
}
template <class T>
inline void load(wire_input_archive& archive, cereal::BinaryData<T>& data) {
  using element = std::remove_cv_t<std::remove_all_extents_t<std::remove_pointer_t<std::remove_reference_t<T>>>>;
  const auto count = data.data ? static_cast<std::size_t>(data.size) : 0;
  const std::byte* from = archive.take(count);
  if constexpr (std::is_same_v<element, bool>) archive.check_bools(from, count);
  if (count != 0) std::memcpy(data.data, from, count);
}

}  // namespace ferry::inline v0

CEREAL_REGISTER_ARCHIVE(ferry::wire_output_archive)
CEREAL_REGISTER_ARCHIVE(ferry::wire_input_archive)
CEREAL_SETUP_ARCHIVE_TRAITS(ferry::wire_input_archive, ferry::wire_output_archive)
