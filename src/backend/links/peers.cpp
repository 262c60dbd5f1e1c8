#include "peers.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <ferry/base/error.hpp>

#include "../../base/parse_number.hpp"
#include "links.hpp"

namespace ferry::inline v0::detail {
namespace {
constexpr std::string_view store_mark = "!store";
constexpr std::string_view limits_mark = "!limits ";

// Those that a sender can apply.
std::string encode_limits(const wire_limits& limits) {
  return fmt::format("{} {} {} {} {}", limits.max_message_bytes, limits.max_tensors, limits.max_rank,
                     limits.max_extension_bytes, limits.max_extensions);
}

template <class T>
bool take_limit(std::string_view& text, T& limit) {
  const std::size_t end = std::min(text.find(' '), text.size());
  const auto number = parse_number<T>(text.substr(0, end));
  if (!number) return false;
  limit = *number;
  text.remove_prefix(std::min(end + 1, text.size()));
  return true;
}

// A later version may have more of them.
std::optional<wire_limits> decode_limits(std::string_view text) {
  wire_limits limits;
  const bool whole = take_limit(text, limits.max_message_bytes) && take_limit(text, limits.max_tensors) &&
                     take_limit(text, limits.max_rank) && take_limit(text, limits.max_extension_bytes) &&
                     take_limit(text, limits.max_extensions);
  return whole ? std::optional(limits) : std::nullopt;
}

}  // namespace

std::shared_ptr<const wire_limits> limits_to_publish(const wire_limits& own) {
  return encode_limits(own) == encode_limits({}) ? nullptr : std::make_shared<const wire_limits>(own);
}

std::string this_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  struct stat space {};
  if (!std::getline(file, boot) || ::stat("/proc/self/ns/net", &space) != 0) return {};
  return fmt::format("{}/{}", boot, space.st_ino);
}

// Lines: the name, the incarnation, the host, the devices, a mark if it serves the store, the limits, one address each, an
// empty one; then the metadata, which may contain anything. A version without devices, the mark, or limits parses these lines
// as addresses that no transport supports; so what is newer comes later.
std::string worker_record::encode() const {
  return fmt::format(
      "{}\n{:016x}\n@{}\n{}{}{}{}\n\n{}", who.name(), incarnation.value, host,
      devices ? fmt::format("#{}\n", devices->encode()) : "", serves_store ? fmt::format("{}\n", store_mark) : "",
      limits ? fmt::format("{}{}\n", limits_mark, encode_limits(*limits)) : "", fmt::join(addresses, "\n"), metadata);
}

worker_record worker_record::decode(std::string_view text, int id) {
  const auto malformed = [&](std::string_view what) {
    return make_error(errc::malformed, fmt::format("the store's record of worker {} {}", id, what));
  };
  std::vector<std::string_view> lines;
  lines.reserve(8);
  std::size_t at = 0;
  for (;;) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string_view::npos) std::rethrow_exception(malformed("is cut off"));
    if (end == at) break;
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  if (lines.size() < 4) std::rethrow_exception(malformed(fmt::format("has {} lines", lines.size())));
  if (!lines[2].starts_with('@')) std::rethrow_exception(malformed("has no host"));
  worker_record result;
  result.who = worker_info(std::string(lines[0]), id);
  result.host = lines[2].substr(1);
  auto addresses = lines.begin() + 3;
  if (addresses->starts_with('#')) {
    result.devices = std::make_shared<const device_record>(device_record::decode(addresses->substr(1)));
    if (++addresses == lines.end()) std::rethrow_exception(malformed("has no address"));
  }
  if (*addresses == store_mark) {
    result.serves_store = true;
    if (++addresses == lines.end()) std::rethrow_exception(malformed("has no address"));
  }
  if (addresses->starts_with(limits_mark)) {
    const auto limits = decode_limits(addresses->substr(limits_mark.size()));
    if (!limits) std::rethrow_exception(malformed(fmt::format("has '{}' as limits", *addresses)));
    result.limits = std::make_shared<const wire_limits>(*limits);
    if (++addresses == lines.end()) std::rethrow_exception(malformed("has no address"));
  }
  result.addresses.assign(addresses, lines.end());
  result.metadata = text.substr(at + 1);
  const auto incarnation = parse_number<std::uint64_t>(lines[1], 16);
  if (!incarnation) std::rethrow_exception(malformed("has no incarnation"));
  result.incarnation.value = *incarnation;
  return result;
}

