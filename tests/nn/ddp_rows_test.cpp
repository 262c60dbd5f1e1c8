// ddp: tables of embeddings whose gradients travel as rows.

#include <ferry/nn/ddp.hpp>

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/autograd.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"

namespace ddp_rows_test {

using ferry::dtype;
using ferry::errc;
using ferry::process_group;
using ferry::tensor;
using ferry::nn::ddp;
using ferry_test::run_cluster;
namespace dist = ferry::dist_autograd;
namespace nn = ferry::nn;

constexpr int members = 3;

// A table, and a layer over what is looked up; `wide` uses a second table, too.
struct network {
  explicit network(bool sparse, std::uint64_t seed = 1) : network(sparse, ferry::generator(seed)) {}
  network(bool sparse, ferry::generator source)
      : table(7, 3, {.sparse_gradient = sparse, .dtype = dtype::f64}, source),
        more(5, 3, {.sparse_gradient = sparse, .dtype = dtype::f64}, source),
        out(3, 2, {.dtype = dtype::f64}, source) {}
  tensor operator()(const tensor& indices, bool wide = true) const {
    const tensor x = table(indices);
    return out(wide ? x + more(ferry::detach(indices)) : x);
  }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("table", table);
    visit("more", more);
    visit("out", out);
  }
  nn::embedding table;
  nn::embedding more;
  nn::linear out;
};

// Rows that one member has, that several have, that come twice; none at all for a batch of no indices.
tensor batch_of(int rank, int step) {
  const std::int64_t own = (rank + step) % 5;
  return ferry::from_vector(std::vector<std::int64_t>{0, own, 4, own});
}
tensor loss_of(const tensor& y) { return ferry::mean(y * y); }
bool close(const tensor& a, const tensor& b) { return ferry::allclose(a, b, 1e-12, 1e-14); }
tensor whole_of(const ferry::sparse_tensor& rows) {
  REQUIRE(rows.defined());
  return rows.to_dense();
}

// Of one process, on the batches of all ranks in turn.
std::vector<tensor> joined_gradients(const network& like, int step, bool wide = true) {
  const network alone = nn::clone(like);
  tensor sum;
  for (int rank = 0; rank != members; ++rank) {
    const tensor loss = loss_of(alone(batch_of(rank, step), wide));
    sum = sum.defined() ? sum + loss : loss;
  }
  ferry::backward(sum * (1.0 / members));
  std::vector<tensor> gradients;
  for (const tensor& each : nn::parameters(alone)) {
    gradients.push_back(ferry::has_sparse_grad(each) ? ferry::sparse_grad(each).to_dense() : ferry::grad(each));
  }
  return gradients;
}

std::vector<tensor> gradients_here(const ddp<network>& model) {
  std::vector<tensor> found;
  for (const tensor& each : model.parameters()) {
    found.push_back(ferry::has_sparse_grad(each) ? ferry::sparse_grad(each).to_dense() : ferry::grad(each));
  }
  return found;
}
void clear_gradients(const ddp<network>& model) {
  for (const tensor& each : model.parameters()) ferry::set_grad(each, tensor());
}

const std::vector<std::size_t> bucket_sizes{1, std::size_t{1} << 20U};

TEST_CASE("[row 281] ddp: gradients of tables are averaged as rows, in a context or not, and remain rows") {
  run_cluster(members, [](ferry::worker& self) {
    const process_group group(self);
    for (const std::size_t bytes : bucket_sizes) {
      CAPTURE(bytes);
      ddp model(network(true, 1 + static_cast<std::uint64_t>(group.rank())), group,
                {.bucket_bytes = bytes, .first_bucket_bytes = bytes});
      const network& inside = model.module();
      for (int step = 0; step != 3; ++step) {
        clear_gradients(model);
        const auto expected = joined_gradients(inside, step);
        ferry::backward(loss_of(model(batch_of(group.rank(), step))));
        CHECK(ferry::has_sparse_grad(inside.table.weight));
        CHECK(ferry::sparse_grad(inside.table.weight).is_coalesced());
        CHECK(ferry::sparse_grad(inside.table.weight).nnz() < 7);
        const auto found = gradients_here(model);
        for (std::size_t i = 0; i != found.size(); ++i) CHECK(close(found[i], expected[i]));

        const dist::context pass(self);
        pass.backward(loss_of(model(batch_of(group.rank(), step))));
        const auto in_context = pass.gradients();
        const auto parameters = model.parameters();
        for (std::size_t i = 0; i != found.size(); ++i) CHECK(close(in_context.at(parameters[i]), expected[i]));
        CHECK(close(whole_of(in_context.find(inside.table.weight)->rows), expected[0]));
        group.barrier().get();
      }
    }
  });
}

