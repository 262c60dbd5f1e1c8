#include "interceptor_table.hpp"

#include <algorithm>
#include <bit>
#include <optional>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/rpc/detail/incoming_call.hpp>

#include "../../wire/extension_format.hpp"
#include "../worker/worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t longest_interceptor_name = 127;
constexpr std::size_t most_interceptors = 64;

bool less_by_type(const std::pair<std::uint16_t, std::size_t>& entry, std::uint16_t type) noexcept {
  return entry.first < type;
}

}  // namespace

interceptor_table::interceptor_table(std::vector<interceptor*> of_library,
                                     std::vector<std::shared_ptr<interceptor>> of_user)
    : owned_(std::move(of_user)) {
  for (interceptor* each : of_library) add(*each, true);
  for (const auto& each : owned_) {
    if (!each) throw_error(errc::invalid_argument, "worker_config::interceptors contains a null pointer");
    add(*each, false);
  }
}

void interceptor_table::add(interceptor& one, bool of_library) {
  const std::string_view name = one.name();
  if (name.empty() || name.size() > longest_interceptor_name) {
    throw_error(errc::invalid_argument, fmt::format("an interceptor needs a name of 1 to {} characters, and has '{}'",
                                                    longest_interceptor_name, name));
  }
  for (const interceptor* other : all_) {
    if (other->name() != name) continue;
    throw_error(errc::invalid_argument,
                fmt::format("worker_config::interceptors contains two interceptors named '{}'", name));
  }
  const auto types = one.record_types();
  for (const std::uint16_t type : types) {
    if (!of_library && type < first_registered_extension) {
      throw_error(errc::invalid_argument,
                  fmt::format("the interceptor '{}' reads extension records of type {}: types below {} are the "
                              "library's; use one from {} on (docs/protocol.md lists the ranges)",
                              name, type, first_registered_extension, first_private_extension));
    }
    const auto at = std::lower_bound(readers_.begin(), readers_.end(), type, less_by_type);
    if (at != readers_.end() && at->first == type) {
      throw_error(errc::invalid_argument,
                  fmt::format("the interceptors '{}' and '{}' both read extension records of type {}",
                              at->second == all_.size() ? name : all_[at->second]->name(), name, type));
    }
    readers_.insert(at, {type, all_.size()});
  }
  if (all_.size() == most_interceptors) {
    throw_error(errc::invalid_argument,
                fmt::format("the interceptor '{}' is one too many: a worker has at most {}", name, most_interceptors));
  }
  for (const std::uint16_t type : types) {
    if (type < low_types) readers_of_low_types_[type] = reader_set{1} << all_.size();
  }
  all_.push_back(&one);
  if (!one.sees_all_requests()) return;
  seeing_all_.push_back(&one);
  seeing_all_set_ |= reader_set{1} << (all_.size() - 1);
}

constinit std::atomic<int> interceptor_table::watches_{0};
constinit std::atomic<int> interceptor_table::watches_of_requests_{0};

void interceptor_table::set_watcher(const interceptor& which) noexcept {
  const auto at = std::find(all_.begin(), all_.end(), &which);
  if (at == all_.end()) return;
  watcher_ = *at;
  watcher_set_ = reader_set{1} << static_cast<std::size_t>(at - all_.begin());
}

interceptor* interceptor_table::reader_of(std::uint16_t type) const noexcept {
  const auto at = std::lower_bound(readers_.begin(), readers_.end(), type, less_by_type);
  return at != readers_.end() && at->first == type ? all_[at->second] : nullptr;
}

interceptor_table::reader_set interceptor_table::readers_of_high_type(std::uint16_t type) const noexcept {
  const auto at = std::lower_bound(readers_.begin(), readers_.end(), type, less_by_type);
  return at != readers_.end() && at->first == type ? reader_set{1} << at->second : reader_set{0};
}

// Most messages that have a record have one.
inline interceptor_table::reader_set interceptor_table::readers_of(std::span<const std::byte> records,
                                                                   const wire_limits& limits) const {
  extension_record record;
  std::span<const std::byte> rest = records;
  if (take_extension(rest, record) && rest.empty() && limits.max_extensions != 0) {
    if (const reader_set found = readers_of_type(record.type)) return found;
  }
  return readers_of_several(records, limits);
}

interceptor_table::reader_set interceptor_table::readers_of_several(std::span<const std::byte> records,
                                                                    const wire_limits& limits) const {
  reader_set found = 0;
  extension_record record;
  std::optional<extension_record> refused;  // the first; damage to the block comes first
  std::span<const std::byte> rest = records;
  for (std::uint32_t count = 0; take_extension(rest, record); ++count) {
    if (count == limits.max_extensions) check_extensions(records, limits);  // throws
    if (const reader_set reader = readers_of_type(record.type)) {
      found |= reader;
    } else if (record.critical && !refused) {
      refused = record;
    }
  }
  if (refused) skip_extension(*refused);
  return found;
}

void interceptor_table::on_request(outgoing_request& request) const {
  if (watcher_ && requests_watched()) {
    if (auto kept = watcher_->on_request(request)) request.keep(std::move(kept));
  }
  for (interceptor* each : seeing_all_) {
    if (auto kept = each->on_request(request)) request.keep(std::move(kept));
  }
}

void interceptor_table::on_arrival(incoming_call& call) const {
  incoming_request request(call);
  reader_set interested = seeing_all_set_;
  if (arrivals_watched()) interested |= watcher_set_;
  if (const auto records = call.request().extensions; !records.empty())
    interested |= readers_of(records, call.worker()->limits());
  for (; interested != 0; interested &= interested - 1) {
    interceptor& next = *all_[static_cast<std::size_t>(std::countr_zero(interested))];
    if (auto kept = next.on_arrival(request)) call.add_hooks(std::move(kept));
  }
}

void interceptor_table::read_reply(incoming_reply& reply) const {
  reader_set readers = readers_of(reply.message().extensions, reply.core().limits());
  while (readers != 0) {
    const auto last = static_cast<std::size_t>(std::bit_width(readers)) - 1;
    readers ^= reader_set{1} << last;
    all_[last]->on_reply_records(reply);
  }
}

}  // namespace ferry::inline v0::detail
