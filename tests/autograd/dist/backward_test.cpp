// Gradients through remote calls: those of the same computation on one worker.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/rpc/interceptor.hpp>

#include "dist_test.hpp"
#include "varied.hpp"

namespace dist_backward_test {

using namespace dist_test;
using ferry_test::varied;

// Worker `next` multiplies, this one adds.
tensor add_product(const tensor& a, const tensor& b, const std::string& next) {
  return a + ferry::rpc_sync<mul>(next, a, b);
}
tensor matmul(const tensor& a, const tensor& b) { return ferry::matmul(a, b); }
tensor product_of(const std::vector<tensor>& all) {
  tensor whole = all.at(0);
  for (std::size_t i = 1; i != all.size(); ++i) whole = ferry::matmul(whole, all[i]);
  return whole;
}
tensor stacked(const tensor& a, const tensor& b, const tensor& c) { return ferry::stack({a, b, c}); }
tensor first_rows(const tensor& a, const tensor& b, const tensor&) { return a.slice(0, 0, 1) + b.slice(0, 1, 2); }
std::pair<tensor, tensor> both_ways(const tensor& a, const tensor& b) { return {a + b, a * b}; }
ferry::task<tensor> add_later(tensor a, tensor b, std::string next) {
  const tensor product = co_await ferry::rpc_async<mul>(next, a, b);
  co_return product + a;
}
ferry::future<tensor> add_in_continuation(const tensor& a, const tensor& b, const std::string& next) {
  return ferry::rpc_async<mul>(next, a, b).then([a](const tensor& product) {
    return ferry::rpc_sync<add>(ferry::get_worker_info().id(), product, a);
  });
}

// Leaves that live at a worker, by the worker.
tensor& own_leaf() {
  static std::array<tensor, 4> all;
  return all.at(static_cast<std::size_t>(ferry::get_worker_info().id().value));
}
void make_leaf(double value) { own_leaf() = ferry::require_grad(ferry::full({3}, value, ferry::dtype::f64)); }
tensor value_of_leaf() { return own_leaf() * 1.0; }
tensor times_own(const tensor& a) { return a * own_leaf(); }
void drop_leaf() { own_leaf() = tensor(); }
vec gradient_there(dist::context_id id) {
  const auto found = dist::get_gradients(id);
  return found.contains(own_leaf()) ? numbers(found.at(own_leaf())) : vec{};
}

tensor layers(const tensor& x, const std::vector<tensor>& weights, const tensor& chain) {
  tensor y = x;
  for (const tensor& each : weights) y = ferry::tanh(ferry::linear(y, each));
  return ferry::matmul(ferry::matmul(y, chain), y);
}

// Counts what goes back: requests with gradients, and the tensors in them and in their answers.
class counter final : public ferry::interceptor {
 public:
  struct counts {
    std::atomic<int> requests{0};
    std::atomic<int> tensors{0};
  };
  explicit counter(std::shared_ptr<counts> to) : to_(std::move(to)) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "counter"; }
  std::unique_ptr<ferry::caller_hooks> on_request(ferry::outgoing_request& request) override {
    if (request.method().find("ferry/autograd/gradients") == std::string_view::npos) return nullptr;
    to_->requests += 1;
    to_->tensors += static_cast<int>(request.tensors().size());
    return std::make_unique<of_answer>(to_);
  }

 private:
  class of_answer final : public ferry::caller_hooks {
   public:
    explicit of_answer(std::shared_ptr<counts> to) : to_(std::move(to)) {}
    void replied(ferry::incoming_reply& reply) override { to_->tensors += static_cast<int>(reply.tensors().size()); }

   private:
    const std::shared_ptr<counts> to_;
  };
  const std::shared_ptr<counts> to_;
};

ferry_test::cluster_options counting(const std::shared_ptr<counter::counts>& to) {
  ferry_test::cluster_options options;
  options.configure = [to](ferry::worker_config& config) { config.interceptors = {std::make_shared<counter>(to)}; };
  return options;
}

constexpr std::array both_modes{dist::backward_mode::smart, dist::backward_mode::fast};

