#include "reference_records.hpp"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <ferry/base/bytes.hpp>
#include <ferry/base/detail/little_endian.hpp>
#include <ferry/base/error.hpp>

namespace ferry::inline v0::detail {
namespace {

constexpr std::uint8_t has_object = 1;
constexpr std::uint8_t has_creation = 2;
constexpr std::size_t incarnation_size = 16;
constexpr std::size_t object_record_size = 2 * incarnation_size + 8;
constexpr std::size_t reference_size = object_record_size + 8;
constexpr std::size_t turn_size = object_record_size + 24;
constexpr std::uint64_t certainly_waits = 1;

// Writes one record: from its construction to end().
class record_writer {
 public:
  record_writer(outgoing_message& message, std::uint16_t type, bool critical)
      : message_(message), bytes_(message.begin_extension(type, critical)) {}
  void end() { message_.end_extension(); }
  void number(std::uint64_t value) { store_le(bytes_.extend(8), value); }
  void incarnation(const peer_incarnation& value) {
    number(static_cast<std::uint32_t>(value.id.value));
    number(value.incarnation.value);
  }
  void object(const object_id& value) {
    incarnation(value.owner);
    incarnation(value.creator);
    number(value.number);
  }

 private:
  outgoing_message& message_;
  byte_buffer& bytes_;
};

// Reads the content of a record whose length has been checked.
class record_reader {
 public:
  explicit record_reader(std::span<const std::byte> content) : content_(content) {}
  std::uint64_t number() {
    if (content_.size() < 8) throw_error(errc::truncated, "a references record is truncated");
    const auto value = load_le<std::uint64_t>(content_.data());
    content_ = content_.subspan(8);
    return value;
  }
  worker_id id() {
    const std::uint64_t value = number();
    if (value > static_cast<std::uint64_t>(worker_id::max)) {
      throw_error(errc::malformed, "a references record names worker " + std::to_string(value));
    }
    return worker_id{static_cast<std::int32_t>(value)};
  }
  peer_incarnation incarnation() {
    const worker_id worker = id();
    return {worker, incarnation_id{number()}};
  }
  object_id object() {
    object_id value;
    value.owner = incarnation();
    value.creator = incarnation();
    value.number = number();
    return value;
  }
  /// Number of elements of that size that are left. Throws if the last one is incomplete.
  std::size_t count(std::size_t size) {
    if (content_.size() % size != 0)
      throw_error(errc::malformed, "the length of a references record is not a multiple of its element size");
    return content_.size() / size;
  }
  void finish() const {
    if (!content_.empty()) throw_error(errc::malformed, "a references record is too long");
  }

 private:
  std::span<const std::byte> content_;
};

}  // namespace

void add_object_record(outgoing_message& message, const object_id* object, const object_id* creation) {
  record_writer writer(message, object_record, true);
  writer.number((object ? has_object : 0U) | (creation ? has_creation : 0U));
  if (object) writer.object(*object);
  if (creation) writer.object(*creation);
  writer.end();
}

void add_chain_record(outgoing_message& message, const call_chain& chain, bool waits) {
  record_writer writer(message, call_chain_record, false);
  const auto write = [&](const held_turn& turn) {
    writer.object(turn.object);
    writer.number(static_cast<std::uint64_t>(turn.lane.value + 1));
    writer.number(turn.number);
    writer.number(waits && turn.certain ? certainly_waits : 0);
  };
  for (const held_turn& turn : chain.turns) write(turn);
  if (chain.own.number != 0) write(chain.own);
  writer.end();
}

void add_references_record(outgoing_message& message, incarnation_id from,
                           std::span<const handed_reference> references) {
  record_writer writer(message, references_record, true);
  writer.number(from.value);
  for (const handed_reference& each : references) {
    writer.object(each.object);
    writer.number(each.transfer);
  }
  writer.end();
}

reference_records read_records(std::span<const std::byte> extensions) {
  reference_records found;
  bool has_references = false;
  extension_record record;
  while (next_extension(extensions, record)) {
    record_reader reader(record.content);
    switch (record.type) {
      case object_record: {
        const std::uint64_t flags = reader.number();
        if (flags == 0 || flags > (has_object | has_creation)) {
          throw_error(errc::malformed, "an object record has flags " + std::to_string(flags));
        }
        if (found.object || found.creation) throw_error(errc::malformed, "a message has two object records");
        if ((flags & has_object) != 0) found.object = reader.object();
        if ((flags & has_creation) != 0) found.creation = reader.object();
        reader.finish();
        continue;
      }
      case references_record:
        if (std::exchange(has_references, true))
          throw_error(errc::malformed, "a message has two records of references");
        found.from = incarnation_id{reader.number()};
        for (std::size_t left = reader.count(reference_size); left != 0; --left) {
          const object_id object = reader.object();
          found.references.push_back({object, reader.number()});
        }
        continue;
      case call_chain_record:
        for (std::size_t left = reader.count(turn_size); left != 0; --left) {
          const object_id object = reader.object();
          const std::uint64_t lane = reader.number();
          if (lane > static_cast<std::uint64_t>(worker_id::max) + 1) {
            throw_error(errc::malformed, "a call chain names worker " + std::to_string(lane - 1));
          }
          const std::uint64_t number = reader.number();
          const std::uint64_t flags = reader.number();
          if (flags > certainly_waits) {
            throw_error(errc::malformed, "a turn in a call chain has flags " + std::to_string(flags));
          }
          found.chain.turns.push_back(
              {object, worker_id{static_cast<std::int32_t>(lane) - 1}, number, flags == certainly_waits});
        }
        continue;
      default: continue;  // another reader's
    }
  }
  return found;
}

}  // namespace ferry::inline v0::detail
