// Modules of other workers: what a handle says of its place, calls, modes, parameters, handles that travel; on the CPU and on the
// fake CUDA runtime.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/ferry.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/factories.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "fake_cuda.hpp"

namespace remote_module_test {

using ferry::device;
using ferry::device_kind;
using ferry::errc;
using ferry::remote_module;
using ferry::rref;
using ferry::tensor;
using ferry_test::cluster;
using ferry_test::cluster_options;

}  // namespace remote_module_test
namespace dist = ferry::dist_autograd;
namespace nn = ferry::nn;

namespace remote_module_test {

constexpr device host{};
constexpr device gpu{device_kind::cuda, 0};

// y = x * weight + shift, elementwise; while it is trained twice that.
struct scaling {
  scaling() = default;
  scaling(double by, std::string text) : weight(ferry::require_grad(ferry::full({3}, by))), note(std::move(text)) {
    if (by == 0) throw std::domain_error("a module that scales by 0");
  }

  tensor operator()(const tensor& x) const { return x * weight * (training ? 2.0 : 1.0) + shift; }
  std::tuple<tensor, std::string> operator()(const tensor& x, int times) const {
    return {x * weight * static_cast<double>(times), note};
  }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("weight", weight);
    visit("shift", shift);
  }
  // For to_here(). Not named save() and load(), which members of other names would be taken for.
  template <class Archive>
  void serialize(Archive& archive) {
    archive(weight, shift, note, training);
  }

  tensor weight = ferry::require_grad(ferry::ones({3}));
  tensor shift = ferry::require_grad(ferry::zeros({3}));
  std::string note = "default";
  bool training = true;
};

struct observer {
  tensor parameter = ferry::require_grad(ferry::ones({2}));
  // Where the arguments and the parameter are, as numbers; and the argument's sum, on its device.
  std::pair<std::vector<std::int64_t>, tensor> operator()(const tensor& x) const {
    return {{static_cast<std::int64_t>(x.device().kind), x.device().index,
             static_cast<std::int64_t>(parameter.device().kind), parameter.device().index},
            ferry::sum(x * parameter)};
  }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("parameter", parameter);
  }
};

tensor ask(const remote_module<scaling>& module, const tensor& x) { return module.forward(x); }
std::string note_of(const scaling& module) { return module.note; }
device_kind kind_of(const scaling& module) { return module.weight.device().kind; }
std::int64_t index_of(const tensor& t) { return t.device().is_cpu() ? -1 : t.device().index; }

const tensor x = ferry::tensor_of({1.F, 2.F, 3.F});

bool near(const tensor& a, const tensor& b) { return ferry::allclose(ferry::detach(a), ferry::detach(b)); }

TEST_CASE("forward and forward_async give what the module gives at its worker [row 304]") {
  cluster group(3);
  const remote_module<scaling> one(group[0], "worker1", 3.0, "three");
  const remote_module<scaling> two(group[0], "rank:2/cpu", 5.0, std::string("five"));
  CHECK(one.owner().name() == "worker1");
  CHECK(two.owner().name() == "worker2");
  CHECK(one.device() == host);
  CHECK(near(one.forward(x), x * 6.0));
  CHECK(near(one.forward_async(x).get(), x * 6.0));
  std::vector<ferry::future<tensor>> all;
  for (int i = 0; i != 20; ++i) all.push_back((i % 2 == 0 ? one : two).forward_async(x * static_cast<double>(i)));
  for (int i = 0; i != 20; ++i)
    CHECK(near(all[static_cast<std::size_t>(i)].get(), x * (i % 2 == 0 ? 6.0 : 10.0) * double(i)));
  // Several arguments, and a result that is no tensor alone.
  const auto [scaled, note] = two.forward(x, 4);
  CHECK(near(scaled, x * 20.0));
  CHECK(note == "five");
  expect_error(errc::rpc_timeout, "", [&] { (void)one.forward({.timeout = std::chrono::nanoseconds(1)}, x); });
  CHECK(near(one.forward({.timeout = ferry::no_timeout}, x), x * 6.0));
}

TEST_CASE("the module's reference leads to it, and to a copy [row 308]") {
  cluster group(2);
  const remote_module<scaling> module(group[0], "worker1/cpu", 3.0, "three");
  const rref<scaling>& ref = module.module_rref();
  CHECK(ref.owner_name() == "worker1");
  CHECK_FALSE(ref.is_owner());
  const scaling copy = ref.to_here();
  CHECK(copy.note == "three");
  CHECK(near(copy.weight, ferry::full({3}, 3.0, ferry::dtype::f32)));
  CHECK(ref.rpc_sync<note_of>() == "three");
  const auto again = remote_module<scaling>::from_rref(module.device(), ref);
  CHECK(again == module);
  CHECK(near(again.forward(x), x * 6.0));
}

