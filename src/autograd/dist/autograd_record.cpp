#include "autograd_record.hpp"

#include <limits>

#include <fmt/format.h>
#include <ferry/base/detail/little_endian.hpp>
#include <ferry/base/error.hpp>

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t word = 8;

void put_word(byte_buffer& to, std::uint64_t value) { store_le(to.extend(word), value); }

class word_reader {
 public:
  explicit word_reader(std::span<const std::byte> content) noexcept : left_(content) {}
  std::uint64_t next() {
    if (left_.size() < word) throw_error(errc::truncated, "a record of gradients ends within a number");
    const auto value = load_le<std::uint64_t>(left_.data());
    left_ = left_.subspan(word);
    return value;
  }
  /// A number of entries of that many words each, which are there.
  std::size_t count(std::size_t words) {
    const std::uint64_t claimed = next();
    if (claimed > left_.size() / (words * word))
      throw_error(errc::truncated,
                  fmt::format("a record of gradients claims {} entries and is too short for them", claimed));
    return static_cast<std::size_t>(claimed);
  }
  [[nodiscard]] bool at_end() const noexcept { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

std::uint64_t word_of(device where) noexcept {
  return static_cast<std::uint64_t>(where.kind) << 32U | static_cast<std::uint32_t>(where.index);
}

device device_of_word(std::uint64_t value) {
  constexpr std::uint64_t kinds = 256;
  const std::uint64_t kind = value >> 32U;
  const auto index = static_cast<std::uint32_t>(value);
  if (kind >= kinds || index > static_cast<std::uint32_t>(std::numeric_limits<std::int32_t>::max()))
    throw_error(errc::malformed, fmt::format("a record of gradients names device {}", value));
  return {static_cast<device_kind>(kind), static_cast<int>(index)};
}

}  // namespace

byte_buffer encode_autograd_record(const autograd_record& record) {
  byte_buffer to;
  put_word(to, record.context);
  put_word(to, record.message);
  put_word(to, record.tensors.size());
  for (const autograd_record::tensor_entry& each : record.tensors) {
    put_word(to, each.index);
    put_word(to, word_of(each.where));
  }
  const auto intervals = record.upstream.intervals();
  put_word(to, intervals.size());
  for (const message_set::interval& each : intervals) {
    put_word(to, each.first);
    put_word(to, each.last);
  }
  put_word(to, record.over.first);
  put_word(to, record.over.oldest_kept);
  return to;
}

autograd_record decode_autograd_record(std::span<const std::byte> content) {
  word_reader from(content);
  autograd_record record;
  record.context = from.next();
  record.message = from.next();
  const std::size_t tensors = from.count(2);
  record.tensors.reserve(tensors);
  for (std::size_t i = 0; i != tensors; ++i) {
    const std::uint64_t index = from.next();
    if (index > std::numeric_limits<std::uint32_t>::max() || (i != 0 && index <= record.tensors.back().index))
      throw_error(errc::malformed, "a record of gradients names tensors that are not in order");
    record.tensors.push_back({static_cast<std::uint32_t>(index), device_of_word(from.next())});
  }
  std::vector<message_set::interval> intervals(from.count(2));
  for (message_set::interval& each : intervals) {
    each.first = from.next();
    each.last = from.next();
  }
  record.upstream = message_set(std::move(intervals));
  record.over.first = from.next();
  record.over.oldest_kept = from.next();
  if (!from.at_end()) throw_error(errc::malformed, "a record of gradients has more bytes than it says");
  return record;
}

}  // namespace ferry::inline v0::detail
