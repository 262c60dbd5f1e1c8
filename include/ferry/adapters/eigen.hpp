#pragma once

// Eigen matrices and arrays as arguments, results and members, and as views of tensors.
//
//   Eigen::MatrixXf scaled(Eigen::MatrixXf m, float by);             // callable: rpc_sync<scaled>("worker1", m, 2.F)
//   float norm(const Eigen::Ref<const Eigen::MatrixXf>& m);          // refers to the received tensor, without a copy
//   auto m = ferry::as_eigen<Eigen::MatrixXf>(t);                    // an Eigen::Map of the tensor's memory
//   ferry::tensor t = ferry::from_eigen(a * b);                      // a copy, in the storage order of the expression
//
// A matrix is sent as a tensor with two axes, rows and columns, and the strides of its storage order; a vector (one of
// its sizes is 1 at compile time) as a tensor with one axis. The receiver accepts any strides; dtype and fixed sizes
// must match.
//
// Needs the headers of Eigen 3.4 or newer. No other header of ferry includes this one.

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <Eigen/Core>

#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/tensor.hpp>
#include <ferry/tensor/traits.hpp>
#include <ferry/wire/serialize.hpp>

namespace ferry::inline v0 {

template <>
struct element_traits<Eigen::half> {
  static constexpr dtype type = dtype::f16;
};
template <>
struct element_traits<Eigen::bfloat16> {
  static constexpr dtype type = dtype::bf16;
};
static_assert(sizeof(Eigen::half) == 2 && sizeof(Eigen::bfloat16) == 2);

namespace detail {

template <class M>
inline constexpr bool is_eigen_plain = false;
template <class S, int R, int C, int Options, int MaxR, int MaxC>
inline constexpr bool is_eigen_plain<Eigen::Matrix<S, R, C, Options, MaxR, MaxC>> = element<S>;
template <class S, int R, int C, int Options, int MaxR, int MaxC>
inline constexpr bool is_eigen_plain<Eigen::Array<S, R, C, Options, MaxR, MaxC>> = element<S>;

/// A Matrix or Array whose element type is a tensor element type.
template <class M>
concept eigen_plain = is_eigen_plain<M>;

/// The sizes that a type allows; -1: any.
struct eigen_sizes {
  Eigen::Index rows, columns, most_rows, most_columns;
};
template <class M>
inline constexpr eigen_sizes sizes_of{M::RowsAtCompileTime, M::ColsAtCompileTime, M::MaxRowsAtCompileTime,
                                      M::MaxColsAtCompileTime};

struct eigen_layout {
  Eigen::Index rows, columns;
  Eigen::Index row_stride, column_stride;  // from one row, or column, to the next
};

[[noreturn]] inline void refuse_eigen_shape(const tensor& t, const eigen_sizes& allowed) {
  const auto text = [](Eigen::Index fixed, Eigen::Index most) {
    return fixed >= 0 ? std::to_string(fixed) : most >= 0 ? "at most " + std::to_string(most) : std::string("any");
  };
  throw_error(errc::bad_shape, "a tensor of shape " + to_string(t.shape()) + " does not fit an Eigen type of [" +
                                   text(allowed.rows, allowed.most_rows) + " x " +
                                   text(allowed.columns, allowed.most_columns) + "]");
}

// The layout of `t` as an Eigen type. A vector type accepts one axis, or two axes of which one has size 1.
inline eigen_layout eigen_layout_of(const tensor& t, const eigen_sizes& allowed) {
  if (!t.device().is_cpu()) {
    throw_error(errc::bad_device, "as_eigen: the tensor is on " + to_string(t.device()) + "; copy it to the CPU first");
  }
  eigen_layout result{};
  if (t.rank() == 2) {
    result = {t.shape()[0], t.shape()[1], t.strides()[0], t.strides()[1]};
  } else if (t.rank() == 1 && allowed.columns == 1) {
    result = {t.shape()[0], 1, t.strides()[0], t.shape()[0]};
  } else if (t.rank() == 1 && allowed.rows == 1) {
    result = {1, t.shape()[0], t.shape()[0], t.strides()[0]};
  } else {
    refuse_eigen_shape(t, allowed);
  }
  if (t.rank() == 2 && allowed.columns == 1 && result.columns != 1 && result.rows == 1) {
    result = {result.columns, 1, result.column_stride, 1};
  } else if (t.rank() == 2 && allowed.rows == 1 && result.rows != 1 && result.columns == 1) {
    result = {1, result.rows, 1, result.row_stride};
  }
  const auto fits = [](Eigen::Index size, Eigen::Index fixed, Eigen::Index most) {
    return (fixed < 0 || size == fixed) && (most < 0 || size <= most);
  };
  if (!fits(result.rows, allowed.rows, allowed.most_rows) ||
      !fits(result.columns, allowed.columns, allowed.most_columns)) {
    refuse_eigen_shape(t, allowed);
  }
  return result;
}

template <class M>
using eigen_map = Eigen::Map<M, Eigen::Unaligned, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;

}  // namespace detail

/// A view of the tensor's memory as a matrix or array type M (Eigen::MatrixXf, const Eigen::Vector3d, ...), with any
/// strides. Valid while the storage of `t` lives; after writing through the view, call t.mark_written(). Throws
/// errc::bad_dtype unless the elements are of M's scalar type, errc::bad_shape unless the sizes fit, errc::bad_device
/// unless on the CPU. Thread-safe.
template <class M>
  requires detail::eigen_plain<std::remove_const_t<M>>
[[nodiscard]] detail::eigen_map<M> as_eigen(const tensor& t) {
  using plain = std::remove_const_t<M>;
  auto* data = t.template data<typename plain::Scalar>();
  const detail::eigen_layout at = detail::eigen_layout_of(t, detail::sizes_of<plain>);
  using stride = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
  const stride steps =
      plain::IsRowMajor ? stride(at.row_stride, at.column_stride) : stride(at.column_stride, at.row_stride);
  return detail::eigen_map<M>(data, at.rows, at.columns, steps);
}

/// A tensor with the value of a dense expression, in the storage order of its type.
template <class Derived>
  requires element<typename Derived::Scalar>
[[nodiscard]] tensor from_eigen(const Eigen::DenseBase<Derived>& expression) {
  using plain = typename Derived::PlainObject;
  const std::int64_t rows = expression.rows();
  const std::int64_t columns = expression.cols();
  tensor result;
  if constexpr (plain::IsVectorAtCompileTime) {
    result = empty({rows * columns}, dtype_of<typename plain::Scalar>);
  } else if constexpr (plain::IsRowMajor) {
    result = empty({rows, columns}, dtype_of<typename plain::Scalar>);
  } else {
    result = empty_strided({rows, columns}, {1, rows}, dtype_of<typename plain::Scalar>);
  }
  if (result.numel() != 0) as_eigen<plain>(result) = expression.derived();
  return result;
}

/// A matrix or array M in the memory of a tensor: a parameter, result or member of this type is received without a
/// copy. Parameters of type Eigen::Map or Eigen::Ref are received as this type.
template <detail::eigen_plain M>
class eigen_tensor {
 public:
  using map_type = Eigen::Map<M>;

