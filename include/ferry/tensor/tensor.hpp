#pragma once

// ferry::tensor: a strided view of typed elements, as a handle with identity.

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <ferry/device/device.hpp>
#include <ferry/tensor/dims.hpp>
#include <ferry/tensor/dtype.hpp>
#include <ferry/tensor/scalar.hpp>
#include <ferry/tensor/storage.hpp>

namespace ferry::inline v0 {

class tensor;
class tensor_hooks;  // <ferry/tensor/hooks.hpp>

/// Means "up to the end" in tensor::slice.
inline constexpr std::int64_t to_end = std::numeric_limits<std::int64_t>::max();

namespace detail {

struct tensor_body {
  std::atomic<std::uint32_t> references{1};  // handles
  std::atomic<std::uint32_t> watchers{1};    // weak handles, and one for all handles together: they keep the address
  ferry::dtype type{};
  bool contiguous = true;
  std::int64_t offset = 0;  // in elements
  std::int64_t count = 0;
  ferry::storage bytes;
  dims shape;
  dims strides;  // in elements, none negative
  std::shared_ptr<tensor_hooks> slot;

  static void* operator new(std::size_t size);
  static void operator delete(void* memory, std::size_t size) noexcept;
};

/// The last handle is gone: elements and slot are released, and the body with the last weak handle.
void destroy(tensor_body* body) noexcept;
void drop_watcher(tensor_body* body) noexcept;
/// Another handle if there is still one; false otherwise.
bool revive(tensor_body* body) noexcept;
[[noreturn]] void refuse_undefined();
[[noreturn]] void refuse_dtype(ferry::dtype wanted, const tensor& t);
void check_index(const tensor& t, std::size_t axis, std::int64_t index);
[[noreturn]] void refuse_index_count(const tensor& t, std::size_t count);
[[noreturn]] void refuse_host_access(const tensor& t);
tensor adopt_body(tensor_body* body) noexcept;
/// Makes `t` what a packed copy of it would be, without copying, if nothing else can tell the difference: it is the only
/// handle, without weak ones and hooks, of the only tensor over a block of the CPU that ferry allocated, whose elements
/// are packed and are all of the block. False: `t` is as it was.
[[nodiscard]] bool become_copy(tensor& t);

}  // namespace detail

/// A tensor is a handle, as cheap as a pointer: copies are the same tensor (same_as), moves leave an undefined one.
/// Views are new tensors over the same storage. Constness is that of the handle, not of the elements.
///
/// Axes and indices may be negative, counting from the end. Everything except defined(), same_as(), id(), use_count() and
/// assignment needs a defined tensor and throws errc::invalid_argument otherwise. Arguments that do not fit the shape throw
/// errc::bad_shape.
///
/// Threads: one tensor may be read, copied and destroyed from several threads; writing elements or the slot while
/// another thread uses them needs the user's synchronisation.
class tensor {
 public:
  /// Undefined: refers to nothing.
  tensor() noexcept = default;
  tensor(const tensor& other) noexcept : body_(other.body_) {
    if (body_) body_->references.fetch_add(1, std::memory_order_relaxed);
  }
  tensor(tensor&& other) noexcept : body_(std::exchange(other.body_, nullptr)) {}
  tensor& operator=(tensor other) noexcept {
    std::swap(body_, other.body_);
    return *this;
  }
  ~tensor() {
    if (body_ && body_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) detail::destroy(body_);
  }

  /// False for a default-constructed or moved-from tensor.
  [[nodiscard]] bool defined() const noexcept { return body_ != nullptr; }
  /// Whether both handles are the same tensor (not: equal elements).
  [[nodiscard]] bool same_as(const tensor& other) const noexcept { return body_ == other.body_; }
  /// The same number for all handles of one tensor, for no other tensor while it has a handle or a weak handle, and 0 for
  /// an undefined one. Later tensors may get it again: keep a handle or a weak_tensor beside a stored id. std::hash<tensor>
  /// hashes it; containers compare with same_tensor.
  [[nodiscard]] std::uintptr_t id() const noexcept { return reinterpret_cast<std::uintptr_t>(body_); }
  /// The number of handles of this tensor (views are other tensors; storage().use_count() counts those). 0 if undefined.
  /// Exact while no other thread copies or drops handles.
  [[nodiscard]] std::size_t use_count() const noexcept {
    return body_ ? body_->references.load(std::memory_order_acquire) : 0;
  }

