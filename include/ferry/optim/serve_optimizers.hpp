#pragma once

// What a worker with a list of methods serves for distributed optimizers.

#include <cstdint>
#include <vector>

#include <ferry/optim/algorithm.hpp>
#include <ferry/optim/detail/owner_optimizer.hpp>
#include <ferry/rpc/detail/method_entry.hpp>
#include <ferry/rpc/rref.hpp>

namespace ferry::inline v0 {
namespace detail {

template <class Algorithm>
void add_optimizer_methods(std::vector<std::uint64_t>& ids) {
  static_assert(optimizer_algorithm<Algorithm>,
                "ferry: serve_optimizers takes algorithms, as distributed_optimizer does: ferry::adam, ...");
  using at_owner = owner_optimizer<Algorithm>;
  constexpr auto object_call = method_flavour::object_call;
  ids.insert(
      ids.end(),
      {usable_method<&make_at_owner<Algorithm>, object_call>().id, usable_method<&at_owner::step, object_call>().id,
       usable_method<&at_owner::set_options, object_call>().id, usable_method<&at_owner::checkpoint, object_call>().id,
       usable_method<&at_owner::prepare, object_call>().id, usable_method<&at_owner::take_over, object_call>().id});
}

}  // namespace detail

/// Every worker that this process starts later serves distributed optimizers of these algorithms over parameters that it owns, also one
/// that has a list of methods: `ferry::serve_optimizers<ferry::adam>()` in main(), beside ferry::serve<...>(). Restricts nothing; several
/// calls add up. A binary that has no such optimizer of its own links the code by that, too. Thread-safe.
template <class... Algorithms>
void serve_optimizers() {
  std::vector<std::uint64_t> ids;
  (detail::add_optimizer_methods<Algorithms>(ids), ...);
  detail::add_library_methods(ids);
}

}  // namespace ferry::inline v0