TEST_CASE("ddp: members that step with rows keep equal tables, as one process has them") {
  run_cluster(members, [](ferry::worker& self) {
    const process_group group(self);
    ddp model(network(true), group);
    const network alone = nn::clone(model.module());
    ferry::optimizer<ferry::sgd> own(model.parameters(), {.lr = 0.1});
    ferry::optimizer<ferry::sgd> other(nn::parameters(alone), {.lr = 0.1});
    for (int step = 0; step != 4; ++step) {
      own.zero_grad();
      other.zero_grad();
      ferry::backward(loss_of(model(batch_of(group.rank(), step))));
      tensor sum;
      for (int rank = 0; rank != members; ++rank) {
        const tensor loss = loss_of(alone(batch_of(rank, step)));
        sum = sum.defined() ? sum + loss : loss;
      }
      ferry::backward(sum * (1.0 / members));
      own.step();
      other.step();
      CHECK(close(ferry::detach(model.module().table.weight), ferry::detach(alone.table.weight)));
      CHECK(close(ferry::detach(model.module().out.weight), ferry::detach(alone.out.weight)));
    }
  });
}

TEST_CASE("ddp: rows add up in no_sync(), with a dense gradient, and where only some members use a table") {
  run_cluster(members, [](ferry::worker& self) {
    const process_group group(self);
    ddp model(network(true), group, {.find_unused = true});
    const network& inside = model.module();
    {
      const auto apart = model.no_sync();
      ferry::backward(loss_of(model(batch_of(group.rank(), 0))));
    }
    ferry::backward(loss_of(model(batch_of(group.rank(), 1))));
    const auto first = joined_gradients(inside, 0);
    const auto second = joined_gradients(inside, 1);
    CHECK(close(gradients_here(model)[0], first[0] + second[0]));
    CHECK(close(gradients_here(model)[2], first[2] + second[2]));

    clear_gradients(model);  // a hook sees a dense gradient, and rows travel all the same
    ferry::gradient_hook hook = ferry::on_gradient(inside.table.weight, [](const tensor& g) { return g * 2.0; });
    ferry::backward(loss_of(model(batch_of(group.rank(), 1))));
    hook.remove();
    CHECK(ferry::has_sparse_grad(inside.table.weight));
    CHECK(close(gradients_here(model)[0], second[0] * 2.0));

    clear_gradients(model);
    const bool wide = group.rank() == 1;
    ferry::backward(loss_of(model(batch_of(group.rank(), 2), wide)));
    const network alone = nn::clone(inside);
    ferry::backward(loss_of(alone(batch_of(1, 2), true)));
    const tensor expected = ferry::sparse_grad(alone.more.weight).to_dense() * (1.0 / members);
    CHECK(close(gradients_here(model)[1], expected));

    clear_gradients(model);  // none does
    ferry::backward(loss_of(model(batch_of(group.rank(), 3), false)));
    CHECK(ferry::sparse_grad(inside.more.weight).nnz() == 0);
    CHECK(close(gradients_here(model)[0], joined_gradients(inside, 3, false)[0]));
  });
}

TEST_CASE("[row 298] ddp: members that have finished a join take part with no rows") {
  run_cluster(members, [](ferry::worker& self) {
    const process_group group(self);
    ddp model(network(true), group);
    ferry::optimizer<ferry::sgd> optimizer(model.parameters(), {.lr = 0.1});
    int steps = 0;
    model.join([&] {
      for (int step = 0; step != 1 + group.rank(); ++step) {
        optimizer.zero_grad();
        ferry::backward(loss_of(model(batch_of(group.rank(), step))));
        optimizer.step();
        ++steps;
        const auto here = gradients_here(model);
        CHECK(here[0].defined());
      }
    });
    CHECK(steps == 1 + group.rank());
    const tensor all = group.all_gather(ferry::detach(model.module().table.weight)).get();
    for (int rank = 1; rank != members; ++rank) CHECK(ferry::equal(all.select(0, 0), all.select(0, rank)));
  });
}

