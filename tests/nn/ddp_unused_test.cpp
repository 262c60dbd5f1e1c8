// ddp: which parameters the outputs of a module depend on, and gradients that come when no average can have them any more.

#include <ferry/nn/ddp.hpp>

#include <chrono>
#include <complex>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/autograd.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"

namespace ddp_unused_test {

using ferry::errc;
using ferry::process_group;
using ferry::tensor;
using ferry::nn::ddp;
using ferry_test::run_cluster;
namespace dist = ferry::dist_autograd;
namespace nn = ferry::nn;

struct saved {
  tensor a;
  std::vector<tensor> more;
  int count = 0;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(a, more, count);
  }
};
struct opaque {
  tensor a;
};

thread_local ferry::worker* here = nullptr;  // of the member that this thread is

tensor ones() { return ferry::require_grad(ferry::full({2}, 1.0, ferry::dtype::f64)); }

// y = x p + x p q in what `Wrap` makes of it; no output depends on r.
template <class Wrap>
struct three {
  tensor p = ones();
  tensor q = ones();
  tensor r = ones();
  auto operator()(const tensor& x) const { return Wrap()(x * p, x * p * q); }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("p", p);
    visit("q", q);
    visit("r", r);
  }
};

struct as_pair {
  auto operator()(const tensor& a, const tensor& b) const { return std::pair(a, b); }
};
struct as_map {
  auto operator()(const tensor& a, const tensor& b) const { return std::map<std::string, tensor>{{"a", a}, {"b", b}}; }
};
struct as_optional {
  auto operator()(const tensor& a, const tensor& b) const { return std::optional<tensor>(a + b); }
};
struct as_pointer {
  auto operator()(const tensor& a, const tensor& b) const { return std::make_shared<tensor>(a + b); }
};
struct as_variant {
  auto operator()(const tensor& a, const tensor& b) const { return std::variant<int, tensor>(a + b); }
};
struct as_reference {
  auto operator()(const tensor& a, const tensor& b) const { return here->make_rref(a + b); }
};
struct as_saved {
  auto operator()(const tensor& a, const tensor& b) const { return saved{a, {b}, 2}; }
};
struct as_opaque {
  auto operator()(const tensor& a, const tensor& b) const { return opaque{a + b}; }
};

tensor keep(tensor t) { return t; }
struct as_remote {
  auto operator()(const tensor& a, const tensor& b) const {
    return here->remote<keep>(ferry_test::worker_name(1 - here->id().value), ferry::detach(a + b));
  }
};
struct as_mixed {  // with things that hold no tensor
  auto operator()(const tensor& a, const tensor& b) const {
    return std::tuple(a + b, std::complex<double>(1, 2), std::string("text"), std::chrono::seconds(1), 3,
                      std::filesystem::path("/tmp"), static_cast<void*>(nullptr));
  }
};

template <class... Ts>
tensor total(const std::tuple<tensor, Ts...>& of) {
  return ferry::sum(std::get<0>(of));
}
tensor total(const std::pair<tensor, tensor>& of) { return ferry::sum(of.first + of.second); }
tensor total(const std::map<std::string, tensor>& of) { return ferry::sum(of.at("a") + of.at("b")); }
tensor total(const std::optional<tensor>& of) { return ferry::sum(*of); }
tensor total(const std::shared_ptr<tensor>& of) { return ferry::sum(*of); }
tensor total(const std::variant<int, tensor>& of) { return ferry::sum(std::get<tensor>(of)); }
tensor total(const ferry::rref<tensor>& of) { return ferry::sum(of.local_value()); }
tensor total(const saved& of) { return ferry::sum(of.a + of.more.at(0)); }
tensor total(const opaque& of) { return ferry::sum(of.a); }

tensor input_of(const process_group& group) { return ferry::tensor_of({1.0 + group.rank(), 2.0}); }
bool is(const tensor& found, double first, double second) {
  return found.defined() && ferry::allclose(found, ferry::tensor_of({first, second}), 1e-12, 1e-12);
}

