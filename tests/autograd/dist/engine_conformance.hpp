#pragma once

// What every engine of gradients must do below distributed passes. An engine's suite is
//
//   struct my_kit {
//     using value = my::value;                                 // goes with calls: it has ferry::tensor_traits
//     static value leaf(double x);                             // that requires a gradient
//     static double number(const value&);
//     static value add(const value&, const value&);
//     static value mul(const value&, const value&);
//     static value failing(const value&);                      // the value itself; its node throws std::runtime_error("out of order")
//     static std::optional<double> gradient(const ferry::dist_autograd::gradient_map&, const value& leaf);
//     static void on_gradient(const value&, std::function<double(double)>);   // the result takes the place of the gradient
//   };
//   FERRY_TEST_ENGINE(my_kit)

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/autograd/dist/engine.hpp>
#include <ferry/ferry.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"

namespace ferry_test {

template <class Kit>
struct engine_suite {
  using value = typename Kit::value;
  using context = ferry::dist_autograd::context;

  // Handlers.
  static value remote_add(const value& a, const value& b) { return Kit::add(a, b); }
  static value remote_mul(const value& a, const value& b) { return Kit::mul(a, b); }
  static value remote_failing(const value& a) { return Kit::failing(a); }
  // a * b at this worker, times a at the next ones.
  static value chain(const value& a, const value& b, const std::vector<std::string>& way) {
    const value here = Kit::mul(a, b);
    if (way.empty()) return here;
    return ferry::rpc_sync<chain>(way.front(), here, a, std::vector<std::string>(way.begin() + 1, way.end()));
  }

  static ferry::tensor root(const value& of) {
    if constexpr (std::same_as<value, ferry::tensor>) {
      return of;
    } else {
      return ferry::tensor_traits<value>::to_tensor(of);
    }
  }
  static double gradient(const context& in, const value& leaf) {
    const auto found = Kit::gradient(in.gradients(), leaf);
    REQUIRE(found.has_value());
    return *found;
  }

  static void one_call() {
    cluster group(2);
    const value a = Kit::leaf(3);
    const value b = Kit::leaf(5);
    const context in(group[0]);
    const value c = group[0].template rpc_sync<remote_mul>("worker1", a, b);
    CHECK(Kit::number(c) == 15);
    ferry::dist_autograd::backward(in, root(Kit::mul(c, c)));
    CHECK(gradient(in, a) == 2 * 15 * 5);
    CHECK(gradient(in, b) == 2 * 15 * 3);
  }

  static void circles() {
    cluster group(3);
    for (const std::vector<std::string>& way :
         {std::vector<std::string>{"worker2"}, {"worker0"}, {"worker2", "worker0", "worker1"}, {"worker1"}}) {
      const value a = Kit::leaf(2);
      const value b = Kit::leaf(7);
      const context in(group[0]);
      const value c = group[0].template rpc_sync<chain>("worker1", a, b, way);
      // chain(a, b) = a * b; each further step multiplies the former result by the step's own first argument.
      const auto expected = [&](double x, double y) {
        double first = x;
        double second = y;
        double here = first * second;
        for (std::size_t i = 0; i != way.size(); ++i) {
          const double next = here * first;
          first = here;
          here = next;
        }
        return here;
      };
      CHECK(Kit::number(c) == expected(2, 7));
      ferry::dist_autograd::backward(in, root(c));
      constexpr double h = 1e-6;
      CHECK(gradient(in, a) == doctest::Approx((expected(2 + h, 7) - expected(2 - h, 7)) / (2 * h)).epsilon(1e-6));
      CHECK(gradient(in, b) == doctest::Approx((expected(2, 7 + h) - expected(2, 7 - h)) / (2 * h)).epsilon(1e-6));
    }
  }

  static void unused_results() {
    cluster group(2);
    const value a = Kit::leaf(3);
    const value b = Kit::leaf(5);
    const context in(group[0]);
    const value used = group[0].template rpc_sync<remote_mul>("worker1", a, b);
    const value unused = group[0].template rpc_sync<remote_mul>("worker1", used, b);
    (void)group[0].template rpc_sync<remote_add>("worker1", unused, used);
    ferry::dist_autograd::backward(in, root(Kit::add(used, used)));
    CHECK(gradient(in, a) == 10);
    CHECK(gradient(in, b) == 6);
  }

  static void passes_add_up() {
    cluster group(2);
    const value a = Kit::leaf(3);
    const value b = Kit::leaf(5);
    const context in(group[0]);
    const value c = group[0].template rpc_sync<remote_mul>("worker1", a, b);
    const ferry::tensor from = root(Kit::add(c, c));
    for (int pass = 1; pass != 4; ++pass) {
      ferry::dist_autograd::backward(in, from, {.retain_graph = true});
      CHECK(gradient(in, a) == 10 * pass);
    }
  }

  static void several_roots() {
    cluster group(2);
    const value a = Kit::leaf(3);
    const value b = Kit::leaf(5);
    const context in(group[0]);
    const value c = group[0].template rpc_sync<remote_mul>("worker1", a, b);
    const value d = group[0].template rpc_sync<remote_add>("worker1", c, a);
    ferry::dist_autograd::backward(in, {root(c), root(d), root(Kit::mul(c, d))});
    // c + d + c d with c = 15, d = 18: dc = 1 + 18, dd = 1 + 15, and d = c + a.
    CHECK(gradient(in, a) == (19 + 16) * 5 + 16);
    CHECK(gradient(in, b) == (19 + 16) * 3);
  }

