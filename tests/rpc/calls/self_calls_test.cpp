#include <string>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "expect_error.hpp"

namespace self_calls_test {

using ferry_test::cluster;

ferry::tensor add(const ferry::tensor& a, const ferry::tensor& b) {
  ferry::tensor sum = a.clone();
  for (std::int64_t i = 0; i != sum.numel(); ++i) sum.data<float>()[i] += b.contiguous().data<float>()[i];
  return sum;
}
std::string greet(std::string_view name) { return "hello " + std::string(name); }
int factorial(int n) {
  const std::string self = ferry::get_worker_info().name();
  return n <= 1 ? 1 : n * ferry::rpc_sync<factorial>(self, n - 1);
}
void fail() { throw std::domain_error("no"); }

TEST_CASE("[row 21] a worker calls itself, synchronously and asynchronously") {
  for (const int size : {1, 3}) {
    cluster group(size);
    const ferry::tensor x = ferry::ones({2, 2});
    group.each([&](ferry::worker& self) {
      const ferry::tensor two = self.rpc_sync<add>(self.name(), x, x);
      const ferry::tensor four = self.rpc_async<add>(self.id(), two, two).get();
      if (!equal(four, ferry::full({2, 2}, 4.F))) throw std::runtime_error("wrong sum");
      if (self.rpc_sync<greet>(self.info(), "me") != "hello me") throw std::runtime_error("wrong greeting");
    });
  }
}

TEST_CASE("a worker alone in its group calls itself from its handlers to any depth, on one thread") {
  cluster group(1, {.configure = [](ferry::worker_config& config) { config.num_worker_threads = 1; }});
  CHECK(group[0].rpc_sync<factorial>("worker0", 10) == 3628800);
}

TEST_CASE(
    "an argument tensor of a call to oneself is not the handler's: the trip makes a copy or leaves it unchanged") {
  cluster group(1);
  const ferry::tensor x = ferry::arange(0, 8, 1, ferry::dtype::f32);
  const ferry::tensor sum = group[0].rpc_sync<add>("worker0", x, x);
  CHECK(equal(x, ferry::arange(0, 8, 1, ferry::dtype::f32)));
  CHECK(equal(sum, ferry::arange(0, 16, 2, ferry::dtype::f32)));
}

TEST_CASE("an exception of a call to oneself keeps its type") {
  cluster group(1);
  CHECK_THROWS_AS(group[0].rpc_sync<fail>("worker0"), std::domain_error);
  CHECK_THROWS_AS(group[0].rpc_async<fail>("worker0").get(), std::domain_error);
}

}  // namespace self_calls_test
