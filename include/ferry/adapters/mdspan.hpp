#pragma once

// Conversions between tensors and mdspans: std::mdspan, Kokkos' reference implementation, or any class template with
// that interface. This header includes none of them.
//
//   auto m = ferry::as_mdspan<std::mdspan<float, std::dextents<int, 2>>>(t);      // a view of the tensor's memory
//   ferry::tensor t = ferry::from_mdspan(m);                                      // a copy
//   double trace(std::mdspan<const double, std::dextents<int, 2>> m);             // callable: rpc_sync<trace>(...)

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/tensor.hpp>
#include <ferry/tensor/traits.hpp>
#include <ferry/wire/serialize.hpp>

namespace ferry::inline v0 {

/// A class with the interface of std::mdspan whose data handle is a pointer.
template <class M>
concept mdspan_like = requires(const M& m, std::size_t axis) {
  typename M::element_type;
  typename M::mapping_type;
  typename M::extents_type::index_type;
  { M::rank() } -> std::convertible_to<std::size_t>;
  { M::static_extent(axis) } -> std::convertible_to<std::size_t>;
  { m.extent(axis) } -> std::convertible_to<std::int64_t>;
  { m.stride(axis) } -> std::convertible_to<std::int64_t>;
  { m.data_handle() } -> std::convertible_to<const typename M::element_type*>;
  { m.is_strided() } -> std::convertible_to<bool>;
  requires element<typename M::element_type>;
  requires std::is_pointer_v<std::remove_cvref_t<decltype(m.data_handle())>>;
};

namespace detail {

// The extents of an M with the shape of `t`. Throws errc::bad_shape.
template <mdspan_like M>
typename M::extents_type mdspan_extents(const tensor& t) {
  using index = typename M::extents_type::index_type;
  constexpr std::size_t rank = M::rank();
  bool fits = t.rank() == rank;
  std::array<index, rank> sizes{};
  for (std::size_t axis = 0; fits && axis != rank; ++axis) {
    const std::size_t wanted = M::static_extent(axis);
    const std::int64_t size = t.shape()[axis];
    fits = std::in_range<index>(size) && (wanted == static_cast<std::size_t>(-1) || std::cmp_equal(size, wanted));
    if (fits) sizes[axis] = static_cast<index>(size);
  }
  if (!fits) {
    std::string wanted;
    for (std::size_t axis = 0; axis != rank; ++axis) {
      const std::size_t size = M::static_extent(axis);
      wanted += (axis == 0 ? "" : ", ") + (size == static_cast<std::size_t>(-1) ? "any" : std::to_string(size));
    }
    throw_error(errc::bad_shape, "a tensor of shape " + to_string(t.shape()) +
                                     " does not fit the extents of the mdspan, [" + wanted + "]");
  }
  return typename M::extents_type(sizes);
}

template <mdspan_like M>
using mdspan_strides = std::array<typename M::extents_type::index_type, M::rank()>;
// Layouts whose strides are arguments (layout_stride), not computed from the extents.
template <class M>
concept any_strides =
    std::constructible_from<typename M::mapping_type, typename M::extents_type, mdspan_strides<M>> && (M::rank() != 0);

// The strides that the layout of M requires. A layout with arbitrary strides keeps those of `t`, unless one of them is
// 0.
template <mdspan_like M>
dims strides_for(const tensor& t, [[maybe_unused]] const typename M::extents_type& extents) {
  if constexpr (any_strides<M> || M::rank() == 0) {
    for (std::size_t axis = 0; axis != M::rank(); ++axis) {
      if (t.shape()[axis] > 1 && t.strides()[axis] == 0) return contiguous_strides(t.shape());
    }
    return t.strides();
  } else {
    dims strides(std::size_t{M::rank()}, 0);
    const typename M::mapping_type mapping(extents);
    for (std::size_t axis = 0; axis != M::rank(); ++axis) {
      strides[axis] = static_cast<std::int64_t>(mapping.stride(axis));
    }
    return strides;
  }
}

inline bool same_places(const tensor& t, const dims& strides) {
  for (std::size_t axis = 0; axis != t.rank() && t.numel() != 0; ++axis) {
    if (t.shape()[axis] > 1 && t.strides()[axis] != strides[axis]) return false;
  }
  return true;
}

// Precondition: layout and extents fit.
template <mdspan_like M>
M mdspan_over(const tensor& t, const typename M::extents_type& extents) {
  using value = std::remove_const_t<typename M::element_type>;
  if constexpr (any_strides<M>) {
    mdspan_strides<M> strides{};
    for (std::size_t axis = 0; axis != M::rank(); ++axis) {
      // Axes of size one may have any stride in a tensor, but the mapping requires nonzero strides.
      const std::int64_t stride = t.shape()[axis] > 1 ? t.strides()[axis] : 1;
      if (!std::in_range<typename M::extents_type::index_type>(stride)) {
        throw_error(errc::bad_shape, "the strides " + to_string(t.strides()) + " do not fit the mdspan's index type");
      }
      strides[axis] = static_cast<typename M::extents_type::index_type>(stride);
    }
    return M(t.template data<value>(), typename M::mapping_type(extents, strides));
  } else {
    return M(t.template data<value>(), typename M::mapping_type(extents));
  }
}

inline void need_cpu_for_mdspan(const tensor& t) {
  if (t.device().is_cpu()) return;
  throw_error(errc::bad_device, "as_mdspan: the tensor is on " + to_string(t.device()) + "; copy it to the CPU first");
}

}  // namespace detail

/// A view of the tensor's memory. Valid while the storage of `t` lives; after writing through the view, call
/// t.mark_written(). A layout with explicit strides (layout_stride) accepts every tensor except those with an expanded
/// axis (stride 0); other layouts require the tensor's strides to be those of the layout. Throws errc::bad_dtype,
/// errc::bad_shape, errc::bad_device. Thread-safe.
template <mdspan_like M>
[[nodiscard]] M as_mdspan(const tensor& t) {
  detail::need_cpu_for_mdspan(t);
  static_cast<void>(t.template data<std::remove_const_t<typename M::element_type>>());  // the dtype
  const auto extents = detail::mdspan_extents<M>(t);
  if (const dims strides = detail::strides_for<M>(t, extents); !detail::same_places(t, strides)) {
    throw_error(errc::bad_shape, "as_mdspan: the strides " + to_string(t.strides()) +
                                     " are not those of the mdspan's layout, " + to_string(strides) +
                                     "; take contiguous() of the tensor, or an mdspan with layout_stride");
  }
  return detail::mdspan_over<M>(t, extents);
}

/// A contiguous copy of the elements. Throws errc::bad_shape for a layout without strides.
template <mdspan_like M>
[[nodiscard]] tensor from_mdspan(const M& m) {
  using value = std::remove_const_t<typename M::element_type>;
  if (!m.is_strided()) throw_error(errc::bad_shape, "from_mdspan: the layout of the mdspan has no strides");
  dims shape(std::size_t{M::rank()}, 0);
  dims strides = shape;
  for (std::size_t axis = 0; axis != M::rank(); ++axis) {
    shape[axis] = static_cast<std::int64_t>(m.extent(axis));
    strides[axis] = static_cast<std::int64_t>(m.stride(axis));
  }
  tensor result = empty(shape, dtype_of<value>);
  if (result.numel() != 0)
    result.copy_(from_blob(const_cast<value*>(m.data_handle()), shape, strides, dtype_of<value>));
  return result;
}

/// An mdspan and the tensor that it views. Parameters of type M are received as this type; as a result type it avoids a
/// copy.
template <mdspan_like M>
class mdspan_tensor {
 public:
  /// An empty tensor.
  mdspan_tensor() : elements_(empty(empty_shape(), dtype_of<typename M::element_type>)) {}
  /// A copy of the elements.
  mdspan_tensor(const M& m) : mdspan_tensor(from_mdspan(m)) {}  // NOLINT(google-explicit-constructor)
  /// Shares the tensor's memory if it has the layout of M, else copies it to that layout. Throws the errors of
  /// as_mdspan.
  explicit mdspan_tensor(ferry::tensor t) : elements_(std::move(t)) {
    detail::need_cpu_for_mdspan(elements_);
    static_cast<void>(elements_.template data<std::remove_const_t<typename M::element_type>>());
    const auto extents = detail::mdspan_extents<M>(elements_);
    const dims strides = detail::strides_for<M>(elements_, extents);
    if (detail::same_places(elements_, strides)) return;
    elements_ = empty_strided(elements_.shape(), strides, elements_.dtype()).copy_(elements_);
  }
  [[nodiscard]] M view() const { return as_mdspan<M>(elements_); }
  operator M() const { return view(); }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] const ferry::tensor& tensor() const noexcept { return elements_; }

