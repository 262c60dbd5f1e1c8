#include "device_record.hpp"

#include <limits>

#include <fmt/format.h>

#include <ferry/backend/worker_info.hpp>
#include <ferry/base/error.hpp>

#include "../../base/parse_number.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::string_view none = "-";
constexpr std::string_view not_counted = "?";

void append(std::string& out, device where) {
  fmt::format_to(std::back_inserter(out), "{}:{}", static_cast<int>(where.kind), where.index);
}

template <class Items, class Append>
void append_separated(std::string& out, const Items& items, Append append_one) {
  bool first = true;
  for (const auto& each : items) {
    if (!first) out += ',';
    first = false;
    append_one(each);
  }
  if (first) out += none;
}

[[noreturn]] void throw_bad_device_record(std::string_view part) {
  constexpr std::size_t shown = 40;
  throw_error(errc::malformed,
              fmt::format("'{}' is not a valid part of a worker's device record", part.substr(0, shown)));
}

// Removes the text up to the next separator from the front; false at the end.
bool next_part(std::string_view& text, char separator, std::string_view& part, bool& more) {
  if (!more) return false;
  const std::size_t end = text.find(separator);
  more = end != std::string_view::npos;
  part = text.substr(0, end);
  text.remove_prefix(more ? end + 1 : text.size());
  return true;
}

int to_number(std::string_view text, int most) {
  const auto value = parse_number(text);
  if (!value || *value < 0 || *value > most) throw_bad_device_record(text);
  return *value;
}

device to_device(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) throw_bad_device_record(text);
  const int kind = to_number(text.substr(0, colon), std::numeric_limits<std::uint8_t>::max());
  return {static_cast<device_kind>(kind), to_number(text.substr(colon + 1), std::numeric_limits<int>::max())};
}

template <class Take>
void read_list(std::string_view text, Take take) {
  if (text == none) return;
  std::string_view part;
  for (bool more = true; next_part(text, ',', part, more);) take(part);
}

}  // namespace

std::string device_record::encode() const {
  std::string out;
  if (counted) {
    append_separated(out, counts, [&](const auto& each) { append(out, {each.first, each.second}); });
  } else {
    out += not_counted;
  }
  out += ' ';
  append_separated(out, devices, [&](device each) { append(out, each); });
  for (const auto& [worker, map] : maps) {
    out += ' ';
    out += worker;
    out += ' ';
    append_separated(out, map, [&](const device_pair& each) {
      append(out, each.from);
      out += '>';
      append(out, each.to);
    });
  }
  return out;
}

device_record device_record::decode(std::string_view text) {
  if (text.size() > max_text) {
    throw_error(errc::limit_exceeded,
                fmt::format("a worker's device record has {} bytes, the limit is {}", text.size(), max_text));
  }
  device_record result;
  std::string_view part;
  bool more = true;
  next_part(text, ' ', part, more);
  result.counted = part != not_counted;
  if (result.counted) {
    read_list(part, [&](std::string_view each) {
      const device last = to_device(each);
      if (!result.counts.emplace(last.kind, last.index).second) throw_bad_device_record(each);
    });
  }
  if (!next_part(text, ' ', part, more)) throw_bad_device_record("");
  read_list(part, [&](std::string_view each) { result.devices.push_back(to_device(each)); });
  for (std::string_view name; next_part(text, ' ', name, more);) {
    if (!next_part(text, ' ', part, more)) throw_bad_device_record(name);
    std::vector<device_pair> entries;
    device_map map;
    try {
      check_worker_name(name);
      read_list(part, [&](std::string_view each) {
        const std::size_t arrow = each.find('>');
        if (arrow == std::string_view::npos) throw_bad_device_record(each);
        entries.emplace_back(to_device(each.substr(0, arrow)), to_device(each.substr(arrow + 1)));
      });
      map = device_map::merged(std::move(entries));  // two sources of one target are reported by the group's checks
    } catch (const error& e) {
      if (e.kind() == errc::malformed) throw;
      throw_bad_device_record(name);
    }
    if (!result.maps.emplace(name, std::move(map)).second) throw_bad_device_record(name);
  }
  return result;
}

}  // namespace ferry::inline v0::detail
