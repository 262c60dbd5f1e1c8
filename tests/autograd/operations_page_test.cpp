// docs/operations.md has a row for each operation, as its descriptor and its formula say.

#include <fstream>
#include <iterator>
#include <string>
#include <type_traits>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <ferry/autograd/derivatives/derivatives.hpp>
#include <ferry/ops/ops.hpp>

namespace operations_page_test {

namespace {

std::string text_of(ferry::element_set elements) {
  switch (elements) {
    case ferry::element_set::any: return "any";
    case ferry::element_set::arithmetic: return "i32, i64, f32, f64";
    case ferry::element_set::floating: return "f32, f64";
  }
  return "?";
}

std::string text_of(ferry::device_set devices) {
  switch (devices) {
    case ferry::device_set::any: return "any";
    case ferry::device_set::with_kernels: return "CPU, CUDA";
    case ferry::device_set::cpu: return "CPU";
  }
  return "?";
}

template <class Op>
std::string kept() {
  if constexpr (requires { ferry::derivative<Op>::none; }) {
    return "no gradient";
  } else {
    constexpr ferry::derivative_keeps keeps = ferry::derivative<Op>::keeps;
    std::string all;
    for (std::size_t i = 0; keeps.inputs && Op::inputs != ferry::any_number && i != Op::inputs; ++i) {
      if ((keeps.which >> i & 1U) != 0) all += fmt::format("{}input {}", all.empty() ? "" : ", ", i + 1);
    }
    if (keeps.inputs && Op::inputs == ferry::any_number) all = "inputs";
    if (keeps.outputs) all += all.empty() ? "result" : ", result";
    return all.empty() ? "nothing" : all;
  }
}

}  // namespace

TEST_CASE("the page of operations says what they are") {
  std::ifstream file(FERRY_SOURCE_ROOT "/docs/operations.md");
  const std::string page(std::istreambuf_iterator<char>(file), {});
  REQUIRE_FALSE(page.empty());
  ferry::operations::for_each([&]<class Op>(std::type_identity<Op>) {
    const std::string row = fmt::format("| `{}` | {} | {} | {} |", Op::name, text_of(Op::needs.elements),
                                        text_of(Op::needs.devices), kept<Op>());
    CHECK_MESSAGE(page.find(row) != std::string::npos, "the row is: ", row);
  });
}

}  // namespace operations_page_test
