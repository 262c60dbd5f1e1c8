#pragma once

// faulty<B>: the backend B with a fault injector between it and the calls. For tests of a program's behaviour when
// messages are lost, late, duplicated, out of order or corrupted, and when peers are unreachable.
//
//   ferry::fault_injector faults;
//   auto options = ferry::construct_rpc_backend_options<ferry::faulty<ferry::native>>();
//   options.faults = faults;
//   ferry::worker self = ferry::init_rpc<ferry::faulty<ferry::native>>(config, options);
//   faults.add({.action = ferry::fault_action::delay, .method = "order*", .delay = 50ms});

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include <ferry/backend/backend.hpp>
#include <ferry/test_kit/fault_rules.hpp>

namespace ferry::inline v0 {

template <class B>
struct faulty {};

template <class B>
struct faulty_options : backend_traits<B>::options_type {
  using backend = faulty<B>;
  /// Copies of the options share it.
  fault_injector faults{};
};

namespace detail {

std::unique_ptr<agent> make_faulty_agent(std::unique_ptr<agent> inner, fault_injector faults);

template <class B>
struct faulty_name {
  static constexpr std::string_view prefix = "faulty_";
  static constexpr std::string_view own = backend_traits<B>::name;
  static constexpr auto text = [] {
    std::array<char, prefix.size() + own.size()> result{};
    for (std::size_t i = 0; i != prefix.size(); ++i) result[i] = prefix[i];
    for (std::size_t i = 0; i != own.size(); ++i) result[prefix.size() + i] = own[i];
    return result;
  }();
};

}  // namespace detail

template <rpc_backend B>
struct backend_traits<faulty<B>> {
  /// "faulty_" and the name of B.
  static constexpr std::string_view name{detail::faulty_name<B>::text.data(), detail::faulty_name<B>::text.size()};
  using options_type = faulty_options<B>;
  static options_type construct_options(rpc_options base) {
    return {backend_traits<B>::construct_options(std::move(base))};
  }
  static std::unique_ptr<agent> init(std::shared_ptr<store> group_store, const worker_config& config,
                                     const options_type& options) {
    return detail::make_faulty_agent(backend_traits<B>::init(std::move(group_store), config, options), options.faults);
  }
};

}  // namespace ferry::inline v0
