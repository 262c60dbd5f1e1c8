#pragma once

// Layers one after the other.
//
//   ferry::nn::sequential net(ferry::nn::linear(64, 32), ferry::relu, ferry::nn::linear(32, 10));
//   ferry::tensor y = net(x);

#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ferry/nn/module.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::nn {

/// A layer is whatever can be called with a tensor and returns one: a module, a function, a lambda. Those that are modules have the
/// names of their positions: "0.weight", "2.weight".
template <class... Layers>
struct sequential {
  static_assert(sizeof...(Layers) != 0, "ferry: a sequential needs a layer");

  std::tuple<Layers...> layers;  ///< std::get<0>(net.layers).weight

  explicit sequential(Layers... all) : layers(std::move(all)...) {}

  /// What the last layer makes of it. The first one may take several arguments. Throws what the layers throw.
  template <class... Inputs>
    requires std::is_invocable_r_v<tensor, const std::tuple_element_t<0, std::tuple<Layers...>>&, const Inputs&...>
  [[nodiscard]] tensor operator()(const Inputs&... inputs) const {
    return run<0>(inputs...);
  }

  template <class Visit>
  void visit_members(Visit&& visit) {
    visit_from<0>(visit);
  }

 private:
  template <std::size_t I, class... Inputs>
  tensor run(const Inputs&... inputs) const {
    using layer = std::tuple_element_t<I, std::tuple<Layers...>>;
    static_assert(
        std::is_invocable_r_v<tensor, const layer&, const Inputs&...>,
        "ferry: a layer of a sequential cannot be called with what the layer before it returns, a tensor: it needs "
        "tensor operator()(const tensor&) const");
    if constexpr (I + 1 == sizeof...(Layers)) {
      return std::get<I>(layers)(inputs...);
    } else {
      return run<I + 1>(std::get<I>(layers)(inputs...));
    }
  }
  template <std::size_t I, class Visit>
  void visit_from(Visit& visit) {
    if constexpr (I != sizeof...(Layers)) {
      auto& layer = std::get<I>(layers);
      if constexpr (module<std::remove_reference_t<decltype(layer)>>) visit(std::to_string(I), layer);
      visit_from<I + 1>(visit);
    }
  }
};

}  // namespace ferry::inline v0::nn
