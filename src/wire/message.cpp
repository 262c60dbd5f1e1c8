#include <ferry/wire/message.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>

#include <ferry/base/detail/little_endian.hpp>
#include <ferry/base/error.hpp>
#include <ferry/tensor/pack.hpp>

#include "device_marks.hpp"
#include "extension_format.hpp"
#include "tensor_table.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

using detail::load_le;
using detail::store_le;

// docs/protocol.md, "Tensor table".
constexpr std::size_t entry_header = 8;
constexpr std::size_t entry_per_axis = 16;

std::size_t entry_size(std::size_t rank) noexcept { return entry_header + entry_per_axis * rank; }

void append_entry(byte_buffer& out, const tensor& t, device target) {
  const std::size_t rank = t.rank();
  std::byte* at = out.extend(entry_size(rank));
  store_le(at, t.dtype());
  store_le(at + 1, target.kind);
  store_le(at + 2, static_cast<std::int16_t>(target.index));
  store_le(at + 4, static_cast<std::uint8_t>(rank));
  store_le(at + 5, std::uint8_t{0});
  store_le(at + 6, std::uint16_t{0});
  at += entry_header;
  for (std::size_t axis = 0; axis < rank; ++axis, at += 8) store_le(at, static_cast<std::uint64_t>(t.shape()[axis]));
  for (std::size_t axis = 0; axis < rank; ++axis, at += 8) store_le(at, static_cast<std::int64_t>(t.strides()[axis]));
}

struct table_entry {
  ferry::dtype type{};
  ferry::device where;
  std::size_t rank = 0;
  std::array<std::int64_t, max_rank> shape{};
  std::array<std::int64_t, max_rank> strides{};

  [[nodiscard]] std::span<const std::int64_t> shape_span() const noexcept { return {shape.data(), rank}; }
  [[nodiscard]] std::span<const std::int64_t> strides_span() const noexcept { return {strides.data(), rank}; }
};

[[noreturn]] void refuse_entry(errc code, std::size_t index, const std::string& why) {
  throw_error(code, "tensor " + std::to_string(index) + " of the message: " + why);
}

table_entry next_entry(std::span<const std::byte>& table, std::size_t index, const wire_limits& limits) {
  if (table.size() < entry_header) refuse_entry(errc::truncated, index, "the tensor table ends before its entry");
  const std::byte* at = table.data();
  table_entry entry;
  entry.type = static_cast<dtype>(load_le<std::uint8_t>(at));
  if (dtype_size(entry.type) == 0) {
    refuse_entry(errc::malformed, index, "unknown dtype " + std::to_string(load_le<std::uint8_t>(at)));
  }
  entry.where = {static_cast<device_kind>(load_le<std::uint8_t>(at + 1)), load_le<std::int16_t>(at + 2)};
  entry.rank = load_le<std::uint8_t>(at + 4);
  if (load_le<std::uint8_t>(at + 5) != 0 || load_le<std::uint16_t>(at + 6) != 0) {
    refuse_entry(errc::malformed, index, "reserved bytes of its entry are not zero");
  }
  if (entry.rank > limits.max_rank || entry.rank > max_rank) {
    refuse_entry(errc::limit_exceeded, index,
                 "it has " + std::to_string(entry.rank) + " dimensions, the limit is " +
                     std::to_string(std::min<std::size_t>(limits.max_rank, max_rank)) + " (wire_limits::max_rank)");
  }
  if (table.size() < entry_size(entry.rank)) {
    refuse_entry(errc::truncated, index, "the tensor table ends within its entry");
  }
  at += entry_header;
  for (std::size_t axis = 0; axis < entry.rank; ++axis, at += 8) {
    const auto size = load_le<std::uint64_t>(at);
    if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      refuse_entry(errc::malformed, index, "the size of axis " + std::to_string(axis) + " is " + std::to_string(size));
    }
    entry.shape[axis] = static_cast<std::int64_t>(size);
  }
  for (std::size_t axis = 0; axis < entry.rank; ++axis, at += 8) entry.strides[axis] = load_le<std::int64_t>(at);
  table = table.subspan(entry_size(entry.rank));
  return entry;
}

std::uint64_t size_of(const table_entry& entry, std::size_t index) {
  try {
    return packed_size(entry.type, entry.shape_span(), entry.strides_span());
  } catch (const error& problem) {
    refuse_entry(errc::malformed, index, std::string(problem.message()));
  }
}

}  // namespace
}  // namespace detail

