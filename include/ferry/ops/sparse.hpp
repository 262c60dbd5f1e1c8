#pragma once

// Tensors of which only some places are stored (COO: coordinates and values): gradients of tables of embeddings.
//
//   const ferry::sparse_tensor s(ferry::tensor_of<std::int64_t>({{0, 2, 0}}),   // one sparse axis: rows 0, 2, 0
//                                ferry::ones({3, 4}), {1000, 4});               // a row of 4 for each
//   ferry::tensor dense = s.to_dense();                                         // row 0 is 2, row 2 is 1, others are 0

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include <ferry/base/type_name.hpp>
#include <ferry/device/device.hpp>
#include <ferry/tensor/dims.hpp>
#include <ferry/tensor/dtype.hpp>
#include <ferry/tensor/scalar.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// A tensor of `shape` that is zero but for some places. The first sparse_axes() axes are indexed: column i of `indices`,
/// of i64 and [sparse_axes, count], is the place of values[i]; `values` is [count, dense axes...]. A place may come several times:
/// its values are added. A value type: copies are cheap and share both tensors, which are not to be written while others have
/// them. Undefined by default: everything except defined() and assignment throws errc::invalid_argument then.
///
/// Operations on values (not coalesce() without a place that comes twice, to(), and what sends it) need i32, i64, f32 or f64.
/// They are made of those on tensors: they run on the current stream, and gradients go through them to the values. On the CPU
/// indices are checked; on a device, the host does not wait to look at them: a place that does not exist is left out, or
/// stands for another one.
///
/// Between workers and in archives (include <ferry/wire/tensor_archive.hpp>) only indices and values travel, in the size that they
/// have. Shape and indices that arrive are checked as those of a user; the shape is still what a peer claims: look at it
/// before to_dense(), which allocates that much. Archives other than ferry's take it from the CPU.
///
/// Threads: as for the tensors.
class sparse_tensor {
 public:
  sparse_tensor() noexcept = default;
  /// Throws errc::invalid_argument for undefined tensors and, on the CPU, indices outside of the shape; errc::bad_dtype for
  /// indices that are not of i64; errc::bad_device for tensors on two devices; errc::bad_shape if the shapes do not fit, there is no
  /// sparse axis, or the number of elements of the whole does not fit 63 bits.
  sparse_tensor(tensor indices, tensor values, dims shape);
  /// Of the places along the first axes, at least one, where an element is not 0; coalesced. The host waits for a tensor on a
  /// device. Throws errc::bad_shape for another number of axes, errc::bad_dtype.
  [[nodiscard]] static sparse_tensor from_dense(const tensor& t, std::size_t sparse_axes);

  [[nodiscard]] bool defined() const noexcept { return values_.defined(); }
  [[nodiscard]] const tensor& indices() const { return need_defined().indices_; }
  [[nodiscard]] const tensor& values() const { return need_defined().values_; }
  [[nodiscard]] const dims& shape() const { return need_defined().shape_; }
  [[nodiscard]] std::size_t sparse_axes() const { return static_cast<std::size_t>(indices().size(0)); }
  /// The number of values: places that come several times count as often.
  [[nodiscard]] std::int64_t nnz() const { return indices().size(1); }
  [[nodiscard]] ferry::dtype dtype() const { return values().dtype(); }
  [[nodiscard]] ferry::device device() const { return values().device(); }
  /// Whether it is known that places ascend and come once each. Of one that arrived on a device, this is what its sender
  /// said.
  [[nodiscard]] bool is_coalesced() const { return need_defined().coalesced_; }

  /// Places in ascending order, once each, with the sum of their values; itself if it is coalesced. The host has to know the
  /// indices: it waits for those on a device. Throws errc::invalid_argument for indices outside of the shape.
  [[nodiscard]] sparse_tensor coalesce() const;
  /// The whole. Allocates it.
  [[nodiscard]] tensor to_dense() const;
  /// Both tensors as tensor::to.
  [[nodiscard]] sparse_tensor to(ferry::device where) const;
  /// The values.
  [[nodiscard]] sparse_tensor to(ferry::dtype type) const;

