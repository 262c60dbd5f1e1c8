// Updates of some rows of a table.

#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"
#include "problems.hpp"

namespace rows_test {

using ferry::dtype;
using ferry::errc;
using ferry::tensor;
using problems::near;

namespace {

template <class F>
void for_each_with_rows(F&& f) {
  problems::for_each_algorithm([&]<class Algorithm>(std::type_identity<Algorithm> which) {
    if constexpr (ferry::updates_rows<Algorithm>) f(which);
  });
}

// The rows of a dense gradient, as a table has it.
tensor dense_gradient(const tensor& table, const std::vector<std::int64_t>& rows, const tensor& values) {
  tensor dense = ferry::zeros_like(table);
  for (std::size_t i = 0; i != rows.size(); ++i) {
    ferry::add_(dense.select(0, rows[i]), values.select(0, static_cast<std::int64_t>(i)));
  }
  return dense;
}

static_assert(ferry::updates_rows<ferry::sgd> && ferry::updates_rows<ferry::adam> &&
              ferry::updates_rows<ferry::adamw> && ferry::updates_rows<ferry::adagrad> &&
              ferry::updates_rows<ferry::row_wise_adagrad>);
static_assert(!ferry::updates_rows<ferry::rprop>);

}  // namespace

TEST_CASE("rows that are touched are updated as by the dense gradient, others stay") {
  const std::vector<std::int64_t> rows{4, 1, 4, 0};  // one twice
  for_each_with_rows([&]<class Algorithm>(std::type_identity<Algorithm>) {
    CAPTURE(Algorithm::name);
    for (const dtype type : {dtype::f32, dtype::f64}) {
      auto with = problems::full_options<Algorithm>();
      const tensor table = ferry::arange(0, 36).to(type).view({6, 2, 3}) * 0.25;
      const tensor start = table.clone();
      const tensor dense = table.clone();
      const tensor values = ferry::arange(1, 25).to(type).view({4, 2, 3}) * 0.125;
      typename Algorithm::state kept;
      typename Algorithm::state dense_kept;
      for (int round = 0; round != 3; ++round) {
        Algorithm::update_rows(table, ferry::from_vector(rows), values, kept, with);
        const tensor gradient = dense_gradient(dense, rows, values);
        Algorithm::update({&dense, 1}, {&gradient, 1}, {&dense_kept, 1}, with);
      }
      CHECK(table.version() == 3);
      for (const std::int64_t row : {0, 1, 4}) {
        CHECK(near(table.select(0, row), dense.select(0, row), type == dtype::f64 ? 1e-14 : 1e-6));
      }
      for (const std::int64_t row : {2, 3, 5}) CHECK(ferry::equal(table.select(0, row), start.select(0, row)));
    }
  });
}

TEST_CASE("rows of strided tables, and of vectors") {
  for_each_with_rows([&]<class Algorithm>(std::type_identity<Algorithm>) {
    CAPTURE(Algorithm::name);
    const auto with = problems::full_options<Algorithm>();
    const tensor table = ferry::arange(0, 12).to(dtype::f64).view({3, 4});
    const tensor turned = ferry::zeros({4, 6}, dtype::f64).slice(1, 0, 6, 2).transpose(0, 1);  // [3, 4]
    turned.copy_(table);
    const tensor indices = ferry::tensor_of<std::int64_t>({9, 2, 9, 0, 9, 2}).slice(0, 1, 6, 2);  // 2, 0, 2
    const tensor values = ferry::arange(0, 12).to(dtype::f64).view({4, 3}).transpose(0, 1);
    typename Algorithm::state a;
    typename Algorithm::state b;
    for (int round = 0; round != 2; ++round) {
      Algorithm::update_rows(table, indices.contiguous(), values.contiguous(), a, with);
      Algorithm::update_rows(turned, indices, values, b, with);
    }
    CHECK(near(turned, table, 1e-14));
    CHECK_FALSE(near(table, ferry::arange(0, 12).to(dtype::f64).view({3, 4}), 1e-6));

    const tensor vector = ferry::ones({4}, dtype::f64);
    typename Algorithm::state kept;
    Algorithm::update_rows(vector, ferry::tensor_of<std::int64_t>({3}), ferry::tensor_of({2.}), kept, with);
    CHECK(vector.at<double>(3) < 1);
    CHECK(ferry::equal(vector.slice(0, 0, 3), ferry::ones({3}, dtype::f64)));
  });
}

TEST_CASE("the means of rows that lazy Adam does not touch do not decay, and steps are calls") {
  const tensor table = ferry::ones({2, 1}, dtype::f64);
  ferry::adam::state kept;
  const auto touch = [&](std::int64_t row) {
    ferry::adam::update_rows(table, ferry::tensor_of({row}), ferry::tensor_of({{1.}}), kept, {});
  };
  touch(0);
  const double mean = kept.mean.at<double>(0, 0);
  touch(1);
  CHECK(kept.mean.at<double>(0, 0) == mean);
  CHECK(kept.mean.at<double>(1, 0) == mean);
  CHECK(kept.steps == 2);
}

TEST_CASE("without indices nothing happens") {
  for_each_with_rows([&]<class Algorithm>(std::type_identity<Algorithm>) {
    const tensor table = ferry::ones({2, 3});
    typename Algorithm::state kept;
    Algorithm::update_rows(table, ferry::zeros({0}, dtype::i64), ferry::zeros({0, 3}), kept, {});
    CHECK(table.version() == 0);
    if constexpr (requires { kept.steps; }) CHECK(kept.steps == 0);
  });
}

TEST_CASE("rows that do not fit are refused, and nothing is written") {
  const tensor table = ferry::ones({2, 3});
  const auto refuse = [&](errc code, const char* text, const tensor& indices, const tensor& values) {
    for_each_with_rows([&]<class Algorithm>(std::type_identity<Algorithm>) {
      typename Algorithm::state kept;
      expect_error(code, text, [&] { Algorithm::update_rows(table, indices, values, kept, {}); });
      CHECK(table.version() == 0);
    });
  };
  const auto rows = [](std::initializer_list<std::int64_t> values) { return ferry::tensor_of(values); };
  refuse(errc::bad_shape, "index 2 at position 1 is not one of the 2 rows", rows({0, 2}), ferry::ones({2, 3}));
  refuse(errc::bad_shape, "index -1 at position 0", rows({-1}), ferry::ones({1, 3}));
  refuse(errc::bad_shape, "values of shape [2, 3] for 1 rows of a parameter of shape [2, 3]", rows({1}),
         ferry::ones({2, 3}));
  refuse(errc::bad_shape, "one axis, not shape [1, 1]", rows({1}).view({1, 1}), ferry::ones({1, 3}));
  refuse(errc::bad_dtype, "indices of rows are i64, not i32", rows({1}).to(dtype::i32), ferry::ones({1, 3}));
  refuse(errc::bad_dtype, "values of f64 for a parameter of f32", rows({1}), ferry::ones({1, 3}, dtype::f64));
  refuse(errc::invalid_argument, "undefined", {}, ferry::ones({1, 3}));
  ferry::sgd::state kept;
  expect_error(errc::bad_shape, "a parameter without axes has no rows",
               [&] { ferry::sgd::update_rows(ferry::tensor_of(1.F), rows({0}), ferry::ones({1}), kept, {}); });
}

}  // namespace rows_test
