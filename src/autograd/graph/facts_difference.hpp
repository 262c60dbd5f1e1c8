#pragma once

#include <ferry/autograd/node.hpp>
#include <ferry/base/error.hpp>

namespace ferry::inline v0::detail {

/// The kind of error for a gradient of these facts in the place of one of those: the first of bad_shape, bad_dtype, bad_device.
inline errc difference_of(const value_facts& given, const value_facts& wanted) noexcept {
  if (given.shape != wanted.shape) return errc::bad_shape;
  return given.type != wanted.type ? errc::bad_dtype : errc::bad_device;
}

}  // namespace ferry::inline v0::detail
