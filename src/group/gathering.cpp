#include <ferry/group/all_gather.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ferry/base/traced_range.hpp>
#include <ferry/base/type_name.hpp>
#include <ferry/rpc/named.hpp>

#include "../rpc/worker/worker_core.hpp"
#include "gather_messages.hpp"
#include "gather_rounds.hpp"

namespace ferry::inline v0::detail {
namespace {

// The collecting worker reports expiry and the missing members to every member. The member's own call times out only if
// the collecting worker does not answer: a grace period after the limit. If the limit is a handler's deadline, the call
// cannot be extended, so the collecting worker is given an earlier deadline instead.
constexpr std::chrono::nanoseconds longest_advance = std::chrono::milliseconds(50);
constexpr std::chrono::nanoseconds least_grace = std::chrono::seconds(1);
constexpr int part_of_limit = 10;

// The event of a profile, from here to the end of the scope.
struct recorded_gather {
  recorded_gather(const char* operation, const worker_core& worker) {
    if (ranges_watched()) [[unlikely]]
      span = begin_span(operation, range_kind::collective, worker.agent_unchecked().self().id().value);
  }
  ~recorded_gather() {
    if (span) [[unlikely]]
      span->end(number, nullptr, std::uncaught_exceptions() > exceptions);
  }
  recorded_gather(const recorded_gather&) = delete;
  recorded_gather& operator=(const recorded_gather&) = delete;

  std::unique_ptr<recorded_span> span;  // null: nothing records it
  std::uint64_t number = 0;             // the same at all members
  const int exceptions = std::uncaught_exceptions();
};

std::uint64_t microseconds(std::chrono::nanoseconds value) {
  return static_cast<std::uint64_t>(
      std::max<std::int64_t>(1, std::chrono::duration_cast<std::chrono::microseconds>(value).count()));
}

}  // namespace

gathering::gathering(std::shared_ptr<worker_core> worker, const members& among, timeout limit, const char* operation)
    : worker_(std::move(worker)),
      limit_(limit.value_or(worker_->default_timeout())),
      until_(deadline::after(limit_)),
      operation_(operation) {
  if (const call_context* context = thread_context(); context && context->deadline() < until_) {
    in_handler_ = true;
    until_ = context->deadline();
    limit_ = std::max(until_.remaining(), std::chrono::nanoseconds(1));
  }
  const ferry::agent& agent = worker_->agent();
  if (among.all()) {
    for (const worker_info& each : agent.members().workers()) names_.push_back(each.name());
  } else {
    names_ = among.names();
    for (const std::string& name : names_) (void)agent.members().find(name);
  }
  std::sort(names_.begin(), names_.end());
  if (names_.empty())
    throw_error(errc::invalid_argument,
                std::string(operation_) + " of no worker: the set is empty, and this worker not one of them");
  if (const auto twice = std::adjacent_find(names_.begin(), names_.end()); twice != names_.end()) {
    throw_error(errc::invalid_argument, fmt::format("{}: {} is named twice", describe(), *twice));
  }
  if (!std::binary_search(names_.begin(), names_.end(), agent.self().name())) {
    throw_error(errc::invalid_argument,
                fmt::format("{}: this worker, {}, is not one of them", describe(), to_string(agent.self())));
  }
}

const wire_limits& gathering::limits() const noexcept { return worker_->limits(); }

std::string gathering::describe() const { return fmt::format("{} of {}", operation_, list_names(names_)); }

void gathering::throw_timed_out(const std::string& why) const {
  const double seconds = limit_.is_never() ? 0 : in_seconds(limit_.duration());
  throw_error(errc::rpc_timeout,
              fmt::format("{}: timed out in {} after {:.2f} seconds: {}", describe(), operation_, seconds, why));
}

gathered_bytes gathering::run(std::uint64_t type, serialized value) {
  recorded_gather recorded(operation_, *worker_);
  if (until_.expired()) throw_timed_out("before this worker's contribution was sent");
  const std::string& collecting = names_.front();
  gather_arrival arrival;
  arrival.members = names_;
  arrival.type = type;
  arrival.operation = operation_;
  arrival.value = std::move(value);
  timeout call_limit = no_timeout;
  if (!until_.is_never()) {
    const std::chrono::nanoseconds left = until_.remaining();
    arrival.limit_us = microseconds(limit_.duration());
    arrival.left_us = microseconds(in_handler_ ? left - std::min(longest_advance, left / part_of_limit) : left);
    call_limit = left + std::max(least_grace, limit_.duration() / part_of_limit);
  }
  const auto rounds = gather_rounds::of(*worker_);
  const gather_rounds::turn turn = rounds->take_turn(names_);
  arrival.round = turn.round;
  arrival.counts = turn.counts;
  gather_answer answer;
  try {
    answer = call_sync<named<"ferry/gather", serve_gather>>(worker_, to(collecting, {.timeout = call_limit}), arrival);
  } catch (const rpc_timeout&) {
    rounds->not_answered(names_);
    throw_timed_out(fmt::format("the collecting worker {} did not answer", collecting));
  } catch (const error& problem) {
    rounds->not_answered(names_);
    throw_error(problem.kind(),
                fmt::format("{}: at the collecting worker {}: {}", describe(), collecting, problem.message()));
  } catch (...) {
    rounds->not_answered(names_);
    throw;
  }
  rounds->answered(names_, turn, answer.result->round);
  if (recorded.span && answer.result->error == 0) [[unlikely]]
    recorded.number = fingerprint(fmt::format("{} {}", fmt::join(names_, " "), answer.result->round)) | 1U;
  if (answer.result->error != 0) {
    const auto code = static_cast<errc>(answer.result->error);
    throw_error(errc_name(code) == "unknown" ? errc::remote_exception : code,
                fmt::format("{}: {}", describe(), answer.result->text));
  }
  if (answer.result->values.size() != (type == 0 ? 0 : names_.size())) {
    throw_error(errc::bad_result, fmt::format("{}: {} sent {} values for {} workers", describe(), collecting,
                                              answer.result->values.size(), names_.size()));
  }
  return {std::move(names_), answer.result->values};
}

void throw_not_gathered(std::string_view name) {
  throw_error(errc::unknown_worker, fmt::format("'{}' was not a member of this all_gather", name));
}

}  // namespace ferry::inline v0::detail
