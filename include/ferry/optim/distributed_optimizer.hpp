#pragma once

// An optimizer of parameters that several workers own, by references.
//
//   ferry::distributed_optimizer<ferry::adam> optimizer(net.remote_parameters(), {.lr = 1e-3});
//   for (...) {
//     ferry::dist_autograd::context pass;
//     pass.backward(loss(...));
//     optimizer.step(pass);
//   }

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/autograd/dist/backward.hpp>
#include <ferry/autograd/dist/context.hpp>
#include <ferry/backend/worker_info.hpp>
#include <ferry/optim/algorithm.hpp>
#include <ferry/optim/detail/owner_optimizer.hpp>
#include <ferry/optim/optimizer.hpp>
#include <ferry/optim/owner_errors.hpp>
#include <ferry/rpc/rref.hpp>
#include <ferry/rpc/to.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {
namespace detail {

/// The parameters of one owner, by groups.
struct owner_share {
  worker_info owner;
  std::vector<owned_share> groups;

  /// The number that the group has there; none if the owner has none of its parameters.
  [[nodiscard]] std::optional<std::uint64_t> number_of(std::size_t group) const noexcept;
};

/// One for each owner, in the order in which they come first. Throws errc::invalid_argument for no groups, an empty one, and an empty
/// reference; the text names it.
std::vector<owner_share> shares_of(std::string_view algorithm, const std::vector<std::vector<rref<tensor>>>& groups);
/// No worker that owns parameters has the context. Throws errc::invalid_argument unless the worker
/// that has this reference has it.
void need_context(std::string_view what, const reference_handle& caller, dist_autograd::context_id in);
/// Owners learn one after the other that a context is over. Throws errc::invalid_argument if it is one of the worker that has this
/// reference, and over.
void need_open_context(std::string_view what, const reference_handle& caller, dist_autograd::context_id in);
[[noreturn]] void throw_without_owners(std::string_view algorithm);
std::string doing(std::string_view algorithm, std::string_view what);

}  // namespace detail

/// Makes steps of an algorithm at the owners of the parameters: each of them has an optimizer of its own over those that it owns
/// (ferry::optimizer), and what is kept of a parameter stays where the parameter is. The same steps as those of one
/// ferry::optimizer over all parameters.
///
/// The gradients are those of a context of distributed autograd; ferry::grad() of the parameters is neither read nor written, and
/// nothing has to be cleared between steps. A parameter without a gradient in the context stays as it is, and what is kept of it, too;
/// a sparse gradient is applied by rows where the algorithm can.
///
/// At one worker, updates come one after the other, on devices, too: those of several trainers that share parameters do not
/// race. Each step is applied as a whole at each worker; across workers there is no order, and forward passes of other trainers may
/// see some updates and not yet others.
///
/// Errors of all functions that call owners: owner_errors, once all owners have answered, with the error of each that failed; the
/// others have done what they were asked. A lost owner is one that fails.
///
/// step() may be called in several threads at once, everything else by one at a time. Dropping it drops what the owners keep for it.
template <class Algorithm>
class distributed_optimizer final : public dist_autograd::update_after {
  static_assert(
      optimizer_algorithm<Algorithm>,
      "a distributed_optimizer needs an algorithm: a struct with a name, the value types options and state (with "
      "serialize() "
      "and state::visit_tensors()), and the static functions check(options) and update(parameters, gradients, "
      "states, options); see <ferry/optim/algorithm.hpp>");

 public:
  using algorithm = Algorithm;
  using options_type = typename Algorithm::options;
  /// Parameters with options of their own.
  struct group {
    std::vector<rref<tensor>> parameters = {};
    options_type with = {};
  };

