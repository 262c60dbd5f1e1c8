#pragma once

// An optimizer of parameters on this worker: groups of leaves, each with options of its own, and what an algorithm keeps of them.
//
//   ferry::optimizer<ferry::adam> optimizer({w, b}, {.lr = 1e-3});
//   for (...) {
//     optimizer.zero_grad();
//     ferry::backward(loss(...));
//     optimizer.step();
//   }

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/autograd/gradient.hpp>
#include <ferry/base/type_name.hpp>
#include <ferry/device/device.hpp>
#include <ferry/ops/sparse.hpp>
#include <ferry/optim/algorithm.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {
namespace detail {

template <class Algorithm>
struct optimizer_group {
  std::vector<tensor> parameters;
  std::vector<typename Algorithm::state> states;
  typename Algorithm::options with;
};

/// The number that begins the record of an optimizer in an archive.
inline constexpr std::uint32_t optimizer_record = 1;

/// Throws as optimizer::add_group says. `present` are the parameters of the groups before.
void need_group(std::string_view algorithm, std::span<const tensor> parameters, std::span<const tensor> present);
void clear_gradients(std::span<const tensor> parameters);
/// Also of a sparse one.
tensor dense_gradient(const tensor& parameter);
[[noreturn]] void refuse_group(std::string_view algorithm, std::size_t group, std::size_t groups);
[[noreturn]] void refuse_stranger(std::string_view algorithm);

// Of what an archive claims. They throw errc::malformed or errc::invalid_argument, errc::bad_shape, errc::bad_dtype.
void need_record(std::string_view algorithm, std::uint32_t record, std::uint64_t fingerprint, std::uint64_t groups,
                 std::size_t wanted_groups);
void need_archived_count(std::string_view algorithm, std::size_t group, std::uint64_t count, std::size_t wanted);
void need_archived_steps(std::string_view algorithm, std::int64_t steps);
/// Brings a tensor of an archived state to the parameter's device, densely.
void adopt_archived(std::string_view algorithm, std::size_t group, std::size_t index, std::string_view name,
                    tensor& archived, const tensor& parameter, const dims& shape);

}  // namespace detail

/// Makes steps of an algorithm (adam, sgd, ... or one's own). Parameters are handles: the optimizer keeps them alive, and writes
/// their elements in place. Not thread-safe: a step, and everything else that reads or writes the parameters or their gradients,
/// comes one after the other.
///
/// Groups are counted from 0. Functions that take a group throw errc::invalid_argument for one that does not exist, those that
/// take a parameter for a tensor that is in no group.
template <class Algorithm>
class optimizer {
  static_assert(
      optimizer_algorithm<Algorithm>,
      "an optimizer needs an algorithm: a struct with a name, the value types options and state (with serialize() "
      "and state::visit_tensors()), and the static functions check(options) and update(parameters, gradients, "
      "states, options); see <ferry/optim/algorithm.hpp>");

 public:
  using algorithm = Algorithm;
  using options_type = typename Algorithm::options;
  using state_type = typename Algorithm::state;

  /// With one group.
  explicit optimizer(std::vector<tensor> parameters, options_type with = {}) {
    add_group(std::move(parameters), std::move(with));
  }

  /// A copy updates the same parameters, with states of its own: a snapshot.
  optimizer(const optimizer& other) : groups_(other.groups_) {
    for (group& each : groups_) {
      for (state_type& kept : each.states) {
        kept.visit_tensors([](std::string_view, tensor& t) {
          if (t.defined()) t = t.clone();
        });
      }
    }
  }
  optimizer(optimizer&&) noexcept = default;
  optimizer& operator=(const optimizer& other) { return *this = optimizer(other); }
  optimizer& operator=(optimizer&&) noexcept = default;
  ~optimizer() = default;

