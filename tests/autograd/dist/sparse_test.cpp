// Tables of embeddings at other workers, whose gradients are rows; and gradients of rows that go through messages.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "dist_test.hpp"
#include "varied.hpp"

namespace sparse_test {

using namespace dist_test;
using ferry_test::varied;

constexpr ferry::embedding_options as_rows{.sparse_gradient = true};

class table {
 public:
  explicit table(double seed) : weight_(leaf(varied({6, 3}, seed))) {}
  tensor look_up(const tensor& indices) { return ferry::embedding(weight_, indices, as_rows); }
  tensor bags(const tensor& indices, const tensor& offsets) {
    return ferry::embedding_bag(weight_, indices, offsets, ferry::bag_mode::sum, as_rows);
  }
  ferry::sparse_tensor rows(dist::context_id id) {
    const auto found = dist::get_gradients(id);
    const auto* own = found.find(weight_);
    return own ? own->rows : ferry::sparse_tensor();
  }
  tensor dense(dist::context_id id) { return dist::get_gradients(id).at(weight_); }
  tensor both(const tensor& indices) { return look_up(indices) + ferry::sum(weight_); }

 private:
  tensor weight_;
};

tensor look_up(const tensor& weight, const tensor& indices) { return ferry::embedding(weight, indices, as_rows); }

tensor indices_of(const std::vector<std::int64_t>& all) { return ferry::from_vector(all); }

// Passes a copy of its gradient on, and notes where the elements of that are.
struct watched : ferry::function<watched> {
  static constexpr std::string_view name = "watched";
  struct saved {};
  static tensor forward(saved&, const tensor& x) { return x * 1.0; }
  static tensor backward(const saved&, const tensor& gradient) {
    const tensor made = gradient.clone();
    address = made.data();
    if (keeps) kept = made;
    return made;
  }
  static inline const void* address = nullptr;
  static inline bool keeps = false;
  static inline tensor kept;
};

// The gradient of the table for a pass with gradient 1 of all that was looked up.
tensor counted(const std::vector<std::int64_t>& looked_up) {
  tensor result = ferry::zeros({6, 3}, ferry::dtype::f64);
  for (const std::int64_t row : looked_up) ferry::add_(result.select(0, row), 1);
  return result;
}

TEST_CASE("[row 281] a sparse table at another worker, integer inputs: two passes add up, as rows") {
  cluster group(2);
  const auto at = group[0].remote<ferry::make<table>>("worker1", 1.);
  const tensor scale = leaf({1, 1, 1});
  const dist::context context(group[0]);
  const tensor found = at.rpc_sync<&table::bags>(indices_of({0, 2, 2, 5}), indices_of({0, 3}));
  CHECK(found.requires_grad());
  const tensor loss = ferry::sum(found * scale);
  context.backward(loss, {.retain_graph = true});
  const ferry::sparse_tensor once = at.rpc_sync<&table::rows>(context.id());
  REQUIRE(once.defined());
  CHECK(once.shape() == ferry::dims{6, 3});
  CHECK(ferry::equal(once.to_dense(), counted({0, 2, 2, 5})));
  context.backward(loss);
  const ferry::sparse_tensor twice_as_much = at.rpc_sync<&table::rows>(context.id());
  REQUIRE(twice_as_much.defined());
  CHECK(ferry::equal(twice_as_much.to_dense(), counted({0, 2, 2, 5, 0, 2, 2, 5})));
  CHECK(context.gradients().contains(scale));
}

TEST_CASE("[row 278] rows of one leaf are kept as rows, and become dense with the first dense gradient") {
  cluster group(2);
  const tensor weight = leaf(varied({6, 3}, 1));
  const dist::context context(group[0]);
  const tensor indices = indices_of({1, 1, 4});
  const tensor given = ferry::full({3, 3}, 2, ferry::dtype::f64);
  context.backward(look_up(weight, indices), {.gradients = {given}});
  {
    const auto found = context.gradients();
    const auto* own = found.find(weight);
    REQUIRE(own);
    CHECK_FALSE(own->dense.defined());
    REQUIRE(own->rows.defined());
    CHECK(own->rows.nnz() == 3);
    CHECK(ferry::equal(found.at(weight), counted({1, 1, 4}) * 2.0));
  }
  CHECK(ferry::equal(given, ferry::full({3, 3}, 2, ferry::dtype::f64)));
  const tensor other = leaf(varied({6, 3}, 2));
  context.backward(ferry::sum(look_up(other, indices) + look_up(weight, indices)));
  {
    const auto found = context.gradients();
    CHECK(ferry::equal(found.at(other), counted({1, 1, 4})));
    CHECK(ferry::equal(found.at(weight), counted({1, 1, 4}) * 3.0));
  }
  CHECK(ferry::equal(given, ferry::full({3, 3}, 2, ferry::dtype::f64)));
  context.backward(ferry::sum(group[0].rpc_sync<twice>("worker1", weight)), {.retain_graph = true});
  {
    const auto found = context.gradients();
    CHECK(found.find(weight)->dense.defined());
    CHECK_FALSE(found.find(weight)->rows.defined());
    CHECK(ferry::equal(found[weight], counted({1, 1, 4}) * 3.0 + 2.0));
  }
  // And rows are added to what is dense.
  context.backward(ferry::sum(look_up(weight, indices)));
  CHECK(ferry::equal(context.gradients()[weight], counted({1, 1, 4}) * 4.0 + 2.0));
}

TEST_CASE(
    "[row 278] values of rows are kept without a copy, whatever else refers to the indices; shared ones are copied") {
  cluster group(2);
  const tensor weight = leaf(varied({6, 3}, 1));
  const tensor other = leaf(varied({6, 3}, 2));
  const tensor indices = indices_of({1, 1, 4});
  const tensor view = indices.narrow(0, 1, 2);
  const auto rows_in = [&](const auto& f) {
    const dist::context context(group[0]);
    (void)group[0].rpc_sync<twice>("worker1", weight);
    context.backward(ferry::sum(f()));
    const auto found = context.gradients();
    REQUIRE(found.find(weight));
    REQUIRE(found.find(weight)->rows.defined());
    CHECK(ferry::equal(found.at(weight), counted({1, 1, 4})));
    return found.find(weight)->rows;
  };
  // The caller has the indices, and a view of them; so has the gradient.
  CHECK(rows_in([&] { return watched::apply(look_up(weight, indices)); }).values().data() == watched::address);
  CHECK(ferry::equal(indices, indices_of({1, 1, 4})));
  CHECK(view.data<std::int64_t>()[1] == 4);
  // The function keeps what it has returned.
  watched::keeps = true;
  const ferry::sparse_tensor copied = rows_in([&] { return watched::apply(look_up(weight, indices)); });
  watched::keeps = false;
  CHECK(copied.values().data() != watched::address);
  ferry::add_(copied.values(), 100);
  CHECK(ferry::equal(watched::kept, ferry::ones({3, 3}, ferry::dtype::f64)));
  watched::kept = tensor();
  // Two leaves have it: at most one of them without a copy.
  const dist::context context(group[0]);
  context.backward(ferry::sum(watched::apply(look_up(weight, indices) + look_up(other, indices))));
  const auto both = context.gradients();
  const void* first = both.find(weight)->rows.values().data();
  const void* second = both.find(other)->rows.values().data();
  CHECK(first != second);
}

TEST_CASE("chosen gradients of a table are dense, and those of other contexts are rows meanwhile") {
  cluster group(2);
  const tensor weight = leaf(varied({6, 3}, 1));
  const tensor indices = indices_of({1, 1, 4});
  std::optional<ferry::sparse_tensor> of_other;
  const dist::context context(group[0]);
  const tensor y = look_up(weight, indices) * 1.0;
  const ferry::gradient_hook hook = ferry::on_gradient(y, [&](const tensor&) -> tensor {
    std::thread([&] {
      const ferry::enable_grad on;
      const dist::context other(group[0]);
      other.backward(ferry::sum(look_up(weight, indices)));
      const auto all = other.gradients();
      const auto* found = all.find(weight);
      of_other = found ? found->rows : ferry::sparse_tensor();
    }).join();
    return {};
  });
  const auto chosen = dist::gradients(context, ferry::sum(y), {weight, y});
  CHECK(ferry::equal(chosen.at(0), counted({1, 1, 4})));
  CHECK(ferry::equal(chosen.at(1), ferry::ones({3, 3}, ferry::dtype::f64)));
  REQUIRE(of_other.has_value());
  REQUIRE(of_other->defined());
  CHECK(ferry::equal(of_other->to_dense(), counted({1, 1, 4})));
  CHECK(context.gradients().empty());
}

TEST_CASE("[row 278] rows of two leaves never share their values") {
  cluster group(2);
  const tensor first = leaf(varied({6, 3}, 1));
  const tensor second = leaf(varied({6, 3}, 2));
  const tensor indices = indices_of({1, 1, 4});
  const dist::context context(group[0]);
  context.backward(ferry::sum(group[0].rpc_sync<twice>("worker1", look_up(first, indices) + look_up(second, indices))));
  const auto found = context.gradients();
  ferry::add_(found.find(first)->rows.values(), 100);
  CHECK(ferry::equal(context.gradients().at(second), counted({1, 1, 4}) * 2.0));
}

TEST_CASE("[row 236] [row 248] a table that is sent has a dense gradient: it crosses workers as a whole") {
  cluster group(2);
  const tensor weight = leaf(varied({6, 3}, 1));
  const dist::context context(group[0]);
  const tensor found = group[0].rpc_sync<look_up>("worker1", weight, indices_of({1, 1, 4}));
  context.backward(ferry::sum(found));
  CHECK(ferry::equal(context.gradients()[weight], counted({1, 1, 4})));
}

TEST_CASE("rows and a dense gradient of one leaf in one pass, and a hook that sees it whole") {
  cluster group(2);
  const auto at = group[0].remote<ferry::make<table>>("worker1", 1.);
  const dist::context context(group[0]);
  context.backward(ferry::sum(at.rpc_sync<&table::both>(indices_of({1, 3}))));
  CHECK(ferry::equal(at.rpc_sync<&table::dense>(context.id()), counted({1, 3}) + 6.0));
  const tensor weight = leaf(varied({6, 3}, 1));
  int seen = 0;
  ferry::on_gradient(weight, [&](const tensor& gradient) {
    ++seen;
    return gradient * 2.0;
  });
  context.backward(ferry::sum(group[0].rpc_sync<twice>("worker1", look_up(weight, indices_of({0, 0})))));
  CHECK(seen == 1);
  CHECK(ferry::equal(context.gradients()[weight], counted({0, 0}) * 4.0));
}

}  // namespace sparse_test
