#include <ferry/rpc/interceptor.hpp>

#include <new>
#include <utility>

#include <ferry/rpc/detail/call_lifecycle.hpp>
#include <ferry/rpc/detail/method_entry.hpp>

namespace ferry::inline v0 {

std::string_view outgoing_request::method() const noexcept { return facts_.method->name; }
const worker_info& outgoing_request::destination() const noexcept { return facts_.peer; }
incarnation_id outgoing_request::incarnation() const noexcept { return facts_.incarnation; }
ferry::deadline outgoing_request::deadline() const noexcept { return until_; }
bool outgoing_request::one_way() const noexcept { return (message_.header.flags & frame_one_way) != 0; }
detail::worker_core& outgoing_request::core() const noexcept { return *facts_.worker; }

void outgoing_request::keep(std::unique_ptr<caller_hooks> hooks) {
  try {
    hooks_.reserve(hooks_.size() + 1);
  } catch (const std::bad_alloc& e) {  // hooks hear of their call's end, whatever happens
    hooks->not_sent();
    hooks->ended({errc::out_of_memory, call_phase::connecting, e.what()});
    throw;
  }
  hooks_.push_back(std::move(hooks));
}

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