  /// Dynamic sizes are 0; elements of fixed sizes are uninitialised.
  eigen_tensor() {
    const auto size = [](int fixed) { return std::int64_t{fixed < 0 ? 0 : fixed}; };
    if constexpr (M::IsVectorAtCompileTime) {
      elements_ = empty({size(M::SizeAtCompileTime)}, dtype_of<typename M::Scalar>);
    } else {
      *this =
          eigen_tensor(empty({size(M::RowsAtCompileTime), size(M::ColsAtCompileTime)}, dtype_of<typename M::Scalar>));
    }
  }
  /// A copy of the value of an expression.
  template <class Derived>
    requires std::is_same_v<typename Derived::Scalar, typename M::Scalar>
  eigen_tensor(const Eigen::DenseBase<Derived>& expression)  // NOLINT(google-explicit-constructor)
      : eigen_tensor(from_eigen(expression)) {}
  /// Shares the tensor's memory if it is dense and in the storage order of M, else copies it to that order. Throws the
  /// errors of as_eigen.
  explicit eigen_tensor(ferry::tensor t) : elements_(std::move(t)) {
    const auto seen = as_eigen<const M>(elements_);
    if (!dense(seen)) elements_ = from_eigen(M(seen));
  }

  [[nodiscard]] map_type map() const {
    const auto seen = as_eigen<M>(elements_);
    return map_type(const_cast<typename M::Scalar*>(seen.data()), seen.rows(), seen.cols());
  }
  [[nodiscard]] const ferry::tensor& tensor() const noexcept { return elements_; }

  operator Eigen::Map<M>() const { return map(); }  // NOLINT(google-explicit-constructor)
  operator Eigen::Map<const M>() const {            // NOLINT(google-explicit-constructor)
    const auto seen = map();
    return Eigen::Map<const M>(seen.data(), seen.rows(), seen.cols());
  }
  operator Eigen::Ref<M>() const {  // NOLINT(google-explicit-constructor)
    auto seen = map();
    return Eigen::Ref<M>(seen);
  }
  operator Eigen::Ref<const M>() const { return Eigen::Ref<const M>(map()); }  // NOLINT(google-explicit-constructor)

 private:
  template <class Map>
  static bool dense(const Map& seen) {
    if (seen.size() == 0) return true;
    const bool inner = seen.innerSize() == 1 || seen.innerStride() == 1;
    return inner && (M::IsVectorAtCompileTime || seen.outerSize() == 1 || seen.outerStride() == seen.innerSize());
  }

  ferry::tensor elements_;
};

template <detail::eigen_plain M>
struct tensor_traits<M> {
  static tensor to_tensor(const M& value) { return from_eigen(value); }
  static M from_tensor(tensor t) { return M(as_eigen<const M>(t)); }
};
template <detail::eigen_plain M>
struct tensor_traits<eigen_tensor<M>> {
  static tensor to_tensor(const eigen_tensor<M>& value) { return value.tensor(); }
  static eigen_tensor<M> from_tensor(tensor t) { return eigen_tensor<M>(std::move(t)); }
};
// For arguments only: views do not own memory to receive into.
template <class M, int Options, class Stride>
  requires detail::eigen_plain<std::remove_const_t<M>>
struct tensor_traits<Eigen::Map<M, Options, Stride>> {
  static tensor to_tensor(const Eigen::Map<M, Options, Stride>& value) { return from_eigen(value); }
};
template <class M, int Options, class Stride>
  requires detail::eigen_plain<std::remove_const_t<M>>
struct tensor_traits<Eigen::Ref<M, Options, Stride>> {
  static tensor to_tensor(const Eigen::Ref<M, Options, Stride>& value) { return from_eigen(value); }
};

namespace detail {
template <class M>
  requires eigen_plain<std::remove_const_t<M>>
struct wire_type_of<Eigen::Map<M>> {
  using type = eigen_tensor<std::remove_const_t<M>>;
};
template <class M>
  requires eigen_plain<std::remove_const_t<M>>
struct wire_type_of<Eigen::Ref<M>> {
  using type = eigen_tensor<std::remove_const_t<M>>;
};
}  // namespace detail

}  // namespace ferry::inline v0