TEST_CASE("[row 248] gradients go back through a call, to another worker and to oneself") {
  cluster group(2);
  for (const char* peer : {"worker1", "worker0"}) {
    for (const auto mode : both_modes) {
      for (const bool remote : {false, true}) {
        const tensor a = leaf({1, 2, 3});
        const tensor b = leaf({4, 5, 6});
        const dist::context context(group[0]);
        const tensor c = remote ? group[0].remote<mul>(peer, a, b).to_here() : group[0].rpc_sync<mul>(peer, a, b);
        REQUIRE(c.requires_grad());
        dist::backward(context, ferry::sum(c * 2.0), {.mode = mode});
        const dist::gradient_map found = context.gradients();
        CHECK(found.size() == 2);
        CHECK(numbers(found[a]) == vec{8, 10, 12});
        CHECK(numbers(found[b]) == vec{2, 4, 6});
        CHECK_FALSE(ferry::grad(a).defined());
        CHECK(dist::get_gradients(context, group[0]).size() == 2);
      }
    }
  }
}

TEST_CASE("gradients go back through nested calls, coroutines and continuations") {
  cluster group(3);
  for (const char* next : {"worker2", "worker1", "worker0"}) {
    for (int form = 0; form != 3; ++form) {
      const tensor a = leaf({1, 2, 3});
      const tensor b = leaf({4, 5, 6});
      const dist::context context(group[0]);
      const tensor c = form == 0   ? group[0].rpc_sync<add_product>("worker1", a, b, next)
                       : form == 1 ? group[0].rpc_sync<add_later>("worker1", a, b, std::string(next))
                                   : group[0].rpc_sync<add_in_continuation>("worker1", a, b, next);
      const tensor d = group[0].rpc_sync<add>("worker0", c, a);
      dist::backward(context, ferry::sum(d));
      CHECK(numbers(context.gradients().at(a)) == vec{6, 7, 8});
      CHECK(numbers(context.gradients().at(b)) == vec{1, 2, 3});
    }
  }
}

TEST_CASE("[row 240] only the callee has a leaf") {
  cluster group(2);
  group[0].rpc_sync<make_leaf>("worker1", 5.);
  for (const bool remote : {false, true}) {
    const dist::context context(group[0]);
    const tensor value =
        remote ? group[0].remote<value_of_leaf>("worker1").to_here() : group[0].rpc_sync<value_of_leaf>("worker1");
    CHECK(value.requires_grad());
    context.backward(ferry::sum(value));
    CHECK(context.gradients().empty());
    CHECK(group[0].rpc_sync<gradient_there>("worker1", context.id()) == vec{1, 1, 1});
  }
  group[0].rpc_sync<drop_leaf>("worker1");
}

TEST_CASE("[row 249] leaves behind references and at other workers have their gradients there") {
  cluster group(3);
  group[0].rpc_sync<make_leaf>("worker1", 5.);
  group[0].rpc_sync<make_leaf>("worker2", 7.);
  const tensor a = leaf({1, 2, 3});
  const dist::context context(group[0]);
  const tensor first = group[0].rpc_sync<times_own>("worker1", a);       // 5 a
  const tensor second = group[0].rpc_sync<times_own>("worker2", first);  // 35 a
  context.backward(ferry::sum(second));
  CHECK(numbers(context.gradients().at(a)) == vec{35, 35, 35});
  CHECK(group[0].rpc_sync<gradient_there>("worker1", context.id()) == vec{7, 14, 21});
  CHECK(group[0].rpc_sync<gradient_there>("worker2", context.id()) == vec{5, 10, 15});
  for (const char* each : {"worker1", "worker2"}) group[0].rpc_sync<drop_leaf>(each);
}

TEST_CASE("[row 252] several round trips to different workers; leaves that are not needed have no gradient") {
  cluster group(4);
  for (const auto mode : both_modes) {
    const tensor a = leaf(varied({3, 3}, 1));
    const tensor b = leaf(varied({3, 3}, 2));
    const tensor unused = leaf(varied({3, 3}, 3));
    const dist::context context(group[0]);
    const tensor c = group[0].rpc_sync<add>("worker1", a, b);
    const tensor d = group[0].rpc_sync<mul>("worker2", c, b);
    const tensor e = group[0].remote<matmul>("worker3", d, c).to_here();
    const tensor f = group[0].rpc_sync<add>("worker1", e, d);
    context.backward(ferry::sum(f), {.mode = mode});
    const tensor local_c = a + b;
    const tensor local_d = local_c * b;
    ferry::backward(ferry::sum(ferry::matmul(local_d, local_c) + local_d));
    const auto found = context.gradients();
    CHECK(ferry::allclose(found.at(a), ferry::grad(a)));
    CHECK(ferry::allclose(found.at(b), ferry::grad(b)));
    CHECK_FALSE(found.contains(unused));
    CHECK(found.size() == 2);
  }
}

