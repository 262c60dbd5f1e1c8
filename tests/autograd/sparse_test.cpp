// Gradients of leaves as rows.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/ops/sparse.hpp>
#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"
#include "fake_cuda.hpp"
#include "gradient_check.hpp"

namespace sparse_test {

using ferry::bag_mode;
using ferry::device;
using ferry::device_kind;
using ferry::dtype;
using ferry::embedding;
using ferry::embedding_bag;
using ferry::errc;
using ferry::grad;
using ferry::has_sparse_grad;
using ferry::sparse_grad;
using ferry::sparse_tensor;
using ferry::tensor;
using ferry_test::tensors;
using ferry_test::varied;

namespace {

constexpr ferry::embedding_options as_rows{.sparse_gradient = true};
constexpr device gpu{device_kind::cuda, 1};

tensor table(device where = {}) { return ferry::require_grad(varied({6, 3}, 0.5).to(where)); }
tensor indices_of(const std::vector<std::int64_t>& all) { return ferry::from_vector(all); }
tensor weights(const ferry::dims& shape) { return varied(shape, 2.5); }

// The first row of a table, with a formula for rows that is wrong on demand.
struct first_row {
  static constexpr std::string_view name = "sparse_test.first_row";
  static constexpr ferry::operation_kind kind = ferry::operation_kind::new_result;
  static constexpr std::size_t inputs = 1;
  static constexpr ferry::operation_needs needs{};
  struct parameters {
    std::int64_t rows;  // that the formula claims
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters&, const tensor& t) { return t.select(0, 0).clone(); }
};

// The gradient of a leaf, whatever its form.
tensor dense_gradient_of(const tensor& w) {
  return has_sparse_grad(w) ? sparse_grad(w).to_dense().to(device{}) : grad(w).to(device{});
}
template <class F>
void check_same(const F& f, device where = {}) {
  const tensor sparse = table(where);
  const tensor dense = table(where);
  for (int round = 0; round != 2; ++round) {
    const tensor by_rows = f(sparse, as_rows);
    const tensor whole = f(dense, ferry::embedding_options{});
    CHECK(ferry::equal(ferry::detach(by_rows).to(device{}), ferry::detach(whole).to(device{})));
    ferry::backward(by_rows, {.gradients = {weights(by_rows.shape()).to(where)}});
    ferry::backward(whole, {.gradients = {weights(whole.shape()).to(where)}});
  }
  CHECK(has_sparse_grad(sparse));
  CHECK_FALSE(has_sparse_grad(dense));
  CHECK_FALSE(grad(sparse).defined());
  CHECK(ferry::allclose(dense_gradient_of(sparse), dense_gradient_of(dense)));
}

}  // namespace

}  // namespace sparse_test

template <>
struct ferry::derivative<sparse_test::first_row> {
  static constexpr derivative_keeps keeps{};
  static std::array<tensor, 1> backward(const sparse_test::first_row::parameters&, const backward_run& run,
                                        const tensor& gradient) {
    const tensor whole = zeros(run.facts(0).shape, gradient.dtype(), gradient.device());
    whole.select(0, 0).copy_(gradient);
    return {whole};
  }
  static sparse_tensor sparse_backward(const sparse_test::first_row::parameters& with, const backward_run& run,
                                       tensor gradient) {
    return {zeros({1, 1}, dtype::i64), gradient.unsqueeze(0).clone(), {with.rows, run.facts(0).shape[1]}};
  }
};

