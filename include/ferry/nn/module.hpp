#pragma once

// What a module is: a struct of tensors and other modules that names them. It derives from nothing, and what it computes is its own
// affair: operator() by custom.
//
//   struct classifier {
//     ferry::nn::linear hidden{64, 32};
//     ferry::nn::dropout drop{0.1};
//     ferry::nn::linear out{32, 10};
//
//     ferry::tensor operator()(const ferry::tensor& x) const { return out(drop(ferry::relu(hidden(x)))); }
//     template <class Visit>
//     void visit_members(Visit&& visit) {
//       visit("hidden", hidden);
//       visit("drop", drop);
//       visit("out", out);
//     }
//   };
//   classifier model;
//   ferry::optimizer<ferry::adam> optimizer(ferry::nn::parameters(model));
//
// visit_members(visit) calls visit(name, member) for each member, always in one order, and changes nothing itself. A member is
//
// * a tensor: a parameter, a leaf; an undefined one (a bias that is left out) counts as absent. Leaves that require no gradient
//   (frozen ones, tables of constants) are parameters, too: they are saved, moved and listed;
// * a module; its parameters are called "hidden.weight" and so on;
// * a range of members (std::vector, std::array): "layers.0.weight"; or an optional or a pointer, which may be empty.
//
// A module with a member `bool sparse_gradient` that is true says that the gradients of its own tensors are rows, as embeddings do: ddp
// (ddp.hpp) then sends rows. One with a member `bool training` knows whether it is trained or used: train() and eval() set it.
//
// A tensor is a handle: copies of a module share its parameters, as copies of a tensor are the same tensor. clone() makes a module
// with parameters of its own. A tensor that is met under several names (tied weights) is one parameter, with the first name.
//
// Threads: a module may be called in several threads at once, unless one of them changes it or writes its parameters (a step of an
// optimizer, load(), to(), train()).

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ferry/device/device.hpp>
#include <ferry/tensor/dtype.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {
namespace detail {

struct any_member {
  template <class T>
  void operator()(std::string_view, T&) const {}
};

}  // namespace detail

namespace nn {

/// A struct that names its members, as above.
template <class M>
concept module = requires(M& m) { m.visit_members(detail::any_member{}); };

/// A parameter and its name. Archives take it (include <ferry/wire/tensor_archive.hpp>), and calls of other workers.
struct named_parameter {
  std::string name;
  tensor value;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, value);
  }
};

}  // namespace nn

namespace detail {

/// A parameter of a module, where it lies.
struct parameter_slot {
  std::string name;
  tensor* at = nullptr;
  bool sparse = false;  ///< its module says that its gradient is rows
};
/// What a walk through a module finds: the parameters that are defined, under each of their names, and the flags `training`.
struct module_parts {
  std::vector<parameter_slot> parameters;
  std::vector<bool*> modes;
};

template <class T>
concept optional_member = requires(T& t) {
  static_cast<bool>(t);
  { *t } -> std::same_as<std::add_lvalue_reference_t<std::remove_reference_t<decltype(*t)>>>;
};

/// Specialised by remote_module.hpp.
template <class M>
inline constexpr bool is_remote_module = false;

template <class M>
consteval void need_module() {
  static_assert(
      !is_remote_module<M>,
      "ferry: a remote module is at another worker: it has forward(), remote_parameters(), train() and eval() of its "
      "own; for all else call a function on module_rref(), at its owner");
  static_assert(
      nn::module<M> || is_remote_module<M>,
      "ferry: this type is no module: give it a member template <class Visit> void visit_members(Visit&& visit) "
      "that calls visit(\"name\", member) for each of its tensors and modules; see <ferry/nn/module.hpp>");
}

/// The visitor that makes module_parts.
class module_walk {
 public:
  template <class M>
  void enter(M& m) {
    if constexpr (requires { requires std::same_as<decltype(m.training), bool>; }) parts_.modes.push_back(&m.training);
    const bool former = sparse_;
    sparse_ = false;
    if constexpr (requires { requires std::same_as<std::remove_const_t<decltype(m.sparse_gradient)>, bool>; })
      sparse_ = m.sparse_gradient;
    m.visit_members(*this);
    sparse_ = former;
  }
  template <class T>
  void operator()(std::string_view name, T& member) {
    const std::size_t length = path_.size();
    if (length != 0) path_ += '.';
    path_ += name;
    take(member);
    path_.resize(length);
  }
  [[nodiscard]] module_parts take_parts() noexcept { return std::move(parts_); }

