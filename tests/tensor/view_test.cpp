#include <ferry/tensor/tensor.hpp>

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"

namespace view_test {

using ferry::dims;
using ferry::dtype;
using ferry::errc;
using ferry::tensor;

namespace {

tensor cube() { return ferry::arange(24).view({2, 3, 4}); }

// All elements in row-major order, by plain indexing.
std::vector<std::int64_t> elements(const tensor& t) {
  std::vector<std::int64_t> result;
  const std::function<void(const tensor&)> visit = [&](const tensor& part) {
    if (part.rank() == 0) {
      result.push_back(part.at<std::int64_t>());
      return;
    }
    for (std::int64_t i = 0; i != part.size(0); ++i) visit(part.select(0, i));
  };
  visit(t);
  return result;
}

}  // namespace

TEST_CASE("slice") {
  const tensor t = cube();
  const tensor s = t.slice(2, 1, 4, 2);
  CHECK(s.shape() == dims{2, 3, 2});
  CHECK(s.strides() == dims{12, 4, 2});
  CHECK(s.storage().same_as(t.storage()));
  CHECK(s.at<std::int64_t>(1, 2, 1) == 23);
  CHECK(!s.is_contiguous());
  CHECK(t.slice(0).shape() == t.shape());
  CHECK(t.slice(-1, -3, -1).shape() == dims{2, 3, 2});
  CHECK(t.slice(1, -100, 100).shape() == t.shape());
  CHECK(t.slice(1, 2, 1).shape() == dims{2, 0, 4});
  CHECK(t.slice(1, 3).shape() == dims{2, 0, 4});
  CHECK(t.slice(2, 0, 4, 3).shape() == dims{2, 3, 2});
  const auto huge = std::numeric_limits<std::int64_t>::max();
  CHECK(t.slice(2, 1, huge, huge).shape() == dims{2, 3, 1});
  CHECK(t.slice(2, std::numeric_limits<std::int64_t>::min()).shape() == t.shape());
  expect_error(errc::bad_shape, "step of a slice must be at least 1, not 0", [&] { (void)t.slice(0, 0, 1, 0); });
  expect_error(errc::bad_shape, "axis -4 is out of range for shape [2, 3, 4]; valid are -3 to 2",
               [&] { (void)t.slice(-4); });
  expect_error(errc::bad_shape, "axis 0 of a tensor of shape []: it has no axes",
               [] { (void)ferry::zeros({}).slice(0); });
}

TEST_CASE("select") {
  const tensor t = cube();
  CHECK(elements(t.select(1, 2)) == std::vector<std::int64_t>{8, 9, 10, 11, 20, 21, 22, 23});
  CHECK(elements(t.select(-1, -1)) == std::vector<std::int64_t>{3, 7, 11, 15, 19, 23});
  CHECK(t.select(0, 0).is_contiguous());
  expect_error(errc::bad_shape, "index 3 is out of range for axis 1 of shape [2, 3, 4]", [&] { (void)t.select(1, 3); });
  expect_error(errc::bad_shape, "index -3 is out of range for axis 0", [&] { (void)t.select(0, -3); });
  expect_error(errc::bad_shape, "has none: its shape is []", [] { (void)ferry::zeros({}).select(0, 0); });
}

TEST_CASE("narrow") {
  const tensor t = cube();
  CHECK(elements(t.narrow(0, 1, 1).narrow(1, 1, 2).narrow(2, 0, 1)) == std::vector<std::int64_t>{16, 20});
  CHECK(t.narrow(1, -2, 2).shape() == dims{2, 2, 4});
  CHECK(t.narrow(1, 3, 0).numel() == 0);
  expect_error(errc::bad_shape, "narrow to 3 indices from 1 does not fit into axis 1 of shape [2, 3, 4]",
               [&] { (void)t.narrow(1, 1, 3); });
  expect_error(errc::bad_shape, "narrow to -1", [&] { (void)t.narrow(1, 1, -1); });
  expect_error(errc::bad_shape, "narrow to 1 indices from -4", [&] { (void)t.narrow(1, -4, 1); });
  expect_error(errc::bad_shape, "does not fit",
               [&] { (void)t.narrow(1, 1, std::numeric_limits<std::int64_t>::max()); });
}

TEST_CASE("transpose and permute") {
  const tensor t = cube();
  const tensor p = t.permute({2, 0, -2});
  CHECK(p.shape() == dims{4, 2, 3});
  CHECK(p.strides() == dims{1, 12, 4});
  CHECK(p.at<std::int64_t>(3, 1, 2) == t.at<std::int64_t>(1, 2, 3));
  CHECK(elements(t.transpose(0, 2)) == elements(t.permute({2, 1, 0})));
  CHECK(t.transpose(1, 1).is_contiguous());
  expect_error(errc::bad_shape, "[0, 1] does not list each axis of shape [2, 3, 4] once", [&] {
    (void)t.permute({0, 1});
  });
  expect_error(errc::bad_shape, "[0, 1, -2] does not list", [&] { (void)t.permute({0, 1, -2}); });
  expect_error(errc::bad_shape, "axis 5 is out of range", [&] { (void)t.permute({0, 1, 5}); });
}

TEST_CASE("view and reshape") {
  const tensor t = cube();
  CHECK(t.view({4, 6}).storage().same_as(t.storage()));
  CHECK(t.view({-1}).shape() == dims{24});
  CHECK(t.view({2, -1, 2}).shape() == dims{2, 6, 2});
  CHECK(t.view({1, 24, 1, 1}).is_contiguous());
  CHECK(ferry::zeros({1, 1}).view({}).rank() == 0);

  const tensor turned = t.transpose(0, 1);  // [3, 2, 4], strides [4, 12, 1]
  CHECK(turned.view({3, 2, 2, 2}).strides() == dims{4, 12, 2, 1});
  CHECK(turned.view({3, 1, 2, 4}).shape() == dims{3, 1, 2, 4});
  CHECK(elements(turned.view({3, 2, 2, 2})) == elements(turned));
  expect_error(errc::bad_shape, "no view of shape [6, 4]: the tensor of shape [3, 2, 4] has strides [4, 12, 1]", [&] {
    (void)turned.view({6, 4});
  });
  const tensor copied = turned.reshape({6, 4});
  CHECK(!copied.storage().same_as(t.storage()));
  CHECK(elements(copied) == elements(turned));
  CHECK(turned.reshape({3, 2, 2, -1}).storage().same_as(t.storage()));
  const tensor gaps = t.slice(2, 0, 4, 2);  // the outer axes still join
  CHECK(gaps.view({6, 2}).strides() == dims{4, 2});
  CHECK(gaps.view({12}).strides() == dims{2});
  CHECK(elements(gaps.view({12})) == elements(gaps));
  CHECK(t.narrow(1, 0, 2).reshape({16}).storage().same_as(t.storage()) == false);
  CHECK(ferry::arange(1).expand({6}).view({2, 3}).strides() == dims{0, 0});

  expect_error(errc::bad_shape, "a tensor of shape [2, 3, 4] (24 elements) cannot take the shape [5, 5]", [&] {
    (void)t.view({5, 5});
  });
  expect_error(errc::bad_shape, "cannot take the shape [-1, -1]", [&] { (void)t.reshape({-1, -1}); });
  expect_error(errc::bad_shape, "cannot take the shape [7, -1]", [&] { (void)t.reshape({7, -1}); });
  expect_error(errc::bad_shape, "cannot take the shape [-2, -12]", [&] { (void)t.reshape({-2, -12}); });
  expect_error(errc::bad_shape, "cannot take the shape [0, -1]", [] { (void)ferry::zeros({0}).reshape({0, -1}); });
  const auto half = std::int64_t{1} << 62;
  expect_error(errc::bad_shape, "cannot take the shape", [&] { (void)t.reshape({half, 4, 24}); });
}

TEST_CASE("every view of every regrouping agrees with a copy") {
  const std::vector<dims> shapes{{24},       {2, 12},      {12, 2},      {3, 8},      {8, 3},    {4, 6},
                                 {6, 4},     {2, 2, 6},    {2, 3, 4},    {3, 2, 4},   {4, 3, 2}, {1, 24},
                                 {2, 1, 12}, {6, 1, 4, 1}, {2, 2, 2, 3}, {3, 2, 2, 2}};
  for (const dims& order : std::vector<dims>{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}) {
    const tensor t = cube().permute(order);
    for (const dims& shape : shapes) CHECK(elements(t.reshape(shape)) == elements(t));
  }
}

TEST_CASE("flatten, squeeze and unsqueeze") {
  const tensor t = cube();
  CHECK(t.flatten().shape() == dims{24});
  CHECK(t.flatten(1).shape() == dims{2, 12});
  CHECK(t.flatten(0, 1).shape() == dims{6, 4});
  CHECK(t.flatten(1, 1).shape() == t.shape());
  CHECK(ferry::zeros({}).flatten().shape() == dims{1});
  expect_error(errc::bad_shape, "the first is after the last", [&] { (void)t.flatten(2, 1); });

  CHECK(t.unsqueeze(0).shape() == dims{1, 2, 3, 4});
  CHECK(t.unsqueeze(-1).shape() == dims{2, 3, 4, 1});
  CHECK(t.unsqueeze(1).strides() == dims{12, 12, 4, 1});
  CHECK(t.unsqueeze(2).is_contiguous());
  CHECK(ferry::zeros({}).unsqueeze(0).shape() == dims{1});
  expect_error(errc::bad_shape, "axis 4 is out of range for shape [2, 3, 4]; valid are -4 to 3",
               [&] { (void)t.unsqueeze(4); });

  const tensor thin = t.view({1, 2, 1, 12, 1});
  CHECK(thin.squeeze().shape() == dims{2, 12});
  CHECK(thin.squeeze(2).shape() == dims{1, 2, 12, 1});
  CHECK(thin.squeeze(1).shape() == thin.shape());
  CHECK(thin.squeeze(-1).squeeze(0).shape() == dims{2, 1, 12});
  CHECK(ferry::zeros({1, 1}).squeeze().rank() == 0);
  CHECK(ferry::zeros({}).squeeze(0).rank() == 0);
}

TEST_CASE("expand") {
  const tensor t = ferry::arange(3).view({3, 1});
  const tensor e = t.expand({2, 3, 4});
  CHECK(e.strides() == dims{0, 1, 0});
  CHECK(e.numel() == 24);
  CHECK(e.storage().size() == 24);
  CHECK(!e.is_contiguous());
  CHECK(elements(e.clone()) == elements(e));
  CHECK(t.expand({-1, 5}).shape() == dims{3, 5});
  CHECK(t.expand({3, 0}).numel() == 0);
  CHECK(ferry::tensor_of(5).expand({2, 2}).shape() == dims{2, 2});
  expect_error(errc::bad_shape, "shape [3, 1] does not expand to [3]", [&] { (void)t.expand({3}); });
  expect_error(errc::bad_shape, "shape [3, 1] does not expand to [4, 1]", [&] { (void)t.expand({4, 1}); });
  expect_error(errc::bad_shape, "does not expand to [-1, 3, 1]", [&] { (void)t.expand({-1, 3, 1}); });
  expect_error(errc::bad_shape, "more bytes than fit", [&] { (void)t.expand({3, std::int64_t{1} << 59}); });
}

TEST_CASE("as_strided stays within the storage") {
  const tensor t = ferry::arange(10);
  CHECK(elements(t.as_strided({3, 2}, {2, 3}, 1)) == std::vector<std::int64_t>{1, 4, 3, 6, 5, 8});
  CHECK(t.slice(0, 5).as_strided({1}, {1}, 0).at<std::int64_t>(0) == 0);  // the offset is the storage's
  CHECK(t.as_strided({0}, {100}, 10).numel() == 0);
  expect_error(errc::bad_shape, "shape [3] with strides [5] at offset 0 lies outside of the storage of 10 elements",
               [&] { (void)t.as_strided({3}, {5}, 0); });
  expect_error(errc::bad_shape, "lies outside", [&] { (void)t.as_strided({1}, {1}, 10); });
  expect_error(errc::bad_shape, "lies outside", [&] { (void)t.as_strided({1}, {1}, -1); });
  expect_error(errc::bad_shape, "stride -1 in [-1] is negative", [&] { (void)t.as_strided({2}, {-1}, 5); });
  expect_error(errc::bad_shape, "have different lengths", [&] { (void)t.as_strided({2, 2}, {1}, 0); });
  expect_error(errc::bad_shape, "more bytes than fit",
               [&] { (void)t.as_strided({3}, {std::numeric_limits<std::int64_t>::max()}, 0); });
}

TEST_CASE("a view keeps the storage alive") {
  tensor row;
  {
    const tensor t = cube();
    row = t.select(0, 1).select(0, 2);
    CHECK(t.storage().use_count() == 2);
  }
  CHECK(row.storage().use_count() == 1);
  CHECK(elements(row) == std::vector<std::int64_t>{20, 21, 22, 23});
}

}  // namespace view_test