namespace sparse_test {

TEST_CASE("sparse gradients are the dense ones") {
  for (const device where : {device{}, gpu}) {
    const tensor picked = indices_of({4, 0, 4, 5}).to(where);
    const tensor offsets = indices_of({0, 1, 1});  // the second bag is empty
    check_same([&](const tensor& w, auto with) { return embedding(w, picked, with); }, where);
    check_same([&](const tensor& w, auto with) { return embedding(w, picked.view({2, 2}), with); }, where);
    for (const bag_mode mode : {bag_mode::sum, bag_mode::mean, bag_mode::max}) {
      check_same([&](const tensor& w, auto with) { return embedding_bag(w, picked.view({2, 2}), mode, with); }, where);
      check_same([&](const tensor& w, auto with) { return embedding_bag(w, picked, offsets, mode, with); }, where);
    }
  }
}

TEST_CASE("sparse gradients against differences, and by hand") {
  const tensor picked = indices_of({4, 0, 4, 5});
  ferry_test::check_gradients(
      [&](const tensors& in) -> tensors {
        return {embedding(in[0], picked, as_rows), embedding_bag(in[0], picked.view({2, 2}), bag_mode::mean, as_rows)};
      },
      {varied({6, 3}, 0.5)});
  const tensor w = table();
  ferry::backward(embedding(w, picked, as_rows), {.gradients = {ferry::arange(0, 12, 1, dtype::f64).view({4, 3})}});
  const sparse_tensor found = sparse_grad(w).coalesce();
  CHECK(found.nnz() == 3);
  CHECK(ferry::equal(found.indices(), ferry::tensor_of<std::int64_t>({{0, 4, 5}})));
  CHECK(ferry::equal(found.values(), ferry::tensor_of({{3.0, 4.0, 5.0}, {6.0, 8.0, 10.0}, {9.0, 10.0, 11.0}})));
  // Values as long as the root's gradient, which the pass keeps none of.
  CHECK(sparse_grad(w).nnz() == 4);
}

TEST_CASE("passes, and uses in one graph, add entries, which are brought together when there are many") {
  const tensor w = table();
  const tensor one = ferry::ones({1, 3}, dtype::f64);
  const tensor third = indices_of({3});
  ferry::backward(embedding(w, third, as_rows) * 2 + embedding(w, indices_of({1}), as_rows), {.gradients = {one}});
  CHECK(sparse_grad(w).nnz() == 2);
  for (int round = 0; round != 40; ++round) {
    ferry::backward(embedding(w, third, as_rows), {.gradients = {one}});
    CHECK(sparse_grad(w).nnz() <= 13);  // twice the rows, and one
  }
  const tensor whole = sparse_grad(w).to_dense();
  CHECK(whole.at<double>(3, 0) == 42);
  CHECK(whole.at<double>(1, 2) == 1);
  CHECK(ferry::sum(whole).item<double>() == 3 * 43);
}

TEST_CASE("what was read, and what a user writes later, stay apart") {
  const tensor w = table();
  const tensor picked = indices_of({1, 2});
  const tensor given = ferry::ones({2, 3}, dtype::f64);
  ferry::backward(embedding(w, picked, as_rows), {.gradients = {given}});
  given.fill_(7);
  picked.fill_(5);
  const sparse_tensor before = sparse_grad(w);
  CHECK(ferry::equal(before.indices(), ferry::tensor_of<std::int64_t>({{1, 2}})));
  CHECK(ferry::equal(before.values(), ferry::ones({2, 3}, dtype::f64)));
  ferry::backward(embedding(w, picked, as_rows), {.gradients = {given}});
  CHECK(before.nnz() == 2);
  CHECK(ferry::equal(before.values(), ferry::ones({2, 3}, dtype::f64)));
  const tensor y = embedding(w, picked, as_rows);
  picked.fill_(4);
  expect_error(errc::invalid_argument, "embedding", [&] { ferry::backward(y, {.gradients = {given}}); });
}

TEST_CASE("a dense gradient of the same leaf makes the whole dense") {
  const tensor picked = indices_of({1, 1});
  const tensor expected = ferry::full({6, 3}, 3, dtype::f64);
  ferry::add_(expected.select(0, 1), 2);
  const auto of_rows = [&](const tensor& w) { return ferry::sum(embedding(w, picked, as_rows)); };
  const auto of_all = [](const tensor& w) { return ferry::sum(w) * 3; };
  SUBCASE("in one pass") {
    const tensor w = table();
    ferry::backward(of_rows(w) + of_all(w));
    CHECK_FALSE(has_sparse_grad(w));
    CHECK(ferry::equal(grad(w), expected));
  }
  SUBCASE("before") {
    const tensor w = table();
    ferry::backward(of_all(w));
    ferry::backward(of_rows(w));
    CHECK_FALSE(has_sparse_grad(w));
    CHECK(ferry::equal(grad(w), expected));
  }
  SUBCASE("after") {
    const tensor w = table();
    ferry::backward(of_rows(w));
    ferry::backward(of_all(w));
    CHECK_FALSE(has_sparse_grad(w));
    CHECK_FALSE(sparse_grad(w).defined());
    CHECK(ferry::equal(grad(w), expected));
  }
}

TEST_CASE("weights that are no leaves, and gradients() of them, are dense") {
  const tensor picked = indices_of({1, 4});
  const tensor w = table();
  ferry::backward(ferry::sum(embedding(w * 2, picked, as_rows)));
  CHECK_FALSE(has_sparse_grad(w));
  CHECK(grad(w).at<double>(4, 0) == 2);
  ferry::set_grad(w, {});
  ferry::backward(ferry::sum(embedding(w.slice(0, 2), indices_of({2}), as_rows)));
  CHECK_FALSE(has_sparse_grad(w));
  CHECK(grad(w).at<double>(4, 0) == 1);
  ferry::set_grad(w, {});
  const tensor found = ferry::gradients(ferry::sum(embedding(w, picked, as_rows)), w)[0];
  CHECK(found.at<double>(4, 0) == 1);
  CHECK(ferry::sum(found).item<double>() == 6);
  CHECK_FALSE(has_sparse_grad(w));
  CHECK_FALSE(grad(w).defined());
  const ferry::no_grad outside;
  CHECK_FALSE(embedding(w, picked, as_rows).requires_grad());
}

TEST_CASE("hooks: one call when all has been added; a hook on the gradient sees, and keeps, the dense form") {
  const tensor picked = indices_of({1, 4});
  const tensor w = table();
  int calls = 0;
  std::int64_t entries = 0;
  ferry::gradient_hook hook = ferry::on_accumulated(w, [&](const tensor& leaf) {
    ++calls;
    entries = sparse_grad(leaf).nnz();
  });
  ferry::backward(ferry::sum(embedding(w, picked, as_rows) + embedding(w, picked, as_rows)));
  CHECK(calls == 1);
  CHECK(entries == 4);
  hook.remove();
  ferry::set_sparse_grad(w, {});
  CHECK_FALSE(has_sparse_grad(w));
  int seen = 0;
  hook = ferry::on_gradient(w, [&](const tensor& gradient) {
    ++seen;
    return gradient * 2;
  });
  ferry::backward(ferry::sum(embedding(w, picked, as_rows) + embedding(w, picked, as_rows)));
  CHECK(seen == 1);
  CHECK_FALSE(has_sparse_grad(w));
  CHECK(grad(w).at<double>(1, 1) == 4);
  CHECK(grad(w).at<double>(0, 0) == 0);
}

TEST_CASE("a graph that was kept gives its rows again") {
  const tensor w = table();
  const tensor y = ferry::sum(embedding(w, indices_of({2}), as_rows));
  ferry::backward(y, {.retain_graph = true});
  ferry::backward(y);
  CHECK(sparse_grad(w).to_dense().at<double>(2, 0) == 2);
  expect_error(errc::invalid_argument, "released", [&] { ferry::backward(y); });
}

TEST_CASE("sparse gradients are set and cleared") {
  const tensor w = table();
  const sparse_tensor rows(ferry::tensor_of<std::int64_t>({{5}}), ferry::ones({1, 3}, dtype::f64), {6, 3});
  ferry::set_sparse_grad(w, rows);
  CHECK(equal(sparse_grad(w), rows));
  ferry::backward(ferry::sum(embedding(w, indices_of({5}), as_rows)));
  CHECK(sparse_grad(w).to_dense().at<double>(5, 1) == 2);
  CHECK(rows.values().at<double>(0, 0) == 1);
  ferry::set_grad(w, ferry::ones({6, 3}, dtype::f64));
  CHECK_FALSE(has_sparse_grad(w));
  ferry::set_sparse_grad(w, rows);
  CHECK_FALSE(grad(w).defined());
  ferry::set_grad(w, {});
  CHECK_FALSE(has_sparse_grad(w));
  CHECK_FALSE(sparse_grad(w).defined());
  expect_error(errc::bad_dtype, "f32", [&] { ferry::set_sparse_grad(w, rows.to(dtype::f32)); });
  expect_error(errc::bad_shape, "[7, 3]", [&] {
    ferry::set_sparse_grad(w, sparse_tensor(rows.indices(), rows.values(), {7, 3}));
  });
  expect_error(errc::bad_shape, "one sparse axis", [&] {
    ferry::set_sparse_grad(w, sparse_tensor::from_dense(ferry::ones({6, 3}, dtype::f64), 2));
  });
  expect_error(errc::invalid_argument, "not a leaf", [&] { ferry::set_sparse_grad(w * 2, rows); });
  expect_error(errc::invalid_argument, "requires no", [&] { ferry::set_sparse_grad(ferry::ones({6, 3}), rows); });
}

TEST_CASE("gradients go through sparse tensors to their values") {
  ferry_test::check_gradients(
      [](const tensors& in) -> tensors {
        const sparse_tensor s(ferry::tensor_of<std::int64_t>({{3, 1, 3}}), in[0], {5, 2});
        const tensor dense = in[1] * 1;
        add_(dense, mul(s, 3), 2);
        return {s.to_dense(), s.coalesce().values(), add(in[1], s, 2), dense,
                sparse_tensor::from_dense(in[1], 1).values()};
      },
      {varied({3, 2}, 0.5), varied({5, 2}, 1.5)});
}

TEST_CASE("threads that run passes at once over one table lose no rows") {
  const tensor w = table();
  std::vector<std::thread> threads;
  for (int n = 0; n != 4; ++n) {
    threads.emplace_back([&w, n] {
      for (int round = 0; round != 50; ++round) ferry::backward(ferry::sum(embedding(w, indices_of({n, 5}), as_rows)));
    });
  }
  std::int64_t most = 0;
  for (int look = 0; look != 20; ++look) most = std::max(most, has_sparse_grad(w) ? sparse_grad(w).nnz() : 0);
  for (std::thread& each : threads) each.join();
  CHECK(most <= 13);
  const tensor whole = sparse_grad(w).to_dense();
  for (int n = 0; n != 4; ++n) CHECK(whole.at<double>(n, 0) == 50);
  CHECK(whole.at<double>(5, 2) == 200);
}

TEST_CASE("rows on streams of a device: the caller's streams wait for them") {
  for (int round = 0; round != 5; ++round) {
    const tensor w = ferry::require_grad(ferry::ones({6, 100}, dtype::f32, gpu));
    const tensor picked = indices_of({2, 2}).to(gpu);
    const ferry::stream other = ferry::pool_stream(gpu);
    other.wait(ferry::current_stream(gpu));
    (void)ferry::gradient_edge(w);
    const tensor here = embedding(w, picked, as_rows);
    tensor there;
    {
      const ferry::stream_guard on(other);
      there = embedding(w, picked, as_rows) * 3;
    }
    ferry::current_stream(gpu).wait(other);
    ferry::backward(ferry::sum(here * there));
    CHECK(has_sparse_grad(w));
    const tensor whole = sparse_grad(w).to_dense().to(device{});
    CHECK(whole.at<float>(2, 50) == 12);
    CHECK(whole.at<float>(1, 50) == 0);
  }
}

TEST_CASE("operations of one's own may give rows") {
  CHECK(ferry::register_derivative<first_row>());
  const tensor w = table();
  ferry::backward(ferry::sum(ferry::run_operation<first_row>({6}, w)));
  CHECK(has_sparse_grad(w));
  CHECK(ferry::sum(sparse_grad(w).to_dense().select(0, 0)).item<double>() == 3);
  expect_error(errc::bad_shape, "first_row",
               [&] { ferry::backward(ferry::sum(ferry::run_operation<first_row>({5}, w))); });
  CHECK(sparse_grad(w).nnz() == 1);
}

}  // namespace sparse_test
