// Products of matrices, vectors and batches, against loops over single elements.

#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"

namespace matmul_test {

using ferry::dims;
using ferry::dtype;
using ferry::errc;
using ferry::tensor;

namespace {

// Small integers, so that products are exact in every type.
tensor numbers(const dims& shape, dtype type, std::int64_t seed = 0) {
  tensor t = ferry::empty(shape, dtype::i64);
  auto* first = t.data<std::int64_t>();
  for (std::int64_t i = 0; i != t.numel(); ++i) first[i] = (i * 5 + seed + i / 3) % 7 - 3;
  return t.to(type);
}

// Over matrices of i64.
tensor naive_matrix(const tensor& a, const tensor& b) {
  tensor out = ferry::zeros({a.size(0), b.size(1)}, dtype::i64);
  for (std::int64_t i = 0; i != a.size(0); ++i) {
    for (std::int64_t j = 0; j != b.size(1); ++j) {
      for (std::int64_t k = 0; k != a.size(1); ++k)
        out.at<std::int64_t>(i, j) += a.at<std::int64_t>(i, k) * b.at<std::int64_t>(k, j);
    }
  }
  return out;
}

dims front_of(const tensor& t) { return {t.shape().begin(), t.rank() - 2}; }

tensor naive_product(const tensor& left, const tensor& right) {
  const tensor a = (left.rank() == 1 ? left.unsqueeze(0) : left).to(dtype::i64);
  const tensor b = (right.rank() == 1 ? right.unsqueeze(1) : right).to(dtype::i64);
  const dims front = ferry::broadcast_shapes(front_of(a), front_of(b));
  std::vector<std::int64_t> shape = front.to_vector();
  const auto with = [&](std::int64_t rows, std::int64_t columns) {
    std::vector<std::int64_t> all = shape;
    all.push_back(rows);
    all.push_back(columns);
    return dims(all);
  };
  std::int64_t count = 1;
  for (const std::int64_t size : front) count *= size;
  const tensor as = a.expand(with(a.size(-2), a.size(-1))).reshape({count, a.size(-2), a.size(-1)});
  const tensor bs = b.expand(with(b.size(-2), b.size(-1))).reshape({count, b.size(-2), b.size(-1)});
  tensor out = ferry::zeros({count, a.size(-2), b.size(-1)}, dtype::i64);
  for (std::int64_t i = 0; i != count; ++i) out.select(0, i).copy_(naive_matrix(as.select(0, i), bs.select(0, i)));
  if (left.rank() != 1) shape.push_back(a.size(-2));
  if (right.rank() != 1) shape.push_back(b.size(-1));
  return out.reshape(dims(shape));
}

void check_product(const tensor& a, const tensor& b) {
  CAPTURE(to_string(a.shape()));
  CAPTURE(to_string(b.shape()));
  const tensor found = ferry::matmul(a, b);
  const tensor expected = naive_product(a, b);
  CHECK(found.dtype() == a.dtype());
  CHECK(found.is_contiguous());
  REQUIRE(found.shape() == expected.shape());
  CHECK(equal(found.to(dtype::i64), expected));
}

constexpr dtype types[] = {dtype::f32, dtype::f64, dtype::i32, dtype::i64};

}  // namespace

TEST_CASE("matmul of matrices in any layout") {
  for (const dtype type : types) {
    CAPTURE(dtype_name(type));
    const tensor a = numbers({5, 6}, type);
    const tensor b = numbers({6, 4}, type, 1);
    check_product(a, b);
    check_product(b.transpose(0, 1), a.transpose(0, 1));
    check_product(numbers({6, 5}, type).transpose(0, 1), b);
    check_product(numbers({5, 9}, type).slice(1, 2, 8), numbers({8, 6}, type).slice(0, 2, 8));  // rows with gaps
    check_product(numbers({5, 12}, type).slice(1, 0, ferry::to_end, 2),
                  numbers({12, 8}, type).slice(0, 0, ferry::to_end, 2).slice(1, 0, ferry::to_end, 2));
    check_product(numbers({1, 6}, type).expand({5, 6}), b);  // the rows are one in memory
    check_product(a, numbers({6, 1}, type).expand({6, 4}));
    check_product(numbers({9, 6}, type).transpose(0, 1).slice(1, 1, 4).transpose(0, 1), b);
    check_product(numbers({5, 1}, type), numbers({1, 4}, type));
    check_product(numbers({1, 6}, type), numbers({6, 1}, type));
    check_product(numbers({5, 0}, type), numbers({0, 4}, type));
    check_product(numbers({0, 6}, type), b);
    check_product(a, numbers({6, 0}, type));
  }
}

TEST_CASE("matmul of batches broadcasts their leading axes") {
  for (const dtype type : types) {
    CAPTURE(dtype_name(type));
    check_product(numbers({3, 5, 6}, type), numbers({3, 6, 4}, type));
    check_product(numbers({3, 5, 6}, type), numbers({6, 4}, type));
    check_product(numbers({5, 6}, type), numbers({3, 6, 4}, type));
    check_product(numbers({2, 1, 5, 6}, type), numbers({3, 6, 4}, type));
    check_product(numbers({2, 1, 5, 6}, type), numbers({1, 6, 4}, type));
    check_product(numbers({3, 6, 5}, type).transpose(1, 2), numbers({3, 4, 6}, type).transpose(1, 2));
    check_product(numbers({3, 6, 5}, type).transpose(1, 2), numbers({6, 4}, type));
    check_product(numbers({5, 3, 6}, type).transpose(0, 1), numbers({3, 6, 4}, type));  // the batch is the middle axis
    check_product(numbers({5, 6, 3}, type).permute({2, 0, 1}), numbers({6, 4}, type));  // needs a copy
    check_product(numbers({2, 2, 2, 3, 5}, type), numbers({2, 1, 2, 5, 3}, type));
    check_product(numbers({0, 5, 6}, type), numbers({6, 4}, type));
    check_product(numbers({3, 5, 0}, type), numbers({3, 0, 4}, type));
  }
}

TEST_CASE("matmul of vectors") {
  for (const dtype type : types) {
    CAPTURE(dtype_name(type));
    check_product(numbers({6}, type), numbers({6}, type, 1));
    check_product(numbers({12}, type).slice(0, 0, ferry::to_end, 2), numbers({6}, type, 1));
    check_product(numbers({5, 6}, type), numbers({6}, type));
    check_product(numbers({5, 6}, type), numbers({6, 3}, type).select(1, 1));
    check_product(numbers({6}, type), numbers({6, 4}, type));
    check_product(numbers({6}, type), numbers({4, 6}, type).transpose(0, 1));
    check_product(numbers({1}, type).expand({6}), numbers({6, 4}, type));
    check_product(numbers({3, 5, 6}, type), numbers({6}, type));
    check_product(numbers({6}, type), numbers({2, 3, 6, 4}, type));
    check_product(numbers({0}, type), numbers({0}, type));
  }
  CHECK(ferry::matmul(ferry::ones({3}), ferry::ones({3})).item<float>() == 3);
}

TEST_CASE("matmul of integers wraps") {
  const tensor big = ferry::full({2, 2}, std::int64_t{1} << 31, dtype::i64);
  CHECK(equal(ferry::matmul(big, big), ferry::full({2, 2}, std::numeric_limits<std::int64_t>::min(), dtype::i64)));
}

TEST_CASE("matmul and linear refuse shapes that do not fit, and name them") {
  const auto refused = [](const dims& a, const dims& b) {
    const std::string text = "matmul needs [n, k] and [k, m]; the shapes are " + to_string(a) + " and " + to_string(b);
    expect_error(errc::bad_shape, text, [&] { (void)ferry::matmul(ferry::zeros(a), ferry::zeros(b)); });
  };
  refused({2, 3}, {2, 3});
  refused({3}, {4});
  refused({}, {3});
  refused({3, 3}, {});
  refused({2, 3, 4}, {3, 4, 5});
  refused({3}, {4, 2});
  expect_error(errc::bad_dtype, "convert one", [] {
    (void)ferry::matmul(ferry::zeros({2, 2}), ferry::zeros({2, 2}, dtype::f64));
  });
  const auto linear_refused = [](const dims& x, const dims& weight, const tensor& bias, const char* text) {
    expect_error(errc::bad_shape, text, [&] { (void)ferry::linear(ferry::zeros(x), ferry::zeros(weight), bias); });
  };
  linear_refused({2, 3}, {3, 4}, {},
                 "linear needs x [..., in], weight [out, in] and bias [out]; the shapes are [2, 3], [3, 4]");
  linear_refused({2, 3}, {3}, {}, "the shapes are [2, 3], [3]");
  linear_refused({}, {1, 1}, {}, "the shapes are [], [1, 1]");
  linear_refused({2, 3}, {4, 3}, ferry::zeros({3}), "the shapes are [2, 3], [4, 3], [3]");
  linear_refused({2, 3}, {4, 3}, ferry::zeros({1, 4}), "[1, 4]");
  expect_error(errc::bad_dtype, "linear of f32 and f64", [] {
    (void)ferry::linear(ferry::zeros({2, 2}), ferry::zeros({2, 2}), ferry::zeros({2}, dtype::f64));
  });
  expect_error(errc::invalid_argument, "2 or 3 tensors, not 1", [] {
    const tensor alone = ferry::zeros({2, 2});
    (void)ferry::run_operation<ferry::op::linear>({}, std::span<const tensor>(&alone, 1));
  });
}

TEST_CASE("linear is a product with the transposed weight, and a bias") {
  for (const dtype type : types) {
    CAPTURE(dtype_name(type));
    const tensor weight = numbers({4, 6}, type, 2);
    const tensor bias = numbers({4}, type, 3);
    for (const tensor& x :
         {numbers({5, 6}, type), numbers({6}, type), numbers({2, 3, 6}, type), numbers({6, 5}, type).transpose(0, 1),
          numbers({6, 2, 3}, type).permute({1, 2, 0}), numbers({0, 6}, type), numbers({40, 6}, type)}) {
      CAPTURE(to_string(x.shape()));
      const tensor expected = naive_product(x, weight.transpose(0, 1));
      CHECK(equal(ferry::linear(x, weight).to(dtype::i64), expected));
      CHECK(equal(ferry::linear(x, weight, bias).to(dtype::i64), expected + bias.to(dtype::i64)));
      CHECK(equal(ferry::linear(x, numbers({6, 4}, type).transpose(0, 1), bias).to(dtype::i64),
                  naive_product(x, numbers({6, 4}, type)) + bias.to(dtype::i64)));
      CHECK(equal(ferry::linear(x, weight, numbers({8}, type).slice(0, 0, ferry::to_end, 2)).to(dtype::i64),
                  expected + numbers({8}, type).slice(0, 0, ferry::to_end, 2).to(dtype::i64)));
    }
    CHECK(equal(ferry::linear(numbers({2, 0}, type), numbers({4, 0}, type), bias), bias.expand({2, 4})));
  }
}

}  // namespace matmul_test
