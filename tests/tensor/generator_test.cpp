#include <ferry/tensor/generator.hpp>

#include <cmath>
#include <cstdint>

#include <doctest/doctest.h>

#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"

namespace generator_test {

using ferry::dtype;
using ferry::generator;
using ferry::tensor;

TEST_CASE("the same seed gives the same numbers, on every platform") {
  generator g(42);
  CHECK(g.next() == 15021278609987233951U);
  CHECK(g.next() == 5881210131331364753U);
  CHECK(g.next() == 18149643915985481100U);
  generator again(42);
  generator copy = again;
  CHECK(again.uniform() == copy.uniform());
  CHECK(ferry::equal(ferry::randn({10}, again), ferry::randn({10}, copy)));
  g.reseed(42);
  CHECK(g.next() == 15021278609987233951U);
}

TEST_CASE("normal values are exactly these") {
  generator g(7);
  CHECK(g.normal() == 0x1.ac8da7097b412p+0);
  CHECK(g.normal() == -0x1.1ebed0f15bbdep-1);
  CHECK(g.normal() == 0x1.13676381fc58bp-1);
}

TEST_CASE("uniform values") {
  for (const dtype type : {dtype::f16, dtype::bf16, dtype::f32, dtype::f64}) {
    generator g(1);
    const tensor t = ferry::rand({100, 100}, g, type).to(dtype::f64);
    double low = 1;
    double high = 0;
    for (std::int64_t i = 0; i != t.numel(); ++i) {
      low = std::min(low, t.data<double>()[i]);
      high = std::max(high, t.data<double>()[i]);
    }
    CHECK(low >= 0);
    CHECK(low < 0.01);
    CHECK(high < 1);
    CHECK(high > 0.99);
    CHECK(ferry::sum(t).item<double>() / 1e4 == doctest::Approx(0.5).epsilon(0.02));
  }
}

TEST_CASE("normal values have the moments and tails of the distribution") {
  generator g(3);
  const tensor t = ferry::randn({100'000}, g, dtype::f64);
  const double mean = ferry::sum(t).item<double>() / 1e5;
  const double variance = ferry::sum(t * t).item<double>() / 1e5;
  const double fourth = ferry::sum(t * t * t * t).item<double>() / 1e5;
  CHECK(std::abs(mean) < 0.01);
  CHECK(variance == doctest::Approx(1).epsilon(0.02));
  CHECK(fourth == doctest::Approx(3).epsilon(0.05));
  int beyond_two = 0;
  for (std::int64_t i = 0; i != t.numel(); ++i) beyond_two += std::abs(t.data<double>()[i]) > 2 ? 1 : 0;
  CHECK(beyond_two / 1e5 == doctest::Approx(0.0455).epsilon(0.05));
}

TEST_CASE("the thread's generator") {
  ferry::manual_seed(5);
  const tensor a = ferry::rand({4});
  const tensor b = ferry::randn({4});
  ferry::manual_seed(5);
  CHECK(ferry::equal(ferry::rand({4}), a));
  CHECK(ferry::equal(ferry::randn({4}), b));
  CHECK(!ferry::equal(ferry::rand({4}), a));
}

TEST_CASE("dtypes without random values") {
  expect_error(ferry::errc::bad_dtype, "rand makes f16, bf16, f32 and f64, not i32",
               [] { (void)ferry::rand({1}, dtype::i32); });
  expect_error(ferry::errc::bad_dtype, "randn makes f16, bf16, f32 and f64, not c64",
               [] { (void)ferry::randn({1}, dtype::c64); });
}

}  // namespace generator_test
