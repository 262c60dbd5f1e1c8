#pragma once

// Operations on tensors: how one is declared, and the one function that runs them all.
//
// An operation is a struct, its descriptor, which says what the operation is called, what it takes and how it is computed:
//
//   struct scaled_sum {
//     static constexpr std::string_view name = "mylib.scaled_sum";   // unique in the program
//     static constexpr operation_kind kind = operation_kind::new_result;
//     static constexpr std::size_t inputs = 2;                       // or any_number
//     static constexpr operation_needs needs{.elements = element_set::arithmetic, .alike = true};
//     struct parameters { scalar factor; };                          // what it takes besides tensors: a value type
//
//    private:
//     friend struct ferry::operation_access;                         // nothing else reaches compute()
//     static tensor compute(const parameters& with, const tensor& a, const tensor& b);
//     // If there is a check() with the same parameters, it runs first. In place, arguments that do not fit are refused there:
//     // once compute() runs, hooks were told and the version was raised.
//   };
//   tensor sum = ferry::run_operation<scaled_sum>({.factor = 2}, a, b);
//
// compute() is private, so that an operation runs in one way alone, and the hooks of the inputs (<ferry/tensor/hooks.hpp>)
// cannot be forgotten. Without hooks they cost one branch, and so does a profiler that is off.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ferry/base/traced_range.hpp>
#include <ferry/base/type_name.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

enum class operation_kind : std::uint8_t {
  new_result,  // compute() returns a new tensor, or a std::array or std::vector of them
  view,        // compute() returns a tensor over the storage of its one input
  in_place,    // compute() writes the elements of the first input, and returns nothing
};

/// Element types that an operation works on.
enum class element_set : std::uint8_t {
  any,
  arithmetic,  // i32, i64, f32, f64
  floating,    // f32, f64
};

/// Devices that an operation works on.
enum class device_set : std::uint8_t {
  any,
  with_kernels,  // the CPU, and CUDA devices if this ferry has kernels for them
  cpu,
};

/// What an operation needs of its inputs; checked before anything else happens.
struct operation_needs {
  element_set elements = element_set::any;
  device_set devices = device_set::any;
  bool alike = false;  // one dtype and one device for all inputs
};

/// As the number of inputs of a descriptor: compute() takes a std::span<const tensor>.
inline constexpr std::size_t any_number = static_cast<std::size_t>(-1);

/// A struct that declares an operation as above.
template <class Op>
concept operation_descriptor = requires {
  { Op::name } -> std::convertible_to<std::string_view>;
  { Op::kind } -> std::convertible_to<operation_kind>;
  { Op::inputs } -> std::convertible_to<std::size_t>;
  { Op::needs } -> std::convertible_to<operation_needs>;
  requires std::copyable<typename Op::parameters>;
};

/// A descriptor as a value.
struct operation_info {
  std::string_view name;
  std::uint64_t id = 0;  // fingerprint(name): the same in every process
  operation_kind kind = operation_kind::new_result;
  std::size_t inputs = 0;  // or any_number
  operation_needs needs;
  const std::type_info* type = nullptr;  // of the descriptor
};

template <operation_descriptor Op>
inline constexpr operation_info info_of{Op::name, fingerprint(Op::name), Op::kind, Op::inputs, Op::needs, &typeid(Op)};

/// The same for profilers.
template <operation_descriptor Op>
inline constexpr range_description range_of{Op::name, range_kind::operation};

/// One run of an operation, as hooks see it: its descriptor and its parameters. A view, valid during the call that it is
/// passed to: copy the parameters to keep them.
class operation {
 public:
  template <operation_descriptor Op>
  operation(std::type_identity<Op>, const typename Op::parameters& with) noexcept
      : info_(&info_of<Op>), parameters_(&with) {}

