#pragma once

// The backward formula of an operation: a specialisation of derivative for its descriptor (<ferry/tensor/operation.hpp>).
//
//   template <>
//   struct ferry::derivative<op::mul> {
//     static constexpr derivative_keeps keeps{.inputs = true};
//     static std::array<tensor, 2> backward(const op::mul::parameters&, const backward_run& run, const tensor& gradient) {
//       return {run.fit(0, [&] { return mul(gradient, run.input(1)); }),
//               run.fit(1, [&] { return mul(gradient, run.input(0)); })};
//     }
//   };
//   const bool known = ferry::register_derivative<op::mul>();   // those of ferry's own operations are registered
//
// backward() returns the gradient of each input (std::array, or std::vector for any_number of inputs); an undefined one stands
// for zero. It does not write the gradients that it is given, which others may have, too. An operation with several results takes a std::span<const tensor> of gradients. Formulas run outside of the graph.
//
// One that picks rows of its first input, and has one result, may also have
//     static sparse_tensor sparse_backward(const parameters&, const backward_run& run, tensor gradient);
// which returns the gradient of a leaf as these rows (<ferry/ops/sparse.hpp>), in memory that nothing else refers to.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ferry/autograd/detail/memory.hpp>
#include <ferry/autograd/node.hpp>
#include <ferry/autograd/saved_tensor.hpp>
#include <ferry/tensor/operation.hpp>

namespace ferry::inline v0 {

/// What a formula needs of the run of the operation.
struct derivative_keeps {
  bool inputs = false;   ///< in place: as they were; the target, and what shares its memory, are copied before
  bool outputs = false;  ///< in place: the target as it became
  std::uint32_t which = ~std::uint32_t{0};  ///< of the inputs: a bit for each that is needed
};

/// Derive from this for an operation whose results do not depend on its inputs in a way that has gradients (argmax).
struct no_derivative {
  static constexpr bool none = true;
};

/// Not defined: ferry defines it for its own operations, users for theirs.
template <operation_descriptor Op>
struct derivative;

class backward_run;

namespace detail {

class gradient_record;

/// A node for a run of an operation; what does not depend on the operation.
class operation_node : public graph_node {
 public:
  void release_saved() noexcept override;

 protected:
  operation_node(std::vector<graph_edge> edges, std::vector<value_facts> values)
      : graph_node(std::move(edges), std::move(values)) {}

  /// Throws errc::invalid_argument if the operation, one in place, has thrown: what it has written is not known.
  void need_finished() const {
    if (!finished_) refuse_unfinished();
  }
  [[noreturn]] static void refuse_count(std::size_t returned, std::size_t inputs);

 private:
  friend class ferry::v0::backward_run;
  friend class gradient_record;

  [[nodiscard]] const saved_tensor& saved(const std::vector<saved_tensor>& all, std::size_t number) const;

  [[noreturn]] static void refuse_unfinished();

  std::vector<saved_tensor> inputs_;
  std::vector<saved_tensor> outputs_;
  bool finished_ = true;
};

}  // namespace detail

/// What a formula sees of the run of its operation.
class backward_run {
 public:
  explicit backward_run(const detail::operation_node& of) noexcept : node_(of) {}

  /// How many inputs the run had.
  [[nodiscard]] std::size_t inputs() const noexcept { return node_.edges().size(); }
  /// Whether the gradient of this input is used.
  [[nodiscard]] bool wants(std::size_t input) const noexcept { return static_cast<bool>(node_.edges()[input]); }
  /// Of an input that is wanted.
  [[nodiscard]] const value_facts& facts(std::size_t input) const noexcept {
    const graph_edge& to = node_.edges()[input];
    return to.to->values()[to.value];
  }
  /// Of a result.
  [[nodiscard]] const value_facts& result(std::size_t number = 0) const noexcept { return node_.values()[number]; }
  /// An input of the run, if derivative<Op>::keeps has inputs. Throws as saved_tensor::get().
  [[nodiscard]] const tensor& input(std::size_t number) const { return node_.saved(node_.inputs_, number).get(); }
  /// The same for its layout alone: the elements may have been written since.
  [[nodiscard]] const tensor& layout(std::size_t number) const { return node_.saved(node_.inputs_, number).layout(); }
  /// A result, if it has outputs. Throws the same.
  [[nodiscard]] const tensor& output(std::size_t number = 0) const { return node_.saved(node_.outputs_, number).get(); }
  /// make() if the input is wanted, summed over the axes that it was broadcast along; else undefined.
  template <std::invocable Make>
  [[nodiscard]] tensor fit(std::size_t input, const Make& make) const {
    return wants(input) ? detail::summed_to(make(), facts(input).shape) : tensor();
  }

