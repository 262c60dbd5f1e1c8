#include "observed_group.hpp"

#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

#include "../../base/parse_number.hpp"
#include "../../store/bounded_store.hpp"
#include "../membership/member_log.hpp"
#include "../membership/static_keys.hpp"

namespace ferry::inline v0::detail {
namespace {

observed_group read_dynamic_group(const bounded_store& all, deadline until) {
  observed_group result;
  const auto own = all.below("ferry/dynamic");
  result.kind = own->try_get("kind", until).value_or("");
  result.key = own->try_get("group", until).value_or("");
  if (result.key.empty()) return result;
  member_log log(own, [](const membership_change&) {});
  log.load(until);
  const membership members = log.members();
  for (const auto& [id, each] : members.members()) result.members.push_back({*each.record, each.leaving, {}});
  return result;
}

// The keys of the last attempt of the static group of that number, if it has begun.
std::shared_ptr<bounded_store> keys_of_static_group(const bounded_store& all, std::uint64_t number, deadline until) {
  const auto base = all.below(fmt::format("ferry/{}", number));
  const auto attempt = base->try_get("attempt", until);
  auto own = base->below(fmt::format("attempt/{}", attempt ? stored_number(*attempt, "the number of an attempt") : 0));
  return own->try_get("group", until) ? own : nullptr;
}

// The records of `workers/<k>`, which rank 0 writes, or else those of the workers that have got so far.
std::vector<worker_record> read_static_records(const bounded_store& own, int world_size, deadline until) {
  std::vector<worker_record> records;
  for (int part = 0; static_cast<int>(records.size()) < world_size; ++part) {
    const auto together = own.try_get(rank_key("workers/", part), until);
    if (!together) break;
    append_records(records, *together);
  }
  if (!records.empty()) return records;
  std::map<int, worker_record> by_id;
  for (const store_entry& each : own.list("worker/", until)) {
    const auto id = parse_number<int>(std::string_view(each.key).substr(std::string_view("worker/").size()));
    if (!id) throw_error(errc::malformed, fmt::format("the store holds the record of a worker as '{}'", each.key));
    by_id.emplace(*id, worker_record::decode(each.value, *id));
  }
  for (auto& [id, record] : by_id) records.push_back(std::move(record));
  return records;
}

observed_group read_static_group(const bounded_store& all, deadline until) {
  std::shared_ptr<bounded_store> own;
  for (std::uint64_t number = 0;; ++number) {
    auto next = keys_of_static_group(all, number, until);
    if (!next) break;
    own = std::move(next);
  }
  observed_group result;
  if (!own) return result;
  result.kind = own->try_get("kind", until).value_or("");
  result.key = own->try_get("group", until).value_or("");
  // "static 4, heartbeats ..."
  const std::string_view kind = result.kind;
  const std::size_t space = kind.find(' ');
  const std::size_t comma = kind.find(',');
  const auto size = space < comma ? parse_number<int>(kind.substr(space + 1, comma - space - 1)) : std::nullopt;
  if (!size || *size <= 0) {
    throw_error(errc::malformed, fmt::format("the store holds '{}' as the kind of a group", result.kind));
  }
  result.world_size = *size;
  for (worker_record& each : read_static_records(*own, *size, until)) {
    std::string lost;
    if (const auto fence = own->try_get(rank_key("fence/", each.who.id().value), until)) {
      const std::size_t line = fence->find('\n');
      if (line != std::string::npos && fence->substr(0, line) == fmt::format("{:016x}", each.incarnation.value))
        lost = fence->substr(line + 1);
    }
    result.members.push_back({std::move(each), false, std::move(lost)});
  }
  return result;
}

}  // namespace

observed_group read_group(const std::shared_ptr<store>& where, deadline until) {
  const bounded_store all(where);
  const std::string kind = all.try_get("ferry/store", until).value_or("");
  observed_group result = kind.starts_with("dynamic") ? read_dynamic_group(all, until) : read_static_group(all, until);
  if (result.key.empty()) {
    throw_error(errc::unknown_worker, fmt::format("no group of workers has met in the {}", where->describe()));
  }
  return result;
}

}  // namespace ferry::inline v0::detail