namespace detail {
namespace {

void put_record_header(std::byte* at, std::uint16_t type, bool critical, std::uint32_t length) noexcept {
  store_le(at, type);
  store_le(at + record_flags_at, critical ? record_critical : std::uint16_t{0});
  store_le(at + record_length_at, length);
}

constexpr std::size_t longest_record = std::numeric_limits<std::uint32_t>::max() - record_header - record_alignment;

[[noreturn]] void refuse_length(std::size_t length) {
  throw_error(errc::limit_exceeded, "an extension record of " + std::to_string(length) + " bytes; at most 2^32 - 17");
}

}  // namespace
}  // namespace detail

inline bool outgoing_message::may_add(std::uint16_t type) const noexcept {
  return range_of_extension(type) != extension_range::reserved && table_start_ == 0 && open_record_ == 0 &&
         (records_start_ == 0 || bytes.size() == records_end_);
}

void outgoing_message::add_extension(std::uint16_t type, bool critical, std::span<const std::byte> content) {
  if (!may_add(type)) refuse_to_add(type);
  const std::size_t length = content.size();
  if (length > detail::longest_record) detail::refuse_length(length);
  const std::size_t start = bytes.size();
  const std::size_t padded = detail::padded_record(length);
  std::byte* const at = bytes.extend(detail::record_header + padded);
  detail::put_record_header(at, type, critical, static_cast<std::uint32_t>(length));
  if (length != 0) std::memcpy(at + detail::record_header, content.data(), length);
  if (padded != length) std::memset(at + detail::record_header + length, 0, padded - length);
  if (records_start_ == 0) records_start_ = start;
  records_end_ = bytes.size();
  ++record_count_;
}

[[gnu::cold]] void outgoing_message::refuse_to_add(std::uint16_t type) const {
  if (range_of_extension(type) == extension_range::reserved) {
    throw_error(errc::invalid_argument, "extension records of type 0 are reserved");
  }
  if (table_start_ != 0) throw_error(errc::invalid_argument, "an extension record is added to a finished message");
  check_records();
}

byte_buffer& outgoing_message::begin_extension(std::uint16_t type, bool critical) {
  if (!may_add(type)) refuse_to_add(type);
  const std::size_t start = bytes.size();
  detail::put_record_header(bytes.extend(detail::record_header), type, critical, 0);
  if (records_start_ == 0) records_start_ = start;
  open_record_ = start;
  return bytes;
}

void outgoing_message::end_extension() {
  if (open_record_ == 0) throw_error(errc::invalid_argument, "an extension record is ended that was not begun");
  const std::size_t length = bytes.size() - open_record_ - detail::record_header;
  if (length > detail::longest_record) detail::refuse_length(length);
  const std::size_t padding = detail::padded_record(length) - length;
  if (padding != 0) std::memset(bytes.extend(padding), 0, padding);
  detail::store_le(bytes.data() + open_record_ + detail::record_length_at, static_cast<std::uint32_t>(length));
  open_record_ = 0;
  records_end_ = bytes.size();
  ++record_count_;
}

// The end of `bytes` is the end of the payload or of a record.
void outgoing_message::check_records() const {
  if (open_record_ != 0) throw_error(errc::invalid_argument, "an extension record was begun and not ended");
  if (records_start_ != 0 && (table_start_ != 0 ? table_start_ : bytes.size()) != records_end_) {
    throw_error(
        errc::invalid_argument,
        "bytes were written behind the extension records; the payload must be complete before the first record");
  }
}

void outgoing_message::discard_payload() noexcept {
  bytes.truncate(frame_header::encoded_size);
  tensors.clear();
  targets.clear();
  records_start_ = records_end_ = open_record_ = table_start_ = 0;
  record_count_ = 0;
  marks_.reset();
}

outgoing_message outgoing_message::copy() const {
  outgoing_message other;
  other.header = header;
  other.bytes.clear();
  other.bytes.append(bytes.data(), bytes.size());
  other.tensors = tensors;
  other.targets = targets;
  other.reads = reads;
  other.on_devices_ = on_devices_;
  other.marks_ = marks_;
  other.records_start_ = records_start_;
  other.records_end_ = records_end_;
  other.open_record_ = open_record_;
  other.record_count_ = record_count_;
  other.table_start_ = table_start_;
  return other;
}