TEST_CASE("[row 253] tensors of different shapes") {
  cluster group(3);
  const tensor a = leaf(varied({4, 6}, 1));
  const tensor b = leaf(varied({6, 2}, 2));
  const tensor c = leaf(varied({2, 5}, 3));
  const tensor d = leaf(varied({5}, 4));
  ferry::backward(ferry::sum(ferry::matmul(ferry::matmul(a, b), c) + d));
  for (const auto mode : both_modes) {
    const dist::context context(group[0]);
    const tensor ab = group[0].rpc_sync<matmul>("worker1", a, b);
    const tensor abc = group[0].rpc_sync<matmul>("worker2", ab, c);
    context.backward(ferry::sum(group[0].rpc_sync<add>("worker1", abc, d)), {.mode = mode});
    const auto found = context.gradients();
    for (const tensor& each : {a, b, c, d}) {
      CHECK(found.at(each).shape() == each.shape());
      CHECK(ferry::allclose(found.at(each), ferry::grad(each)));
    }
  }
}

TEST_CASE("[row 253] a product of several matrices in one call, of which one is a product of a call itself") {
  cluster group(3);
  const std::vector<tensor> all{leaf(varied({4, 6}, 1)), leaf(varied({6, 5}, 2)), leaf(varied({5, 7}, 3)),
                                leaf(varied({7, 9}, 4))};
  ferry::backward(ferry::sum(product_of(all)));
  for (const auto mode : both_modes) {
    for (const char* second : {"worker0", "worker1", "worker2"}) {  // to oneself, to the same one, to another one
      const dist::context context(group[0]);
      const tensor ab = group[0].rpc_sync<matmul>("worker1", all[0], all[1]);
      const tensor whole = group[0].rpc_sync<product_of>(second, std::vector<tensor>{ab, all[2], all[3]});
      CHECK(whole.shape() == ferry::dims{4, 9});
      context.backward(ferry::sum(whole), {.mode = mode});
      const auto found = context.gradients();
      CHECK(found.size() == all.size());
      for (const tensor& each : all) {
        CHECK(found.at(each).shape() == each.shape());
        CHECK(ferry::allclose(found.at(each), ferry::grad(each)));
      }
    }
  }
}

TEST_CASE("[row 254] an argument that the handler does not use, and slices: as on one worker") {
  cluster group(2);
  for (const auto mode : both_modes) {
    const tensor a = leaf(varied({3, 2}, 1));
    const tensor b = leaf(varied({3, 2}, 2));
    const tensor c = leaf(varied({3, 2}, 3));
    const dist::context context(group[0]);
    context.backward(ferry::sum(group[0].rpc_sync<first_rows>("worker1", a, b, c)), {.mode = mode});
    const auto found = context.gradients();
    CHECK(numbers(found.at(a)) == vec{1, 1, 0, 0, 0, 0});
    CHECK(numbers(found.at(b)) == vec{0, 0, 1, 1, 0, 0});
    CHECK_FALSE(found.contains(c));
  }
}

TEST_CASE("[row 254] slices of what was joined leave one leaf unused: its gradient is zeros, as on one worker") {
  cluster group(2);
  const tensor a = leaf(varied({3, 3}, 1));
  const tensor b = leaf(varied({3, 3}, 2));
  const tensor c = leaf(varied({3, 3}, 3));
  const auto first_by_last = [](const tensor& all, const auto& product) {
    return ferry::sum(product(all.narrow(0, 0, 1), all.narrow(0, 2, 1)));
  };
  ferry::backward(first_by_last(stacked(a, b, c), matmul));
  REQUIRE(ferry::equal(ferry::grad(b), ferry::zeros({3, 3}, ferry::dtype::f64)));
  for (const auto mode : both_modes) {
    for (const char* callee : {"worker0", "worker1"}) {
      const dist::context context(group[0]);
      const tensor all = group[0].rpc_sync<stacked>(callee, a, b, c);
      const auto there = [&](const tensor& x, const tensor& y) { return group[0].rpc_sync<matmul>(callee, x, y); };
      context.backward(first_by_last(all, there), {.mode = mode});
      const auto found = context.gradients();
      REQUIRE(found.contains(b));
      CHECK(ferry::equal(found.at(b), ferry::zeros({3, 3}, ferry::dtype::f64)));
      for (const tensor& each : {a, c}) {
        CHECK(ferry::allclose(found.at(each), ferry::grad(each)));
        CHECK_FALSE(ferry::equal(found.at(each), ferry::zeros({3, 3}, ferry::dtype::f64)));
      }
    }
  }
}

