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
  ferry::agent& agent = here->agent();
  // Do not look the sender up by id: the id may have been reassigned to another worker.
  const incoming_call* call = thread_call();
  const worker_info* sender = call ? call->sender() : nullptr;
  const std::string from = sender ? sender->name() : agent.members().find(this_call().caller()).name();
  const auto& members = arrival.members;
  if (members.empty() || members.front() != agent.self().name()) {
    throw_error(errc::invalid_argument,
                fmt::format("{} is not the collecting worker of this set: that is the first one by name",
                            to_string(agent.self())));
  }
  if (std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) != members.end() ||
      !std::binary_search(members.begin(), members.end(), from)) {
    throw_error(errc::invalid_argument,
                fmt::format("{} gathers over a set that is not sorted, or that it is not a member of", from));
  }
  return gather_rounds::of(*here)->arrive(arrival, from, agent, this_call().stop_token());
}

}  // namespace ferry::inline v0::detail
