#include <ferry/tensor/format.hpp>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include <ferry/tensor/factories.hpp>

#include "layout.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

constexpr std::int64_t summarised_above = 1000;  // elements
constexpr std::int64_t at_each_end = 3;          // elements shown at each end of a summarised axis
constexpr std::size_t most_shown = 10'000;       // many short axes cannot be summarised
constexpr std::size_t line_width = 80;
constexpr std::string_view opening = "tensor(";

// The format of the floating-point numbers of one tensor.
struct number_style {
  bool integers = true;  // "3."
  bool scientific = false;

  explicit number_style(const std::vector<double>& values) {
    double largest = 0;
    double smallest = std::numeric_limits<double>::infinity();  // other than 0
    for (const double value : values) {
      if (!std::isfinite(value)) continue;
      const double size = std::abs(value);
      integers = integers && std::trunc(value) == value;
      largest = std::max(largest, size);
      if (size != 0) smallest = std::min(smallest, size);
    }
    if (integers) {
      scientific = largest >= 1e8;
    } else {
      scientific = largest >= 1e8 || smallest < 1e-4 || largest / smallest > 1000;
    }
  }

  [[nodiscard]] std::string operator()(double value) const {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
    if (scientific) return fmt::format("{:.4e}", value);
    return integers ? fmt::format("{:.0f}.", value) : fmt::format("{:.4f}", value);
  }
};

class printer {
 public:
  explicit printer(const tensor& t) : t_(t), summarised_(t.numel() > summarised_above) {}

  // False if too much would be shown.
  bool collect() {
    std::size_t shown = 1;
    for (const std::int64_t size : t_.shape()) {
      shown *= static_cast<std::size_t>(cut(size) ? 2 * at_each_end : size);
      if (shown > most_shown) return false;
    }
    std::vector<const std::byte*> elements;
    gather(0, static_cast<const std::byte*>(t_.data()), elements);
    write_elements(elements);
    for (const std::string& text : texts_) width_ = std::max(width_, text.size());
    return true;
  }

  void write(std::string& out) { write_axis(0, opening.size(), out); }

 private:
  [[nodiscard]] bool cut(std::int64_t size) const { return summarised_ && size > 2 * at_each_end; }

  void gather(std::size_t axis, const std::byte* at, std::vector<const std::byte*>& elements) const {
    if (axis == t_.rank()) {
      elements.push_back(at);
      return;
    }
    const std::int64_t size = t_.shape()[axis];
    const auto step = t_.strides()[axis] * static_cast<std::int64_t>(dtype_size(t_.dtype()));
    for (std::int64_t i = 0; i != size; ++i) {
      if (cut(size) && i == at_each_end) i = size - at_each_end;
      gather(axis + 1, at + i * step, elements);
    }
  }

  void write_elements(const std::vector<const std::byte*>& elements) {
    // A dense, converted copy of what is shown: the text of each family is made from its widest type.
    const dims shape{elements.size()};
    const std::size_t size = dtype_size(t_.dtype());
    const tensor copy = empty(shape, t_.dtype());
    for (std::size_t i = 0; i != elements.size(); ++i) {
      std::memcpy(static_cast<std::byte*>(copy.data()) + i * size, elements[i], size);
    }
    if (is_complex(t_.dtype())) {
      const tensor wide = copy.to(dtype::c128);
      const auto* values = wide.data<std::complex<double>>();
      std::vector<double> parts;
      for (std::size_t i = 0; i != elements.size(); ++i) {
        parts.push_back(values[i].real());
        parts.push_back(values[i].imag());
      }
      const number_style style(parts);
      for (std::size_t i = 0; i != elements.size(); ++i) {
        const std::string imaginary = style(parts[2 * i + 1]);
        texts_.push_back(style(parts[2 * i]) + (imaginary.front() == '-' ? "" : "+") + imaginary + "j");
      }
    } else if (is_floating_point(t_.dtype())) {
      const tensor wide = copy.to(dtype::f64);
      const std::vector<double> values(wide.data<double>(), wide.data<double>() + elements.size());
      const number_style style(values);
      std::transform(values.begin(), values.end(), std::back_inserter(texts_), style);
    } else {
      const tensor wide = copy.to(dtype::i64);
      const auto* values = wide.data<std::int64_t>();
      for (std::size_t i = 0; i != elements.size(); ++i) {
        texts_.push_back(t_.dtype() != dtype::bool_ ? std::to_string(values[i]) : values[i] != 0 ? "true" : "false");
      }
    }
  }

  // `indent`: the column of this axis's bracket.
  void write_axis(std::size_t axis, std::size_t indent, std::string& out) {
    if (axis == t_.rank()) {
      out += texts_[next_++];
      return;
    }
    const std::int64_t size = t_.shape()[axis];
    const bool last = axis + 1 == t_.rank();
    const std::size_t per_line = std::max<std::size_t>((line_width - std::min(line_width, indent)) / (width_ + 2), 1);
    const std::string new_line = std::string(last ? 1 : t_.rank() - axis - 1, '\n') + std::string(indent + 1, ' ');
    std::size_t in_line = 0;
    out += '[';
    for (std::int64_t i = 0; i != size; ++i) {
      if (i != 0) {
        out += ',';
        out += !last || in_line == per_line ? new_line : " ";
        if (in_line == per_line) in_line = 0;
      }
      if (cut(size) && i == at_each_end) {
        out += "...,";
        out += last ? " " : new_line;
        i = size - at_each_end;
      }
      if (last) {
        out.append(width_ - texts_[next_].size(), ' ');
        ++in_line;
      }
      write_axis(axis + 1, indent + 1, out);
    }
    out += ']';
  }

  const tensor& t_;
  bool summarised_;
  std::vector<std::string> texts_;
  std::size_t width_ = 0;
  std::size_t next_ = 0;
};

}  // namespace
}  // namespace detail

std::string to_string(const tensor& t) {
  if (!t.defined()) return "tensor(undefined)";
  std::string out(detail::opening);
  bool with_shape = true;
  if (t.numel() == 0) {
    out += "[]";
    with_shape = t.rank() != 1;
  } else if (t.device().is_cpu()) {
    detail::printer print(t);
    if (print.collect()) {
      print.write(out);
      with_shape = false;
    }
  }
  if (with_shape) out += fmt::format("{}shape={}", t.numel() == 0 ? ", " : "", to_string(t.shape()));
  if (t.dtype() != dtype::f32 && t.dtype() != dtype::i64 && t.dtype() != dtype::bool_) {
    out += fmt::format(", dtype={}", dtype_name(t.dtype()));
  }
  if (!t.device().is_cpu()) out += fmt::format(", device={}", to_string(t.device()));
  return out + ')';
}

}  // namespace ferry::inline v0
