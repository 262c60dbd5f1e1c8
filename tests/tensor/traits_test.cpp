#include <ferry/tensor/traits.hpp>

#include <memory>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/pack.hpp>

#include "expect_error.hpp"

namespace traits_test {

using ferry::dims;
using ferry::dtype;
using ferry::tensor;

namespace {

// A matrix type of another library: column-major, with shared memory.
struct matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::shared_ptr<std::vector<double>> memory;
  double& operator()(std::int64_t i, std::int64_t j) const { return (*memory)[static_cast<std::size_t>(j * rows + i)]; }
};

struct half_done {};

}  // namespace

}  // namespace traits_test

template <>
struct ferry::tensor_traits<traits_test::matrix> {
  static tensor to_tensor(const traits_test::matrix& m) {
    return from_blob(m.memory->data(), {m.rows, m.columns}, {1, m.rows}, dtype::f64, m.memory);
  }
  static traits_test::matrix from_tensor(tensor t) {
    if (t.rank() != 2) throw_error(errc::bad_shape, "a matrix has two axes, not the shape " + to_string(t.shape()));
    traits_test::matrix m{t.size(0), t.size(1),
                          std::make_shared<std::vector<double>>(static_cast<std::size_t>(t.numel()))};
    to_tensor(m).copy_(t);
    return m;
  }
};
template <>
struct ferry::tensor_traits<traits_test::half_done> {
  static tensor to_tensor(const traits_test::half_done&);
};

namespace traits_test {

TEST_CASE("a foreign matrix is sent as a tensor") {
  static_assert(ferry::foreign_tensor<matrix>);
  static_assert(!ferry::foreign_tensor<half_done>);
  static_assert(!ferry::foreign_tensor<int>);
  const matrix m{2, 3, std::make_shared<std::vector<double>>(std::vector<double>{1, 2, 3, 4, 5, 6})};
  tensor sent = ferry::tensor_traits<matrix>::to_tensor(m);
  CHECK(sent.data() == m.memory->data());
  CHECK(ferry::equal(sent, ferry::tensor_of({{1., 3., 5.}, {2., 4., 6.}})));
  CHECK(ferry::pack(sent).same_as(sent));  // owned and dense: not copied
  CHECK(m.memory.use_count() == 2);
  const matrix arrived = ferry::tensor_traits<matrix>::from_tensor(sent);
  CHECK(*arrived.memory == *m.memory);
  CHECK(ferry::tensor_traits<matrix>::from_tensor(ferry::tensor_of({{1.F, 2.F}}))(0, 1) == 2.0);
  expect_error(ferry::errc::bad_shape, "a matrix has two axes, not the shape [3]",
               [] { (void)ferry::tensor_traits<matrix>::from_tensor(ferry::zeros({3})); });
  sent = tensor();
  CHECK(m.memory.use_count() == 1);
}

}  // namespace traits_test