  [[nodiscard]] ferry::dtype dtype() const { return body().type; }
  [[nodiscard]] ferry::device device() const { return body().bytes.device(); }
  /// The number of dimensions.
  [[nodiscard]] std::size_t rank() const { return body().shape.size(); }
  [[nodiscard]] const dims& shape() const { return body().shape; }
  /// In elements, none negative; 0 where one element is repeated along a whole axis.
  [[nodiscard]] const dims& strides() const { return body().strides; }
  /// The length of an axis.
  [[nodiscard]] std::int64_t size(std::int64_t axis) const;
  [[nodiscard]] std::int64_t stride(std::int64_t axis) const;
  /// The number of (visible) elements.
  [[nodiscard]] std::int64_t numel() const { return body().count; }
  /// numel() times the size of an element.
  [[nodiscard]] std::size_t nbytes() const { return static_cast<std::size_t>(body().count) * dtype_size(body().type); }
  /// Whether the elements lie densely in row-major order.
  [[nodiscard]] bool is_contiguous() const { return body().contiguous; }
  /// The position of the first element in the storage, in elements.
  [[nodiscard]] std::int64_t storage_offset() const { return body().offset; }
  [[nodiscard]] const ferry::storage& storage() const { return body().bytes; }

  /// The address of the first element (device memory for a device tensor); may be null if there are no elements. Code
  /// that writes through it calls mark_written().
  [[nodiscard]] void* data() const {
    const auto& self = body();
    return self.bytes.data() + static_cast<std::size_t>(self.offset) * dtype_size(self.type);
  }
  /// The same, typed. Throws errc::bad_dtype if the elements are not of type T.
  template <element T>
  [[nodiscard]] T* data() const {
    if (body().type != dtype_of<T>) detail::refuse_dtype(dtype_of<T>, *this);
    return static_cast<T*>(data());
  }
  /// The element at the indices, one per axis; of a CPU tensor. Throws errc::bad_dtype, errc::bad_shape, and
  /// errc::bad_device for a tensor of another device.
  template <element T, std::convertible_to<std::int64_t>... Index>
  [[nodiscard]] T& at(Index... indices) const {
    T* first = data<T>();
    if (!device().is_cpu()) detail::refuse_host_access(*this);
    if (sizeof...(Index) != rank()) detail::refuse_index_count(*this, sizeof...(Index));
    std::int64_t offset = 0;
    std::size_t axis = 0;
    ((offset += element_offset(axis++, static_cast<std::int64_t>(indices))), ...);
    return first[offset];
  }
  /// The one element of a CPU tensor with one element, converted to T. Throws errc::bad_shape if there is another
  /// number, errc::bad_device for a tensor of another device.
  template <element T>
  [[nodiscard]] T item() const {
    T value;
    read_item(dtype_of<T>, &value);
    return value;
  }

  // Views: new tensors over the same storage.

