// Moving elements: copies, conversions, fills.

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/operations.hpp>
#include <ferry/tensor/visit.hpp>

#include "convert.hpp"
#include "layout.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// Elements of one size, not interpreted: NaN payloads stay.
template <std::size_t Size>
void copy_row(std::byte* to, std::int64_t to_step, const std::byte* from, std::int64_t from_step, std::int64_t count) {
  for (std::int64_t i = 0; i != count; ++i) std::memcpy(to + i * to_step, from + i * from_step, Size);
}

template <std::size_t Size>
void copy_same(const walk<2>& plan) {
  run_walk(plan, [](const auto& at, const auto& step, std::int64_t count) {
    constexpr auto size = static_cast<std::int64_t>(Size);
    if (step[0] == size && step[1] == size) {
      std::memcpy(at[0], at[1], static_cast<std::size_t>(count) * Size);
    } else if (step[0] == size) {
      copy_row<Size>(at[0], size, at[1], step[1], count);
    } else {
      copy_row<Size>(at[0], step[0], at[1], step[1], count);
    }
  });
}

constexpr std::int64_t chunk = 256;

using load_row = void (*)(void* wide_values, const std::byte* from, std::int64_t step, std::int64_t count);
using store_row = void (*)(const void* wide_values, std::byte* to, std::int64_t step, std::int64_t count);

template <class T>
T read_element(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}
template <>
bool read_element<bool>(const std::byte* from) {
  return *from != std::byte{0};  // bytes off the wire may be neither 0 nor 1
}

load_row loader_of(dtype type) {
  return visit_dtype(type, [](auto tag) -> load_row {
    using T = typename decltype(tag)::type;
    return [](void* wide_values, const std::byte* from, std::int64_t step, std::int64_t count) {
      auto* values = static_cast<wide<T>*>(wide_values);
      for (std::int64_t i = 0; i != count; ++i) values[i] = widen<T>(read_element<T>(from + i * step));
    };
  });
}

template <class Wide>
store_row storer_of(dtype type) {
  return visit_dtype(type, [](auto tag) -> store_row {
    using T = typename decltype(tag)::type;
    return [](const void* wide_values, std::byte* to, std::int64_t step, std::int64_t count) {
      const auto* values = static_cast<const Wide*>(wide_values);
      for (std::int64_t i = 0; i != count; ++i) {
        const T value = narrow_to<T>(values[i]);
        std::memcpy(to + i * step, &value, sizeof(T));
      }
    };
  });
}

store_row storer_of(dtype from, dtype to) {
  return visit_dtype(from, [to](auto tag) { return storer_of<wide<typename decltype(tag)::type>>(to); });
}

}  // namespace

void copy_elements(const tensor& from, const tensor& to) {
  const walk<2> plan = plan_walk<2>({&to, &from});
  if (from.dtype() == to.dtype()) {
    switch (dtype_size(from.dtype())) {
      case 1: return copy_same<1>(plan);
      case 2: return copy_same<2>(plan);
      case 4: return copy_same<4>(plan);
      case 8: return copy_same<8>(plan);
      default: return copy_same<16>(plan);
    }
  }
  const load_row load = loader_of(from.dtype());
  const store_row store = storer_of(from.dtype(), to.dtype());
  std::array<complex128, chunk> buffer;
  run_walk(plan, [&](const auto& at, const auto& step, std::int64_t count) {
    for (std::int64_t done = 0; done != count;) {
      const std::int64_t now = std::min(chunk, count - done);
      load(buffer.data(), at[1] + done * step[1], step[1], now);
      store(buffer.data(), at[0] + done * step[0], step[0], now);
      done += now;
    }
  });
}

