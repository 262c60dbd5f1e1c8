#include <ferry/adapters/eigen.hpp>

#include <complex>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "expect_error.hpp"

namespace eigen_test {

using ferry::as_eigen;
using ferry::dims;
using ferry::dtype;
using ferry::errc;
using ferry::from_eigen;
using ferry::tensor;

using row_major = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigen::MatrixXf scaled(const Eigen::MatrixXf& m, float by) { return m * by; }
float total(const Eigen::Ref<const Eigen::MatrixXf>& m) { return m.sum(); }
float first_column(Eigen::Map<const Eigen::MatrixXf> m) { return m.col(0).sum(); }
Eigen::Vector3d turned(Eigen::Vector3d v) { return v.reverse(); }
ferry::task<float> later(Eigen::Map<const Eigen::MatrixXf> m) { co_return m.norm(); }
Eigen::MatrixXf product(const std::vector<Eigen::MatrixXf>& factors) {
  Eigen::MatrixXf result = factors.at(0);
  for (std::size_t i = 1; i != factors.size(); ++i) result = result * factors[i];
  return result;
}
ferry::eigen_tensor<Eigen::MatrixXf> grown(ferry::eigen_tensor<Eigen::MatrixXf> m) {
  m.map().array() += 1.F;
  return m;
}
struct model {
  Eigen::MatrixXf weight;
  Eigen::VectorXd bias;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(weight, bias);
  }
};
model doubled(model m) { return {m.weight * 2, m.bias * 2}; }

namespace {

static_assert(ferry::foreign_tensor<Eigen::MatrixXf> && ferry::foreign_tensor<Eigen::Array4i>);
static_assert(ferry::foreign_tensor<ferry::eigen_tensor<Eigen::MatrixXf>>);
static_assert(!ferry::foreign_tensor<Eigen::Map<Eigen::MatrixXf>>);  // for arguments only
static_assert(!ferry::foreign_tensor<Eigen::Matrix<std::string, 2, 2>>);

Eigen::MatrixXf counted(Eigen::Index rows, Eigen::Index columns) {
  Eigen::MatrixXf m(rows, columns);
  for (Eigen::Index i = 0; i != rows; ++i) {
    for (Eigen::Index j = 0; j != columns; ++j) m(i, j) = static_cast<float>(10 * i + j);
  }
  return m;
}

template <class M>
M there_and_back(const M& m) {
  return ferry::deserialize<M>(ferry::serialize(m));
}

}  // namespace

TEST_CASE("a matrix becomes a tensor in its storage order") {
  const Eigen::MatrixXf m = counted(2, 3);
  const tensor t = from_eigen(m);
  CHECK(t.shape() == dims{2, 3});
  CHECK(t.strides() == dims{1, 2});
  CHECK(t.at<float>(1, 2) == 12);
  const tensor r = from_eigen(row_major(m));
  CHECK(r.is_contiguous());
  CHECK(ferry::equal(r, t));
  const tensor v = from_eigen(Eigen::Vector3d(1, 2, 3));
  CHECK(v.shape() == dims{3});
  CHECK(v.dtype() == dtype::f64);
  CHECK(from_eigen(Eigen::RowVector2i(1, 2)).shape() == dims{2});
  CHECK(ferry::equal(from_eigen(m.transpose()), t.transpose(0, 1)));
  CHECK(ferry::equal(from_eigen(m.block(0, 1, 2, 2) * 2), ferry::tensor_of({{2.F, 4.F}, {22.F, 24.F}})));
  CHECK(from_eigen(m.array() > 1.F).dtype() == dtype::bool_);
  CHECK(from_eigen(Eigen::MatrixXcd::Zero(1, 2)).dtype() == dtype::c128);
  CHECK(from_eigen(Eigen::MatrixXf(0, 3)).shape() == dims{0, 3});
  CHECK(from_eigen(Eigen::Matrix<Eigen::half, 2, 2>::Zero()).dtype() == dtype::f16);
  CHECK(from_eigen(Eigen::Matrix<Eigen::bfloat16, 2, 2>::Zero()).dtype() == dtype::bf16);
  CHECK(from_eigen(Eigen::Matrix<std::int64_t, 2, 2>::Zero()).dtype() == dtype::i64);
}

TEST_CASE("a map is a view of a tensor's elements, whatever its strides") {
  const tensor t = ferry::arange(0, 12, 1, dtype::f32).view({3, 4});
  auto m = as_eigen<Eigen::MatrixXf>(t);
  CHECK(m.data() == t.data());
  CHECK(m(2, 1) == 9);
  m(2, 1) = 90;
  CHECK(t.at<float>(2, 1) == 90);
  CHECK(as_eigen<const Eigen::MatrixXf>(t.transpose(0, 1))(1, 2) == 90);
  CHECK(as_eigen<const row_major>(t.slice(1, 1, 4, 2)).col(1) == m.col(3));
  CHECK(as_eigen<const Eigen::VectorXf>(t.select(1, 1)) == Eigen::Vector3f(1, 5, 90));
  CHECK(as_eigen<const Eigen::RowVector4f>(t.select(0, 1))(3) == 7);
  CHECK(as_eigen<const Eigen::Array<float, 3, 4>>(t)(1, 1) == 5);
  CHECK(as_eigen<const Eigen::VectorXf>(t.narrow(1, 1, 1))(2) == 90);  // [3, 1]
  CHECK(as_eigen<const Eigen::VectorXf>(t.narrow(0, 2, 1))(1) == 90);  // [1, 4]
  CHECK(as_eigen<const Eigen::RowVectorXf>(t.narrow(1, 1, 1))(2) == 90);
  CHECK(as_eigen<const Eigen::MatrixXf>(ferry::ones({1, 2}).expand({3, 2})).sum() == 6);
  CHECK(as_eigen<const Eigen::MatrixXf>(ferry::zeros({0, 2})).cols() == 2);
}