const std::vector<std::size_t> bucket_sizes{1, std::size_t{1} << 20U};

template <class Wrap>
void expect_averages(const process_group& group) {
  for (const std::size_t bytes : bucket_sizes) {
    CAPTURE(bytes);
    ddp model(three<Wrap>(), group, {.bucket_bytes = bytes, .first_bucket_bytes = bytes, .find_unused = true});
    const three<Wrap>& inside = model.module();
    for (int round = 0; round != 2; ++round) {
      for (const tensor& each : model.parameters()) ferry::set_grad(each, tensor());
      ferry::backward(total(model(input_of(group))));
      CHECK(is(ferry::grad(inside.p), 3, 4));
      CHECK(is(ferry::grad(inside.q), 1.5, 2));
      CHECK(is(ferry::grad(inside.r), 0, 0));
    }
    const dist::context pass(*here);
    pass.backward(total(model(input_of(group))));
    const auto gradients = pass.gradients();
    CHECK(is(gradients.at(inside.p), 3, 4));
    CHECK(is(gradients.at(inside.q), 1.5, 2));
    CHECK(is(gradients.at(inside.r), 0, 0));
    group.barrier().get();
  }
}

TEST_CASE("ddp: find_unused sees the tensors in what a module returns, or says that it cannot") {
  run_cluster(2, [](ferry::worker& self) {
    here = &self;
    const process_group group(self);
    expect_averages<as_pair>(group);
    expect_averages<as_map>(group);
    expect_averages<as_optional>(group);
    expect_averages<as_pointer>(group);
    expect_averages<as_variant>(group);
    expect_averages<as_reference>(group);
    expect_averages<as_saved>(group);

    ddp model(three<as_opaque>(), group, {.find_unused = true});
    for (const std::string_view part : {"ddp_unused_test::opaque", "has no serialiser"})
      expect_error(errc::invalid_argument, part, [&] { (void)model(input_of(group)); });
    ddp elsewhere(three<as_remote>(), group, {.find_unused = true});
    expect_error(errc::invalid_argument, "its object is at worker", [&] { (void)elsewhere(input_of(group)); });
    expect_averages<as_mixed>(group);
    ddp other(three<as_opaque>(), group);  // it does not look
    ferry::backward(total(other(input_of(group))));
    expect_error(errc::invalid_argument, "no gradient, and nothing was averaged completely: r. If",
                 [&] { (void)other(input_of(group)); });
  });
}

tensor twice(const tensor& x) { return x * 2.0; }
tensor twice_elsewhere(const tensor& x) { return ferry::rpc_sync<twice>("worker3", x); }

// p is used before the layer at another worker, or at two of them; q after it.
struct hybrid {
  tensor p = ones();
  tensor q = ones();
  tensor r = ones();
  tensor operator()(const tensor& x, bool two) const {
    const tensor y = x * p;
    return (two ? here->rpc_sync<twice_elsewhere>("worker2", y) : here->rpc_sync<twice>("worker2", y)) * q;
  }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("p", p);
    visit("q", q);
    visit("r", r);
  }
};

TEST_CASE("ddp: find_unused goes on where the way leads through other workers") {
  run_cluster(4, [](ferry::worker& self) {
    if (self.id().value >= 2) return;
    here = &self;
    const process_group group(self, {"worker0", "worker1"});
    for (const std::size_t bytes : bucket_sizes) {
      ddp model(hybrid(), group, {.bucket_bytes = bytes, .first_bucket_bytes = bytes, .find_unused = true});
      for (const bool two : {false, true}) {
        CAPTURE(two);
        const dist::context pass(self);
        pass.backward(ferry::sum(model(input_of(group), two)));
        const auto gradients = pass.gradients();
        CHECK(is(gradients.at(model.module().p), 3, 4));
        CHECK(is(gradients.at(model.module().q), 3, 4));
        CHECK(is(gradients.at(model.module().r), 0, 0));
        group.barrier().get();
      }
    }
  });
}