  /// With one group. Parameters are leaves, at any workers; also at this one: rref<tensor>(w).
  explicit distributed_optimizer(std::vector<rref<tensor>> parameters, options_type with = {})
      : distributed_optimizer(in_one_group(std::move(parameters), std::move(with))) {}
  /// One call to each owner, all at once. Throws errc::invalid_argument for no groups, a group without parameters, an empty reference
  /// and options that the algorithm refuses; otherwise owner_errors with what ferry::optimizer throws there. Nothing is left at any
  /// owner then.
  explicit distributed_optimizer(std::vector<group> groups) {
    std::vector<std::vector<rref<tensor>>> parameters;
    for (group& each : groups) {
      Algorithm::check(each.with);
      parameters.push_back(std::move(each.parameters));
      options_.push_back(std::move(each.with));
    }
    shares_ = detail::shares_of(Algorithm::name, parameters);
    for (const detail::owner_share& each : shares_) owners_.push_back(each.owner);
    for (const auto& each : parameters) counts_.push_back(each.size());
    at_owners_ =
        detail::at_owners(detail::doing(Algorithm::name, "the making of an optimizer"), owners_, [&](std::size_t i) {
          std::vector<detail::owned_group<Algorithm>> own;
          for (const detail::owned_share& share : shares_[i].groups) {
            own.push_back({share, {}, options_[share.group]});
            for (const std::uint64_t position : share.positions) {
              own.back().parameters.push_back(parameters[share.group][position]);
            }
          }
          return own.front().parameters.front().template rpc_async<&detail::make_at_owner<Algorithm>>(own);
        });
  }
  distributed_optimizer(distributed_optimizer&&) noexcept = default;
  distributed_optimizer& operator=(distributed_optimizer&&) noexcept = default;

  [[nodiscard]] std::size_t group_count() const noexcept { return options_.size(); }
  /// How many parameters a group has.
  [[nodiscard]] std::size_t size(std::size_t group = 0) const { return counts_[need(group)]; }
  /// Each worker that owns parameters once, in the order of the parameters.
  [[nodiscard]] const std::vector<worker_info>& owners() const noexcept { return owners_; }
  [[nodiscard]] const options_type& options(std::size_t group = 0) const { return options_[need(group)]; }
  /// From the next step on, at all owners, which it calls. Throws what the algorithm's check() throws; then the options are as before.
  /// After owner_errors, options() is as before, and the owners that did not fail have the new ones.
  void set_options(options_type with, std::size_t group = 0) {
    Algorithm::check(with);
    (void)need(group);
    std::vector<worker_info> owners;
    std::vector<std::pair<const rref<at_owner>*, std::uint64_t>> parts;
    for (std::size_t i = 0; i != shares_.size(); ++i) {
      if (const auto there = shares_[i].number_of(group)) {
        owners.push_back(owners_[i]);
        parts.emplace_back(&at_owners_[i].object, *there);
      }
    }
    detail::at_owners(detail::doing(Algorithm::name, "the change of options"), owners, [&](std::size_t i) {
      return parts[i].first->template rpc_async<&at_owner::set_options>(parts[i].second, with);
    });
    options_[group] = std::move(with);
  }
  /// The learning rate of a group, for schedules (<ferry/optim/schedule.hpp>). The same errors.
  void set_lr(double lr, std::size_t group = 0)
    requires requires(options_type& with) { with.lr = lr; }
  {
    options_type with = options(group);
    with.lr = lr;
    set_options(std::move(with), group);
  }

  /// Updates each parameter that requires a gradient and has one in the context. One call to each owner, all at once; returns when all
  /// of them have applied it, on devices: have begun to. Throws errc::invalid_argument if neither this worker nor an owner has
  /// the context, or if it is one of this worker's that is over; owner_errors with what the algorithm throws.
  void step(dist_autograd::context_id in, const call_options& calls = {}) {
    need_owners();
    detail::need_open_context(Algorithm::name, at_owners_.front().object.handle(), in);
    const std::vector<bool> known = detail::at_owners(
        detail::doing(Algorithm::name, "a step"), owners_,
        [&](std::size_t i) { return at_owners_[i].object.template rpc_async<&at_owner::step>(calls, in); });
    for (const bool each : known) {
      if (each) return;
    }
    detail::need_context(Algorithm::name, at_owners_.front().object.handle(), in);
  }

  /// For backward(roots, {.then = optimizer}): each parameter is updated as soon as its gradient is whole, within the pass, in place of
  /// step().
  [[nodiscard]] std::vector<updater> updaters() const override {
    need_owners();
    std::vector<updater> all;
    for (std::size_t i = 0; i != owners_.size(); ++i) all.push_back({owners_[i].id(), at_owners_[i].number});
    return all;
  }

  // Checkpoints: as those of ferry::optimizer, which can read them, and the other way round. What is kept of a parameter goes by the
  // parameter's position in its group, whichever worker owns it: the number of workers may change, and who has what. While another
  // thread makes steps, owners may save different ones.