TEST_CASE("as_eigen rejects tensors of another dtype or shape") {
  const tensor t = ferry::zeros({2, 3});
  expect_error(errc::bad_dtype, "f64", [&] { (void)as_eigen<Eigen::MatrixXd>(t); });
  expect_error(errc::bad_shape, "[3 x 3]", [&] { (void)as_eigen<Eigen::Matrix3f>(t); });
  expect_error(errc::bad_shape, "[any x 1]", [&] { (void)as_eigen<Eigen::VectorXf>(t); });
  expect_error(errc::bad_shape, "[any x any]", [&] { (void)as_eigen<Eigen::MatrixXf>(t.view({6})); });
  expect_error(errc::bad_shape, "", [&] { (void)as_eigen<Eigen::MatrixXf>(t.view({1, 2, 3})); });
  using bounded = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor, 2, 2>;
  expect_error(errc::bad_shape, "[at most 2 x at most 2]", [&] { (void)as_eigen<bounded>(t); });
  expect_error(errc::bad_shape, "[3 x 1]",
               [] { (void)ferry::deserialize<Eigen::Vector3d>(ferry::serialize(ferry::zeros({4}, dtype::f64))); });
}

TEST_CASE("matrices and arrays can be sent: fixed, dynamic, row-major, column-major, empty") {
  const Eigen::MatrixXf m = counted(3, 4);
  CHECK(there_and_back(m) == m);
  CHECK(there_and_back(row_major(m)) == m);
  CHECK(there_and_back(Eigen::Matrix3f(m.leftCols(3))) == m.leftCols(3));
  CHECK(there_and_back(Eigen::Vector3f(1, 2, 3)) == Eigen::Vector3f(1, 2, 3));
  CHECK(there_and_back(Eigen::RowVectorXd(Eigen::RowVectorXd::LinSpaced(5, 0, 4)))(4) == 4);
  CHECK((there_and_back(Eigen::ArrayXXf(m.array())) == m.array()).all());
  CHECK(there_and_back(Eigen::MatrixXcf(Eigen::MatrixXcf::Ones(2, 2)))(1, 1) == std::complex<float>(1));
  CHECK(there_and_back(Eigen::MatrixXf(0, 2)).cols() == 2);
  CHECK(there_and_back(Eigen::VectorXf()).size() == 0);
  // Sender and receiver may use different storage orders.
  CHECK(ferry::deserialize<row_major>(ferry::serialize(m)) == m);
  CHECK(ferry::equal(ferry::deserialize<tensor>(ferry::serialize(m)), from_eigen(m)));
  CHECK(ferry::signature_text<void(Eigen::MatrixXf)>() == "void(tensor)");
}

TEST_CASE("an eigen_tensor shares the tensor's memory if the storage order matches") {
  const tensor by_rows = ferry::arange(0, 6, 1, dtype::f32).view({2, 3});
  const ferry::eigen_tensor<row_major> same(by_rows);
  CHECK(same.tensor().same_as(by_rows));
  CHECK(same.map().data() == by_rows.data());
  const ferry::eigen_tensor<Eigen::MatrixXf> copied(by_rows);
  CHECK_FALSE(copied.tensor().same_as(by_rows));
  CHECK(copied.map() == same.map());
  const ferry::eigen_tensor<Eigen::VectorXf> gaps(by_rows.select(1, 1));
  CHECK(gaps.map() == Eigen::Vector2f(1, 4));
  CHECK(ferry::eigen_tensor<Eigen::MatrixXf>().map().size() == 0);
  CHECK(ferry::eigen_tensor<Eigen::Matrix2f>().map().rows() == 2);
  CHECK(ferry::eigen_tensor<Eigen::VectorXf>().map().size() == 0);
}

TEST_CASE("functions with Eigen parameters can be called") {
  ferry_test::cluster group(2);
  ferry::worker& self = group[0];
  const Eigen::MatrixXf m = counted(2, 2);  // 0 1; 10 11
  CHECK(self.rpc_sync<scaled>("worker1", m, 2.F) == m * 2);
  CHECK(self.rpc_sync<scaled>("worker1", m.transpose(), 2.F) == m.transpose() * 2);  // an expression
  std::vector<float> memory{1, 2, 3, 4};
  CHECK(self.rpc_sync<scaled>("worker1", Eigen::Map<const Eigen::MatrixXf>(memory.data(), 2, 2), 1.F)(1, 0) == 2);
  CHECK(self.rpc_sync<total>("worker1", m) == 22);
  CHECK(self.rpc_sync<total>("worker1", row_major(m)) == 22);
  CHECK(self.rpc_sync<first_column>("worker1", m) == 10);
  CHECK(self.rpc_sync<first_column>("worker1", row_major(m)) == 10);
  CHECK(self.rpc_sync<later>("worker1", m) == doctest::Approx(m.norm()));
  CHECK(self.rpc_sync<turned>("worker1", Eigen::Vector3d(1, 2, 3)) == Eigen::Vector3d(3, 2, 1));
  CHECK(self.rpc_sync<product>("worker1", std::vector<Eigen::MatrixXf>{m, m}) == m * m);
  CHECK(self.rpc_sync<grown>("worker1", ferry::eigen_tensor<Eigen::MatrixXf>(m)).map()(1, 1) == 12);
  const model result = self.rpc_sync<doubled>("worker1", model{m, Eigen::VectorXd::Ones(2)});
  CHECK(result.weight == m * 2);
  CHECK(result.bias(1) == 2);
}

}  // namespace eigen_test
