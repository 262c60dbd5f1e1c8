#include <ferry/tensor/dtype.hpp>

#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <string>

#include <doctest/doctest.h>

#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/visit.hpp>

#include "expect_error.hpp"

namespace dtype_test {

using ferry::bfloat16;
using ferry::dtype;
using ferry::float16;
using ferry::float8_e4m3;
using ferry::float8_e5m2;
using ferry::tensor;

namespace {
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

// Checks encode against a search through all values of the type: the nearest one, ties to the even code.
template <class Small, class Bits>
void check_rounding(Bits last_finite) {
  for (Bits code = 0; code < last_finite; ++code) {
    const double low = static_cast<float>(Small::from_bits(code));
    const double high = static_cast<float>(Small::from_bits(static_cast<Bits>(code + 1)));
    REQUIRE(low < high);
    const double middle = (low + high) / 2;
    const auto even = static_cast<Bits>(code % 2 == 0 ? code : code + 1);
    const auto code_of = [](double value) { return Small(static_cast<float>(value)).bits; };
    CHECK(code_of(low) == code);
    CHECK(code_of(middle) == even);
    CHECK(code_of(std::nextafter(static_cast<float>(middle), 0.F)) == code);
    CHECK(code_of(std::nextafter(static_cast<float>(middle), infinity)) == static_cast<Bits>(code + 1));
    CHECK(static_cast<float>(Small(static_cast<float>(-high))) == -high);
  }
}

}  // namespace

TEST_CASE("the numbers, names and sizes of dtypes never change") {
  struct row {
    dtype type;
    int code;
    const char* name;
    std::size_t size;
  };
  for (const row& r : {row{dtype::bool_, 1, "bool", 1}, row{dtype::u8, 2, "u8", 1}, row{dtype::i8, 3, "i8", 1},
                       row{dtype::i16, 4, "i16", 2}, row{dtype::i32, 5, "i32", 4}, row{dtype::i64, 6, "i64", 8},
                       row{dtype::f16, 7, "f16", 2}, row{dtype::bf16, 8, "bf16", 2}, row{dtype::f32, 9, "f32", 4},
                       row{dtype::f64, 10, "f64", 8}, row{dtype::c64, 11, "c64", 8}, row{dtype::c128, 12, "c128", 16},
                       row{dtype::f8_e4m3, 13, "f8_e4m3", 1}, row{dtype::f8_e5m2, 14, "f8_e5m2", 1}}) {
    CHECK(static_cast<int>(r.type) == r.code);
    CHECK(ferry::dtype_name(r.type) == r.name);
    CHECK(ferry::dtype_size(r.type) == r.size);
    CHECK(ferry::dtype_from_code(static_cast<std::uint8_t>(r.code)) == r.type);
    ferry::visit_dtype(r.type, [&](auto tag) {
      using T = typename decltype(tag)::type;
      CHECK(sizeof(T) == r.size);
      CHECK(ferry::dtype_of<T> == r.type);
    });
  }
  for (const int code : {0, 15, 99, 255}) {
    CHECK(!ferry::dtype_from_code(static_cast<std::uint8_t>(code)));
    CHECK(ferry::dtype_name(static_cast<dtype>(code)) == "unknown");
    expect_error(ferry::errc::bad_dtype, std::to_string(code) + " is not the number of a dtype",
                 [&] { ferry::visit_dtype(static_cast<dtype>(code), [](auto) {}); });
  }
  static_assert(ferry::is_floating_point(dtype::f8_e5m2) && !ferry::is_floating_point(dtype::c64));
  static_assert(ferry::is_integral(dtype::u8) && !ferry::is_integral(dtype::bool_) && ferry::is_complex(dtype::c128));
  static_assert(ferry::element<const float> && !ferry::element<char> && !ferry::element<unsigned>);
}

TEST_CASE("float16 rounds to nearest even") {
  check_rounding<float16, std::uint16_t>(0x7bff);
  CHECK(float16(65504.F).bits == 0x7bff);
  CHECK(float16(65519.F).bits == 0x7bff);
  CHECK(float16(65520.F).bits == 0x7c00);
  CHECK(float16(-1e30F).bits == 0xfc00);
  CHECK(float16(infinity).bits == 0x7c00);
  CHECK(float16(quiet_nan).bits == 0x7e00);
  CHECK(float16(-0.F).bits == 0x8000);
  CHECK(float16(1e-20F).bits == 0);
  CHECK(float16(std::numeric_limits<float>::denorm_min()).bits == 0);
  CHECK(float16(0x1p-25F).bits == 0);  // half of the smallest: to even
  CHECK(float16(0x1.8p-25F).bits == 1);
  CHECK(float16(1).bits == 0x3c00);
  CHECK(static_cast<float>(float16::from_bits(0x3555)) == 0.333251953125F);
  CHECK(std::isnan(static_cast<float>(float16::from_bits(0x7c01))));
  CHECK(static_cast<float>(float16::from_bits(0xfc00)) == -infinity);
  CHECK(float16(2.0F) == float16(2.0));
  CHECK(float16(2.0F) + float16(1.5F) == 3.5F);
  static_assert(float16(-2.0F).bits == 0xc000);
}

TEST_CASE("bfloat16 is the head of a float") {
  check_rounding<bfloat16, std::uint16_t>(0x7f7f);
  CHECK(bfloat16(1.F).bits == 0x3f80);
  CHECK(bfloat16(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(bfloat16(-infinity).bits == 0xff80);
  CHECK(bfloat16(quiet_nan).bits == 0x7fc0);
  CHECK(std::isnan(static_cast<float>(bfloat16(std::bit_cast<float>(0xff80'0001U)))));  // not rounded to infinity
  CHECK(bfloat16(std::numeric_limits<float>::denorm_min()).bits == 0);
  CHECK(static_cast<float>(bfloat16::from_bits(1)) == 0x1p-133F);
  CHECK(static_cast<float>(bfloat16::from_bits(0xff80)) == -infinity);
}

TEST_CASE("float8_e4m3 has no infinity and saturates to NaN") {
  check_rounding<float8_e4m3, std::uint8_t>(0x7e);
  CHECK(static_cast<float>(float8_e4m3::from_bits(0x7e)) == 448.F);
  CHECK(static_cast<float>(float8_e4m3::from_bits(0x01)) == 0x1p-9F);
  CHECK(static_cast<float>(float8_e4m3::from_bits(0x38)) == 1.F);
  CHECK(float8_e4m3(464.F).bits == 0x7e);
  CHECK(float8_e4m3(465.F).bits == 0x7f);
  CHECK(float8_e4m3(-1000.F).bits == 0xff);
  CHECK(float8_e4m3(infinity).bits == 0x7f);
  CHECK(float8_e4m3(quiet_nan).bits == 0x7f);
  CHECK(std::isnan(static_cast<float>(float8_e4m3::from_bits(0xff))));
}

TEST_CASE("float8_e5m2 has infinities") {
  check_rounding<float8_e5m2, std::uint8_t>(0x7b);
  CHECK(static_cast<float>(float8_e5m2::from_bits(0x7b)) == 57344.F);
  CHECK(static_cast<float>(float8_e5m2::from_bits(0x01)) == 0x1p-16F);
  CHECK(float8_e5m2(1e6F).bits == 0x7c);
  CHECK(float8_e5m2(-infinity).bits == 0xfc);
  CHECK(float8_e5m2(quiet_nan).bits == 0x7e);
  CHECK(std::isnan(static_cast<float>(float8_e5m2::from_bits(0x7d))));
}

TEST_CASE("conversions between all dtypes keep values that both can represent") {
  const tensor small = ferry::tensor_of<std::int64_t>({0, 1, 0, 1, 1});
  for (int from = 1; from != 15; ++from) {
    const tensor a = small.to(static_cast<dtype>(from));
    for (int to = 1; to != 15; ++to) {
      const tensor b = a.to(static_cast<dtype>(to));
      CHECK(b.dtype() == static_cast<dtype>(to));
      CHECK(ferry::equal(b.to(dtype::i64), small));
      CHECK(b.same_as(a) == (from == to));
    }
  }
}

TEST_CASE("values that do not fit the target type") {
  using limits = std::numeric_limits<std::int64_t>;
  const tensor odd = ferry::tensor_of<double>({quiet_nan, infinity, -infinity, 1e300, -2.9, 300});
  CHECK(ferry::equal(odd.to(dtype::i64), ferry::tensor_of({std::int64_t{0}, limits::max(), limits::min(), limits::max(),
                                                           std::int64_t{-2}, std::int64_t{300}})));
  CHECK(ferry::equal(odd.to(dtype::u8), ferry::tensor_of<std::uint8_t>({0, 255, 0, 255, 0, 255})));
  CHECK(ferry::equal(odd.to(dtype::i8), ferry::tensor_of<std::int8_t>({0, 127, -128, 127, -2, 127})));
  CHECK(ferry::equal(odd.to(dtype::bool_), ferry::ones({6}, dtype::bool_)));
  CHECK(ferry::equal(ferry::tensor_of({-1, 257}).to(dtype::u8), ferry::tensor_of<std::uint8_t>({255, 1})));
  const tensor wave = ferry::tensor_of({std::complex<float>(1.5F, 2), std::complex<float>(0, 1)});
  CHECK(ferry::equal(wave.to(dtype::f32), ferry::tensor_of({1.5F, 0.F})));
  CHECK(ferry::equal(wave.to(dtype::bool_), ferry::ones({2}, dtype::bool_)));
  CHECK(wave.to(dtype::c128).at<std::complex<double>>(0) == std::complex<double>(1.5, 2));
  CHECK(ferry::tensor_of({limits::max()}).to(dtype::i64).item<std::int64_t>() == limits::max());
  CHECK(ferry::tensor_of({limits::max()}).item<std::int64_t>() == limits::max());
}

TEST_CASE("long and strided conversions") {
  const tensor t = ferry::arange(3000).view({3, 1000}).transpose(0, 1);
  const tensor f = t.to(dtype::f32);
  CHECK(f.is_contiguous());
  CHECK(f.at<float>(999, 2) == 2999.F);
  CHECK(ferry::equal(f.to(dtype::i64), t));
}

TEST_CASE("fill takes a scalar of any kind") {
  for (int code = 1; code != 15; ++code) {
    const auto type = static_cast<dtype>(code);
    CHECK(ferry::full({2}, true, type).select(0, 1).item<int>() == 1);
    CHECK(ferry::full({2}, 1, type).select(0, 1).item<double>() == 1);
    CHECK(ferry::full({2}, 1.0F, type).select(0, 1).item<double>() == 1);
    CHECK(ferry::full({2}, float16(1), type).select(0, 1).item<double>() == 1);
    CHECK(ferry::full({2}, std::complex<float>(1, 0), type).select(0, 1).item<double>() == 1);
  }
  CHECK(ferry::full({}, std::complex<double>(1, -2), dtype::c64).item<std::complex<float>>() ==
        std::complex<float>(1, -2));
  CHECK(ferry::full({}, 300.7, dtype::u8).item<int>() == 255);
}

TEST_CASE("equal and allclose") {
  const tensor a = ferry::tensor_of({1.F, quiet_nan});
  CHECK(!ferry::equal(a, a));
  CHECK(!ferry::allclose(a, a));
  CHECK(ferry::allclose(a, a, 0, 0, true));
  CHECK(!ferry::equal(ferry::zeros({2}), ferry::zeros({1, 2})));
  CHECK(!ferry::equal(ferry::zeros({2}), ferry::zeros({2}, dtype::f64)));
  CHECK(ferry::equal(ferry::tensor_of({0.F}), ferry::tensor_of({-0.F})));
  CHECK(ferry::allclose(ferry::zeros({2}), ferry::zeros({2}, dtype::i32)));
  CHECK(ferry::allclose(ferry::tensor_of({100.}), ferry::tensor_of({100.0005})));
  CHECK(!ferry::allclose(ferry::tensor_of({100.}), ferry::tensor_of({100.01})));
  CHECK(ferry::allclose(ferry::tensor_of({infinity}), ferry::tensor_of({infinity})));
  CHECK(!ferry::allclose(ferry::tensor_of({infinity}), ferry::tensor_of({-infinity})));
  CHECK(!ferry::allclose(ferry::tensor_of({infinity}), ferry::tensor_of({1.F})));
  CHECK(!ferry::allclose(ferry::zeros({2}), ferry::zeros({3})));
  CHECK(ferry::allclose(ferry::tensor_of<std::complex<float>>({{1, 1}}),
                        ferry::tensor_of<std::complex<double>>({{1, 1}})));
  const tensor t = ferry::arange(6).view({2, 3});
  CHECK(ferry::equal(t.transpose(0, 1).transpose(0, 1), t));
}

}  // namespace dtype_test
