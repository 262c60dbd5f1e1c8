#include "gather_messages.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <ferry/rpc/named.hpp>
#include <ferry/rpc/worker.hpp>

#include "../rpc/worker/worker_core.hpp"
#include "gather_rounds.hpp"

namespace ferry::inline v0::detail {
namespace {

const bool registered_with_workers = [] {
  add_library_methods({usable_method<named<"ferry/gather", serve_gather>>().id});
  return true;
}();

}  // namespace

future<gather_answer> serve_gather(const gather_arrival& arrival) {
  const std::shared_ptr<worker_core> here = current_worker();
  const ferry::agent& agent = here->agent();
  // Not by its id: that may be another worker's by now.
  const auto* call = dynamic_cast<const incoming_call*>(thread_context());
  const worker_info* sender = call ? call->sender() : nullptr;
  const std::string from = sender ? sender->name() : agent.find(this_call().caller()).name();
  const auto& members = arrival.members;
  if (members.empty() || members.front() != agent.self().name()) {
    throw_error(
        errc::invalid_argument,
        fmt::format("{} does not collect for this set of workers: the first by name does", to_string(agent.self())));
  }
  if (std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) != members.end() ||
      !std::binary_search(members.begin(), members.end(), from)) {
    throw_error(errc::invalid_argument,
                fmt::format("{} gathers over a set that it is no member of, or that is not sorted", from));
  }
  return gather_rounds::of(*here)->arrive(arrival, from, agent, this_call().stop_token());
}

}  // namespace ferry::inline v0::detail