TEST_CASE("train and eval set the mode at the owner, and train takes its argument [row 309]") {
  cluster group(2);
  const remote_module<scaling> module(group[0], "worker1");
  CHECK(near(module.forward(x), x * 2.0));
  module.eval();
  CHECK(near(module.forward(x), x));
  module.train();
  CHECK(near(module.forward(x), x * 2.0));
  module.train(false);
  CHECK(near(module.forward(x), x));
}

TEST_CASE("a handle that is sent to a third worker works there [row 313]") {
  cluster group(3);
  const remote_module<scaling> module(group[0], "worker1", 3.0, "three");
  CHECK(near(group[0].rpc_sync<ask>("worker2", module, x), x * 6.0));
  CHECK(near(group[0].rpc_sync<ask>("worker1", module, x), x * 6.0));
}

TEST_CASE("remote parameters are references in the order of the module's parameters") {
  cluster group(2);
  const remote_module<scaling> module(group[0], "worker1", 3.0, "three");
  const std::vector<rref<tensor>> all = module.remote_parameters();
  REQUIRE(all.size() == 2);
  CHECK(all[0].owner_name() == "worker1");
  CHECK(near(all[0].to_here(), ferry::full({3}, 3.0, ferry::dtype::f32)));
  CHECK(near(all[1].to_here(), ferry::zeros({3})));
}

TEST_CASE("a module of one's own worker is called like any other") {
  cluster group(2);
  for (const char* where : {"worker0", "rank:0", "cpu", "worker0/cpu"}) {
    CAPTURE(where);
    const remote_module<scaling> module(group[0], where, 2.0, "two");
    CHECK(module.owner().id() == group[0].id());
    CHECK(near(module.forward(x), x * 4.0));
    CHECK(module.module_rref().is_owner());
  }
}

TEST_CASE("worker/cuda:0 and rank:n/cuda:0 place the parameters there [row 316]") {
  cluster group(2);
  for (const char* where : {"worker1/cuda:0", "rank:1/cuda:0", "worker1/cuda", "cuda:0"}) {
    CAPTURE(where);
    const remote_module<scaling> module(group[0], where, 3.0, "three");
    CHECK(module.device() == gpu);
    CHECK(module.module_rref().rpc_sync<kind_of>() == device_kind::cuda);
    for (const rref<tensor>& each : module.remote_parameters()) CHECK(each.rpc_sync<index_of>() == 0);
  }
}

TEST_CASE("places that are none are errors, each with its reason [row 317]") {
  cluster group(2);
  const auto refuse = [&](errc kind, const char* where, const char* text) {
    CAPTURE(where);
    expect_error(kind, text, [&] { (void)remote_module<scaling>(group[0], where); });
  };
  refuse(errc::bad_device, "worker1/foo", "foo");
  refuse(errc::bad_device, "worker1/cpu2", "cpu2");
  refuse(errc::bad_device, "worker1/", "names no device after its '/'");
  refuse(errc::invalid_argument, "worker1/cuda:0/cuda:1", "has more than one '/'");
  refuse(errc::invalid_argument, "/", "names no worker before its '/'");
  refuse(errc::invalid_argument, "/cuda:0", "names no worker before its '/'");
  refuse(errc::invalid_argument, "", "is empty");
  refuse(errc::invalid_argument, "a:b/cpu", "has a ':' in its worker 'a:b', which is not rank:<number>");
  refuse(errc::invalid_argument, "rank:x/cpu", "has 'x' where the number of a rank should be");
  refuse(errc::invalid_argument, "rank:-1", "has '-1' where the number of a rank should be");
  refuse(errc::invalid_argument, "rank:", "has '' where the number of a rank should be");
  refuse(errc::invalid_argument, "rank:99999999999", "where the number of a rank should be");
  refuse(errc::unknown_worker, "rank:7/cpu", "7");
  refuse(errc::unknown_worker, "worker7/cpu", "worker7");
  // Which devices there are, the owner knows: with the first use.
  const remote_module<scaling> far(group[0], "worker1/cuda:100");
  expect_error(errc::bad_device, "cuda:100", [&] { (void)far.forward(x); });
  expect_error(errc::bad_device, "cuda:100", [&] { (void)far.remote_parameters(); });
}