 private:
  static dims empty_shape() {
    dims shape(std::size_t{M::rank()}, 0);
    for (std::size_t axis = 0; axis != M::rank(); ++axis) {
      const std::size_t size = M::static_extent(axis);
      if (size != static_cast<std::size_t>(-1)) shape[axis] = static_cast<std::int64_t>(size);
    }
    return shape;
  }
  ferry::tensor elements_;
};

template <mdspan_like M>
struct tensor_traits<mdspan_tensor<M>> {
  static tensor to_tensor(const mdspan_tensor<M>& value) { return value.tensor(); }
  static mdspan_tensor<M> from_tensor(tensor t) { return mdspan_tensor<M>(std::move(t)); }
};
/// For arguments only: a view does not own memory to receive into.
template <template <class, class, class, class> class Mdspan, class T, class Extents, class Layout, class Accessor>
  requires mdspan_like<Mdspan<T, Extents, Layout, Accessor>>
struct tensor_traits<Mdspan<T, Extents, Layout, Accessor>> {
  static tensor to_tensor(const Mdspan<T, Extents, Layout, Accessor>& value) { return from_mdspan(value); }
};

namespace detail {
template <template <class, class, class, class> class Mdspan, class T, class Extents, class Layout, class Accessor>
  requires mdspan_like<Mdspan<T, Extents, Layout, Accessor>>
struct wire_type_of<Mdspan<T, Extents, Layout, Accessor>> {
  using type = mdspan_tensor<Mdspan<T, Extents, Layout, Accessor>>;
};
}  // namespace detail

}  // namespace ferry::inline v0
