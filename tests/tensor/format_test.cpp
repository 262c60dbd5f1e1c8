#include <ferry/tensor/format.hpp>

#include <complex>
#include <limits>
#include <sstream>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <ferry/tensor/factories.hpp>

namespace format_test {

using ferry::dtype;
using ferry::tensor;
using ferry::tensor_of;

TEST_CASE("tensors print as nested brackets") {
  CHECK(fmt::format("{}", tensor_of({{1.F, 2.F}, {3.F, 4.F}})) ==
        "tensor([[1., 2.],\n"
        "        [3., 4.]])");
  CHECK(to_string(tensor_of({1, -20, 300})) == "tensor([  1, -20, 300], dtype=i32)");
  CHECK(to_string(ferry::arange(3)) == "tensor([0, 1, 2])");
  std::ostringstream stream;
  stream << ferry::arange(3);
  CHECK(stream.str() == "tensor([0, 1, 2])");
  CHECK(to_string(tensor_of({0.5F, -1.25F})) == "tensor([ 0.5000, -1.2500])");
  CHECK(to_string(tensor_of(2.5)) == "tensor(2.5000, dtype=f64)");
  CHECK(to_string(tensor_of({true, false})) == "tensor([ true, false])");
  CHECK(to_string(tensor_of({std::complex<float>(1, -2), std::complex<float>(0.5F, 0)})) ==
        "tensor([1.0000-2.0000j, 0.5000+0.0000j], dtype=c64)");
  CHECK(to_string(ferry::ones({1}, dtype::f8_e4m3)) == "tensor([1.], dtype=f8_e4m3)");
  CHECK(to_string(ferry::ones({2}, dtype::bf16)) == "tensor([1., 1.], dtype=bf16)");
  CHECK(to_string(ferry::arange(4).view({2, 2}).transpose(0, 1)) ==
        "tensor([[0, 2],\n"
        "        [1, 3]])");
}

TEST_CASE("numbers of very different size, infinities and NaN") {
  using limits = std::numeric_limits<float>;
  CHECK(to_string(tensor_of({1e-6F, 1.F})) == "tensor([1.0000e-06, 1.0000e+00])");
  CHECK(to_string(tensor_of({1e9F})) == "tensor([1.0000e+09])");
  CHECK(to_string(tensor_of({limits::infinity(), -limits::infinity(), limits::quiet_NaN(), 1.F})) ==
        "tensor([ inf, -inf,  nan,   1.])");
}

TEST_CASE("further axes are separated by empty lines") {
  CHECK(to_string(ferry::arange(8).view({2, 2, 2})) ==
        "tensor([[[0, 1],\n"
        "         [2, 3]],\n"
        "\n"
        "        [[4, 5],\n"
        "         [6, 7]]])");
}

TEST_CASE("large tensors are summarised") {
  CHECK(to_string(ferry::arange(2000)) == "tensor([   0,    1,    2, ..., 1997, 1998, 1999])");
  CHECK(to_string(ferry::zeros({1000, 1000})) ==
        "tensor([[0., 0., 0., ..., 0., 0., 0.],\n"
        "        [0., 0., 0., ..., 0., 0., 0.],\n"
        "        [0., 0., 0., ..., 0., 0., 0.],\n"
        "        ...,\n"
        "        [0., 0., 0., ..., 0., 0., 0.],\n"
        "        [0., 0., 0., ..., 0., 0., 0.],\n"
        "        [0., 0., 0., ..., 0., 0., 0.]])");
  const ferry::dims many(std::size_t{30}, 2);
  CHECK(to_string(ferry::zeros({}).expand(many)) == "tensor(shape=" + to_string(many) + ")");
}

TEST_CASE("long rows are broken") {
  const std::string text = to_string(ferry::arange(100));
  std::size_t start = 0;
  int lines = 1;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', start)) {
    CHECK(end - start <= 80);
    start = end + 1;
    ++lines;
  }
  CHECK(lines == 6);
  CHECK(text.substr(start, 8) == std::string(8, ' '));
}

TEST_CASE("no elements, no tensor, and the other parts") {
  CHECK(to_string(ferry::zeros({0})) == "tensor([])");
  CHECK(to_string(ferry::zeros({2, 0}, dtype::f64)) == "tensor([], shape=[2, 0], dtype=f64)");
  CHECK(to_string(tensor()) == "tensor(undefined)");
  CHECK(fmt::format("{} {} {}", dtype::bf16, ferry::device{}, ferry::dims{1, 2}) == "bf16 cpu [1, 2]");
}

}  // namespace format_test