  /// Elements start, start + step, ... below stop along an axis; out-of-range bounds are clamped. step >= 1.
  [[nodiscard]] tensor slice(std::int64_t axis, std::int64_t start = 0, std::int64_t stop = to_end,
                             std::int64_t step = 1) const;
  /// One index of an axis; the axis is removed.
  [[nodiscard]] tensor select(std::int64_t axis, std::int64_t index) const;
  /// `length` indices of an axis from `start`, which must exist.
  [[nodiscard]] tensor narrow(std::int64_t axis, std::int64_t start, std::int64_t length) const;
  /// Two axes swapped.
  [[nodiscard]] tensor transpose(std::int64_t first, std::int64_t second) const;
  /// The axes in another order: axis i of the result is axis order[i] of this.
  [[nodiscard]] tensor permute(const dims& order) const;
  /// Another shape of as many elements in the same row-major order. One size may be -1: it is computed.
  /// Throws errc::bad_shape where the strides do not allow a view.
  [[nodiscard]] tensor view(const dims& shape) const;
  /// A view where the strides allow it, else a copy.
  [[nodiscard]] tensor reshape(const dims& shape) const;
  /// The axes first..last joined into one; as reshape.
  [[nodiscard]] tensor flatten(std::int64_t first = 0, std::int64_t last = -1) const;
  /// A new axis of size 1 before `axis`.
  [[nodiscard]] tensor unsqueeze(std::int64_t axis) const;
  /// Without the axes of size 1.
  [[nodiscard]] tensor squeeze() const;
  /// Without this axis if its size is 1.
  [[nodiscard]] tensor squeeze(std::int64_t axis) const;
  /// Axes of size 1 stretched, and new ones added in front, with stride 0. -1 keeps a size.
  [[nodiscard]] tensor expand(const dims& shape) const;
  /// Any view whose elements lie within the storage. `offset` is counted from the start of the storage.
  [[nodiscard]] tensor as_strided(const dims& shape, const dims& strides, std::int64_t offset) const;

  // Copies. Those on a device are made in the order of the calling thread's current stream of it,
  // and the host does not wait. (On CUDA devices of a ferry built without nvcc, and on user-defined kinds, elements
  // that are not one block, or change their type, go through the host, which then waits.)

  /// This tensor if it is contiguous, else a contiguous copy.
  [[nodiscard]] tensor contiguous() const;
  /// A contiguous copy.
  [[nodiscard]] tensor clone() const;
  /// This tensor if it has that dtype, else a converted contiguous copy. Conversions to integers truncate and saturate
  /// (NaN becomes 0), integers to narrower ones wrap, complex numbers lose their imaginary part.
  [[nodiscard]] tensor to(ferry::dtype type) const;
  /// This tensor if it is on that device, else a contiguous copy on it. From the CPU: this tensor has been read when it
  /// returns, and the host does not wait. To the CPU: waits for the work queued on the current stream of the tensor's
  /// device, so that the elements are valid when it returns. Between devices of one kind: after the work of the current
  /// streams of both, and before work queued on them later; the host does not wait. Between devices of different kinds:
  /// through the CPU.
  /// Throws errc::bad_device, errc::out_of_memory, errc::device_failure.
  [[nodiscard]] tensor to(ferry::device where) const;

  // Writes in place: hooks first, then the storage's version, then the elements. Return this tensor. They throw
  // errc::bad_shape if one element of memory would be written for several of the tensor (after expand).

  /// Element by element from a tensor of equal shape, or one that expands to it, on any device; converts, and waits or
  /// does not, as to() does.
  const tensor& copy_(const tensor& source) const;  // NOLINT: handle semantics
  const tensor& fill_(const scalar& value) const;   // NOLINT
  /// Calls hooks and raises the version for elements that were, or are about to be, written through data() or at().
  void mark_written() const;

  /// The open slot: hooks that views, copies, writes and operations call (<ferry/tensor/hooks.hpp>); nullptr empties it.
  void set_slot(std::shared_ptr<tensor_hooks> hooks) const { body().slot = std::move(hooks); }
  [[nodiscard]] const std::shared_ptr<tensor_hooks>& slot() const { return body().slot; }
  /// Whether there are hooks in the slot; false for an undefined tensor.
  [[nodiscard]] bool has_slot() const noexcept { return body_ && body_->slot != nullptr; }
  /// What the hooks say; false without.
  [[nodiscard]] bool requires_grad() const;
  /// The number of writes in place to the storage so far, through any view.
  [[nodiscard]] std::uint64_t version() const { return body().bytes.version(); }

 private:
  friend tensor detail::adopt_body(detail::tensor_body* body) noexcept;
  friend bool detail::become_copy(tensor& t);
  friend class weak_tensor;

