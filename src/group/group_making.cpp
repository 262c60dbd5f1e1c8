// How the members of a process_group agree on it, and what they share.

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ferry/group/all_gather.hpp>
#include <ferry/rpc/named.hpp>
#include <ferry/rpc/worker.hpp>

#include "../rpc/worker/worker_core.hpp"
#include "group_core.hpp"
#include "group_hash.hpp"
#include "group_table.hpp"
#include "nccl_group.hpp"
#include "segment_agreement.hpp"

namespace ferry::inline v0::detail {
namespace {
constexpr std::size_t most_chunk = std::size_t{1} << 40U;  // times the members it is still a number of bytes

// Errors of a step of the making name the group.
template <class Step>
auto naming_group(const std::string& name, const Step& step) {
  try {
    return step();
  } catch (const error& problem) {
    throw_error(problem.kind(), fmt::format("group '{}': {}", name, problem.message()));
  }
}

}  // namespace

std::shared_ptr<group_core> group_core::make(std::shared_ptr<worker_core> worker, const members& among,
                                             const group_options& wanted) {
  group_facts facts;
  facts.options = wanted;
  facts.options.limit = wanted.limit.value_or(worker->default_timeout());
  if (wanted.chunk == 0 || wanted.window == 0) {
    throw_error(errc::invalid_argument,
                fmt::format("group '{}': group_options::{} is 0", wanted.name, wanted.chunk == 0 ? "chunk" : "window"));
  }
  facts.options.chunk = std::min(wanted.chunk, most_chunk);
  for (const plan_rule& each : wanted.plan) {
    if (!has_algorithm(each.op, each.use)) {
      throw_error(errc::invalid_argument, fmt::format("group '{}': there is no {} by {}", wanted.name,
                                                      to_string(each.op), to_string(each.use)));
    }
  }
  const ferry::agent& agent = worker->agent();
  if (among.all()) {
    facts.members = agent.members().workers();
    std::sort(facts.members.begin(), facts.members.end(),
              [](const worker_info& a, const worker_info& b) { return a.id() < b.id(); });
  } else {
    for (const std::string& name : among.names()) facts.members.push_back(agent.members().find(name));
  }
  for (const worker_info& each : facts.members) facts.names.push_back(each.name());
  if (std::find(facts.names.begin(), facts.names.end(), agent.self().name()) == facts.names.end()) {
    throw_error(errc::invalid_argument,
                facts.names.empty() ? fmt::format("group '{}' has no members", wanted.name)
                                    : fmt::format("group '{}': this worker, {}, is not one of its members: {}",
                                                  wanted.name, to_string(agent.self()), fmt::join(facts.names, ", ")));
  }
  const deadline until = deadline::after(facts.options.limit);
  const auto left = [&]() -> timeout {
    if (until.is_never()) return no_timeout;
    return std::max(until.remaining(), std::chrono::nanoseconds(1));
  };

  // All must mean the same group. The first by name makes its id up.
  std::uint64_t agreed = group_hash(empty_group_hash, facts.options.name);
  for (const std::string& name : facts.names) agreed = group_hash(agreed, name);
  agreed = group_hash(group_hash(agreed, facts.options.chunk), facts.options.window);
  agreed = group_hash(agreed, facts.options.shared_bytes);
  agreed = group_hash(agreed, static_cast<std::uint64_t>(facts.options.nccl));
  for (const plan_rule& each : facts.options.plan) {
    agreed = group_hash(group_hash(agreed, each.up_to_bytes), static_cast<std::uint64_t>(each.up_to_members));
    agreed = group_hash(group_hash(agreed, static_cast<std::uint64_t>(each.op)), static_cast<std::uint64_t>(each.use));
  }
  std::random_device source;
  const std::uint64_t proposal = (static_cast<std::uint64_t>(source()) << 32U) | source();
  const auto all = naming_group(facts.options.name, [&] {
    return all_gather_at(worker, std::vector<std::uint64_t>{proposal, agreed}, members(facts.names), left(),
                         "process_group");
  });
  for (const auto& [name, contribution] : all) {
    if (contribution.size() != 2 || contribution[1] != agreed) {
      throw_error(errc::group_mismatch,
                  fmt::format("group '{}': {} makes it with another order of members, name or options than {}",
                              facts.options.name, name, agent.self().name()));
    }
  }
  facts.id = all.begin()->second[0];
  facts.rank =
      static_cast<int>(std::find(facts.names.begin(), facts.names.end(), agent.self().name()) - facts.names.begin());
  auto made = std::make_shared<group_core>(worker, std::move(facts));
  made->table_->add(made);
  // From here on every member knows the id. A call to each opens the connections: a worker that dies is noticed by those that are
  // connected to it.
  (void)naming_group(made->facts_.options.name, [&] {
    return gathering(worker, members(made->facts_.names), left(), "process_group").run(0, {});
  });
  std::vector<std::pair<int, future<void>>> greetings;
  for (int rank = 0; rank != made->size(); ++rank) {
    if (rank == made->rank()) continue;
    greetings.emplace_back(rank, call_async<named<"ferry/group/hello", serve_group_hello>>(
                                     worker, to(made->name_of(rank), {.timeout = left()}), made->facts_.id,
                                     static_cast<std::int32_t>(made->rank())));
  }
  for (auto& [rank, greeting] : greetings) {
    try {
      greeting.get();
    } catch (const error& problem) {
      throw_error(problem.kind(),
                  fmt::format("group '{}': {}: {}", made->facts_.options.name, made->name_of(rank), problem.message()));
    }
  }
  // A member that is done with the group at once must not drop it before all others have greeted it: they gather once more.
  made->share_memory(until);
  return made;
}

void group_core::share_memory(deadline until) {
  segment_agreement agreed = agree_on_segment(worker_, facts_, until);
  why_no_segment_ = std::move(agreed.why_not);
  segment_failed_ = agreed.failed;
  if (!agreed.memory) return;
  segment_queue::outside calls;
  calls.wake = [this](int sleeper) { wake(sleeper); };  // the queue is a part of this
  calls.later = [weak = weak_from_this()](std::function<void()> what) {
    const auto self = weak.lock();
    if (!self) return;
    self->post([self, what = std::move(what)] { what(); });
  };
  segment_queue_ = std::make_unique<segment_queue>(std::move(agreed.memory), rank(),
                                                   worker_->agent().options().transport.max_spin, std::move(calls));
  segment_.store(segment_queue_.get());
}

}  // namespace ferry::inline v0::detail