TEST_CASE(
    "[row 256] results that are not used neither hang a smart pass nor cost zeros; a fast one waits for its limit") {
  const auto counts = std::make_shared<counter::counts>();
  cluster group(2, counting(counts));
  const tensor a = leaf({1, 2, 3});
  const tensor b = leaf({4, 5, 6});
  const dist::context context(group[0]);
  const tensor used = group[0].rpc_sync<mul>("worker1", a, b);
  const tensor unused = group[0].rpc_sync<mul>("worker1", used, b);
  dist::backward(context, ferry::sum(used), {.retain_graph = true});
  CHECK(numbers(context.gradients()[a]) == vec{4, 5, 6});
  CHECK(numbers(context.gradients()[b]) == vec{1, 2, 3});
  CHECK(counts->requests == 1);  // of the result; those of the arguments are in its answer
  CHECK(counts->tensors == 3);
  expect_error(errc::rpc_timeout, "use backward_mode::smart", [&] {
    dist::backward(context, ferry::sum(used),
                   {.retain_graph = true, .mode = dist::backward_mode::fast, .limit = std::chrono::milliseconds(100)});
  });
  await([&] { return passes(group[0]) == 0 && passes(group[1]) == 0; });
  // The next one is not disturbed.
  const tensor c = leaf({1, 1, 1});
  dist::backward(context, ferry::sum(used * c));
  CHECK(numbers(context.gradients()[c]) == vec{4, 10, 18});
}

TEST_CASE("[row 289] gradients that do not exist are not sent") {
  const auto counts = std::make_shared<counter::counts>();
  cluster group(2, counting(counts));
  std::vector<tensor> leaves;
  for (int i = 0; i != 3; ++i) leaves.push_back(leaf(varied({3, 2}, i)));
  const dist::context context(group[0]);
  // One of two results is used; of the arguments of the second call, two of three lead to it.
  const auto [sum, product] = group[0].rpc_sync<both_ways>("worker1", leaves[0], leaves[1]);
  context.backward(ferry::sum(group[0].rpc_sync<first_rows>("worker1", product, leaves[1], leaves[2])));
  // Of the results; of the second call's arguments, since the part of worker1 goes on then; of the others unless they are answered.
  CHECK(counts->requests >= 3);
  CHECK(counts->requests <= 4);
  CHECK(counts->tensors == 1 + 2 + 1 + 2);
  const auto found = context.gradients();
  CHECK(found.size() == 2);
  const tensor own = leaves[0] * leaves[1];
  ferry::backward(ferry::sum(own.slice(0, 0, 1) + leaves[1].slice(0, 1, 2)));
  for (int i = 0; i != 2; ++i)
    CHECK(ferry::allclose(found.at(leaves[static_cast<std::size_t>(i)]),
                          ferry::grad(leaves[static_cast<std::size_t>(i)])));
}

TEST_CASE("[row 261] several roots through several calls") {
  cluster group(4);
  const tensor a = leaf({1, 2, 3});
  const tensor b = leaf({4, 5, 6});
  const dist::context context(group[0]);
  const tensor r1 = ferry::sum(group[0].rpc_sync<add>("worker1", a, b));
  const tensor r2 = ferry::sum(group[0].rpc_sync<mul>("worker2", a, b));
  const tensor r3 = ferry::sum(ferry::tanh(group[0].rpc_sync<mul>("worker3", a, a)));
  const tensor r4 = ferry::sum(group[0].rpc_sync<twice>("worker0", b));
  context.backward({r1, r2, r3, r4});
  ferry::backward({ferry::sum(a + b), ferry::sum(a * b), ferry::sum(ferry::tanh(a * a)), ferry::sum(b * 2.0)});
  const auto found = context.gradients();
  CHECK(ferry::allclose(found.at(a), ferry::grad(a)));
  CHECK(ferry::allclose(found.at(b), ferry::grad(b)));
}