  /// Another group; returns its number. Throws errc::invalid_argument for an empty list, options that the algorithm refuses, a
  /// tensor that is undefined, no leaf, or in a group already; errc::bad_dtype, errc::bad_device for one that cannot be updated.
  std::size_t add_group(std::vector<tensor> parameters, options_type with = {}) {
    Algorithm::check(with);
    std::vector<tensor> present;
    for (const group& each : groups_) present.insert(present.end(), each.parameters.begin(), each.parameters.end());
    detail::need_group(Algorithm::name, parameters, present);
    std::vector<state_type> states(parameters.size());
    groups_.push_back({std::move(parameters), std::move(states), std::move(with)});
    return groups_.size() - 1;
  }

  [[nodiscard]] std::size_t group_count() const noexcept { return groups_.size(); }
  [[nodiscard]] std::span<const tensor> parameters(std::size_t group = 0) const { return at(group).parameters; }
  [[nodiscard]] const options_type& options(std::size_t group = 0) const { return at(group).with; }
  /// From the next step on. Throws what the algorithm's check() throws; then the options are as before.
  void set_options(options_type with, std::size_t group = 0) {
    Algorithm::check(with);
    at(group).with = std::move(with);
  }
  /// The learning rate of a group, for schedules (<ferry/optim/schedule.hpp>). The same errors.
  void set_lr(double lr, std::size_t group = 0)
    requires requires(options_type& with) { with.lr = lr; }
  {
    options_type with = at(group).with;
    with.lr = lr;
    set_options(std::move(with), group);
  }

  /// What is kept of a parameter.
  [[nodiscard]] const state_type& state(const tensor& parameter) const {
    const auto [in, index] = find(parameter);
    return groups_[in].states[index];
  }
  [[nodiscard]] state_type& state(const tensor& parameter) {
    const auto [in, index] = find(parameter);
    return groups_[in].states[index];
  }

  /// Updates every parameter that requires a gradient and has one, ferry::grad(), on the current stream of its device. One with a sparse
  /// gradient, ferry::sparse_grad(), is updated by step_rows(), after the others of its group; algorithms without update_rows()
  /// get the dense form. Throws as the algorithm's update() and update_rows(); groups before the one that failed have been updated.
  void step() {
    std::vector<tensor> gradients;
    for (group& each : groups_) {
      gradients.clear();
      for (const tensor& parameter : each.parameters) gradients.push_back(gradient_for_update(parameter));
      Algorithm::update(each.parameters, gradients, each.states, each.with);
      for (std::size_t index = 0; index != each.parameters.size(); ++index) update_by_rows(each, index);
    }
  }
  /// Updates one parameter: in a hook (on_accumulated) this is done as soon as its gradient is known.
  void step(const tensor& parameter) {
    const auto [in, index] = find(parameter);
    group& its = groups_[in];
    const tensor gradient = gradient_for_update(parameter);
    Algorithm::update({&parameter, 1}, {&gradient, 1}, std::span(its.states).subspan(index, 1), its.with);
    update_by_rows(its, index);
  }
  /// Updates rows of one parameter by gradients that are given; see updates_rows.
  void step_rows(const tensor& parameter, const tensor& indices, const tensor& values)
    requires updates_rows<Algorithm>
  {
    const auto [in, index] = find(parameter);
    Algorithm::update_rows(parameter, indices, values, groups_[in].states[index], groups_[in].with);
  }
  /// Clears the gradients, sparse ones, too: the next pass begins new ones.
  void zero_grad() {
    for (const group& each : groups_) detail::clear_gradients(each.parameters);
  }

  // Checkpoints: options and states, not the parameters, in ferry's archives and other ones of cereal (include
  // <ferry/wire/tensor_archive.hpp>). Tensors on devices are saved through the CPU, and the host waits.