  static void hooks_see_whole_gradients_once() {
    cluster group(2);
    const value a = Kit::leaf(3);
    const value b = Kit::leaf(5);
    const context in(group[0]);
    const value inner = Kit::mul(a, b);
    std::vector<double> seen_inner;
    std::vector<double> seen_leaf;
    Kit::on_gradient(inner, [&](double g) {
      seen_inner.push_back(g);
      return g;
    });
    Kit::on_gradient(a, [&](double g) {
      seen_leaf.push_back(g);
      return 2 * g;
    });
    const value far = group[0].template rpc_sync<remote_mul>("worker1", inner, inner);
    const value near = Kit::mul(inner, b);
    ferry::dist_autograd::backward(in, root(Kit::add(far, near)));
    CHECK(seen_inner == std::vector<double>{2 * 15 + 5});
    CHECK(seen_leaf == std::vector<double>{35 * 5});
    CHECK(gradient(in, a) == 2 * 35 * 5);
    CHECK(gradient(in, b) == 35 * 3 + 15);
  }

  static void errors_name_node_and_worker() {
    cluster group(2);
    const value a = Kit::leaf(3);
    const context in(group[0]);
    for (const bool far : {true, false}) {
      const value c = far ? group[0].template rpc_sync<remote_failing>("worker1", a)
                          : Kit::failing(group[0].template rpc_sync<remote_add>("worker1", a, a));
      try {
        ferry::dist_autograd::backward(in, root(Kit::mul(c, c)));
        FAIL("no error");
      } catch (const ferry::remote_error& e) {
        const std::string text = e.what();
        CHECK(text.find(far ? "worker1: backward of" : "worker0: backward of") != std::string::npos);
        CHECK(text.find("out of order") != std::string::npos);
        CHECK(e.type_name() == "std::runtime_error");
      }
      for (int i = 0; i != 2; ++i) CHECK(group[i].debug_info("autograd.num_current_backward_passes") == "0");
    }
    const value fine = group[0].template rpc_sync<remote_add>("worker1", a, a);
    ferry::dist_autograd::backward(in, root(Kit::mul(fine, fine)));
    CHECK(gradient(in, a) == 24);
  }

  // Programs of a few dozen additions and multiplications, each at one of three workers; the double is the model.
  static void random_programs() {
    cluster group(3);
    for (std::uint32_t seed = 1; seed != 21; ++seed) {
      CAPTURE(seed);
      std::mt19937 draw(seed);
      std::vector<value> values;
      std::vector<double> numbers;
      std::vector<std::map<int, double>> derivatives;  // of each value, by leaf
      constexpr int leaves = 3;
      for (int i = 0; i != leaves; ++i) {
        numbers.push_back(1 + static_cast<double>(draw() % 3) / 4);
        values.push_back(Kit::leaf(numbers.back()));
        derivatives.push_back({{i, 1.0}});
      }
      const context in(group[0]);
      const std::uint32_t steps = 4 + draw() % 8;
      for (std::uint32_t step = 0; step != steps; ++step) {
        const std::size_t a = draw() % values.size();
        const std::size_t b = draw() % values.size();
        const bool product = draw() % 2 == 0;
        const std::uint32_t where = draw() % 4;
        if (where == 3) {
          values.push_back(product ? Kit::mul(values[a], values[b]) : Kit::add(values[a], values[b]));
        } else {
          const std::string whom = worker_name(static_cast<int>(where));
          values.push_back(product ? group[0].template rpc_sync<remote_mul>(whom, values[a], values[b])
                                   : group[0].template rpc_sync<remote_add>(whom, values[a], values[b]));
        }
        std::map<int, double> derived;
        for (const auto& [leaf, d] : derivatives[a]) derived[leaf] += d * (product ? numbers[b] : 1);
        for (const auto& [leaf, d] : derivatives[b]) derived[leaf] += d * (product ? numbers[a] : 1);
        derivatives.push_back(std::move(derived));
        numbers.push_back(product ? numbers[a] * numbers[b] : numbers[a] + numbers[b]);
        CHECK(Kit::number(values.back()) == doctest::Approx(numbers.back()));
      }
      ferry::dist_autograd::backward(in, root(values.back()));
      const auto found = in.gradients();
      for (int i = 0; i != leaves; ++i) {
        const auto expected = derivatives.back().find(i);
        const auto has = Kit::gradient(found, values[static_cast<std::size_t>(i)]);
        REQUIRE(has.has_value() == (expected != derivatives.back().end()));
        if (has) CHECK(*has == doctest::Approx(expected->second).epsilon(1e-12));
      }
    }
  }
};

}  // namespace ferry_test

#define FERRY_TEST_ENGINE(kit)                                                                                    \
  TEST_CASE(#kit ": gradients go back through a call") { ferry_test::engine_suite<kit>::one_call(); }             \
  TEST_CASE(#kit ": gradients go back through circles of workers") { ferry_test::engine_suite<kit>::circles(); }  \
  TEST_CASE(#kit ": results that are not used take no part") { ferry_test::engine_suite<kit>::unused_results(); } \
  TEST_CASE(#kit ": passes add up") { ferry_test::engine_suite<kit>::passes_add_up(); }                           \
  TEST_CASE(#kit ": several roots") { ferry_test::engine_suite<kit>::several_roots(); }                           \
  TEST_CASE(#kit ": hooks see whole gradients, once") {                                                           \
    ferry_test::engine_suite<kit>::hooks_see_whole_gradients_once();                                              \
  }                                                                                                               \
  TEST_CASE(#kit ": errors name the node and the worker, and later passes work") {                                \
    ferry_test::engine_suite<kit>::errors_name_node_and_worker();                                                 \
  }                                                                                                               \
  TEST_CASE(#kit ": random programs") { ferry_test::engine_suite<kit>::random_programs(); }