// Keeps an output to itself.
struct secretive {
  tensor p = ones();
  tensor q = ones();
  std::shared_ptr<tensor> side = std::make_shared<tensor>();
  tensor operator()(const tensor& x) const {
    *side = ferry::sum(x * p);
    return x * q;
  }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("p", p);
    visit("q", q);
  }
};

TEST_CASE(
    "ddp: a gradient that comes after the average of its bucket has begun is an error, and the next pass is right") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    for (const std::size_t bytes : bucket_sizes) {
      CAPTURE(bytes);
      ddp model(secretive(), group, {.bucket_bytes = bytes, .first_bucket_bytes = bytes, .find_unused = true});
      const secretive& inside = model.module();
      for (int round = 0; round != 2; ++round) {
        const tensor y = model(input_of(group));
        // In the order in which the nodes were made, the last one first: q, and then p, which is taken for unused.
        expect_error(errc::invalid_argument, "another gradient of p came in one pass",
                     [&] { ferry::backward(*inside.side + ferry::sum(y)); });
        group.barrier().get();
        for (const tensor& each : model.parameters()) ferry::set_grad(each, tensor());
        ferry::backward(ferry::sum(model(input_of(group))));
        CHECK(is(ferry::grad(inside.p), 0, 0));
        CHECK(is(ferry::grad(inside.q), 1.5, 2));
        for (const tensor& each : model.parameters()) ferry::set_grad(each, tensor());
      }
      {
        const dist::context pass(self);
        const tensor y = model(input_of(group));
        CHECK_THROWS(pass.backward(*inside.side + ferry::sum(y)));
        group.barrier().get();
      }
      const dist::context pass(self);
      pass.backward(ferry::sum(model(input_of(group))));
      CHECK(is(pass.gradients().at(inside.q), 1.5, 2));
      group.barrier().get();
    }
  });
}

struct two_outputs {
  tensor p = ones();
  tensor q = ones();
  std::pair<tensor, tensor> operator()(const tensor& x) const { return {x * q, x * p * q}; }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("p", p);
    visit("q", q);
  }
};

TEST_CASE("ddp: two passes for one call average right, or say that they cannot") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    for (const bool find : {false, true}) {
      for (const std::size_t bytes : bucket_sizes) {
        CAPTURE(find);
        CAPTURE(bytes);
        ddp model(two_outputs(), group, {.bucket_bytes = bytes, .first_bucket_bytes = bytes, .find_unused = find});
        const two_outputs& inside = model.module();
        for (int round = 0; round != 3; ++round) {  // in the later ones, gradients are in the memory of the buckets
          for (const tensor& each : model.parameters()) {
            if (ferry::grad(each).defined()) ferry::grad(each).fill_(0);
          }
          const auto [a, b] = model(input_of(group));
          ferry::backward(ferry::sum(a));
          if (bytes == 1) {  // the bucket of q has been sent
            expect_error(errc::invalid_argument, "no gradient of p: let all outputs of a call take part in one pass",
                         [&] { ferry::backward(ferry::sum(b)); });
          } else {
            ferry::backward(ferry::sum(b));
            CHECK(is(ferry::grad(inside.p), 1.5, 2));
            CHECK(is(ferry::grad(inside.q), 3, 4));
          }
          group.barrier().get();
        }
        const dist::context pass(self);
        const auto [a, b] = model(input_of(group));
        pass.backward(ferry::sum(a));
        pass.backward(ferry::sum(b));
        CHECK(is(pass.gradients().at(inside.p), 1.5, 2));
        CHECK(is(pass.gradients().at(inside.q), 3, 4));
        group.barrier().get();
      }
    }
  });
}

}  // namespace ddp_unused_test