TEST_CASE("what the constructor throws comes with the first use") {
  cluster group(2);
  const remote_module<scaling> module(group[0], "worker1", 0.0, "none");
  CHECK_THROWS_WITH_AS((void)module.forward(x), doctest::Contains("a module that scales by 0"), std::domain_error);
  CHECK_THROWS_AS((void)module.remote_parameters(), std::domain_error);
  CHECK_THROWS_AS(module.train(), std::domain_error);
  const remote_module<scaling> none;
  CHECK_FALSE(none);
  expect_error(errc::invalid_argument, "", [&] { (void)none.forward(x); });
}

TEST_CASE("tensors of the CPU move to the module's device; results come to the CPU without a map [row 318]") {
  cluster group(2);
  const remote_module<observer> module(group[0], "worker1/cuda:1");
  const auto [places, sum] = module.forward(ferry::tensor_of({1.F, 2.F}));
  CHECK(places == std::vector<std::int64_t>{1, 1, 1, 1});
  CHECK(sum.device() == host);
  CHECK(sum.item<float>() == 3);
}

TEST_CASE("with a device map results come to the devices that it leads to [row 318]") {
  cluster group(2, {.configure = [](ferry::worker_config& config) {
                  if (config.rank == 0) config.set_device_map("worker1", {{"cuda:0", "cuda:1"}});
                }});
  const remote_module<observer> module(group[0], "worker1/cuda:1");
  const auto [places, sum] = module.forward(ferry::tensor_of({1.F, 2.F}));  // from the CPU, for which there is no entry
  CHECK(places == std::vector<std::int64_t>{1, 1, 1, 1});
  CHECK(sum.device() == gpu);
  CHECK(sum.to(host).item<float>() == 3);
  const auto [same, other] = module.forward(ferry::tensor_of({1.F, 2.F}).to(gpu));
  CHECK(same == std::vector<std::int64_t>{1, 1, 1, 1});
  CHECK(other.device() == gpu);
}

TEST_CASE("gradients go through remote modules, to parameters and arguments, also across devices") {
  cluster group(2);
  for (const char* where : {"worker1", "worker1/cuda:0"}) {
    CAPTURE(where);
    const remote_module<scaling> module(group[0], where, 3.0, "three");
    const tensor in = ferry::require_grad(ferry::tensor_of({1.F, -2.F, 4.F}));
    const dist::context pass(group[0]);
    pass.backward(ferry::sum(module.forward(in) * 5.0));
    const dist::gradient_map mine = dist::get_gradients(pass, group[0]);
    CHECK(near(mine.at(in), ferry::full({3}, 30.0, ferry::dtype::f32)));
    ferry::distributed_optimizer<ferry::sgd> optimizer(module.remote_parameters(), {.lr = 0.1});
    optimizer.step(pass);
    // weight - 0.1 * 10 x, shift - 0.1 * 5
    const tensor weight = ferry::full({3}, 3.0, ferry::dtype::f32) - ferry::detach(in);
    CHECK(near(module.forward(x), x * weight * 2.0 - 0.5));
  }
}

// Of the next test alone: what serve_module() is told holds for the rest of the process.
struct listed : scaling {
  using scaling::scaling;
};
cluster_options with_list() {
  return {.configure = [](ferry::worker_config& config) {
    if (config.rank == 1) config.serve = ferry::serve_list<>;
  }};
}

TEST_CASE("a worker with a list of methods serves the modules, and the ways to use them, that it is told to") {
  {
    cluster group(2, with_list());
    const remote_module<listed> module(group[0], "worker1", 2.0, "two");
    expect_error(errc::unknown_method, "list of methods", [&] { (void)module.forward(x); });
  }
  ferry::serve_module<listed, ferry::made_from<double, std::string>, ferry::called_with<tensor>>();
  cluster group(2, with_list());
  const remote_module<listed> module(group[0], "worker1", 2.0, "two");
  CHECK(near(module.forward(x), x * 4.0));
  CHECK(near(module.forward_async(x).get(), x * 4.0));
  module.eval();
  CHECK(near(module.forward(x), x * 2.0));
  CHECK(module.remote_parameters().size() == 2);
  const dist::context pass(group[0]);
  pass.backward(ferry::sum(module.forward(ferry::require_grad(x.clone()))));
  const auto unknown = [](auto&& use) { expect_error(errc::unknown_method, "list of methods", use); };
  unknown([&] { (void)module.forward(x, 3); });
  unknown([&] { (void)module.module_rref().to_here(); });
  unknown([&] { (void)remote_module<listed>(group[0], "worker1").forward(x); });
  unknown([&] { (void)remote_module<scaling>(group[0], "worker1", 2.0, "two").forward(x); });
}

}  // namespace remote_module_test
