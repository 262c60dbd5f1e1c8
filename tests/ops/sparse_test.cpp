// Tensors of which only some places are stored: on the CPU, and on the fake CUDA runtime.

#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ops/ops.hpp>
#include <ferry/ops/sparse.hpp>
#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"
#include "fake_cuda.hpp"

namespace sparse_test {

using ferry::device;
using ferry::device_kind;
using ferry::dims;
using ferry::dtype;
using ferry::errc;
using ferry::sparse_tensor;
using ferry::tensor;

namespace {

const std::vector<device> everywhere{{}, {device_kind::cuda, 1}};

tensor indices_of(const std::vector<std::vector<std::int64_t>>& axes) {
  const auto count = static_cast<std::int64_t>(axes.front().size());
  std::vector<std::int64_t> all;
  for (const auto& each : axes) all.insert(all.end(), each.begin(), each.end());
  return ferry::from_vector(all, {static_cast<std::int64_t>(axes.size()), count});
}

// Rows 3, 1, 3 of [5, 2].
sparse_tensor rows(device where = {}) {
  return sparse_tensor(indices_of({{3, 1, 3}}), ferry::tensor_of({{1.f, 2.f}, {3.f, 4.f}, {10.f, 20.f}}), {5, 2})
      .to(where);
}
const tensor& dense_rows() {
  static const tensor dense = ferry::tensor_of({{0.f, 0.f}, {3.f, 4.f}, {0.f, 0.f}, {11.f, 22.f}, {0.f, 0.f}});
  return dense;
}
// Elements (1, 2), (0, 1), (1, 2) of [2, 3].
sparse_tensor elements(device where = {}) {
  return sparse_tensor(indices_of({{1, 0, 1}, {2, 1, 2}}), ferry::tensor_of({1.0, 5.0, 0.5}), {2, 3}).to(where);
}
const tensor& dense_elements() {
  static const tensor dense = ferry::tensor_of({{0.0, 5.0, 0.0}, {0.0, 0.0, 1.5}});
  return dense;
}

tensor on_host(const tensor& t) { return t.to(device{}); }

}  // namespace

TEST_CASE("sparse: the parts, and the whole") {
  for (const device where : everywhere) {
    const sparse_tensor s = rows(where);
    CHECK(s.defined());
    CHECK(s.shape() == dims{5, 2});
    CHECK(s.sparse_axes() == 1);
    CHECK(s.nnz() == 3);
    CHECK(s.dtype() == dtype::f32);
    CHECK(s.device() == where);
    CHECK_FALSE(s.is_coalesced());
    CHECK(equal(on_host(s.to_dense()), dense_rows()));
    CHECK(equal(on_host(elements(where).to_dense()), dense_elements()));
    CHECK(elements(where).sparse_axes() == 2);
    CHECK(equal(on_host(s.to(dtype::f64).to_dense()), dense_rows().to(dtype::f64)));
  }
}

TEST_CASE("sparse: coalescing sorts places and adds values of equal ones, in their order") {
  for (const device where : everywhere) {
    const sparse_tensor s = rows(where).coalesce();
    CHECK(s.is_coalesced());
    CHECK(s.device() == where);
    CHECK(equal(on_host(s.indices()), indices_of({{1, 3}})));
    CHECK(equal(on_host(s.values()), ferry::tensor_of({{3.f, 4.f}, {11.f, 22.f}})));
    CHECK(s.coalesce().values().same_as(s.values()));
    const sparse_tensor e = elements(where).coalesce();
    CHECK(equal(on_host(e.indices()), indices_of({{0, 1}, {1, 2}})));
    CHECK(equal(on_host(e.values()), ferry::tensor_of({5.0, 1.5})));
    CHECK(e.to(device{}).is_coalesced());
  }
  // Without a place that comes twice, values of any type.
  const sparse_tensor flags(indices_of({{2, 0}}), ferry::tensor_of({true, false}), {3});
  CHECK(equal(flags.coalesce().values(), ferry::tensor_of({false, true})));
}

TEST_CASE("sparse: from a whole tensor and back") {
  for (const device where : everywhere) {
    const sparse_tensor s = sparse_tensor::from_dense(dense_rows().to(where), 1);
    CHECK(s.is_coalesced());
    CHECK(s.nnz() == 2);
    CHECK(equal(s.to(device{}), rows()));
    CHECK(equal(on_host(s.to_dense()), dense_rows()));
    const sparse_tensor e = sparse_tensor::from_dense(dense_elements().to(where), 2);
    CHECK(e.nnz() == 2);
    CHECK(equal(e.to(device{}), elements()));
  }
  CHECK(sparse_tensor::from_dense(ferry::zeros({3, 2}), 1).nnz() == 0);
  CHECK(sparse_tensor::from_dense(dense_elements().transpose(0, 1), 1).to_dense().shape() == dims{3, 2});
  expect_error(errc::bad_shape, "3 sparse axes", [] { (void)sparse_tensor::from_dense(ferry::ones({2, 2}), 3); });
  expect_error(errc::bad_shape, "0 sparse axes", [] { (void)sparse_tensor::from_dense(ferry::ones({2, 2}), 0); });
}

TEST_CASE("sparse: nothing stored") {
  for (const device where : everywhere) {
    const sparse_tensor none = sparse_tensor(ferry::empty({1, 0}, dtype::i64), ferry::empty({0, 2}), {5, 2}).to(where);
    CHECK(equal(on_host(none.to_dense()), ferry::zeros({5, 2})));
    CHECK(none.coalesce().nnz() == 0);
    CHECK(equal(on_host(add(none, rows(where)).to_dense()), dense_rows()));
  }
}

TEST_CASE("sparse: sums and products") {
  for (const device where : everywhere) {
    const tensor ones = ferry::ones({5, 2}, dtype::f32, where);
    const sparse_tensor s = rows(where);
    CHECK(equal(on_host(add(ones, s)), dense_rows() + 1));
    CHECK(equal(on_host(add(ones, s, 2)), dense_rows() * 2 + 1));
    CHECK(equal(on_host(ones), ferry::ones({5, 2})));
    CHECK(add_(ones, s, -1).same_as(ones));
    CHECK(equal(on_host(ones), dense_rows() * -1 + 1));
    const sparse_tensor sum = add(s, s.coalesce(), 3);
    CHECK(sum.nnz() == 5);
    CHECK_FALSE(sum.is_coalesced());
    CHECK(equal(on_host(sum.to_dense()), dense_rows() * 4));
    CHECK(equal(on_host(mul(s, 0.5).to_dense()), dense_rows() * 0.5));
    CHECK(mul(s.coalesce(), 2).is_coalesced());
    // Several sparse axes.
    const tensor two = ferry::full({2, 3}, 2, dtype::f64, where);
    CHECK(equal(on_host(add(two, elements(where))), dense_elements() + 2));
    add_(two, elements(where));
    CHECK(equal(on_host(two), dense_elements() + 2));
  }
  const tensor turned = ferry::ones({2, 5}).transpose(0, 1);
  add_(turned, rows());
  CHECK(equal(turned.contiguous(), dense_rows() + 1));
  expect_error(errc::bad_shape, "", [] { add_(ferry::ones({3, 2}, dtype::f64).transpose(0, 1), elements()); });
}

TEST_CASE("sparse: equality is that of what is stored, once coalesced") {
  CHECK(equal(rows(), rows().coalesce()));
  CHECK_FALSE(equal(rows(), mul(rows(), 2)));
  CHECK_FALSE(equal(rows(), rows().to(dtype::f64)));
  CHECK_FALSE(equal(rows(), sparse_tensor()));
  CHECK(equal(sparse_tensor(), sparse_tensor()));
  CHECK_FALSE(equal(sparse_tensor::from_dense(dense_rows(), 2), rows()));
}

TEST_CASE("sparse: parts that do not fit are refused with both sides named") {
  const tensor values = ferry::ones({2, 2});
  const tensor some = indices_of({{0, 1}});
  const auto make = [](const tensor& i, const tensor& v, const dims& shape) {
    return [=] { (void)sparse_tensor(i, v, shape); };
  };
  expect_error(errc::invalid_argument, "undefined", make({}, values, {5, 2}));
  expect_error(errc::bad_dtype, "f32", make(ferry::zeros({1, 2}), values, {5, 2}));
  expect_error(errc::bad_shape, "indices of shape [2]", make(indices_of({{0, 1}}).select(0, 0), values, {5, 2}));
  expect_error(errc::bad_shape, "values of shape [2, 2]", make(some, values, {5, 3}));
  expect_error(errc::bad_shape, "indices of shape [1, 3]", make(indices_of({{0, 1, 2}}), values, {5, 2}));
  expect_error(errc::bad_shape, "at least one", make(ferry::empty({0, 2}, dtype::i64), values, {2}));
  expect_error(errc::bad_shape, "",
               make(indices_of({{0}, {0}}), ferry::ones({1}), {std::int64_t{1} << 40, std::int64_t{1} << 40}));
  expect_error(errc::invalid_argument, "index 5 of value 1", make(indices_of({{0, 5}}), values, {5, 2}));
  expect_error(errc::invalid_argument,
               "index -1 of value 0 along axis 0 of a sparse tensor of shape [5, 2] is negative",
               make(indices_of({{-1, 1}}), values, {5, 2}));
  expect_error(errc::bad_device, "cpu", make(some, values.to(everywhere[1]), {5, 2}));
  expect_error(errc::bad_shape, "[4, 2]", [] { (void)add(ferry::ones({4, 2}), rows()); });
  expect_error(errc::bad_dtype, "f64", [] { (void)add(ferry::ones({5, 2}, dtype::f64), rows()); });
  expect_error(errc::bad_device, "cuda", [] { (void)add(ferry::ones({5, 2}), rows(everywhere[1])); });
  expect_error(errc::bad_shape, "sparse axes", [] { (void)add(rows(), sparse_tensor::from_dense(dense_rows(), 2)); });
  expect_error(errc::invalid_argument, "undefined", [] { (void)sparse_tensor().nnz(); });
}

TEST_CASE("sparse: on a device, indices are checked when the host reads them") {
  const sparse_tensor wild(ferry::tensor_of<std::int64_t>({{1, 7}}).to(everywhere[1]),
                           ferry::ones({2, 2}, dtype::f32, everywhere[1]), {5, 2});
  CHECK(equal(on_host(wild.to_dense()), sparse_tensor(indices_of({{1}}), ferry::ones({1, 2}), {5, 2}).to_dense()));
  expect_error(errc::invalid_argument, "index 7", [&] { (void)wild.coalesce(); });
}

TEST_CASE("slices are added in place") {
  for (const device where : everywhere) {
    const tensor t = ferry::zeros({3, 4}, dtype::f64, where);
    const auto before = t.version();
    const tensor index = ferry::from_vector(std::vector<std::int64_t>{2, 0, 2}).to(where);
    CHECK(index_add_(t, 0, index, ferry::ones({3, 4}, dtype::f64, where), 2).same_as(t));
    CHECK(t.version() > before);
    CHECK(equal(on_host(t), ferry::index_add(ferry::zeros({3, 4}, dtype::f64), 0, on_host(index),
                                             ferry::full({3, 4}, 2, dtype::f64))));
    // A part of itself.
    index_add_(t, 0, index.slice(0, 0, 1), t.slice(0, 2, 3));
    CHECK(on_host(t).at<double>(2, 1) == 8);
  }
  const tensor t = ferry::zeros({3, 4});
  expect_error(errc::invalid_argument, "index_add_: the index 3 is not below 3", [&] {
    index_add_(t, 0, ferry::from_vector(std::vector<std::int64_t>{3}), ferry::ones({1, 4}));
  });
  CHECK(t.version() == 0);
}

}  // namespace sparse_test
