#pragma once

// What an algorithm of optimization is: a struct that describes it, which optimizer<> makes a step of.
//
//   struct my_descent {
//     static constexpr std::string_view name = "my_descent";      // unique: checkpoints are marked with it
//     struct options {                                            // a value type that archives take
//       double lr = 0.1;
//       template <class Archive> void serialize(Archive& archive) { archive(lr); }
//     };
//     struct state {                                              // what is kept of one parameter; starts empty
//       ferry::tensor mean;
//       template <class Archive> void serialize(Archive& archive) { archive(mean); }
//       template <class Visit> void visit_tensors(Visit&& visit) { visit("mean", mean); }
//     };
//     static void check(const options& with);                     // throws for options that make no sense
//     static void update(std::span<const ferry::tensor> parameters, std::span<const ferry::tensor> gradients,
//                        std::span<state> states, const options& with);
//   };
//   ferry::optimizer<my_descent> descent(parameters, {.lr = 0.01});
//
// update() is a pure function of its arguments: it looks at no gradient that a tensor has. That of ferry's algorithms:
//
// * writes the parameters in place, outside of the graph (leaves that require a gradient, too), and raises their versions;
// * leaves a parameter whose gradient is undefined, and its state, as they are;
// * takes parameters of f32 and f64 with any strides, on the CPU and, if ferry has kernels, on CUDA devices, where it runs on
//   the current stream and the host does not wait; passes over the elements once;
// * begins with states that are empty, and keeps tensors of the parameter's shape, dtype and device in them.
//
// Errors, each names the parameter by its position: errc::bad_shape, errc::bad_dtype, errc::bad_device for gradients and states
// that do not look like their parameter, and for parameters that cannot be updated; errc::invalid_argument for options (as
// check() does), numbers of arguments that differ, and undefined parameters. Nothing was written then.
//
// Threads: one at a time may update a parameter. Calls for different parameters do not meet.

#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {
namespace detail {

struct tensor_visitor {
  void operator()(std::string_view, tensor&) const {}
};

}  // namespace detail

/// A struct that declares an algorithm as above. If the tensors of its state are not of the parameter's shape, it has a
/// function dims state_shape(const dims& parameter).
template <class A>
concept optimizer_algorithm =
    std::copyable<typename A::options> && std::copyable<typename A::state> &&
    std::default_initializable<typename A::options> && std::default_initializable<typename A::state> &&
    requires(std::span<const tensor> tensors, std::span<typename A::state> states, typename A::state& one,
             const typename A::options& with) {
      { A::name } -> std::convertible_to<std::string_view>;
      A::check(with);
      A::update(tensors, tensors, states, with);
      one.visit_tensors(detail::tensor_visitor{});
    };

/// One that can update some rows of a parameter, [rows, ...], alone: of a table of embeddings. `indices`, i64 with one axis,
/// says which; `values` has their gradients, [number of indices, ...]. Gradients of equal indices are added first, in their
/// order. Rows that are not named, and what is kept of them, stay as they are: no decay, no momentum. Without indices nothing
/// happens. The errors are those of update(), and errc::bad_shape for an index that is not a row. Indices on a device are
/// read by the host, which waits for them: have them on the CPU.
template <class A>
concept updates_rows =
    optimizer_algorithm<A> && requires(const tensor& t, typename A::state& one, const typename A::options& with) {
      A::update_rows(t, t, t, one, with);
    };

}  // namespace ferry::inline v0