 private:
  template <class T>
  void take(T& member) {
    if constexpr (std::same_as<T, tensor>) {
      if (member.defined()) parts_.parameters.push_back({path_, &member, sparse_});
    } else if constexpr (nn::module<T>) {
      enter(member);
    } else if constexpr (std::ranges::input_range<T>) {
      std::size_t index = 0;
      for (auto& each : member) (*this)(std::to_string(index++), each);
    } else if constexpr (optional_member<T>) {
      if (member) take(*member);
    } else {
      static_assert(
          nn::module<T>,
          "ferry: a member that visit_members() names is neither a tensor nor a module, nor a range, an optional or a "
          "pointer of these; name only what has parameters");
    }
  }

  std::string path_;
  bool sparse_ = false;  // of the module that is visited
  module_parts parts_;
};

/// Throws errc::invalid_argument for two parameters of one name, and for one that is no leaf.
void need_parts(const module_parts& parts);

/// The parts as they are, not checked.
template <class M>
module_parts present_parts_of(M& m) {
  need_module<M>();
  module_walk walk;
  walk.enter(m);
  return walk.take_parts();
}
template <class M>
module_parts module_parts_of(M& m) {
  module_parts parts = present_parts_of(m);
  need_parts(parts);
  return parts;
}
/// Callers read the parts only; visit_members() changes nothing.
template <class M>
module_parts module_parts_of(const M& m) {
  return module_parts_of(const_cast<M&>(m));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

std::vector<tensor> list_parameters(const module_parts& parts);
std::vector<nn::named_parameter> list_named_parameters(const module_parts& parts);
std::int64_t count_elements(const module_parts& parts);
void set_training(const module_parts& parts, bool training) noexcept;
void move_parameters(const module_parts& parts, device where);
void convert_parameters(const module_parts& parts, dtype type);
/// Of a copy of the module that `original` belongs to.
void clone_parameters(const module_parts& parts, const module_parts& original);

}  // namespace detail

namespace nn {

// Errors of all: errc::invalid_argument for two parameters of one name, and for a parameter that was computed from a tensor that
// requires a gradient. What is no module is refused by the compiler.

/// Each parameter once, in the order of visit_members(): for optimizers.
template <class M>
[[nodiscard]] std::vector<tensor> parameters(const M& m) {
  return detail::list_parameters(detail::module_parts_of(m));
}
/// The same with their names.
template <class M>
[[nodiscard]] std::vector<named_parameter> named_parameters(const M& m) {
  return detail::list_named_parameters(detail::module_parts_of(m));
}
/// The number of elements of all parameters.
template <class M>
[[nodiscard]] std::int64_t count_parameters(const M& m) {
  return detail::count_elements(detail::module_parts_of(m));
}

/// Sets the member `training` of the module and of all modules in it.
template <class M>
void train(M& m, bool training = true) {
  detail::set_training(detail::module_parts_of(m), training);
}
/// train(m, false)
template <class M>
void eval(M& m) {
  train(m, false);
}

// Parameters that are elsewhere, or of another dtype, are replaced by new leaves with the old ones' values, whether they require a
// gradient, and their gradients; others stay. Copies of the module keep the old ones, and so do optimizers: make them afterwards. If one
// of these functions throws, nothing has changed.

/// Moves the parameters to a device. Throws as tensor::to().
template <class M>
void to(M& m, device where) {
  detail::move_parameters(detail::module_parts_of(m), where);
}
/// Converts parameters of floating-point types to f32 or f64; others stay. Throws errc::bad_dtype for another type.
template <class M>
void to(M& m, dtype type) {
  detail::convert_parameters(detail::module_parts_of(m), type);
}

/// A module with parameters of its own, of equal values; without gradients. Throws errc::invalid_argument for a parameter behind a pointer
/// that the copy of the module shares, and what allocations throw.
template <class M>
  requires std::copy_constructible<M>
[[nodiscard]] M clone(const M& m) {
  M copy(m);
  detail::clone_parameters(detail::module_parts_of(copy), detail::module_parts_of(m));
  return copy;
}

}  // namespace nn
}  // namespace ferry::inline v0