  template <class Archive>
  void save(Archive& archive) const {
    const std::uint8_t record = !defined() ? 0 : coalesced_ ? 2 : 1;
    archive(record);
    if (record == 0) return;
    archive(static_cast<std::uint64_t>(shape_.size()));
    for (const std::int64_t size : shape_) archive(size);
    archive(without_repeats(indices_), without_repeats(values_));
  }
  /// Throws errc::malformed for what is not a sparse tensor, and what the archive throws; then it is as before.
  template <class Archive>
  void load(Archive& archive) {
    std::uint8_t record = 0;
    archive(record);
    if (record == 0) {
      *this = {};
      return;
    }
    std::uint64_t rank = 0;
    archive(rank);
    dims shape = archived_shape(record, rank);
    for (std::int64_t& size : shape) archive(size);
    tensor indices;
    tensor values;
    archive(indices, values);
    *this = from_archive(record, std::move(indices), std::move(values), std::move(shape));
  }

 private:
  [[nodiscard]] const sparse_tensor& need_defined() const {
    if (!defined()) refuse_undefined();
    return *this;
  }
  [[noreturn]] static void refuse_undefined();
  // The other parts are as they were; nothing is checked.
  [[nodiscard]] sparse_tensor with(tensor indices, tensor values, bool coalesced) const;
  // A number for each place, on the device of the indices.
  [[nodiscard]] tensor flat_places() const;
  [[nodiscard]] dims flat_shape() const;

  static tensor without_repeats(const tensor& t);
  static dims archived_shape(std::uint8_t record, std::uint64_t rank);
  static sparse_tensor from_archive(std::uint8_t record, tensor indices, tensor values, dims shape);

  friend sparse_tensor add(const sparse_tensor& a, const sparse_tensor& b, const scalar& alpha);
  friend tensor add(const tensor& a, const sparse_tensor& b, const scalar& alpha);
  friend const tensor& add_(const tensor& a, const sparse_tensor& b, const scalar& alpha);
  friend sparse_tensor mul(const sparse_tensor& a, const scalar& b);
  friend sparse_tensor concatenate(std::span<const sparse_tensor> all);

  tensor indices_;
  tensor values_;
  dims shape_;
  bool coalesced_ = false;
};

// Both of one shape, dtype and device: errc::bad_shape, errc::bad_dtype, errc::bad_device.

/// a + alpha * b, with the values of both: places may come several times. Throws errc::bad_shape also for other numbers of sparse
/// axes.
[[nodiscard]] sparse_tensor add(const sparse_tensor& a, const sparse_tensor& b, const scalar& alpha = 1);
[[nodiscard]] tensor add(const tensor& a, const sparse_tensor& b, const scalar& alpha = 1);
/// a += alpha * b; touches the places of b alone. Returns `a`. With several sparse axes, these must be one in memory
/// (tensor::view), else errc::bad_shape.
const tensor& add_(const tensor& a, const sparse_tensor& b, const scalar& alpha = 1);
/// Of the values.
[[nodiscard]] sparse_tensor mul(const sparse_tensor& a, const scalar& b);
/// The sum of several, at least one, as add().
[[nodiscard]] sparse_tensor concatenate(std::span<const sparse_tensor> all);

/// Whether both are defined, with the same shape, sparse axes, dtype and, once coalesced, places and values; or neither is. Both on
/// the CPU.
[[nodiscard]] bool equal(const sparse_tensor& a, const sparse_tensor& b);

/// The same name in the signatures of methods, whatever the version namespace.
template <>
struct type_name_traits<sparse_tensor> {
  static constexpr std::string_view name = "sparse_tensor";
};

}  // namespace ferry::inline v0
