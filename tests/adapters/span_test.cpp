#include <ferry/adapters/span.hpp>

#include <complex>
#include <numeric>

#include <doctest/doctest.h>

#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"

namespace span_test {

using ferry::as_span;
using ferry::errc;

TEST_CASE("a span is a view of a tensor's elements") {
  const ferry::tensor t = ferry::arange(6).view({2, 3});
  const std::span<std::int64_t> all = as_span<std::int64_t>(t);
  CHECK(all.data() == t.data());
  CHECK(std::accumulate(all.begin(), all.end(), 0) == 15);
  all[4] = 40;
  CHECK(t.at<std::int64_t>(1, 1) == 40);
  const std::span<const std::int64_t> row = as_span<const std::int64_t>(t.select(0, 1));
  CHECK(row.size() == 3);
  CHECK(row[0] == 3);
  CHECK(as_span<float>(ferry::zeros({0, 4})).empty());
  CHECK(as_span<const std::complex<double>>(ferry::zeros({2}, ferry::dtype::c128)).size() == 2);
}

TEST_CASE("as_span rejects tensors of another dtype and non-contiguous tensors") {
  const ferry::tensor t = ferry::zeros({2, 3});
  expect_error(errc::bad_dtype, "f64", [&] { (void)as_span<double>(t); });
  expect_error(errc::bad_shape, "not contiguous", [&] { (void)as_span<float>(t.transpose(0, 1)); });
  expect_error(errc::invalid_argument, "undefined", [] { (void)as_span<float>(ferry::tensor()); });
}

}  // namespace span_test