bool outgoing_message::keeps_its_tensors() const noexcept {
  return !tensors.empty() && std::all_of(tensors.begin(), tensors.end(), [](const tensor& each) {
    return each.defined() && each.storage().owns_memory();
  });
}

void outgoing_message::become_void() {
  bytes.truncate(table_start_);
  tensors.clear();
  targets.clear();
  header.flags = static_cast<std::uint8_t>((header.flags | frame_outcome) & ~frame_direct);
  header.tensor_count = 0;
  header.table_bytes = 0;
  header.tensor_bytes = 0;
  header.encode(bytes.data());
}

std::uint64_t outgoing_message::tensor_size() const noexcept {
  std::uint64_t total = 0;
  for (const tensor& each : tensors) {
    std::uint64_t size = dtype_size(each.dtype());
    for (std::size_t axis = 0; axis != each.rank(); ++axis) {
      // As packed: an axis of stride 0 is sent once.
      if (each.shape()[axis] == 0 || each.strides()[axis] != 0) size *= static_cast<std::uint64_t>(each.shape()[axis]);
    }
    total += size;
  }
  return total;
}

void outgoing_message::finish() {
  constexpr wire_limits format;  // the limits of a receiver with defaults
  check_records();
  const std::size_t extension_bytes = records_end_ - records_start_;
  if (extension_bytes > format.max_extension_bytes) {
    throw_error(errc::limit_exceeded, "the extension records of a message take " + std::to_string(extension_bytes) +
                                          " bytes, the limit is " + std::to_string(format.max_extension_bytes));
  }
  if (record_count_ > format.max_extensions) {
    throw_error(errc::limit_exceeded, "a message with " + std::to_string(record_count_) +
                                          " extension records, the limit is " + std::to_string(format.max_extensions));
  }
  if (tensors.size() > format.max_tensors) {
    throw_error(errc::limit_exceeded, "a message with " + std::to_string(tensors.size()) + " tensors, the limit is " +
                                          std::to_string(format.max_tensors) + "; stack them into fewer");
  }
  if (table_start_ != 0) bytes.truncate(table_start_);
  table_start_ = bytes.size();
  header.extension_bytes = static_cast<std::uint32_t>(extension_bytes);
  header.payload_bytes = payload().size();
  header.tensor_count = static_cast<std::uint16_t>(tensors.size());
  header.tensor_bytes = 0;
  on_devices_ = false;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const device target = targets.empty() ? device() : targets.at(i);
    if (!tensors[i].device().is_cpu() || !target.is_cpu()) on_devices_ = true;
    tensors[i] = detail::packed_to_send(tensors[i]);
    detail::append_entry(bytes, tensors[i], target);
    header.tensor_bytes += packed_bytes(tensors[i]).size();
  }
  header.table_bytes = static_cast<std::uint32_t>(bytes.size() - table_start_);
  if (header.tensor_bytes > format.max_message_bytes - std::min(header.payload_bytes, format.max_message_bytes) ||
      header.payload_bytes > format.max_message_bytes) {
    throw_error(errc::limit_exceeded, "a message with " + std::to_string(header.payload_bytes) +
                                          " bytes of payload and " + std::to_string(header.tensor_bytes) +
                                          " bytes of tensors, the limit is " +
                                          std::to_string(format.max_message_bytes) + " together");
  }
  if (on_devices_ && !marks_) marks_ = detail::mark_devices(tensors);
  header.encode(bytes.data());
}

namespace detail {
namespace {

// Visits all entries, each checked, and checks their sum: before the first tensor is allocated.
template <class Visit>
void visit_entries(const frame_header& header, std::span<const std::byte> table, const wire_limits& limits,
                   const Visit& visit) {
  std::uint64_t total = 0;
  std::span<const std::byte> rest = table;
  for (std::size_t i = 0; i < header.tensor_count; ++i) {
    const table_entry entry = next_entry(rest, i, limits);
    const std::uint64_t size = size_of(entry, i);
    if (size > header.tensor_bytes - total) {
      refuse_entry(
          errc::malformed, i,
          "the tensors are larger than the " + std::to_string(header.tensor_bytes) + " bytes that the header promises");
    }
    total += size;
    visit(entry, i, size);
  }
  if (!rest.empty())
    throw_error(errc::malformed, std::to_string(rest.size()) + " bytes follow the last entry of the tensor table");
  if (total != header.tensor_bytes) {
    throw_error(errc::malformed, "the tensors of the message have " + std::to_string(total) +
                                     " bytes, the header says " + std::to_string(header.tensor_bytes));
  }
  if (total > limits.max_message_bytes) {
    throw_error(errc::limit_exceeded, "the tensors of the message have " + std::to_string(total) +
                                          " bytes, the limit is " + std::to_string(limits.max_message_bytes) +
                                          " (wire_limits::max_message_bytes)");
  }
}

}  // namespace
}  // namespace detail

