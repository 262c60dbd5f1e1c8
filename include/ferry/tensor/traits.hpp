#pragma once

// Tensors of other libraries as arguments, results and members: they are sent as ferry tensors.

#include <concepts>
#include <utility>

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// How a foreign tensor type is sent. Undefined: specialise it for the type with
///   static tensor to_tensor(const T& value);   may refer to the memory of `value`: then give from_blob an owner that
///                                              keeps the memory alive. Without an owner the elements are copied when
///                                              sent.
///   static T from_tensor(tensor t);            any shape, strides and dtype may arrive: throw what does not fit (for
///                                              example errc::bad_shape, errc::bad_dtype). `t` is not shared yet.
/// A view, which owns nothing, has to_tensor alone: it can be passed where a foreign tensor that it converts to is
/// expected.
/// Both may be called from any thread.
template <class T>
struct tensor_traits;

/// Whether tensor_traits<T> is complete.
template <class T>
concept foreign_tensor = requires(const T& value, tensor t) {
  { tensor_traits<T>::to_tensor(value) } -> std::same_as<tensor>;
  { tensor_traits<T>::from_tensor(std::move(t)) } -> std::same_as<T>;
};

}  // namespace ferry::inline v0
