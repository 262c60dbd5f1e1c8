// Tensors of libtorch as views of ferry's and the other way round, and as arguments and results of calls.

#include <ferry/adapters/libtorch/tensor.hpp>

#include "torch.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <unistd.h>
#include <cereal/types/map.hpp>
#include <cereal/types/string.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "processes.hpp"

namespace libtorch_test {

using ferry::dims;
using ferry::dtype;
using ferry::errc;
using ferry::tensor;

at::Tensor scaled(const at::Tensor& t, double by) { return t * by; }
at::Tensor transposed(at::Tensor t) { return t.transpose(0, 1); }
// The address and the layout of what a handler gets: ferry's memory, seen by libtorch.
std::vector<std::int64_t> layout(const at::Tensor& t) {
  std::vector<std::int64_t> result = t.strides().vec();
  result.push_back(static_cast<std::int64_t>(t.storage().nbytes()));
  return result;
}
tensor own_tensor(const tensor& t) { return t + 1; }
at::Tensor as_torch(const at::Tensor& t) { return t + 1; }
ferry::task<at::Tensor> later(at::Tensor t) { co_return t.sum(); }
at::Tensor sum_of(const std::vector<at::Tensor>& ts) {
  at::Tensor result = at::zeros_like(ts.at(0));
  for (const at::Tensor& t : ts) result += t;
  return result;
}
struct state {
  std::map<std::string, at::Tensor> parameters;
  int step = 0;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(parameters, step);
  }
};
state stepped(state s) {
  for (auto& [name, t] : s.parameters) t = t - 1;
  return {s.parameters, s.step + 1};
}
bool is_defined(const at::Tensor& t) { return t.defined(); }
at::Tensor sparse_result() { return at::eye(2).to_sparse(); }
struct counter {
  at::Tensor total = at::zeros({2});
  at::Tensor add(const at::Tensor& t) { return total += t; }
};
int process() { return ::getpid(); }

namespace {

static_assert(ferry::foreign_tensor<at::Tensor>);

const ferry_test::role member("libtorch member", [](const std::vector<std::string>& arguments) {
  ferry::worker self = ferry::init_rpc({.name = "worker1", .rank = 1, .world_size = 2, .init_method = arguments.at(0)});
  self.shutdown();
  return 0;
});

at::Tensor there_and_back(const at::Tensor& t) { return ferry::deserialize<at::Tensor>(ferry::serialize(t)); }

// Calls of every kind of a worker whose peer is "worker1".
void call_all(ferry::worker& self) {
  const at::Tensor t = at::arange(6, at::kFloat).view({2, 3});
  CHECK(at::equal(self.rpc_sync<scaled>("worker1", t, 2.0), t * 2));
  CHECK(at::equal(self.rpc_async<scaled>("worker1", t, 2.0).get(), t * 2));
  CHECK(at::equal(self.rpc_sync<transposed>("worker1", t), t.transpose(0, 1)));
  CHECK(at::equal(self.rpc_sync<later>("worker1", t), t.sum()));
  CHECK(at::equal(self.rpc_sync<sum_of>("worker1", std::vector{t, t, t + 1}), t * 3 + 1));
  const state after = self.rpc_sync<stepped>("worker1", state{{{"weight", t}, {"bias", at::ones({3})}}, 4});
  CHECK(after.step == 5);
  CHECK(at::equal(after.parameters.at("weight"), t - 1));
  CHECK(at::equal(after.parameters.at("bias"), at::zeros({3})));
  CHECK_FALSE(self.rpc_sync<is_defined>("worker1", at::Tensor()));
  // A method may take the tensor of the one library, its caller pass that of the other.
  CHECK(ferry::equal(self.rpc_sync<own_tensor>("worker1", ferry::from_torch(t)), ferry::from_torch(t + 1)));
  CHECK(at::equal(ferry::to_torch(self.rpc_sync<own_tensor>("worker1", ferry::from_torch(t))), t + 1));
  // Large ones, views with gaps, and views whose elements come more than once.
  const at::Tensor large = at::rand({1000, 1000});
  CHECK(at::equal(self.rpc_sync<scaled>("worker1", large, 1.0), large));
  const at::Tensor gaps = large.slice(1, 0, 1000, 3);
  CHECK(at::equal(self.rpc_sync<scaled>("worker1", gaps, 1.0), gaps));
  CHECK(self.rpc_sync<layout>("worker1", gaps) == std::vector<std::int64_t>{334, 1, 1000 * 334 * 4});
  CHECK(self.rpc_sync<layout>("worker1", gaps.transpose(0, 1)) == std::vector<std::int64_t>{1, 334, 1000 * 334 * 4});
  CHECK(self.rpc_sync<layout>("worker1", large.select(0, 7)) == std::vector<std::int64_t>{1, 1000 * 4});
  CHECK(self.rpc_sync<layout>("worker1", at::ones({1}).expand({1000})) == std::vector<std::int64_t>{0, 4});
  // On objects.
  const auto object = self.remote<ferry::make<counter>>("worker1");
  CHECK(at::equal(object.rpc_sync<&counter::add>(at::ones({2})), at::ones({2})));
  CHECK(at::equal(object.rpc_sync<&counter::add>(at::ones({2})), at::full({2}, 2.)));
  const auto value = self.remote<scaled>("worker1", t, 3.0);
  CHECK(at::equal(value.to_here(), t * 3));
  expect_error(errc::bad_result, "Sparse tensor of libtorch is not strided",
               [&] { (void)self.rpc_sync<sparse_result>("worker1"); });
}

}  // namespace