std::vector<tensor_description> describe_tensors(const frame_header& header, std::span<const std::byte> table,
                                                 const wire_limits& limits) {
  std::vector<tensor_description> all;
  detail::visit_entries(header, table, limits, [&](const detail::table_entry& entry, std::size_t, std::uint64_t size) {
    all.push_back({entry.type, entry.where, dims(entry.shape_span()), dims(entry.strides_span()), size});
  });
  return all;
}

void detail::check_tensor_table(const frame_header& header, std::span<const std::byte> table,
                                const wire_limits& limits) {
  visit_entries(header, table, limits, [&](const table_entry& entry, std::size_t i, std::uint64_t) {
    if (entry.where == device()) return;
    refuse_entry(errc::bad_device, i,
                 "it is for device " + std::to_string(static_cast<std::uint8_t>(entry.where.kind)) + ":" +
                     std::to_string(entry.where.index) + ", but this connection receives tensors on the CPU only");
  });
}

tensor detail::take_tensor(std::span<const std::byte>& table, std::size_t index, const wire_limits& limits) {
  const table_entry entry = next_entry(table, index, limits);
  return empty_packed(entry.type, entry.shape_span(), entry.strides_span());
}

std::vector<tensor> decode_tensor_table(const frame_header& header, std::span<const std::byte> table,
                                        const wire_limits& limits) {
  detail::check_tensor_table(header, table, limits);
  std::vector<tensor> tensors;
  tensors.reserve(header.tensor_count);
  for (std::size_t i = 0; i < header.tensor_count; ++i) tensors.push_back(detail::take_tensor(table, i, limits));
  return tensors;
}

bool detail::names_devices(const frame_header& header, std::span<const std::byte> table) noexcept {
  for (std::size_t i = 0; i < header.tensor_count && table.size() >= detail::entry_header; ++i) {
    const std::byte* at = table.data();
    if (detail::load_le<std::uint8_t>(at + 1) != 0 || detail::load_le<std::int16_t>(at + 2) != 0) return true;
    const std::size_t size = detail::entry_size(detail::load_le<std::uint8_t>(at + 4));
    table = table.subspan(std::min(size, table.size()));
  }
  return false;
}

void transfer_status::encode(std::byte* out) const noexcept {
  const std::size_t length = std::min(text.size(), longest_text);
  std::memset(out, 0, encoded_size);
  detail::store_le(out, static_cast<std::uint32_t>(code));
  detail::store_le(out + 4, static_cast<std::uint32_t>(length));
  if (length != 0) std::memcpy(out + 8, text.data(), length);
}

transfer_status transfer_status::decode(const std::byte* in) {
  transfer_status result;
  const auto code = static_cast<std::int32_t>(detail::load_le<std::uint32_t>(in));
  const std::size_t length = detail::load_le<std::uint32_t>(in + 4);
  if (length > longest_text || (code == 0 && length != 0)) {
    throw_error(errc::malformed, "a transfer status with code " + std::to_string(code) + " and a text of " +
                                     std::to_string(length) + " bytes");
  }
  result.code = static_cast<errc>(code);
  if (code != 0 && errc_name(result.code) == "unknown") result.code = errc::device_failure;
  result.text.assign(reinterpret_cast<const char*>(in + 8), length);
  return result;
}

void check_received(std::span<const tensor> tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].dtype() != dtype::bool_ || !tensors[i].device().is_cpu()) continue;
    std::byte other{0};
    for (const std::byte each : packed_bytes(tensors[i])) other |= each;
    if (other > std::byte{1})
      detail::refuse_entry(errc::malformed, i, "an element of a bool tensor is neither 0 nor 1");
  }
}

}  // namespace ferry::inline v0
