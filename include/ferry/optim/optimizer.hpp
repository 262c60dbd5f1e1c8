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
#include <unordered_map>
#include <utility>
#include <vector>

#include <ferry/autograd/gradient.hpp>
#include <ferry/base/type_name.hpp>
#include <ferry/device/device.hpp>
#include <ferry/ops/sparse.hpp>
#include <ferry/optim/algorithm.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// The gradient of a parameter, as an update takes it; neither: there is none.
struct parameter_gradient {
  tensor dense = {};
  sparse_tensor rows = {};  ///< with one sparse axis; takes the place of a dense one
};

/// What a checkpoint has of a group: everything but the parameters.
template <class Algorithm>
struct optimizer_group_state {
  typename Algorithm::options with = {};
  std::vector<typename Algorithm::state> states = {};  ///< one for each parameter, in their order

  template <class Archive>
  void serialize(Archive& archive) {
    archive(with, states);
  }
};

namespace detail {

/// How texts call a parameter.
struct parameter_place {
  std::size_t group;
  std::size_t index;
};

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
/// What passes have left at the parameter.
parameter_gradient gradient_of(const tensor& parameter);
tensor dense_form(const parameter_gradient& gradient);
[[noreturn]] void refuse_group(std::string_view algorithm, std::size_t group, std::size_t groups);
[[noreturn]] void refuse_stranger(std::string_view algorithm);

// Of what an archive claims. They throw errc::malformed or errc::invalid_argument, errc::bad_shape, errc::bad_dtype.
void need_record(std::string_view algorithm, std::uint32_t record, std::uint64_t fingerprint, std::uint64_t groups,
                 std::size_t wanted_groups);
void need_archived_count(std::string_view algorithm, std::size_t group, std::uint64_t count, std::size_t wanted);
void need_archived_steps(std::string_view algorithm, std::int64_t steps);
/// Brings a tensor of an archived state to the parameter's device, densely.
void adopt_archived(std::string_view algorithm, parameter_place place, std::string_view name, tensor& archived,
                    const tensor& parameter, const dims& shape);

// The record of an optimizer in an archive; the same for one on this worker and for one over several.

template <class Algorithm, class Archive>
void write_optimizer(Archive& archive, std::span<const optimizer_group_state<Algorithm>> groups) {
  archive(optimizer_record, fingerprint(Algorithm::name), static_cast<std::uint64_t>(groups.size()));
  for (const optimizer_group_state<Algorithm>& each : groups) {
    archive(each.with, static_cast<std::uint64_t>(each.states.size()));
    for (const typename Algorithm::state& kept : each.states) archive(kept);
  }
}
/// Of as many groups of as many parameters. The options have been checked.
template <class Algorithm, class Archive>
std::vector<optimizer_group_state<Algorithm>> read_optimizer(Archive& archive, std::span<const std::size_t> counts) {
  std::uint32_t record = 0;
  std::uint64_t algorithm_id = 0;
  std::uint64_t groups = 0;
  archive(record, algorithm_id, groups);
  need_record(Algorithm::name, record, algorithm_id, groups, counts.size());
  std::vector<optimizer_group_state<Algorithm>> loaded(counts.size());
  for (std::size_t number = 0; number != counts.size(); ++number) {
    optimizer_group_state<Algorithm>& into = loaded[number];
    std::uint64_t count = 0;
    archive(into.with, count);
    Algorithm::check(into.with);
    need_archived_count(Algorithm::name, number, count, counts[number]);
    into.states.resize(counts[number]);
    for (typename Algorithm::state& kept : into.states) {
      archive(kept);
      if constexpr (requires { kept.steps; }) need_archived_steps(Algorithm::name, kept.steps);
    }
  }
  return loaded;
}

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
  optimizer(const optimizer& other) : groups_(other.groups_), places_(other.places_) {
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
    const std::vector<tensor>& added = groups_.back().parameters;
    for (std::size_t index = 0; index != added.size(); ++index)
      places_[added[index].id()] = {groups_.size() - 1, index};
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

  /// Whether the tensor is a parameter of one of the groups.
  [[nodiscard]] bool contains(const tensor& parameter) const noexcept { return places_.contains(parameter.id()); }

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
  void step() { step_with(detail::gradient_of); }
  /// The same with the gradients that gradient_of(parameter), a parameter_gradient, returns: those that tensors have do not matter.
  template <class GradientOf>
  void step_with(const GradientOf& gradient_of) {
    std::vector<tensor> dense;
    std::vector<sparse_tensor> rows;
    for (group& each : groups_) {
      dense.clear();
      rows.clear();
      for (const tensor& parameter : each.parameters) {
        parameter_gradient its;
        if (parameter.requires_grad()) its = for_update(gradient_of(parameter));
        dense.push_back(std::move(its.dense));
        rows.push_back(std::move(its.rows));
      }
      Algorithm::update(each.parameters, dense, each.states, each.with);
      for (std::size_t index = 0; index != rows.size(); ++index) update_by_rows(each, index, rows[index]);
    }
  }
  /// Updates one parameter: in a hook (on_accumulated) this is done as soon as its gradient is known.
  void step(const tensor& parameter) { step(parameter, detail::gradient_of(parameter)); }
  /// By a gradient that is given.
  void step(const tensor& parameter, const parameter_gradient& gradient) {
    const auto [in, index] = find(parameter);
    group& its = groups_[in];
    const parameter_gradient given = parameter.requires_grad() ? for_update(gradient) : parameter_gradient();
    Algorithm::update({&parameter, 1}, {&given.dense, 1}, std::span(its.states).subspan(index, 1), its.with);
    update_by_rows(its, index, given.rows);
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
    const auto whole = checkpoint();
    detail::write_optimizer<Algorithm, Archive>(archive, whole);
  }
  /// Into an optimizer of the same algorithm with as many groups of as many parameters, whose options and states are replaced;
  /// states move to the devices of the parameters. Throws errc::invalid_argument for another algorithm, other numbers and
  /// options that the algorithm refuses, errc::bad_shape and errc::bad_dtype for the state of another parameter, errc::malformed
  /// for what no optimizer has saved, and what the archive throws; then nothing has changed.
  template <class Archive>
  void load(Archive& archive) {
    std::vector<std::size_t> counts;
    for (const group& each : groups_) counts.push_back(each.parameters.size());
    restore(detail::read_optimizer<Algorithm>(archive, counts));
  }

  /// What save() saves, on the CPU. Shares the tensors of states that are there.
  [[nodiscard]] std::vector<optimizer_group_state<Algorithm>> checkpoint() const {
    std::vector<optimizer_group_state<Algorithm>> groups;
    for (const group& each : groups_) {
      groups.push_back({each.with, each.states});
      for (state_type& kept : groups.back().states) {
        kept.visit_tensors([](std::string_view, tensor& t) {
          if (t.defined()) t = t.to(device{});
        });
      }
    }
    return groups;
  }
  /// As load(), and throws the same; the tensors are taken over.
  void restore(std::vector<optimizer_group_state<Algorithm>> groups) {
    restore(std::move(groups), [](std::size_t group, std::size_t index) {
      return detail::parameter_place{group, index};
    });
  }

  // For the library: with places as texts are to call them.
  template <class Place>
  void restore(std::vector<optimizer_group_state<Algorithm>> groups, const Place& place) {
    detail::need_record(Algorithm::name, detail::optimizer_record, fingerprint(Algorithm::name), groups.size(),
                        groups_.size());
    std::vector<group> loaded = groups_;
    for (std::size_t number = 0; number != loaded.size(); ++number) {
      group& into = loaded[number];
      Algorithm::check(groups[number].with);
      detail::need_archived_count(Algorithm::name, number, groups[number].states.size(), into.parameters.size());
      into.with = std::move(groups[number].with);
      into.states = std::move(groups[number].states);
      for (std::size_t index = 0; index != into.states.size(); ++index) {
        const tensor& parameter = into.parameters[index];
        into.states[index].visit_tensors([&](std::string_view name, tensor& t) {
          detail::adopt_archived(Algorithm::name, place(number, index), name, t, parameter, shape_of_state(parameter));
        });
      }
    }
    groups_ = std::move(loaded);
  }

 private:
  using group = detail::optimizer_group<Algorithm>;

  // Rows only where there is a way to update them.
  static parameter_gradient for_update(parameter_gradient gradient) {
    if constexpr (updates_rows<Algorithm>) {
      return gradient;
    } else {
      return {detail::dense_form(gradient), {}};
    }
  }
  static void update_by_rows(group& its, std::size_t index, const sparse_tensor& rows) {
    if constexpr (updates_rows<Algorithm>) {
      if (!rows.defined()) return;
      Algorithm::update_rows(its.parameters[index], rows.indices().select(0, 0), rows.values(), its.states[index],
                             its.with);
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
    const auto found = places_.find(parameter.id());
    if (found == places_.end()) detail::refuse_stranger(Algorithm::name);
    return {found->second.group, found->second.index};
  }

  std::vector<group> groups_;
  std::unordered_map<std::uintptr_t, detail::parameter_place> places_;  // by identity; the groups keep the tensors
};

}  // namespace ferry::inline v0