TEST_CASE("a tensor of libtorch and one of ferry share memory") {
  const at::Tensor t = at::arange(6, at::kFloat).view({2, 3});
  const tensor own = ferry::from_torch(t);
  CHECK(own.data() == t.data_ptr());
  CHECK(own.shape() == dims{2, 3});
  CHECK(own.strides() == dims{3, 1});
  CHECK(own.dtype() == dtype::f32);
  own.at<float>(1, 2) = 50;
  CHECK(t[1][2].item<float>() == 50);
  const at::Tensor again = ferry::to_torch(own);
  CHECK(again.data_ptr() == t.data_ptr());
  CHECK(at::equal(again, t));

  const tensor first = ferry::arange(0, 12, 1, dtype::f32).view({3, 4});
  const at::Tensor seen = ferry::to_torch(first.transpose(0, 1).slice(0, 1, 4, 2));
  CHECK(seen.data_ptr() == first.data<float>() + 1);
  CHECK(seen.strides().vec() == std::vector<std::int64_t>{2, 4});
  CHECK(at::equal(seen, at::tensor({1.F, 5.F, 9.F, 3.F, 7.F, 11.F}).view({2, 3})));
  seen.zero_();
  CHECK(first.at<float>(2, 3) == 0);
}

TEST_CASE("each library keeps the memory that the other one has") {
  at::Tensor t = at::ones({1000});
  const void* const memory = t.data_ptr();
  tensor own = ferry::from_torch(t);
  const std::size_t users = t.storage().use_count();
  t.reset();
  CHECK(users == 2);
  CHECK(own.data() == memory);
  CHECK(own.at<float>(999) == 1);
  own = {};

  tensor kept = ferry::ones({1000});
  const ferry::storage block = kept.storage();
  at::Tensor seen = ferry::to_torch(kept);
  kept = {};
  CHECK(block.use_count() == 2);
  CHECK(seen.sum().item<float>() == 1000);
  at::Tensor view = seen.slice(0, 0, 10);
  seen.reset();
  CHECK(block.use_count() == 2);
  view.reset();
  CHECK(block.use_count() == 1);
}

TEST_CASE("nothing is copied between a tensor of libtorch and a message") {
  const at::Tensor t = at::rand({64, 64});
  const ferry::serialized message = ferry::serialize(t);
  REQUIRE(message.tensors.size() == 1);
  CHECK(message.tensors[0].data() == t.data_ptr());
  const at::Tensor read = ferry::deserialize<at::Tensor>(ferry::serialize(ferry::arange(0, 4)));
  CHECK(at::equal(read, at::arange(4)));
  // What was only sent is shared with the sender, unless it came twice.
  CHECK(there_and_back(t).data_ptr() == t.data_ptr());
  const auto [a, b] = ferry::deserialize<at::Tensor, at::Tensor>(ferry::serialize(t, t));
  CHECK(at::equal(a, b));
}

TEST_CASE("all element types, shapes without elements and without axes") {
  for (const at::ScalarType type : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf,
                                    at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble}) {
    CAPTURE(std::string(c10::toString(type)));
    const at::Tensor t = at::tensor({0., 1., 3., 0.}).to(type);
    const tensor own = ferry::from_torch(t);
    CHECK(dtype_size(own.dtype()) == t.element_size());
    CHECK((ferry::to_torch(own.dtype()) == type));
    CHECK(at::equal(ferry::to_torch(own.clone()), t));
    CHECK(at::equal(there_and_back(t), t));
  }
  CHECK(ferry::from_torch(at::ones({2}, at::kBool)).at<bool>(0));
  CHECK(ferry::from_torch(at::kHalf) == dtype::f16);
  CHECK(ferry::from_torch(at::kBFloat16) == dtype::bf16);