namespace {

// What a thread has found last: threads call the same worker again and again, and a lock for all of them, even a shared one,
// would move from processor to processor.
struct last_lookup {
  static constexpr std::size_t longest = 40;
  std::uint64_t table = 0;  // 0: none
  std::uint64_t changes = 0;
  peer* found = nullptr;
  std::size_t size = 0;
  std::array<char, longest> name;

  [[nodiscard]] bool is(std::uint64_t of, std::uint64_t as_of, std::string_view wanted) const noexcept {
    return table == of && changes == as_of && std::string_view(name.data(), size) == wanted;
  }
};
thread_local constinit last_lookup last_found{};

std::atomic<std::uint64_t> tables_made{0};

}  // namespace

peer_table::peer_table() : number_(tables_made.fetch_add(1) + 1) {}

peer_table::~peer_table() {
  for (peer* each : owned_) std::destroy_at(each);
}

peer* peer_table::at(worker_id id) const noexcept {
  if (id.value < 0 || id.value > worker_id::max) return nullptr;
  const auto index = static_cast<std::size_t>(id.value);
  const block* part = blocks_[index / block_size].load(std::memory_order_acquire);
  return part ? (*part)[index % block_size].load(std::memory_order_acquire) : nullptr;
}

peer& peer_table::place(worker_id id) {
  if (peer* there = at(id)) return *there;
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<std::size_t>(id.value);
  auto& slot = blocks_.at(index / block_size);
  block* part = slot.load(std::memory_order_relaxed);
  if (!part) {
    part = owned_blocks_.emplace_back(std::make_unique<block>()).get();
    slot.store(part, std::memory_order_release);
  }
  auto& entry = (*part)[index % block_size];
  if (peer* there = entry.load(std::memory_order_relaxed)) return *there;
  peer*& fresh = owned_.emplace_back(nullptr);
  try {
    fresh = new (memory_.allocate(sizeof(peer), alignof(peer))) peer(id, nothing_);
  } catch (...) {
    owned_.pop_back();
    throw;
  }
  entry.store(fresh, std::memory_order_release);
  highest_.store(std::max(highest_.load(std::memory_order_relaxed), id.value), std::memory_order_release);
  return *fresh;
}

peer* peer_table::find(std::string_view name) const {
  last_lookup& last = last_found;
  const std::uint64_t as_of = changes();  // before the table is read: what changes meanwhile is seen the next time
  if (last.is(number_, as_of, name)) return last.found;
  peer* const found = look_up(name);
  if (found && name.size() <= last_lookup::longest) {
    last.table = number_;
    last.changes = as_of;
    last.found = found;
    last.size = name.copy(last.name.data(), name.size());
  }
  return found;
}

peer* peer_table::look_up(std::string_view name) const {
  const std::shared_lock lock(mutex_);
  const auto found = names_.find(name);
  return found == names_.end() ? nullptr : found->second;
}

peer& peer_table::admit(shared_record record, std::shared_ptr<const device_maps_between> maps) {
  peer& where = place(record->who.id());
  peer** named = nullptr;
  {
    const std::lock_guard lock(mutex_);
    named = &names_.try_emplace(record->who.name(), nullptr).first->second;  // nothing below needs memory
  }
  shared_record before;
  struct {  // released without the lock
    std::shared_ptr<outgoing_link> link;
    std::shared_ptr<outgoing_link> urgent;
    std::shared_ptr<incoming_link> incoming;
    std::shared_ptr<control_link> control;
  } old;
  {
    const std::lock_guard lock(where.mutex);
    if (where.state != peer_state::unknown) {  // of its predecessor
      where.live = {};
      old.link = std::move(where.link);
      old.urgent = std::move(where.urgent);
      old.incoming = std::move(where.incoming);
      old.control = std::move(where.control);
    }
    where.limits.set(record->limits);
    before = std::exchange(where.record, std::move(record));
    where.maps.swap(maps);
    where.state = peer_state::member;
    where.end.clear();
  }
  const std::lock_guard lock(mutex_);
  if (const auto left = names_.find(before->who.name());
      left != names_.end() && left->second == &where && &left->second != named)
    names_.erase(left);
  *named = &where;
  note_change();
  return where;
}

std::vector<peer*> peer_table::all() const {
  const std::shared_lock lock(mutex_);
  std::vector<peer*> result;
  result.reserve(owned_.size());
  for (const auto& slot : blocks_) {
    const block* const part = slot.load(std::memory_order_relaxed);
    if (!part) continue;
    for (const auto& entry : *part) {
      if (peer* each = entry.load(std::memory_order_relaxed)) result.push_back(each);
    }
  }
  return result;
}

}  // namespace ferry::inline v0::detail