  [[nodiscard]] const operation_info& info() const noexcept { return *info_; }
  [[nodiscard]] std::string_view name() const noexcept { return info_->name; }
  [[nodiscard]] std::uint64_t id() const noexcept { return info_->id; }
  [[nodiscard]] operation_kind kind() const noexcept { return info_->kind; }
  /// Whether this is a run of Op.
  template <operation_descriptor Op>
  [[nodiscard]] bool is() const noexcept {
    return info_ == &info_of<Op> || *info_->type == typeid(Op);
  }
  /// The parameters of a run of Op; axes are counted from the front, bounds are clamped, shapes have no -1. Throws
  /// errc::invalid_argument if this is a run of another operation.
  template <operation_descriptor Op>
  [[nodiscard]] const typename Op::parameters& parameters() const {
    if (!is<Op>()) refuse_type(info_of<Op>);
    return *static_cast<const typename Op::parameters*>(parameters_);
  }

 private:
  [[noreturn]] void refuse_type(const operation_info& wanted) const;

  const operation_info* info_;
  const void* parameters_;
};

/// A list of descriptors as a type, for what is derived from all operations: tables of formulas, tests, documents.
template <operation_descriptor... Ops>
struct operation_list {
  static constexpr std::size_t size = sizeof...(Ops);
  template <class Op>
  static constexpr bool contains = (std::same_as<Op, Ops> || ...);
  /// Calls f(std::type_identity<Op>{}) for each.
  template <class F>
  static void for_each(F&& f) {
    (f(std::type_identity<Ops>{}), ...);
  }
};

/// The way to the private functions of descriptors; only run_operation() takes it.
struct operation_access {
 private:
  template <operation_descriptor Op>
  friend struct operation_runner;

  template <class Op, class... Inputs>
  static decltype(auto) compute(const typename Op::parameters& with, const Inputs&... inputs) {
    return Op::compute(with, inputs...);
  }
  template <class Op, class... Inputs>
  static void check(const typename Op::parameters& with, const Inputs&... inputs) {
    if constexpr (requires { &Op::check; }) Op::check(with, inputs...);
  }
};

namespace detail {

/// Throws errc::bad_device, errc::bad_dtype unless the inputs are as the operation needs them.
void check_needs(const operation_info& info, std::span<const tensor* const> inputs);
/// Throws errc::bad_shape unless every element of `target` has memory of its own.
void need_writable(const operation_info& info, const tensor& target);

/// The reports of one run to the hooks of its inputs. Without a slot, or within another operation or hook, there are
/// none.
class operation_reports {
 public:
  operation_reports(const operation& what, std::span<const tensor* const> inputs);
  ~operation_reports();
  operation_reports(const operation_reports&) = delete;
  operation_reports& operator=(const operation_reports&) = delete;

  void mutated();
  void computed(std::span<tensor> outputs);
  void viewed(tensor& view);

 private:
  operation what_;
  std::shared_ptr<tensor_hooks> hooks_;
  std::vector<tensor> inputs_;
};

/// Operations that run on this thread during its lifetime are parts of another: no hooks see them.
class unreported {
 public:
  unreported() noexcept;
  ~unreported();
  unreported(const unreported&) = delete;
  unreported& operator=(const unreported&) = delete;

 private:
  bool former_;
};

/// A run that a profiler sees.
class watched_operation final : public range_details {
 public:
  watched_operation(const range_description& what, std::span<const tensor* const> inputs) noexcept
      : inputs_(inputs), range_(what) {}
  void computed(std::span<const tensor> outputs) noexcept {
    outputs_ = outputs;
    range_.end(this, false);
  }
  [[nodiscard]] std::string shapes() const override;
  [[nodiscard]] std::int64_t bytes() const noexcept override;

 private:
  const std::span<const tensor* const> inputs_;
  std::span<const tensor> outputs_;
  traced_range range_;
};

inline std::span<tensor> results(tensor& result) { return {&result, 1}; }
template <std::size_t N>
std::span<tensor> results(std::array<tensor, N>& all) {
  return all;
}
inline std::span<tensor> results(std::vector<tensor>& all) { return all; }

}  // namespace detail

/// The steps of run_operation().
template <operation_descriptor Op>
struct operation_runner {
  using parameters = typename Op::parameters;

