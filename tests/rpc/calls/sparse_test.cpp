// Sparse tensors in calls and references, and sparse gradients of a table that a peer has.

#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/autograd.hpp>
#include <ferry/ferry.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/ops/sparse.hpp>
#include <ferry/tensor/factories.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"

namespace sparse_test {

using ferry::sparse_tensor;
using ferry::tensor;
using ferry_test::cluster;

sparse_tensor rows(float by) {
  return mul(sparse_tensor(ferry::tensor_of<std::int64_t>({{3, 1, 3}}),
                           ferry::tensor_of({{1.f, 2.f}, {3.f, 4.f}, {5.f, 6.f}}), {5, 2}),
             by);
}

sparse_tensor doubled(const sparse_tensor& s) { return mul(s, 2); }
std::vector<sparse_tensor> reversed(const std::vector<sparse_tensor>& all) { return {all.rbegin(), all.rend()}; }
sparse_tensor summed(const std::vector<sparse_tensor>& all) { return ferry::concatenate(all).coalesce(); }
sparse_tensor of_reference(const ferry::rref<sparse_tensor>& there) { return there.to_here(); }
tensor whole(const sparse_tensor& s) { return s.to_dense(); }

// What a peer sends that has another idea of a sparse tensor: the same name, so the same signature.
struct claim {
  std::int64_t size = 0;
  template <class Archive>
  void save(Archive& archive) const {
    archive(std::uint8_t{1}, std::uint64_t{2}, size, std::int64_t{2}, rows(1).indices(), rows(1).values());
  }
  template <class Archive>
  void load(Archive&) {}
};
std::int64_t stored(const sparse_tensor& s) { return s.nnz(); }

// A peer's table of embeddings, looked up and trained there: integers as arguments.
struct embeddings {
  tensor weight = ferry::require_grad(ferry::ones({10, 2}));
  double loss(const tensor& indices) {
    const tensor total =
        ferry::sum(ferry::embedding_bag(weight, indices, ferry::bag_mode::sum, {.sparse_gradient = true}));
    ferry::backward(total);
    return ferry::detach(total).item<double>();
  }
  sparse_tensor gradient() const { return ferry::sparse_grad(weight); }
};

}  // namespace sparse_test

template <>
struct ferry::type_name_traits<sparse_test::claim> {
  static constexpr std::string_view name = "sparse_tensor";
};

namespace sparse_test {

TEST_CASE("[row 12] a group of one calls itself with sparse tensors") {
  cluster group(1);
  CHECK(equal(group[0].rpc_sync<doubled>("worker0", rows(1)), rows(2)));
  CHECK(equal(group[0].rpc_async<doubled>("worker0", rows(2)).get(), rows(4)));
  CHECK(equal(group[0].remote<doubled>("worker0", rows(1)).to_here(), rows(2)));
}

TEST_CASE("[row 36] sparse tensors are arguments and results, alone and in containers") {
  cluster group(2);
  ferry::worker& self = group[0];
  for (const char* to : {"worker0", "worker1"}) {
    const sparse_tensor back = self.rpc_sync<doubled>(to, rows(1));
    CHECK(equal(back, rows(2)));
    CHECK(back.nnz() == 3);
    CHECK_FALSE(back.is_coalesced());
    CHECK(self.rpc_sync<doubled>(to, rows(1).coalesce()).is_coalesced());
    const auto list = self.rpc_sync<reversed>(to, std::vector{rows(1), rows(2), sparse_tensor()});
    REQUIRE(list.size() == 3);
    CHECK_FALSE(list[0].defined());
    CHECK(equal(list[1], rows(2)));
    CHECK(equal(list[2], rows(1)));
    CHECK(equal(self.rpc_async<summed>(to, std::vector{rows(1), rows(2)}).get(), rows(3)));
    CHECK(ferry::equal(self.rpc_sync<whole>(to, rows(1)), rows(1).to_dense()));
  }
}

TEST_CASE("a reference to a sparse tensor, at home, at a peer and as an argument") {
  cluster group(2);
  ferry::worker& self = group[0];
  for (const char* to : {"worker0", "worker1"}) {
    const ferry::rref<sparse_tensor> there = self.remote<doubled>(to, rows(1));
    CHECK(equal(there.to_here(), rows(2)));
    CHECK(equal(self.rpc_sync<of_reference>("worker1", there), rows(2)));
  }
}

TEST_CASE("a sparse tensor that is none is refused, and the worker goes on") {
  cluster group(2);
  ferry::worker& self = group[0];
  constexpr auto as_claimed = ferry::stub<"sparse_test.stored", std::int64_t(claim)>;
  constexpr auto as_meant = ferry::named<"sparse_test.stored", stored>;
  CHECK(self.rpc_sync<as_meant>("worker1", rows(1)) == 3);
  CHECK(self.rpc_sync<as_claimed>("worker1", claim{5}) == 3);
  expect_error(ferry::errc::bad_arguments, "index 3", [&] { (void)self.rpc_sync<as_claimed>("worker1", claim{3}); });
  CHECK(self.rpc_sync<as_meant>("worker1", rows(1)) == 3);
}

TEST_CASE("passes over a peer's table add rows, which are fetched as such") {
  cluster group(2);
  ferry::worker& self = group[0];
  const auto table = self.remote<ferry::make<embeddings>>("worker1");
  const tensor indices = ferry::tensor_of<std::int64_t>({{1, 4}, {4, 7}});
  for (int pass = 0; pass != 2; ++pass) CHECK(table.rpc_sync<&embeddings::loss>(indices) == 8);
  const sparse_tensor gradient = table.rpc_sync<&embeddings::gradient>().coalesce();
  CHECK(ferry::equal(gradient.indices(), ferry::tensor_of<std::int64_t>({{1, 4, 7}})));
  CHECK(ferry::equal(gradient.values(), ferry::tensor_of({{2.f, 2.f}, {4.f, 4.f}, {2.f, 2.f}})));
}

}  // namespace sparse_test