element_bytes element_of(dtype type, const scalar& value) {
  element_bytes result;
  visit_dtype(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T element{};
    switch (value.type()) {
      case scalar::kind::boolean:
      case scalar::kind::integer: element = narrow_to<T>(value.integer()); break;
      case scalar::kind::real: element = narrow_to<T>(value.real()); break;
      case scalar::kind::complex: element = narrow_to<T>(std::complex<double>(value.real(), value.imag())); break;
    }
    std::memcpy(result.bytes.data(), &element, sizeof(T));
  });
  return result;
}

void fill_elements(const tensor& t, const scalar& value) {
  const element_bytes bytes = element_of(t.dtype(), value);
  visit_dtype(t.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T element;
    std::memcpy(&element, bytes.bytes.data(), sizeof(T));
    run_walk(plan_walk<1>({&t}), [&](const auto& at, const auto& step, std::int64_t count) {
      if (step[0] == sizeof(T)) {
        std::fill_n(reinterpret_cast<T*>(at[0]), count, element);
      } else {
        for (std::int64_t i = 0; i != count; ++i) *reinterpret_cast<T*>(at[0] + i * step[0]) = element;
      }
    });
  });
}

void refuse_ragged(std::size_t width, std::size_t other) {
  throw_error(errc::bad_shape, fmt::format("rows of {} and of {} elements do not make a tensor", width, other));
}

tensor from_elements(const void* elements, std::size_t count, dtype type, const dims* shape) {
  const dims flat{count};
  if (shape && element_count(*shape) != flat[0]) {
    throw_error(errc::bad_shape, fmt::format("{} elements do not fill the shape {}", count, to_string(*shape)));
  }
  tensor result = empty(shape ? *shape : flat, type);
  if (count != 0) std::memcpy(result.data(), elements, result.nbytes());
  return result;
}

}  // namespace detail

void tensor::read_item(ferry::dtype type, void* out) const {
  detail::need_cpu(*this, "item");
  if (numel() != 1) {
    throw_error(errc::bad_shape,
                fmt::format("item() needs a tensor with one element; shape {} has {}", to_string(shape()), numel()));
  }
  const auto* element = static_cast<const std::byte*>(data());
  std::complex<double> wide_value;
  detail::loader_of(dtype())(&wide_value, element, 0, 1);
  detail::storer_of(dtype(), type)(&wide_value, static_cast<std::byte*>(out), 0, 1);
}

tensor op::clone::compute(const parameters&, const tensor& t) {
  tensor result = empty(t.shape(), t.dtype(), t.device());
  detail::move_elements(t, result);
  return result;
}
tensor tensor::clone() const { return run_operation<op::clone>({}, *this); }

tensor op::to_dtype::compute(const parameters& with, const tensor& t) {
  tensor result = empty(t.shape(), with.type, t.device());
  detail::move_elements(t, result);
  return result;
}
tensor tensor::to(ferry::dtype type) const {
  return type == dtype() ? *this : run_operation<op::to_dtype>({type}, *this);
}

tensor op::to_device::compute(const parameters& with, const tensor& t) {
  tensor result = empty(t.shape(), t.dtype(), with.where);
  detail::move_elements(t, result);
  return result;
}
tensor tensor::to(ferry::device where) const {
  return where == device() ? *this : run_operation<op::to_device>({where}, *this);
}

void op::copy_::check(const parameters&, const tensor& target, const tensor& source) {
  detail::need_expands(source, target.shape());
}
void op::copy_::compute(const parameters&, const tensor& target, const tensor& source) {
  tensor from = detail::expanded(source, target.shape());
  if (detail::may_overlap(target, from)) from = from.clone();
  detail::move_elements(from, target);
}
const tensor& tensor::copy_(const tensor& source) const {
  run_operation<op::copy_>({}, *this, source);
  return *this;
}

void op::fill_::compute(const parameters& with, const tensor& target) { detail::fill_anywhere(target, with.value); }
const tensor& tensor::fill_(const scalar& value) const {
  run_operation<op::fill_>({value}, *this);
  return *this;
}

}  // namespace ferry::inline v0
