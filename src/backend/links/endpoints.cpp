#include "endpoints.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

namespace ferry::inline v0::detail {
namespace {

std::vector<transport_factory> chosen_transports(const std::vector<transport_factory>& built,
                                                 const rpc_options& options) {
  std::vector<transport_factory> result = built;
  if (options.transports.empty()) {
    std::stable_sort(result.begin(), result.end(),
                     [](const auto& a, const auto& b) { return a.priority > b.priority; });
    return result;
  }
  result.clear();
  for (const std::string& name : options.transports) {
    if (std::any_of(result.begin(), result.end(), [&](const auto& factory) { return factory.name == name; }))
      throw_error(errc::invalid_argument, fmt::format("options.transports names '{}' twice", name));
    const auto found =
        std::find_if(built.begin(), built.end(), [&](const auto& factory) { return factory.name == name; });
    if (found == built.end()) {
      std::vector<std::string_view> known;
      for (const auto& factory : built) known.push_back(factory.name);
      throw_error(errc::invalid_argument,
                  fmt::format("options.transports names '{}'; this program has {}", name, fmt::join(known, ", ")));
    }
    result.push_back(*found);
  }
  return result;
}

}  // namespace

endpoints::endpoints(own_worker& own, const std::vector<transport_factory>& built) : own_(own) {
  for (const transport_factory& factory : chosen_transports(built, own_.options)) {
    std::string reason = factory.unusable();
    if (reason.empty()) {
      try {
        transports_.push_back({std::string(factory.name), factory.open(*own_.threads), false});
        continue;
      } catch (const std::exception& e) {
        reason = e.what();
      }
    }
    log(log_level::info,
        fmt::format("{}: transport {} is not usable here: {}", own_.self.name(), factory.name, reason));
    unusable_.push_back({std::string(factory.name), "it is not usable here: " + reason});
  }
  if (transports_.empty()) throw_error(errc::no_route, own_.self.name() + ": no transport is usable on this machine");
}

void endpoints::listen(const std::string& local_address, const std::shared_ptr<connection_acceptor>& acceptor) {
  advertised_.clear();
  for (auto& own : transports_) {
    try {
      auto addresses =
          own.transport->listen(own_.group, own_.self.name(), local_address, own_.options.transport, acceptor);
      advertised_.insert(advertised_.end(), addresses.begin(), addresses.end());
      own.listening = true;
    } catch (const error& e) {
      // These report that the user's configuration is not possible.
      if (e.kind() == errc::address_in_use || e.kind() == errc::bad_address || e.kind() == errc::invalid_argument ||
          e.kind() == errc::duplicate_name || e.kind() == errc::authentication_required)
        throw;
      log(log_level::info, fmt::format("{}: transport {} cannot listen: {}", own_.self.name(), own.name, e.what()));
    }
  }
  if (advertised_.empty())
    throw_error(errc::no_route, to_string(own_.self) + ": no transport can listen for other workers");
  log(log_level::info, fmt::format("{} listens on {}", to_string(own_.self), fmt::join(advertised_, ", ")));
}

void endpoints::stop_listening() noexcept {
  for (auto& own : transports_) {
    if (std::exchange(own.listening, false)) own.transport->unlisten(own_.group, own_.self.name());
  }
}

hello endpoints::greeting(const worker_record& target, std::uint64_t features) const {
  return {.group = own_.group,
          .name = own_.self.name(),
          .id = own_.self.id(),
          .incarnation = own_.incarnation,
          .target = target.who.name(),
          .features = features | feature_device_tensors,
          .joined = target.incarnation == own_.incarnation ? own_mark_ : own_.announced.load()};
}

std::shared_ptr<connect_attempt> endpoints::attempt_to_reach(const worker_record& to, std::uint64_t features,
                                                             std::chrono::nanoseconds limit_each,
                                                             std::function<bool()> wanted,
                                                             std::function<void(connect_outcome)> done) const {
  std::vector<connect_attempt::route> routes;
  for (const auto& own : transports_) {
    for (const std::string& address : to.addresses) {
      if (own.transport->understands(address)) routes.emplace_back(own.transport, address);
    }
  }
  std::string no_route;
  if (routes.empty()) {
    std::string names;
    for (const auto& own : transports_) names += fmt::format("{}{}", names.empty() ? "" : ", ", own.name);
    no_route = fmt::format(
        "no transport of this worker ({}) reaches an address of '{}' ({}): give both one in common "
        "(worker_config::transports)",
        names, to.who.name(),
        to.addresses.empty() ? std::string("it has none") : fmt::format("{}", fmt::join(to.addresses, ", ")));
  }
  return std::make_shared<connect_attempt>(std::move(routes), greeting(to, features), to.incarnation,
                                           own_.options.transport, limit_each, std::move(wanted), std::move(done),
                                           std::move(no_route));
}

std::vector<rejected_route> endpoints::better_than(std::string_view used, const std::vector<std::string>& addresses,
                                                   const std::vector<rejected_route>& failed) const {
  std::vector<rejected_route> skipped = unusable_;
  for (const open_transport& each : transports_) {
    if (each.name == used) break;
    const bool known = std::any_of(addresses.begin(), addresses.end(),
                                   [&](const std::string& address) { return each.transport->understands(address); });
    if (!known) skipped.push_back({each.name, "the peer has no address for it"});
    for (const rejected_route& attempt : failed) {
      if (each.transport->understands(attempt.name))
        skipped.push_back({each.name, fmt::format("{}: {}", attempt.name, attempt.reason)});
    }
  }
  return skipped;
}

}  // namespace ferry::inline v0::detail