 private:
  const detail::operation_node& node_;
};

namespace detail {

/// The formula of an operation whose gradient is that of its one input.
struct passed_on_derivative {
  static constexpr derivative_keeps keeps{};
  template <class Parameters>
  static std::array<tensor, 1> backward(const Parameters&, const backward_run&, const tensor& gradient) {
    return {gradient};
  }
};

/// What is known about the formula of an operation.
struct derivative_entry {
  std::string_view name;
  std::uint64_t id = 0;
  bool none = false;
  derivative_keeps keeps;
  std::shared_ptr<operation_node> (*make)(const operation& what, std::vector<graph_edge> edges,
                                          std::vector<value_facts> values) = nullptr;
};

template <class Op>
class derivative_node final : public operation_node {
 public:
  derivative_node(const operation& what, std::vector<graph_edge> edges, std::vector<value_facts> values)
      : operation_node(std::move(edges), std::move(values)), with_(what.parameters<Op>()) {}
  [[nodiscard]] std::string_view name() const noexcept override { return Op::name; }
  void apply(std::span<tensor> gradients, std::span<tensor> results) override {
    need_finished();
    const backward_run run(*this);
    if constexpr (requires { derivative<Op>::backward(with_, run, gradients[0]); }) {
      pass_on(derivative<Op>::backward(with_, run, gradients[0]), results);
    } else {
      pass_on(derivative<Op>::backward(with_, run, std::span<const tensor>(gradients)), results);
    }
  }
  [[nodiscard]] bool has_sparse() const noexcept override { return sparse; }
  [[nodiscard]] sparse_tensor apply_sparse(std::span<tensor> gradients) override {
    if constexpr (sparse) {
      need_finished();
      return derivative<Op>::sparse_backward(with_, backward_run(*this), std::move(gradients[0]));
    } else {
      return {};
    }
  }

 private:
  static constexpr bool sparse = requires { &derivative<Op>::sparse_backward; };

  template <std::size_t N>
  static void pass_on(std::array<tensor, N> all, std::span<tensor> results) {
    static_assert(N == Op::inputs,
                  "ferry: backward() of a derivative returns one gradient for each input of the operation");
    std::move(all.begin(), all.end(), results.begin());
  }
  static void pass_on(std::vector<tensor> all, std::span<tensor> results) {
    if (all.size() != results.size()) refuse_count(all.size(), results.size());
    std::move(all.begin(), all.end(), results.begin());
  }

  const typename Op::parameters with_;
};

template <class Op>
constexpr derivative_entry make_derivative_entry() {
  static_assert(
      requires { sizeof(derivative<Op>); },
      "ferry: the operation has no derivative: specialise ferry::derivative<Op> (see <ferry/autograd/derivative.hpp>), "
      "or derive the specialisation from ferry::no_derivative");
  if constexpr (requires { derivative<Op>::none; }) {
    return {.name = Op::name, .id = info_of<Op>.id, .none = true, .keeps = {}};
  } else {
    return {.name = Op::name,
            .id = info_of<Op>.id,
            .keeps = derivative<Op>::keeps,
            .make = [](const operation& what, std::vector<graph_edge> edges,
                       std::vector<value_facts> values) -> std::shared_ptr<operation_node> {
              return std::make_shared<derivative_node<Op>>(what, std::move(edges), std::move(values));
            }};
  }
}

template <class Op>
inline constexpr derivative_entry derivative_entry_of = make_derivative_entry<Op>();

/// Throws errc::invalid_argument if another operation has the same name.
void register_derivative(const derivative_entry& entry);
/// Null: none is known. Thread-safe.
const derivative_entry* find_derivative(const operation_info& info) noexcept;

}  // namespace detail

/// Makes the formula of an operation known to the process. Idempotent, thread-safe. Call it before the operation runs on a
/// tensor that requires a gradient, best while the program starts. Returns true.
template <operation_descriptor Op>
bool register_derivative() {
  detail::register_derivative(detail::derivative_entry_of<Op>);
  return true;
}

}  // namespace ferry::inline v0