  template <class... Inputs>
  static decltype(auto) run(std::span<const tensor* const> operands, const parameters& with, const Inputs&... inputs) {
    if (detail::ranges_watched()) [[unlikely]]
      return run_watched(operands, with, inputs...);
    return run_now(operands, with, inputs...);
  }

 private:
  template <class... Inputs>
  static decltype(auto) run_watched(std::span<const tensor* const> operands, const parameters& with,
                                    const Inputs&... inputs) {
    detail::watched_operation watched(range_of<Op>, operands);
    if constexpr (Op::kind == operation_kind::in_place) {
      run_now(operands, with, inputs...);
      watched.computed({});
    } else {
      auto result = run_now(operands, with, inputs...);
      watched.computed(Op::kind == operation_kind::view ? std::span<tensor>() : detail::results(result));
      return result;
    }
  }

  template <class... Inputs>
  static decltype(auto) run_now(std::span<const tensor* const> operands, const parameters& with,
                                const Inputs&... inputs) {
    constexpr const operation_info& info = info_of<Op>;
    constexpr operation_needs needs = Op::needs;
    if constexpr (needs.elements != element_set::any || needs.devices != device_set::any || needs.alike) {
      detail::check_needs(info, operands);
    }
    operation_access::check<Op>(with, inputs...);
    bool hooked = false;
    for (const tensor* each : operands) hooked |= each->has_slot();
    if (hooked) [[unlikely]]
      return run_hooked(operands, with, inputs...);
    if constexpr (Op::kind == operation_kind::in_place) {
      detail::need_writable(info, *operands[0]);
      operands[0]->storage().bump_version();
    }
    return operation_access::compute<Op>(with, inputs...);
  }

  template <class... Inputs>
  static auto run_hooked(std::span<const tensor* const> operands, const parameters& with, const Inputs&... inputs) {
    detail::operation_reports reports(operation(std::type_identity<Op>{}, with), operands);
    if constexpr (Op::kind == operation_kind::in_place) {
      detail::need_writable(info_of<Op>, *operands[0]);
      reports.mutated();
      operands[0]->storage().bump_version();
      {
        const detail::unreported parts;
        operation_access::compute<Op>(with, inputs...);
      }
      tensor target = *operands[0];
      reports.computed(detail::results(target));
    } else {
      auto result = [&] {
        const detail::unreported parts;
        return operation_access::compute<Op>(with, inputs...);
      }();
      if constexpr (Op::kind == operation_kind::view) {
        reports.viewed(result);
      } else {
        reports.computed(detail::results(result));
      }
      return result;
    }
  }
};

/// Runs an operation on tensors: checks what it needs, computes, and lets the hooks of the inputs know (tensor_hooks says
/// when). Returns what compute() returns; in place, nothing. Throws errc::bad_device and errc::bad_dtype for inputs that
/// do not fit its needs, errc::bad_shape for a target in place with elements that share memory, what its check() and
/// compute() throw, and what the hooks throw. An operation in place that throws before it computes has written nothing.
template <operation_descriptor Op, std::same_as<tensor>... Tensors>
decltype(auto) run_operation(const typename Op::parameters& with, const Tensors&... inputs) {
  static_assert(sizeof...(Tensors) == Op::inputs, "the operation's descriptor states another number of input tensors");
  const std::array<const tensor*, sizeof...(Tensors)> operands{&inputs...};
  return operation_runner<Op>::run(operands, with, inputs...);
}
/// The same for an operation on any number of tensors.
template <operation_descriptor Op>
decltype(auto) run_operation(const typename Op::parameters& with, std::span<const tensor> inputs) {
  static_assert(Op::inputs == any_number, "the operation's descriptor states a fixed number of input tensors");
  std::vector<const tensor*> operands;
  operands.reserve(inputs.size());
  for (const tensor& each : inputs) operands.push_back(&each);
  return operation_runner<Op>::run(std::span<const tensor* const>(operands), with, inputs);
}

}  // namespace ferry::inline v0
