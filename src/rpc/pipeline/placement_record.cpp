#include "placement_record.hpp"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <ferry/base/bytes.hpp>
#include <ferry/base/detail/little_endian.hpp>
#include <ferry/base/error.hpp>
#include <ferry/rpc/detail/incoming_call.hpp>

#include "library_clients.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t placement_entry_size = 16;
constexpr std::uint64_t device_kind_count = 256;

std::uint64_t number_of(device where) {
  return static_cast<std::uint64_t>(where.kind) << 32U | static_cast<std::uint32_t>(where.index);
}

device device_of(std::uint64_t number) {
  const std::uint64_t kind = number >> 32U;
  const auto index = static_cast<std::uint32_t>(number);
  if (kind >= device_kind_count || index > static_cast<std::uint32_t>(std::numeric_limits<std::int32_t>::max()))
    throw_error(errc::malformed, "a placement names device " + std::to_string(number));
  return {static_cast<device_kind>(kind), static_cast<int>(index)};
}

// At the callee: the answer's tensors go back the way the request's came.
class placement_reader final : public interceptor {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "ferry/placement"; }
  [[nodiscard]] std::span<const std::uint16_t> record_types() const noexcept override { return {&type_, 1}; }
  [[nodiscard]] bool sees_all_requests() const noexcept override { return false; }
  std::unique_ptr<callee_hooks> on_arrival(incoming_request& request) override {
    bool found = false;
    for (const extension_record& each : request.records().all()) {
      if (each.type != type_) continue;
      if (std::exchange(found, true)) throw_error(errc::malformed, "a message has two placements");
      request.call().place_answer_by(read_placement_record(each.content));
    }
    return nullptr;
  }

 private:
  const std::uint16_t type_ = placement_record_type;
};

[[maybe_unused]] const std::size_t placement_client =
    add_library_client({.rank = 1, .intercept = [](worker_attachment*) -> interceptor* {
                          static auto* const reader = new placement_reader;  // without state, for all workers
                          return reader;
                        }});

}  // namespace

void add_placement_record(outgoing_message& message, const device_map& placement) {
  byte_buffer content;
  for (const device_pair& each : placement) {
    store_le(content.extend(8), number_of(each.from));
    store_le(content.extend(8), number_of(each.to));
  }
  message.add_extension(placement_record_type, true, {content.data(), content.size()});
}

device_map read_placement_record(std::span<const std::byte> content) {
  if (content.size() % placement_entry_size != 0) {
    throw_error(errc::malformed, "the length of a placement is not a multiple of its element size");
  }
  std::vector<device_pair> entries;
  for (; !content.empty(); content = content.subspan(placement_entry_size)) {
    const device from = device_of(load_le<std::uint64_t>(content.data()));
    entries.emplace_back(from, device_of(load_le<std::uint64_t>(content.data() + 8)));
  }
  try {
    return device_map(entries).inverse();
  } catch (const error& e) {
    throw_error(errc::malformed, "a placement: " + std::string(e.message()));
  }
}

}  // namespace ferry::inline v0::detail
