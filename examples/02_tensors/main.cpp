// Tensors as plain arguments and results: a matrix product on all workers.   ferry-run -n 3 ./02_tensors

#include <ferry/ferry.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/format.hpp>
#include <ferry/tensor/generator.hpp>

#include <cereal/types/map.hpp>
#include <iostream>
#include <map>
#include <string>
#include <vector>

// A tensor is a handle: taking it by value copies no elements. What arrives is this worker's own.
ferry::tensor multiply(ferry::tensor rows, ferry::tensor by) { return ferry::matmul(rows, by); }

struct facts {
  std::string layout;
  std::map<std::string, ferry::tensor> sums;  // tensors travel anywhere inside containers and structs

  template <class Archive>
  void serialize(Archive& archive) {
    archive(layout, sums);
  }
};

facts describe(ferry::tensor t) {
  return {"shape " + to_string(t.shape()) + ", strides " + to_string(t.strides()),
          {{"all", ferry::sum(t)}, {"first row", ferry::sum(t.select(0, 0))}}};
}

int run(const ferry::worker& self) {
  const std::vector<ferry::worker_info> workers = self.workers();
  const auto parts = static_cast<std::int64_t>(workers.size());

  // Each worker gets its share of the rows. narrow() is a view of the big matrix: only the rows that it shows are sent,
  // straight from where they are to where the callee reads them. They must not be written until the result is there.
  ferry::generator random(7);
  const ferry::tensor a = ferry::randn({8 * parts, 64}, random);
  const ferry::tensor b = ferry::randn({64, 4}, random);
  std::vector<ferry::future<ferry::tensor>> pending;
  for (std::int64_t i = 0; i != parts; ++i) {
    pending.push_back(ferry::rpc_async<multiply>(i, a.narrow(0, 8 * i, 8), b));
  }
  const ferry::tensor product = ferry::empty({8 * parts, 4});
  for (std::int64_t i = 0; i != parts; ++i)
    product.narrow(0, 8 * i, 8).copy_(pending[static_cast<std::size_t>(i)].get());
  std::cout << "a x b, " << parts << " workers, the first rows:\n" << to_string(product.narrow(0, 0, 3)) << std::endl;
  bool right = ferry::allclose(product, ferry::matmul(a, b));

  // A view keeps its order of elements on the way, without its gaps: every second column of a transposed matrix.
  const ferry::tensor view = ferry::arange(12).reshape({3, 4}).transpose(0, 1).slice(1, 0, ferry::to_end, 2);
  const facts seen = ferry::rpc_sync<describe>(1, view);
  std::cout << "here:    shape " << to_string(view.shape()) << ", strides " << to_string(view.strides()) << '\n'
            << "worker1: " << seen.layout << ", sum " << seen.sums.at("all").item<std::int64_t>() << std::endl;
  right = right && seen.sums.at("all").item<int>() == 44 && seen.sums.at("first row").item<int>() == 8;

  // Memory that is not ferry's travels, too; the owner (here none) keeps it alive while a tensor refers to it.
  std::vector<float> mine{1, 2, 3, 4};
  const ferry::tensor borrowed = ferry::from_blob(mine.data(), {2, 2}, ferry::dtype::f32);
  right = right &&
          ferry::equal(ferry::rpc_sync<multiply>(2, borrowed, borrowed), ferry::tensor_of({{7.F, 10.F}, {15.F, 22.F}}));
  std::cout << (right ? "all results are as expected" : "WRONG RESULT") << std::endl;
  return right ? 0 : 1;
}

int main() {
  ferry::worker self = ferry::init_rpc();
  // Worker 0 asks; the others serve until all have come to shutdown.
  const int status = self.id().value == 0 ? run(self) : 0;
  self.shutdown();
  return status;
}
