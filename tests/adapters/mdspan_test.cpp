#include <ferry/adapters/mdspan.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <cereal/types/map.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "minimal_mdspan.hpp"

namespace mdspan_test {

using ferry::as_mdspan;
using ferry::dims;
using ferry::errc;
using ferry::from_mdspan;
using ferry::tensor;

using input = minimal::matrix<const double>;
using columns = minimal::matrix<double, minimal::layout_left>;
double trace(input m) {
  double sum = 0;
  for (int i = 0; i != m.extent(0); ++i) sum += m(i, i);
  return sum;
}
bool by_columns(const columns& m) { return m.stride(0) == 1 && m(0, 1) == 3; }
ferry::mdspan_tensor<input> identity(int size) {
  ferry::mdspan_tensor<minimal::matrix<double>> result(ferry::zeros({size, size}, ferry::dtype::f64));
  for (int i = 0; i != size; ++i) result.view()(i, i) = 1;
  return ferry::mdspan_tensor<input>(result.tensor());
}

namespace {

static_assert(ferry::mdspan_like<minimal::matrix<float>>);
static_assert(!ferry::mdspan_like<std::map<int, int>> && !ferry::mdspan_like<std::vector<int>>);
static_assert(ferry::foreign_tensor<ferry::mdspan_tensor<minimal::matrix<float>>>);

}  // namespace

TEST_CASE("an mdspan is a view of a tensor's elements, in its layout") {
  const tensor t = ferry::arange(6).view({2, 3});
  const auto right = as_mdspan<minimal::matrix<std::int64_t>>(t);
  CHECK(right.data_handle() == t.data());
  CHECK(right.extent(1) == 3);
  right(1, 2) = 50;
  CHECK(t.at<std::int64_t>(1, 2) == 50);
  const auto left = as_mdspan<minimal::matrix<const std::int64_t, minimal::layout_left>>(t.transpose(0, 1));
  CHECK(left(2, 1) == 50);
  const auto strided = as_mdspan<minimal::matrix<std::int64_t, minimal::layout_stride>>(t.slice(1, 0, 3, 2));
  CHECK(strided.extent(1) == 2);
  CHECK(strided(1, 1) == 50);
  using fixed = minimal::mdspan<std::int64_t, minimal::extents<std::int8_t, 2, minimal::dynamic>>;
  CHECK(as_mdspan<fixed>(t)(0, 1) == 1);
  using scalar = minimal::mdspan<double, minimal::extents<int>>;
  CHECK(as_mdspan<scalar>(ferry::tensor_of(2.5))() == 2.5);
  CHECK(as_mdspan<minimal::matrix<float>>(ferry::zeros({0, 3})).extent(0) == 0);
}

TEST_CASE("as_mdspan rejects tensors of another dtype, shape or layout") {
  const tensor t = ferry::zeros({2, 3});
  expect_error(errc::bad_dtype, "f64", [&] { (void)as_mdspan<minimal::matrix<double>>(t); });
  expect_error(errc::bad_shape, "[any, any]", [&] { (void)as_mdspan<minimal::matrix<float>>(t.view({6})); });
  using fixed = minimal::mdspan<float, minimal::extents<int, 3, minimal::dynamic>>;
  expect_error(errc::bad_shape, "[3, any]", [&] { (void)as_mdspan<fixed>(t); });
  using narrow = minimal::mdspan<float, minimal::extents<std::int8_t, minimal::dynamic>>;
  expect_error(errc::bad_shape, "[any]", [&] { (void)as_mdspan<narrow>(ferry::zeros({200})); });
  expect_error(errc::bad_shape, "layout_stride", [&] { (void)as_mdspan<minimal::matrix<float>>(t.transpose(0, 1)); });
  using strided = minimal::matrix<float, minimal::layout_stride>;
  expect_error(errc::bad_shape, "", [] { (void)as_mdspan<strided>(ferry::ones({1, 3}).expand({2, 3})); });
}

TEST_CASE("from_mdspan copies the elements; an mdspan_tensor owns its tensor") {
  std::vector<float> memory{1, 2, 3, 4, 5, 6};
  using left = minimal::matrix<float, minimal::layout_left>;
  const left m(memory.data(), left::mapping_type(left::extents_type(std::array{2, 3})));
  const tensor t = from_mdspan(m);
  CHECK(ferry::equal(t, ferry::tensor_of({{1.F, 3.F, 5.F}, {2.F, 4.F, 6.F}})));
  CHECK(t.is_contiguous());
  const ferry::mdspan_tensor<minimal::matrix<float>> same(t);
  CHECK(same.tensor().same_as(t));
  const ferry::mdspan_tensor<left> turned(t);  // copied to the other order
  CHECK(turned.tensor().stride(0) == 1);
  CHECK(turned.view()(1, 2) == 6);
  const ferry::mdspan_tensor<minimal::matrix<float, minimal::layout_stride>> dense(ferry::ones({1, 3}).expand({2, 3}));
  CHECK(dense.view()(1, 1) == 1);
  CHECK(ferry::mdspan_tensor<left>().tensor().shape() == dims{0, 0});
}

TEST_CASE("functions with mdspan parameters can be called") {
  ferry_test::cluster group(2);
  std::vector<double> memory{1, 2, 3, 4};
  using namespace mdspan_test;
  const input m(memory.data(), input::mapping_type(input::extents_type(std::array{2, 2})));
  CHECK(group[0].rpc_sync<trace>("worker1", m) == 5);
  const columns c(memory.data(), columns::mapping_type(columns::extents_type(std::array{2, 2})));
  CHECK(group[0].rpc_sync<by_columns>("worker1", c));
  const auto result = group[0].rpc_sync<identity>("worker1", 3);
  CHECK(result.view()(2, 2) == 1);
  CHECK(result.view()(2, 1) == 0);
}

}  // namespace mdspan_test
