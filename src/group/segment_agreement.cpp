#include "segment_agreement.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <ferry/backend/agent.hpp>
#include <ferry/backend/inspection.hpp>
#include <ferry/base/log.hpp>
#include <ferry/group/all_gather.hpp>

#include "../rpc/worker/worker_core.hpp"
#include "group_core.hpp"
#include "segment_handover.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::seconds handover_limit{10};

std::string why_no_segment(const worker_core& worker, const group_facts& facts,
                           const std::optional<segment_layout>& layout) {
  if (facts.names.size() < 2) return "it has one member";
  if (facts.options.shared_bytes == 0) return "group_options::shared_bytes is 0";
  if (!layout) {
    return fmt::format("{} bytes of shared memory for each of {} members are no use", facts.options.shared_bytes,
                       facts.names.size());
  }
  for (std::size_t rank = 0; rank != facts.members.size(); ++rank) {
    if (static_cast<int>(rank) == facts.rank) continue;
    const route_info route = worker.agent().inspection().route(facts.members[rank].id());
    if (route.transport != "shm") {
      return fmt::format("{} reaches {} by {}", facts.names[static_cast<std::size_t>(facts.rank)], facts.names[rank],
                         route.transport.empty() ? "no connection" : route.transport);
    }
  }
  return {};
}

timeout segment_time_left(deadline until) {
  if (until.is_never()) return no_timeout;
  return std::max(until.remaining(), std::chrono::nanoseconds(1));
}

}  // namespace

segment_agreement agree_on_segment(const std::shared_ptr<worker_core>& worker, const group_facts& facts,
                                   deadline until) {
  const auto layout = segment_layout::make(static_cast<int>(facts.names.size()), facts.options.shared_bytes);
  const auto gather = [&](std::vector<std::string> own) {
    return all_gather_at(worker, std::move(own), members(facts.names), segment_time_left(until), "process_group");
  };
  // The reason of the first that has one.
  const auto first_reason = [](const auto& said) -> std::string {
    for (const auto& [name, each] : said) {
      if (each.empty()) return name + " has said nothing";
      if (!each[0].empty()) return each[0];
    }
    return {};
  };
  segment_agreement made;
  std::string own = why_no_segment(*worker, facts, layout);
  std::optional<segment_offer> offer;
  if (own.empty() && facts.rank == 0) {
    try {
      offer.emplace(*layout);
    } catch (const error& problem) {
      own = problem.message();
      made.failed = true;
    }
  }
  const auto said = gather(offer ? std::vector<std::string>{"", offer->where(), offer->token()} : std::vector{own});
  made.why_not = first_reason(said);
  if (made.why_not.empty()) {
    // Members that cannot have it must still agree on that in time.
    deadline handed_over = deadline::after(handover_limit);
    if (!until.is_never()) handed_over = std::min(handed_over, deadline::after(until.remaining() / 2));
    try {
      if (offer) {
        offer->hand_over(static_cast<int>(facts.names.size()) - 1, handed_over);
        made.memory = offer->memory();
      } else {
        const std::vector<std::string>& from = said.at(facts.names.front());
        if (from.size() != 3) throw_error(errc::handshake_failed, "the offer of shared memory is missing");
        made.memory = fetch_segment(*layout, from[1], from[2], handed_over);
      }
    } catch (const error& problem) {
      own = fmt::format("{}: {}", facts.names[static_cast<std::size_t>(facts.rank)], problem.message());
    }
    made.why_not = first_reason(gather({own}));
    made.failed = !made.why_not.empty();
  }
  if (made.failed) {
    made.memory = nullptr;
    log(log_level::warning, fmt::format("group '{}' uses no shared memory: {}", facts.options.name, made.why_not));
  }
  return made;
}

}  // namespace ferry::inline v0::detail