#if TORCH_VERSION_MAJOR >= 2 && TORCH_VERSION_MINOR >= 1
  CHECK((ferry::to_torch(dtype::f8_e5m2) == at::kFloat8_e5m2));
  CHECK(ferry::from_torch(at::kFloat8_e4m3fn) == dtype::f8_e4m3);
#else
  expect_error(errc::bad_dtype, "has no element type for f8_e5m2", [] { (void)ferry::to_torch(dtype::f8_e5m2); });
#endif
  CHECK(there_and_back(at::empty({0, 3})).sizes().vec() == std::vector<std::int64_t>{0, 3});
  CHECK(there_and_back(at::scalar_tensor(7.)).item<double>() == 7);
  CHECK(there_and_back(at::scalar_tensor(7.)).dim() == 0);
  CHECK_FALSE(there_and_back(at::Tensor()).defined());
  CHECK(at::equal(there_and_back(at::ones({1, 5}).as_strided({1, 5}, {77, 1})), at::ones({1, 5})));
}

TEST_CASE("views are what they show") {
  const at::Tensor t = at::arange(24, at::kLong).view({4, 6});
  for (const at::Tensor& view :
       {t.transpose(0, 1), t.select(1, 2), t.slice(0, 1, 4, 2), t.narrow(1, 2, 3), t.diagonal(),
        t.unsqueeze(0).expand({3, 4, 6}), t.permute({1, 0}).slice(0, 1, 5, 3), t.flatten().unfold(0, 4, 2)}) {
    const tensor own = ferry::from_torch(view);
    CHECK(own.data() == view.data_ptr());
    CHECK(at::equal(ferry::to_torch(own), view));
    CHECK(at::equal(there_and_back(view), view));
  }
  // Lazy conjugates and negatives are made to be numbers.
  const at::Tensor z = at::complex(at::rand({3}), at::rand({3}));
  CHECK(at::equal(ferry::to_torch(ferry::from_torch(z.conj())), z.conj().resolve_conj()));
  CHECK(at::equal(ferry::to_torch(ferry::from_torch(at::imag(z.conj()))), -at::imag(z)));
}

TEST_CASE("tensors that are no elements in memory are refused in a sentence") {
  expect_error(errc::invalid_argument, "a Sparse tensor of libtorch is not strided elements in memory",
               [] { (void)ferry::from_torch(at::eye(3).to_sparse()); });
  expect_error(errc::invalid_argument, "a SparseCsr tensor of libtorch",
               [] { (void)ferry::from_torch(at::eye(3).to_sparse_csr()); });
  expect_error(errc::bad_dtype, "no dtype for elements of libtorch's type QUInt8",
               [] { (void)ferry::from_torch(at::quantize_per_tensor(at::rand({3}), 0.1, 0, at::kQUInt8)); });
  expect_error(errc::bad_device, "no device for libtorch's meta",
               [] { (void)ferry::from_torch(at::empty({3}, at::kMeta)); });
  expect_error(errc::bad_shape, "", [] { (void)ferry::from_torch(at::zeros(std::vector<std::int64_t>(40, 1))); });
  expect_error(errc::invalid_argument, "not aligned", [] {
    alignas(4) char bytes[16] = {};
    (void)ferry::from_torch(at::from_blob(bytes + 1, {2}, at::kFloat));
  });
  expect_error(errc::bad_device, "no device for libtorch's xla:0",
               [] { (void)ferry::from_torch(at::Device("xla:0")); });
  expect_error(errc::bad_device, "libtorch has no device for", [] {
    (void)ferry::to_torch(ferry::device{ferry::first_foreign_kind, 0});
  });
}

TEST_CASE("functions with tensors of libtorch can be called, between threads") {
  ferry_test::cluster group(2);
  call_all(group[0]);
  CHECK(group[0].rpc_sync<process>("worker1") == ::getpid());
}

TEST_CASE("functions with tensors of libtorch can be called, between processes") {
  ferry_test::temporary_directory directory;
  const std::string meeting = "file://" + directory.file("store");
  ferry_test::child_process child({.role = "libtorch member", .arguments = {meeting}});
  ferry::worker self = ferry::init_rpc({.name = "worker0", .rank = 0, .world_size = 2, .init_method = meeting});
  call_all(self);
  CHECK(self.rpc_sync<process>("worker1") == child.pid());
  self.shutdown();
  CHECK(child.wait() == 0);
}

TEST_CASE("the signature names what travels") {
  CHECK(ferry::signature_text<at::Tensor(const at::Tensor&)>() == ferry::signature_text<tensor(const tensor&)>());
}

}  // namespace libtorch_test
