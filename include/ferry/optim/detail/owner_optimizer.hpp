#pragma once

// The part of a distributed optimizer at one owner of parameters. Internal.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ferry/autograd/dist/backward.hpp>
#include <ferry/autograd/dist/context.hpp>
#include <ferry/autograd/dist/update_turn.hpp>
#include <ferry/device/device.hpp>
#include <ferry/optim/optimizer.hpp>
#include <ferry/rpc/rref.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::detail {

/// Those parameters of one group that one worker owns.
struct owned_share {
  std::uint64_t group = 0;                    ///< of the whole optimizer
  std::vector<std::uint64_t> positions = {};  ///< of the parameters in that group

  template <class Archive>
  void serialize(Archive& archive) {
    archive(group, positions);
  }
};

template <class Algorithm>
struct owned_group {
  owned_share share = {};
  std::vector<rref<tensor>> parameters = {};
  typename Algorithm::options with = {};

  template <class Archive>
  void serialize(Archive& archive) {
    archive(share, parameters, with);
  }
};

/// The gradients that this worker has in a context, as updates take them. Those of one leaf are found at once.
class gradients_by_leaf {
 public:
  /// The current streams wait for them.
  explicit gradients_by_leaf(dist_autograd::context_id in);
  gradients_by_leaf(const gradients_by_leaf&) = delete;
  gradients_by_leaf& operator=(const gradients_by_leaf&) = delete;
  /// Whether this worker has such a context; if not, it has no gradients in it.
  [[nodiscard]] bool known() const noexcept { return known_; }
  [[nodiscard]] bool empty() const noexcept { return all_.empty(); }
  /// Neither: it has none. Of leaves of other engines, too, whose gradients are filed under tensors of their own.
  [[nodiscard]] parameter_gradient of(const tensor& leaf) const;

 private:
  bool known_;
  dist_autograd::gradient_map all_;
  std::unordered_map<std::uintptr_t, const dist_autograd::leaf_gradient*> places_;
  std::unordered_map<const void*, const dist_autograd::leaf_gradient*> of_nodes_;  // of other engines than ferry's
};
/// Copies, of those on the CPU, too: what is sent is read after the turn.
tensor apart_on_host(const tensor& t);

/// Thread-safe: everything that reads or writes states is done in the worker's turn.
template <class Algorithm>
class owner_optimizer {
  using options_type = typename Algorithm::options;
  using group_state = optimizer_group_state<Algorithm>;

 public:
  explicit owner_optimizer(const std::vector<owned_group<Algorithm>>& groups)
      : part_(std::make_shared<part>(groups)),
        in_passes_([own = part_](const dist_autograd::leaf_gradient& whole) { own->update(whole); }) {
    for (const owned_group<Algorithm>& each : groups) {
      for (const rref<tensor>& parameter : each.parameters) {
        if (!parameter.local_value().device().is_cpu()) on_devices_.push_back(parameter);
      }
    }
  }

  [[nodiscard]] std::uint64_t number() const noexcept { return in_passes_.number(); }

  /// False: this worker does not know the context, and so has no gradients in it.
  bool step(dist_autograd::context_id in) {
    const gradients_by_leaf gradients(in);
    if (gradients.empty()) return gradients.known();
    for (const rref<tensor>& each : on_devices_) (void)each.local_value();  // calls on it come before or after this one
    const dist_autograd::update_turn turn(part_->updates, part_->devices);
    part_->whole->step_with([&](const tensor& parameter) { return gradients.of(parameter); });
    return true;
  }

  void set_options(std::uint64_t group, options_type with) {
    const dist_autograd::update_turn turn(part_->updates, {});
    part_->whole->set_options(std::move(with), static_cast<std::size_t>(group));
  }

  /// Of its groups, by their numbers here.
  [[nodiscard]] std::vector<group_state> checkpoint() const {
    const dist_autograd::update_turn turn(part_->updates, part_->devices);
    std::vector<group_state> groups = part_->whole->checkpoint();
    for (group_state& each : groups) {
      for (typename Algorithm::state& kept : each.states) {
        kept.visit_tensors([](std::string_view, tensor& t) {
          if (t.defined()) t = apart_on_host(t);
        });
      }
    }
    return groups;
  }
  // A checkpoint is taken over in two steps, so that it is taken over at all owners or at none.
  void prepare(std::vector<group_state> groups) {
    std::optional<optimizer<Algorithm>> next = part_->like();
    next->restore(std::move(groups), [this](std::size_t group, std::size_t index) {
      const owned_share& share = part_->shares[group];
      return parameter_place{static_cast<std::size_t>(share.group), static_cast<std::size_t>(share.positions[index])};
    });
    const dist_autograd::update_turn turn(part_->updates, part_->devices);
    part_->prepared = std::move(next);
  }
  void take_over(bool prepared) {
    const dist_autograd::update_turn turn(part_->updates, {});
    if (prepared && part_->prepared) part_->whole = std::move(part_->prepared);
    part_->prepared.reset();
  }

 private:
  // What updates within passes use: these may still run when this object goes.
  struct part {
    explicit part(const std::vector<owned_group<Algorithm>>& groups) {
      for (const owned_group<Algorithm>& each : groups) {
        std::vector<tensor> values;
        for (const rref<tensor>& parameter : each.parameters) values.push_back(parameter.local_value());
        for (const tensor& value : values) {
          own.insert(value.id());
          if (!value.device().is_cpu() && std::ranges::find(devices, value.device()) == devices.end())
            devices.push_back(value.device());
        }
        if (!whole) {
          whole.emplace(std::move(values), each.with);
        } else {
          whole->add_group(std::move(values), each.with);
        }
        shares.push_back(each.share);
      }
    }

    // Of the same parameters, without states.
    [[nodiscard]] optimizer<Algorithm> like() const {
      const auto values = [this](std::size_t group) {
        const std::span<const tensor> all = whole->parameters(group);
        return std::vector<tensor>(all.begin(), all.end());
      };
      optimizer<Algorithm> made(values(0), {});
      for (std::size_t group = 1; group != shares.size(); ++group) made.add_group(values(group), {});
      return made;
    }

    void update(const dist_autograd::leaf_gradient& leaf) {
      if (!own.contains(leaf.leaf.id())) return;
      const device where = leaf.leaf.device();
      const dist_autograd::update_turn turn(updates, {&where, 1});
      whole->step(leaf.leaf, {leaf.dense, leaf.rows});
    }
    const dist_autograd::worker_updates updates;
    std::vector<owned_share> shares;
    std::vector<device> devices;
    std::unordered_set<std::uintptr_t> own;  // the identities of the parameters
    // In the worker's turn:
    std::optional<optimizer<Algorithm>> whole;
    std::optional<optimizer<Algorithm>> prepared;
  };

  std::shared_ptr<part> part_;
  std::vector<rref<tensor>> on_devices_;
  dist_autograd::registered_update in_passes_;
};

/// What the caller keeps of it.
template <class Algorithm>
struct made_at_owner {
  rref<owner_optimizer<Algorithm>> object = {};
  std::uint64_t number = 0;  ///< of its update within passes

  template <class Archive>
  void serialize(Archive& archive) {
    archive(object, number);
  }
};

/// Called on the first of the parameters, at their owner.
template <class Algorithm>
made_at_owner<Algorithm> make_at_owner(const tensor&, std::vector<owned_group<Algorithm>> groups) {
  const rref<owner_optimizer<Algorithm>> made(std::in_place, groups);
  return {made, made.local_value().number()};
}

}  // namespace ferry::inline v0::detail
