#pragma once

// A user's own differentiable function:
//
//   struct cube : ferry::function<cube> {
//     static constexpr std::string_view name = "cube";
//     struct saved { ferry::saved_tensor x; };
//     static tensor forward(saved& keep, const tensor& x) {
//       keep.x = x;
//       return x * x * x;
//     }
//     static tensor backward(const saved& kept, const tensor& gradient) {
//       return gradient * kept.x.get() * kept.x.get() * 3;
//     }
//   };
//   tensor y = cube::apply(x);
//
// backward() does not write the gradients that it is given, which others may have, too.
//
// forward() takes the arguments of apply(), tensors and others, and returns a tensor or a std::array of them; backward() takes
// a gradient for each (std::span<const tensor> for an array; undefined where none arrived) and returns one for each tensor
// among the arguments: a tensor, or a std::array. An undefined one stands for zero. Both run outside of the graph.

#include <array>
#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ferry/autograd/grad_mode.hpp>
#include <ferry/autograd/gradient.hpp>
#include <ferry/autograd/node.hpp>
#include <ferry/autograd/saved_tensor.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {
namespace detail {

/// Whether results of these inputs enter the graph.
bool enters_graph(std::span<const tensor* const> inputs) noexcept;
/// Throws errc::bad_dtype, named after the function, for a result that is not f32 or f64.
std::vector<value_facts> facts_of_results(std::string_view function, std::span<const tensor> results);
/// Makes the results values of the node. A result that shares elements with an input is copied first, so that writes to it do not
/// reach the input; one that has other handles becomes a tensor of its own.
void enter_graph(const std::shared_ptr<graph_node>& made, std::span<const tensor* const> inputs,
                 std::span<tensor> results);
[[noreturn]] void refuse_used_up();

template <class F, std::size_t Inputs>
class function_node final : public graph_node {
 public:
  function_node(typename F::saved kept, std::vector<graph_edge> edges, std::vector<value_facts> values)
      : graph_node(std::move(edges), std::move(values)), kept_(std::make_unique<typename F::saved>(std::move(kept))) {}
  [[nodiscard]] std::string_view name() const noexcept override { return F::name; }
  void apply(std::span<tensor> gradients, std::span<tensor> results) override {
    if (!kept_) refuse_used_up();
    if constexpr (requires { F::backward(*kept_, gradients[0]); }) {
      pass_on(F::backward(*kept_, gradients[0]), results);
    } else {
      pass_on(F::backward(*kept_, std::span<const tensor>(gradients)), results);
    }
  }
  void release_saved() noexcept override { kept_.reset(); }

 private:
  static void pass_on(tensor one, std::span<tensor> results) {
    static_assert(
        Inputs == 1,
        "ferry: backward() of a function of several tensors returns a std::array with a gradient for each of them");
    results[0] = std::move(one);
  }
  template <std::size_t N>
  static void pass_on(std::array<tensor, N> all, std::span<tensor> results) {
    static_assert(N == Inputs, "ferry: backward() returns one gradient for each tensor among the arguments of apply()");
    std::move(all.begin(), all.end(), results.begin());
  }

  std::unique_ptr<typename F::saved> kept_;
};

inline std::span<tensor> as_results(tensor& one) { return {&one, 1}; }
template <std::size_t N>
std::span<tensor> as_results(std::array<tensor, N>& all) {
  return all;
}

}  // namespace detail

/// The base of a differentiable function, as above.
template <class F>
struct function {
  /// Runs forward(). The result requires a gradient if one of the tensors does, unless a no_grad is in force. Throws what
  /// forward() throws.
  template <class... Arguments>
  static auto apply(const Arguments&... arguments) {
    constexpr std::size_t inputs = (std::size_t{0} + ... + (std::same_as<Arguments, tensor> ? 1 : 0));
    static_assert(inputs != 0, "ferry: a differentiable function takes at least one tensor");
    std::array<const tensor*, inputs> tensors{};
    std::size_t number = 0;
    (
        [&] {
          if constexpr (std::same_as<Arguments, tensor>) tensors[number++] = &arguments;
        }(),
        ...);
    typename F::saved kept;
    auto result = [&] {
      const no_grad outside;
      return F::forward(kept, arguments...);
    }();
    if (!detail::enters_graph(tensors)) return result;
    const auto results = detail::as_results(result);
    std::vector<graph_edge> edges;
    edges.reserve(inputs);
    for (const tensor* each : tensors) edges.push_back(gradient_edge(*each));
    detail::enter_graph(std::make_shared<detail::function_node<F, inputs>>(std::move(kept), std::move(edges),
                                                                           detail::facts_of_results(F::name, results)),
                        tensors, results);
    return result;
  }
};

}  // namespace ferry::inline v0
