#include <ferry/rpc/interceptor.hpp>

#include <utility>

#include <ferry/rpc/detail/call_lifecycle.hpp>
#include <ferry/rpc/detail/method_entry.hpp>

namespace ferry::inline v0 {

void detail::kept_hooks::add(std::unique_ptr<caller_hooks> hooks) noexcept {
  caller_hooks* const added = hooks.release();
  added->previous_ = last_;
  (last_ ? last_->next_ : first_) = added;
  last_ = added;
}

void detail::kept_hooks::clear() noexcept {
  while (first_) {
    const std::unique_ptr<caller_hooks> dropped(first_);
    first_ = dropped->next_;
  }
  last_ = nullptr;
}

std::string_view outgoing_request::method() const noexcept { return facts_.method->name; }
const worker_info& outgoing_request::destination() const noexcept { return facts_.peer; }
incarnation_id outgoing_request::incarnation() const noexcept { return facts_.incarnation; }
ferry::deadline outgoing_request::deadline() const noexcept { return until_; }
bool outgoing_request::one_way() const noexcept { return (message_.header.flags & frame_one_way) != 0; }
detail::worker_core& outgoing_request::core() const noexcept { return *facts_.worker; }

std::optional<std::span<const std::byte>> extension_records::find(std::uint16_t type) const {
  std::span<const std::byte> rest = block_;
  extension_record record;
  while (next_extension(rest, record)) {
    if (record.type == type) return record.content;
  }
  return std::nullopt;
}

std::vector<extension_record> extension_records::all() const {
  std::vector<extension_record> result;
  std::span<const std::byte> rest = block_;
  extension_record record;
  while (next_extension(rest, record)) result.push_back(record);
  return result;
}

std::string_view incoming_reply::method() const noexcept { return facts_.method->name; }
const worker_info& incoming_reply::sender() const noexcept { return facts_.peer; }
incarnation_id incoming_reply::incarnation() const noexcept { return facts_.incarnation; }
detail::worker_core& incoming_reply::core() const noexcept { return *facts_.worker; }

}  // namespace ferry::inline v0
