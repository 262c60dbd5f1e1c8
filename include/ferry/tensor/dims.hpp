#pragma once

// Short lists of integers: shapes, strides, axis orders.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ferry::inline v0 {

/// The most dimensions a tensor can have.
inline constexpr std::size_t max_rank = 32;

/// Up to 32 integers; up to 6 are stored without a heap allocation. A value type: the sizes of a shape, strides in
/// elements, or a list of axes. Making a longer one throws errc::bad_shape.
class dims {
 public:
  dims() noexcept : inline_{} {}
  dims(std::initializer_list<std::int64_t> values) : dims(values.begin(), values.size()) {}
  /// From values of any one integer type: zeros({v.size(), w.size()}).
  template <std::integral T>
  dims(std::initializer_list<T> values) : dims(values.size(), 0) {
    std::int64_t* out = begin();
    for (const T value : values) *out++ = checked(value);
  }
  dims(std::span<const std::int64_t> values) : dims(values.data(), values.size()) {}     // NOLINT: a list is a list
  dims(const std::vector<std::int64_t>& values) : dims(values.data(), values.size()) {}  // NOLINT
  template <class Iterator>
    requires std::input_iterator<Iterator>
  dims(Iterator first, std::size_t count) : dims(count, std::int64_t{0}) {
    for (std::int64_t* out = begin(); out != end(); ++first) *out++ = *first;
  }
  /// `count` times `value`.
  template <std::same_as<std::size_t> Count>
  dims(Count count, std::int64_t value) : inline_{}, rank_(check_rank(count)) {
    std::int64_t* const out = count > inline_capacity ? heap_ = new std::int64_t[count] : inline_;
    for (std::size_t i = 0; i != count; ++i) out[i] = value;
  }
  dims(const dims& other) : dims(other.begin(), other.size()) {}
  dims(dims&& other) noexcept : inline_{} { take(other); }
  dims& operator=(const dims& other) {
    if (this != &other) *this = dims(other);
    return *this;
  }
  dims& operator=(dims&& other) noexcept {
    if (this != &other) {
      release();
      take(other);
    }
    return *this;
  }
  ~dims() { release(); }

  [[nodiscard]] std::size_t size() const noexcept { return rank_; }
  [[nodiscard]] bool empty() const noexcept { return rank_ == 0; }
  [[nodiscard]] const std::int64_t* data() const noexcept { return rank_ > inline_capacity ? heap_ : inline_; }
  [[nodiscard]] std::int64_t* data() noexcept { return rank_ > inline_capacity ? heap_ : inline_; }
  [[nodiscard]] const std::int64_t* begin() const noexcept { return data(); }
  [[nodiscard]] const std::int64_t* end() const noexcept { return data() + rank_; }
  [[nodiscard]] std::int64_t* begin() noexcept { return data(); }
  [[nodiscard]] std::int64_t* end() noexcept { return data() + rank_; }
  /// Unchecked.
  [[nodiscard]] std::int64_t operator[](std::size_t axis) const noexcept { return data()[axis]; }
  [[nodiscard]] std::int64_t& operator[](std::size_t axis) noexcept { return data()[axis]; }
  operator std::span<const std::int64_t>() const noexcept { return {data(), rank_}; }  // NOLINT
  [[nodiscard]] std::vector<std::int64_t> to_vector() const { return {begin(), end()}; }

  friend bool operator==(const dims& a, const dims& b) noexcept {
    if (a.size() != b.size()) return false;
    for (std::size_t axis = 0; axis != a.size(); ++axis) {
      if (a[axis] != b[axis]) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t inline_capacity = 6;

  static std::uint8_t check_rank(std::size_t rank) {
    if (rank > max_rank) refuse_rank(rank);
    return static_cast<std::uint8_t>(rank);
  }
  template <class T>
  static std::int64_t checked(T value) {
    if (!std::in_range<std::int64_t>(value)) refuse_value();
    return static_cast<std::int64_t>(value);
  }
  [[noreturn]] static void refuse_rank(std::size_t rank);
  [[noreturn]] static void refuse_value();

  void take(dims& other) noexcept {
    rank_ = other.rank_;
    if (rank_ > inline_capacity) {
      heap_ = other.heap_;
    } else {
      for (std::size_t i = 0; i != inline_capacity; ++i) inline_[i] = other.inline_[i];
    }
    other.rank_ = 0;
  }
  void release() noexcept {
    if (rank_ > inline_capacity) delete[] heap_;
    rank_ = 0;
  }

  union {
    std::int64_t inline_[inline_capacity];
    std::int64_t* heap_;
  };
  std::uint8_t rank_ = 0;
};

/// "[2, 3]".
[[nodiscard]] std::string to_string(const dims& values);

/// The product of the sizes. Throws errc::bad_shape if a size is negative or the product does not fit.
[[nodiscard]] std::int64_t element_count(std::span<const std::int64_t> shape);

/// The strides, in elements, of a dense row-major tensor of this shape (an axis of size 0 counts as 1).
/// Throws errc::bad_shape as element_count does.
[[nodiscard]] dims contiguous_strides(std::span<const std::int64_t> shape);

}  // namespace ferry::inline v0