TEST_CASE("roots with given gradients, one root given twice, and a root that leads to another") {
  cluster group(2);
  const tensor a = leaf({1, 2, 3});
  const dist::context context(group[0]);
  const tensor b = group[0].rpc_sync<twice>("worker1", a);
  const tensor c = group[0].rpc_sync<twice>("worker1", b);
  context.backward({b, c, c}, {.gradients = {ferry::tensor_of({1., 2., 3.}), ferry::tensor_of({10., 0., 0.}),
                                             ferry::tensor_of({0., 10., 0.})}});
  CHECK(numbers(context.gradients().at(a)) == vec{2 + 40, 4 + 40, 6});
}

TEST_CASE("[row 262] leaves of different types") {
  cluster group(2);
  const tensor a = ferry::require_grad(ferry::full({2, 2}, 3, ferry::dtype::f32));
  const tensor b = ferry::require_grad(ferry::full({2, 2}, 5, ferry::dtype::f64));
  const dist::context context(group[0]);
  const tensor c = group[0].rpc_sync<twice>("worker1", a);
  const tensor d = group[0].rpc_sync<mul>("worker1", b, b);
  context.backward({ferry::sum(c), ferry::sum(d)});
  const auto found = context.gradients();
  CHECK(found.at(a).dtype() == ferry::dtype::f32);
  CHECK(found.at(b).dtype() == ferry::dtype::f64);
  CHECK(ferry::equal(found.at(a), ferry::full({2, 2}, 2, ferry::dtype::f32)));
  CHECK(ferry::equal(found.at(b), ferry::full({2, 2}, 10, ferry::dtype::f64)));
}

TEST_CASE("[row 265] a user's function with five layers and a chain of matrices") {
  cluster group(2);
  const tensor x = leaf(varied({4, 4}, 0.5));
  std::vector<tensor> weights;
  for (int i = 0; i != 5; ++i) weights.push_back(leaf(varied({4, 4}, 1 + i)));
  const tensor chain = leaf(varied({4, 4}, 9));
  const dist::context context(group[0]);
  context.backward(ferry::sum(group[0].rpc_sync<layers>("worker1", x, weights, chain)));
  ferry::backward(ferry::sum(layers(x, weights, chain)));
  const auto found = context.gradients();
  CHECK(found.size() == 7);
  for (const tensor& each : weights) CHECK(ferry::allclose(found.at(each), ferry::grad(each)));
  CHECK(ferry::allclose(found.at(x), ferry::grad(x)));
  CHECK(ferry::allclose(found.at(chain), ferry::grad(chain)));
}

TEST_CASE("[row 272] [row 273] passes in one context add up, here and at other workers") {
  cluster group(3);
  group[0].rpc_sync<make_leaf>("worker1", 5.);
  for (const auto mode : both_modes) {
    const tensor a = leaf({1, 2, 3});
    const tensor b = leaf({4, 5, 6});
    const dist::context context(group[0]);
    const tensor c = group[0].rpc_sync<add_product>("worker1", a, b, "worker2");
    const tensor loss = ferry::sum(group[0].rpc_sync<times_own>("worker1", c));
    for (int pass = 1; pass != 4; ++pass) {
      context.backward(loss, {.retain_graph = true, .mode = mode});
      const double times = pass;
      CHECK(numbers(context.gradients().at(a)) == vec{times * 25, times * 30, times * 35});
      CHECK(numbers(context.gradients().at(b)) == vec{times * 5, times * 10, times * 15});
      CHECK(group[0].rpc_sync<gradient_there>("worker1", context.id()) == vec{times * 5, times * 12, times * 21});
    }
  }
  group[0].rpc_sync<drop_leaf>("worker1");
}

TEST_CASE("[row 276] hooks: on a leaf, on tensors on the way, on a received tensor, and after accumulation") {
  cluster group(2);
  const tensor a = leaf({1, 2, 3});
  ferry::on_gradient(a, [](const tensor& gradient) { return gradient * 2.0; });
  int accumulated = 0;
  ferry::on_accumulated(a, [&](const tensor& leaf_of_hook) {
    CHECK(leaf_of_hook.same_as(a));
    ++accumulated;
  });
  const dist::context context(group[0]);
  const tensor b = group[0].rpc_sync<twice>("worker1", a);
  int seen = 0;
  // Its whole gradient, once: both uses together.
  ferry::on_gradient(b, [&](const tensor& gradient) {
    CHECK(numbers(gradient) == vec{5, 5, 5});
    ++seen;
    return gradient * 10.0;
  });
  context.backward(ferry::sum(b * 3.0 + group[0].rpc_sync<twice>("worker1", b)));
  CHECK(seen == 1);
  CHECK(accumulated == 1);
  CHECK(numbers(context.gradients().at(a)) == vec{200, 200, 200});
}