TEST_CASE("ddp: a pass with rows that fails at one member fails at all, and the next one is right") {
  const ferry_test::captured_log quiet;
  run_cluster(members, [](ferry::worker& self) {
    const process_group group(self, ferry::all_workers, {.limit = std::chrono::seconds(300)});
    for (const std::size_t bytes : bucket_sizes) {
      ddp model(network(true), group, {.bucket_bytes = bytes, .first_bucket_bytes = bytes});
      const network& inside = model.module();
      const std::vector<tensor> places{inside.table.weight, inside.more.weight, inside.out.weight};
      for (std::size_t place = 0; place != places.size(); ++place) {
        for (const bool in_context : {false, true}) {
          CAPTURE(place);
          clear_gradients(model);
          ferry::gradient_hook hook;
          if (group.rank() == 1) {
            hook = ferry::on_gradient(places[place],
                                      [](const tensor&) -> tensor { throw std::runtime_error("the rows are wrong"); });
          }
          std::string problem;
          try {
            if (in_context) {
              const dist::context pass(self);
              pass.backward(loss_of(model(batch_of(group.rank(), 0))));
            } else {
              ferry::backward(loss_of(model(batch_of(group.rank(), 0))));
            }
          } catch (const std::exception& error) {
            problem = error.what();
          }
          hook.remove();
          CHECK_MESSAGE(problem.find("the rows are wrong") != std::string::npos, problem);
          clear_gradients(model);
          ferry::backward(loss_of(model(batch_of(group.rank(), 1))));
          const auto expected = joined_gradients(inside, 1);
          const auto found = gradients_here(model);
          for (std::size_t i = 0; i != found.size(); ++i) CHECK(close(found[i], expected[i]));
        }
      }
    }
  });
}

// A layer first, whose weight is the table's.
struct tied {
  nn::embedding table{7, 3, {.sparse_gradient = true, .dtype = dtype::f64}};
  nn::linear out{3, 7, {.dtype = dtype::f64}};
  tied() { out.weight = table.weight; }
  tensor operator()(const tensor& indices) const { return table(indices); }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("out", out);
    visit("table", table);
  }
};

TEST_CASE("ddp: a table that is tied to another weight travels as rows, whichever name comes first") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    ddp model(tied(), group, {.find_unused = true});
    ferry::backward(ferry::sum(model(ferry::from_vector(std::vector<std::int64_t>{group.rank(), 3}))));
    tensor expected = ferry::zeros({7, 3}, dtype::f64);
    for (const std::int64_t row : {0, 1}) ferry::add_(expected.select(0, row), 0.5);
    ferry::add_(expected.select(0, 3), 1.0);
    CHECK(close(ferry::sparse_grad(model.module().table.weight).to_dense(), expected));
  });
}

// Looks rows up without saying so.
struct silent {
  tensor weight = ferry::require_grad(ferry::ones({4, 2}, dtype::f64));
  tensor operator()(const tensor& indices) const {
    return ferry::embedding(weight, indices, {.sparse_gradient = true});
  }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("weight", weight);
  }
};
struct outspoken : silent {
  static constexpr bool sparse_gradient = true;
};

TEST_CASE("ddp: a sparse gradient of a module that does not say so is refused with the remedy") {
  const ferry_test::captured_log quiet;
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    const tensor indices = ferry::from_vector(std::vector<std::int64_t>{group.rank(), 3});
    {
      ddp model(silent(), group);
      expect_error(errc::invalid_argument, "bool sparse_gradient",
                   [&] { ferry::backward(ferry::sum(model(indices))); });
      group.barrier().get();
    }
    ddp model(outspoken(), group);
    ferry::backward(ferry::sum(model(indices)));
    const tensor found = ferry::sparse_grad(model.module().weight).to_dense();
    CHECK(close(found, ferry::tensor_of({{.5, .5}, {.5, .5}, {0., 0.}, {1., 1.}})));
  });
}

TEST_CASE("ddp: members that differ in which gradients are rows are refused") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    expect_error(errc::group_mismatch, "whether that is rows", [&] { (void)ddp(network(group.rank() == 0), group); });
  });
}

}  // namespace ddp_rows_test