  /// Fetches what the owners keep. Throws owner_errors, and what the archive throws.
  template <class Archive>
  void save(Archive& archive) const {
    const auto whole = checkpoint();
    detail::write_optimizer<Algorithm, Archive>(archive, whole);
  }
  /// Throws what ferry::optimizer::load() throws, in owner_errors where an owner found it; then nothing has changed, at any worker.
  template <class Archive>
  void load(Archive& archive) {
    restore(detail::read_optimizer<Algorithm>(archive, counts_));
  }

  [[nodiscard]] std::vector<optimizer_group_state<Algorithm>> checkpoint() const {
    need_owners();
    const auto parts = detail::at_owners(detail::doing(Algorithm::name, "a checkpoint"), owners_, [&](std::size_t i) {
      return at_owners_[i].object.template rpc_async<&at_owner::checkpoint>();
    });
    std::vector<optimizer_group_state<Algorithm>> whole;
    for (std::size_t number = 0; number != options_.size(); ++number) {
      whole.push_back({options_[number], std::vector<typename Algorithm::state>(counts_[number])});
    }
    for (std::size_t i = 0; i != parts.size(); ++i) {
      for (std::size_t there = 0; there != shares_[i].groups.size(); ++there) {
        const detail::owned_share& share = shares_[i].groups[there];
        for (std::size_t index = 0; index != share.positions.size(); ++index) {
          whole[share.group].states[share.positions[index]] = parts[i].at(there).states.at(index);
        }
      }
    }
    return whole;
  }
  /// As load(). Throws errc::invalid_argument for other numbers of groups or parameters.
  void restore(const std::vector<optimizer_group_state<Algorithm>>& groups) {
    detail::need_record(Algorithm::name, detail::optimizer_record, fingerprint(Algorithm::name), groups.size(),
                        counts_.size());
    for (std::size_t number = 0; number != groups.size(); ++number) {
      detail::need_archived_count(Algorithm::name, number, groups[number].states.size(), counts_[number]);
      Algorithm::check(groups[number].with);
    }
    const auto take_over = [&](bool prepared) {
      detail::at_owners(detail::doing(Algorithm::name, "the taking over of a checkpoint"), owners_, [&](std::size_t i) {
        return at_owners_[i].object.template rpc_async<&at_owner::take_over>(prepared);
      });
    };
    try {
      detail::at_owners(detail::doing(Algorithm::name, "the loading of a checkpoint"), owners_, [&](std::size_t i) {
        std::vector<optimizer_group_state<Algorithm>> own;
        for (const detail::owned_share& share : shares_[i].groups) {
          own.push_back({groups[share.group].with, {}});
          for (const std::uint64_t position : share.positions) {
            own.back().states.push_back(groups[share.group].states[position]);
          }
        }
        return at_owners_[i].object.template rpc_async<&at_owner::prepare>(own);
      });
    } catch (...) {
      const std::exception_ptr why = std::current_exception();
      try {
        take_over(false);
      } catch (const owner_errors&) {  // NOLINT(bugprone-empty-catch): an owner that fails here has failed above
      }
      std::rethrow_exception(why);
    }
    take_over(true);
    for (std::size_t number = 0; number != groups.size(); ++number) options_[number] = groups[number].with;
  }

 private:
  using at_owner = detail::owner_optimizer<Algorithm>;

  static std::vector<group> in_one_group(std::vector<rref<tensor>> parameters, options_type with) {
    std::vector<group> one(1);
    one.front() = {std::move(parameters), std::move(with)};
    return one;
  }
  void need_owners() const {
    if (at_owners_.empty()) detail::throw_without_owners(Algorithm::name);
  }
  [[nodiscard]] std::size_t need(std::size_t number) const {
    if (number >= options_.size()) detail::refuse_group(Algorithm::name, number, options_.size());
    return number;
  }

  std::vector<options_type> options_;
  std::vector<std::size_t> counts_;          // of the parameters of each group
  std::vector<detail::owner_share> shares_;  // these three by owner
  std::vector<worker_info> owners_;
  std::vector<detail::made_at_owner<Algorithm>> at_owners_;
};

}  // namespace ferry::inline v0
