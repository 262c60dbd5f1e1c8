#include "reference_client.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <new>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

#include "../../pipeline/library_clients.hpp"
#include "../../worker/worker_core.hpp"
#include "../protocol/reference_records.hpp"
#include "request_references.hpp"
#include "sent_references.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::seconds reference_limit{30};      // for other workers to drop their references
constexpr std::chrono::seconds lone_reference_limit{2};  // for owners to receive the ends of this worker's references

constexpr std::array<std::uint16_t, 3> types_of_references{object_record, references_record, call_chain_record};

std::vector<debug_figure> figures_of(const reference_client& client) {
  using counts = reference_protocol::counts;
  const auto figure = [&client](const char* name, std::uint64_t (*value)(const counts& from)) {
    return debug_figure{name, [&client, value] {
                          const reference_table* own = client.made();
                          return std::to_string(value(own ? own->figures() : counts{}));
                        }};
  };
  return {figure("num_expected_rrefs", [](const counts& from) -> std::uint64_t { return from.expected; }),
          figure("num_forks", [](const counts& from) -> std::uint64_t { return from.forks; }),
          figure("num_owner_rrefs", [](const counts& from) -> std::uint64_t { return from.owners; }),
          figure("num_pending_children", [](const counts& from) -> std::uint64_t { return from.pending_children; }),
          figure("num_pending_users", [](const counts& from) -> std::uint64_t { return from.pending_users; }),
          figure("num_users", [](const counts& from) -> std::uint64_t { return from.users; }),
          {"num_pending_futures",
           [&client] {
             const reference_table* own = client.made();
             return std::to_string(own ? own->unanswered_controls() : 0);
           }},
          {"num_repeated_reference_messages", [&client] {
             const reference_table* own = client.made();
             return std::to_string(own ? own->repeated_controls() : 0);
           }}};
}

const std::size_t references_of_workers = add_library_client({
    .rank = 2,
    .attach = [](worker_core& worker) -> std::shared_ptr<worker_attachment> {
      auto client = std::make_shared<reference_client>(worker);
      worker.add_debug_info("references", figures_of(*client));
      return client;
    },
    .intercept = [](worker_attachment* state) -> interceptor* { return static_cast<reference_client*>(state); },
    .carry = [](worker_attachment& state,
                const call_target& to) { return static_cast<reference_client&>(state).carry(to); },
});

}  // namespace

const std::shared_ptr<reference_table>& references_of(worker_core& worker) {
  return static_cast<reference_client*>(worker.attached().of_library(references_of_workers))->table();
}

const std::shared_ptr<reference_table>& reference_client::table() {
  std::call_once(once_, [&] {
    table_ = std::make_shared<reference_table>(worker_);
    std::vector<std::pair<worker_id, incarnation_id>> leaving;
    std::deque<std::pair<worker_id, incarnation_id>> gone;
    {
      const std::lock_guard lock(events_mutex_);
      made_.store(table_.get(), std::memory_order_release);
      told_ = true;
      leaving.swap(leaving_before_);
      gone.swap(gone_before_);
    }
    for (const auto& [id, incarnation] : leaving) table_->leaving(id, incarnation);
    for (const auto& [id, incarnation] : gone) table_->gone(id, incarnation);
  });
  return table_;
}

std::unique_ptr<carried_handles> reference_client::carry(const call_target& to) {
  return std::make_unique<sent_references>(table(), to);
}

// ---------------------------------------------------------------- calls

std::span<const std::uint16_t> reference_client::record_types() const noexcept { return types_of_references; }

std::unique_ptr<callee_hooks> reference_client::on_arrival(incoming_request& request) {
  auto hooks = std::make_unique<request_references>(request.call(), table());
  hooks->table->admit(*hooks);
  return hooks;
}

void reference_client::on_reply_records(incoming_reply& reply) {
  const reference_records records = read_records(reply.records().block());
  if (records.references.empty()) return;
  reply.message().handles = table()->receive(records, {reply.sender().id(), reply.incarnation()}, nullptr);
}

// ---------------------------------------------------------------- the worker

void reference_client::on_member_event(const member_event& event) noexcept {
  switch (event.what) {
    case member_event::kind::left: {
      const std::lock_guard lock(events_mutex_);
      if (!told_) {
        try {
          leaving_before_.emplace_back(event.who.id(), event.incarnation);
        } catch (const std::bad_alloc&) {
          log(log_level::error, "no memory to keep in mind that a worker leaves");
        }
        return;
      }
    }
      return table_->leaving(event.who.id(), event.incarnation);
    case member_event::kind::fenced:
      if (reference_table* own = made()) own->fence(event.reason);
      return;
    case member_event::kind::joined:
    case member_event::kind::lost: return;
  }
}

void reference_client::on_member_end(worker_id id, incarnation_id incarnation) noexcept {
  {
    const std::lock_guard lock(events_mutex_);
    if (!told_) {
      std::erase(leaving_before_, std::pair(id, incarnation));
      try {
        gone_before_.emplace_back(id, incarnation);
        if (gone_before_.size() > reference_protocol::most_gone) gone_before_.pop_front();  // the same limit
      } catch (const std::bad_alloc&) {
        log(log_level::error, "no memory to keep in mind that a worker is gone");
      }
      return;
    }
  }
  table_->gone(id, incarnation);
}

// Spend at most half the deadline waiting for remote references: the rest of the shutdown reports those that remain.
void reference_client::on_group_quiet(deadline until, bool alone) noexcept {
  deadline limit = deadline::after(alone ? lone_reference_limit : reference_limit);
  if (!until.is_never()) limit = std::min(limit, deadline::after(until.remaining() / 2));
  if (auto failure = caught([&] { table()->clean_up(limit, alone); })) {
    log(log_level::error, fmt::format("{}: references are not dropped before the shutdown goes on: {}",
                                      to_string(worker_.agent_unchecked().self()), describe_exception(failure)));
  }
}

std::uint64_t reference_client::loose_ends() const noexcept {
  const reference_table* own = made();
  return own ? own->loose_ends() : 0;
}

void reference_client::stop_waiting(bool entirely) noexcept {
  if (reference_table* own = made()) own->stop_clean_up(entirely);
}

std::vector<std::string> reference_client::leaks() const {
  const reference_table* own = made();
  return own ? own->leaks() : std::vector<std::string>();
}

void reference_client::close() noexcept {
  if (auto failure = caught([&] { table()->close(); }))
    log(log_level::error, "no memory to end the references of a worker");
}

void reference_client::clear(bool idle) noexcept {
  if (reference_table* own = made()) own->clear(idle);
}

}  // namespace ferry::inline v0::detail