// At another worker: a leaf whose hook notes the context of the pass, and the gradient that is there.
struct noting_leaf {
  noting_leaf() {
    ferry::on_accumulated(value, [this](const tensor& own) {
      const auto pass = dist::running_pass();
      if (!pass || dist::current()) return;
      noted = pass->value;
      gradient = numbers(dist::get_gradients(*pass).at(own));
    });
  }
  tensor times(const tensor& x) { return x * value; }
  std::pair<std::uint64_t, vec> last() { return {noted, gradient}; }
  tensor value = leaf({3, 4});
  std::uint64_t noted = 0;
  vec gradient;
};

TEST_CASE("a hook on the thread of backward() sees the contexts of the worker whose pass it is") {
  cluster group(2);
  for (int rank = 0; rank != 2; ++rank) {  // the process's current worker is one of them
    const dist::context context(group[rank]);
    const tensor a = leaf({1, 2});
    vec seen;
    ferry::on_accumulated(
        a, [&](const tensor& own) { seen = numbers(dist::get_gradients(*dist::running_pass()).at(own)); });
    context.backward(ferry::sum(a * 2.0));
    CHECK(seen == vec{2, 2});
  }
}

TEST_CASE(
    "gradients() in a context leaves retained gradients alone, and a leaf that was frozen after its use gets none") {
  cluster group(1);
  const dist::context context(group[0]);
  const tensor a = leaf({1, 2});
  const tensor b = leaf({3, 4});
  const tensor h = a * b;
  ferry::retain_grad(h);
  CHECK(numbers(dist::gradients(context, ferry::sum(h * 2.0), a, {.retain_graph = true}).front()) == vec{6, 8});
  CHECK_FALSE(ferry::grad(h).defined());
  ferry::require_grad(b, false);
  context.backward(ferry::sum(h));
  CHECK(context.gradients().contains(a));
  CHECK_FALSE(context.gradients().contains(b));
}

TEST_CASE("a hook learns of which context the pass is that runs it, on every worker") {
  cluster group(2);
  const auto there = group[0].remote<ferry::make<noting_leaf>>("worker1");
  const tensor a = leaf({1, 2});
  std::optional<dist::context_id> here;
  bool grows = false;
  const ferry::gradient_hook hook = ferry::on_gradient(a, [&](const tensor&) -> tensor {
    here = dist::running_pass();
    grows = dist::current().has_value();
    return {};
  });
  CHECK_FALSE(dist::running_pass());
  for (int round = 0; round != 2; ++round) {
    const dist::context context(group[0]);
    CHECK_FALSE(dist::running_pass());
    context.backward(ferry::sum(there.rpc_sync<&noting_leaf::times>(a)));
    CHECK_FALSE(dist::running_pass());
    REQUIRE(here.has_value());
    CHECK(here->value == context.id().value);
    CHECK_FALSE(grows);
    CHECK(there.rpc_sync<&noting_leaf::last>() == std::pair(context.id().value, vec{1, 2}));
  }
  here.reset();
  ferry::backward(ferry::sum(a * 2.0));
  CHECK_FALSE(here.has_value());  // of this process alone
}

TEST_CASE("gradients of chosen inputs, through other workers; nothing is added to leaves") {
  cluster group(2);
  const tensor a = leaf({1, 2, 3});
  const tensor b = leaf({4, 5, 6});
  const tensor unused = leaf({1});
  const dist::context context(group[0]);
  const tensor c = group[0].rpc_sync<mul>("worker1", a, b);
  const tensor d = ferry::sum(group[0].rpc_sync<twice>("worker1", c));
  const auto found = dist::gradients(context, d, {a, c, unused}, {.retain_graph = true});
  REQUIRE(found.size() == 3);
  CHECK(numbers(found[0]) == vec{8, 10, 12});
  CHECK(numbers(found[1]) == vec{2, 2, 2});
  CHECK_FALSE(found[2].defined());
  CHECK(context.gradients().empty());
  context.backward(d);
  CHECK(numbers(context.gradients().at(a)) == vec{8, 10, 12});
  expect_error(errc::invalid_argument, "input 0 requires no gradient",
               [&] { (void)dist::gradients(context, d, {ferry::tensor_of({1.})}); });
}