  [[nodiscard]] detail::tensor_body& body() const {
    if (!body_) detail::refuse_undefined();
    return *body_;
  }
  [[nodiscard]] std::int64_t element_offset(std::size_t axis, std::int64_t index) const {
    const std::int64_t size = body_->shape[axis];
    if (index < -size || index >= size) detail::check_index(*this, axis, index);
    return (index < 0 ? index + size : index) * body_->strides[axis];
  }
  void read_item(ferry::dtype type, void* out) const;

  detail::tensor_body* body_ = nullptr;
};

/// A handle that keeps a tensor's identity but not the tensor: its elements and its slot are released with the last
/// tensor handle, the id is given to no other tensor while a weak handle has it. For caches by identity, and for what a
/// slot remembers about tensors that refer to the slot. As cheap as a tensor.
///
/// Threads: as tensor; lock() may run while other threads drop the last handle.
class weak_tensor {
 public:
  /// Refers to nothing.
  weak_tensor() noexcept = default;
  weak_tensor(const tensor& t) noexcept : weak_tensor(t.body_) {}  // NOLINT: as std::weak_ptr
  weak_tensor(const weak_tensor& other) noexcept : weak_tensor(other.body_) {}
  weak_tensor(weak_tensor&& other) noexcept : body_(std::exchange(other.body_, nullptr)) {}
  weak_tensor& operator=(weak_tensor other) noexcept {
    std::swap(body_, other.body_);
    return *this;
  }
  ~weak_tensor() {
    if (body_) detail::drop_watcher(body_);
  }

  /// The tensor, or an undefined one if its last handle is gone.
  [[nodiscard]] tensor lock() const noexcept {
    return body_ && detail::revive(body_) ? detail::adopt_body(body_) : tensor();
  }
  /// Whether lock() would return an undefined tensor.
  [[nodiscard]] bool expired() const noexcept {
    return !body_ || body_->references.load(std::memory_order_acquire) == 0;
  }
  /// The tensor's id, also when it is gone.
  [[nodiscard]] std::uintptr_t id() const noexcept { return reinterpret_cast<std::uintptr_t>(body_); }

 private:
  explicit weak_tensor(detail::tensor_body* body) noexcept : body_(body) {
    if (body_) body_->watchers.fetch_add(1, std::memory_order_relaxed);
  }

  detail::tensor_body* body_ = nullptr;
};

/// Equality of identity, for containers: std::unordered_map<tensor, value, std::hash<tensor>, same_tensor>.
struct same_tensor {
  bool operator()(const tensor& a, const tensor& b) const noexcept { return a.same_as(b); }
  bool operator()(const weak_tensor& a, const weak_tensor& b) const noexcept { return a.id() == b.id(); }
};

/// Whether both have the same shape, dtype and elements (NaN differs from itself). Both on the CPU.
[[nodiscard]] bool equal(const tensor& a, const tensor& b);

/// Whether both have the same shape and every |a - b| <= absolute + relative * |b|, compared as f64 (complex: c128).
/// Infinities are close to themselves; NaNs only with `equal_nan`.
[[nodiscard]] bool allclose(const tensor& a, const tensor& b, double relative = 1e-5, double absolute = 1e-8,
                            bool equal_nan = false);

/// The elements in nested brackets and aligned columns, with dtype (unless f32, i64 or bool) and device (unless cpu):
///   tensor([[1., 2.],
///           [3., 4.]], dtype=f64)
/// Of more than 1000 elements only the first and last three of each axis are shown. Floating-point numbers have four
/// digits after the point. Elements of tensors that are not on the CPU are not fetched; only the shape is shown.
[[nodiscard]] std::string to_string(const tensor& t);
/// The same text into a stream.
template <class Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, const tensor& t) {
  return out << to_string(t);
}

}  // namespace ferry::inline v0

template <>
struct std::hash<ferry::tensor> {
  std::size_t operator()(const ferry::tensor& t) const noexcept { return std::hash<std::uintptr_t>()(t.id()); }
};
template <>
struct std::hash<ferry::weak_tensor> {
  std::size_t operator()(const ferry::weak_tensor& t) const noexcept { return std::hash<std::uintptr_t>()(t.id()); }
};