  template <class Archive>
  void save(Archive& archive) const {
    archive(detail::optimizer_record, fingerprint(Algorithm::name), static_cast<std::uint64_t>(groups_.size()));
    for (const group& each : groups_) {
      archive(each.with, static_cast<std::uint64_t>(each.states.size()));
      for (state_type kept : each.states) {
        kept.visit_tensors([](std::string_view, tensor& t) {
          if (t.defined()) t = t.to(device{});
        });
        archive(kept);
      }
    }
  }
  /// Into an optimizer of the same algorithm with as many groups of as many parameters, whose options and states are replaced;
  /// states move to the devices of the parameters. Throws errc::invalid_argument for another algorithm, other numbers and
  /// options that the algorithm refuses, errc::bad_shape and errc::bad_dtype for the state of another parameter, errc::malformed
  /// for what no optimizer has saved, and what the archive throws; then nothing has changed.
  template <class Archive>
  void load(Archive& archive) {
    std::uint32_t record = 0;
    std::uint64_t algorithm_id = 0;
    std::uint64_t groups = 0;
    archive(record, algorithm_id, groups);
    detail::need_record(Algorithm::name, record, algorithm_id, groups, groups_.size());
    std::vector<group> loaded = groups_;
    for (std::size_t number = 0; number != loaded.size(); ++number) load_group(archive, number, loaded[number]);
    groups_ = std::move(loaded);
  }

 private:
  using group = detail::optimizer_group<Algorithm>;

  // Undefined: there is none, or it is for update_by_rows().
  static tensor gradient_for_update(const tensor& parameter) {
    if (!parameter.requires_grad()) return {};
    if constexpr (updates_rows<Algorithm>) {
      return grad(parameter);
    } else {
      return detail::dense_gradient(parameter);
    }
  }
  static void update_by_rows(group& its, std::size_t index) {
    if constexpr (updates_rows<Algorithm>) {
      const tensor& parameter = its.parameters[index];
      const sparse_tensor rows = sparse_grad(parameter);
      if (!rows.defined() || !parameter.requires_grad()) return;
      Algorithm::update_rows(parameter, rows.indices().select(0, 0), rows.values(), its.states[index], its.with);
    }
  }

  template <class Archive>
  static void load_group(Archive& archive, std::size_t number, group& into) {
    std::uint64_t count = 0;
    archive(into.with, count);
    Algorithm::check(into.with);
    detail::need_archived_count(Algorithm::name, number, count, into.states.size());
    for (std::size_t index = 0; index != into.states.size(); ++index) {
      state_type kept{};
      archive(kept);
      if constexpr (requires { kept.steps; }) detail::need_archived_steps(Algorithm::name, kept.steps);
      const tensor& parameter = into.parameters[index];
      kept.visit_tensors([&](std::string_view name, tensor& t) {
        detail::adopt_archived(Algorithm::name, number, index, name, t, parameter, shape_of_state(parameter));
      });
      into.states[index] = std::move(kept);
    }
  }
  static dims shape_of_state(const tensor& parameter) {
    if constexpr (requires { Algorithm::state_shape(parameter.shape()); }) {
      return Algorithm::state_shape(parameter.shape());
    } else {
      return parameter.shape();
    }
  }

  [[nodiscard]] const group& at(std::size_t number) const {
    if (number >= groups_.size()) detail::refuse_group(Algorithm::name, number, groups_.size());
    return groups_[number];
  }
  [[nodiscard]] group& at(std::size_t number) {
    if (number >= groups_.size()) detail::refuse_group(Algorithm::name, number, groups_.size());
    return groups_[number];
  }
  [[nodiscard]] std::pair<std::size_t, std::size_t> find(const tensor& parameter) const {
    for (std::size_t in = 0; in != groups_.size(); ++in) {
      const std::vector<tensor>& all = groups_[in].parameters;
      for (std::size_t index = 0; index != all.size(); ++index) {
        if (all[index].same_as(parameter)) return {in, index};
      }
    }
    detail::refuse_stranger(Algorithm::name);
  }

  std::vector<group> groups_;
};

}  // namespace ferry::inline v0