// Passes its gradient on as it is, and notes where its elements are.
struct watched : ferry::function<watched> {
  static constexpr std::string_view name = "watched";
  struct saved {};
  static tensor forward(saved&, const tensor& x) { return x * 1.0; }
  static tensor backward(const saved&, const tensor& gradient) {
    tensor made = form(gradient);
    address = made.data();
    return made;
  }
  static inline tensor (*form)(const tensor&) = nullptr;
  static inline const void* address = nullptr;
};
// The same gradient for two leaves.
struct watched_pair : ferry::function<watched_pair> {
  static constexpr std::string_view name = "watched_pair";
  struct saved {};
  static tensor forward(saved&, const tensor& x, const tensor& y) { return x + y; }
  static std::array<tensor, 2> backward(const saved&, const tensor& gradient) {
    const tensor made = gradient.clone();
    watched::address = made.data();
    return {made, made};
  }
};

TEST_CASE(
    "[row 277] the gradient of one leaf is kept without a copy; one of two leaves, or of another layout, is copied") {
  cluster group(2);
  const auto run = [&](const tensor& a, const auto& f) {
    const dist::context context(group[0]);
    const tensor b = f(group[0].rpc_sync<twice>("worker0", a));
    // Leaves right before the roots: their gradients come from the function itself.
    context.backward(ferry::sum(b));
    return context.gradients();
  };
  const tensor a = leaf(varied({2, 3}, 1));
  const tensor b = leaf(varied({2, 3}, 2));
  watched::form = [](const tensor& gradient) { return gradient.clone(); };
  const dist::gradient_map stolen = run(a, [&](const tensor& t) { return t + watched::apply(b); });
  CHECK(stolen.at(b).data() == watched::address);
  const dist::gradient_map both = run(a, [&](const tensor& t) { return t + watched_pair::apply(a, b); });
  CHECK(both.at(a).data() != both.at(b).data());
  CHECK(ferry::equal(both.at(b), ferry::ones({2, 3}, ferry::dtype::f64)));
  CHECK(ferry::equal(both.at(a), ferry::full({2, 3}, 3, ferry::dtype::f64)));
  // Laid out otherwise: column by column, as a part of something else, with elements that share memory.
  for (tensor (*form)(const tensor&) :
       {+[](const tensor& gradient) { return gradient.transpose(0, 1).contiguous().transpose(0, 1); },
        +[](const tensor& gradient) {
          return ferry::cat({gradient, gradient}).slice(0, 1, 3);
        },
        +[](const tensor&) {
          return ferry::ones({1, 1}, ferry::dtype::f64).expand({2, 3});
        }}) {
    watched::form = form;
    const dist::gradient_map copied = run(a, [&](const tensor& t) { return t + watched::apply(b); });
    CHECK(copied.at(b).data() != watched::address);
    CHECK(copied.at(b).is_contiguous());
    CHECK(ferry::equal(copied.at(b), ferry::ones({2, 3}, ferry::dtype::f64)));
  }
}

TEST_CASE("a tensor twice in one message, and in several") {
  cluster group(2);
  const tensor a = leaf({1, 2, 3});
  const dist::context context(group[0]);
  const tensor square = group[0].rpc_sync<mul>("worker1", a, a);
  const tensor fourth = group[0].rpc_sync<mul>("worker1", square, square);
  context.backward(ferry::sum(fourth + square + a));
  CHECK(numbers(context.gradients().at(a)) == vec{4 + 2 + 1, 32 + 4 + 1, 108 + 6 + 1});
}

TEST_CASE("passes of different contexts go through one leaf at the same time, apart from each other") {
  cluster group(2);
  const tensor a = leaf({1, 2, 3});
  std::vector<std::function<void()>> trainers;
  for (int i = 0; i != 4; ++i) {
    trainers.emplace_back([&, i] {
      for (int round = 0; round != 20; ++round) {
        const dist::context context(group[0]);
        const tensor b = group[0].rpc_sync<mul>("worker1", a, a * static_cast<double>(i + 1));
        context.backward(ferry::sum(b));
        const double times = 2. * (i + 1);
        CHECK(numbers(context.gradients().at(a)) == vec{times, 2 * times, 3 * times});
      }
    });
  }
  ferry_test::run_together(trainers);
  CHECK_FALSE(ferry::grad(a).defined());
}

}  // namespace dist_backward_test
