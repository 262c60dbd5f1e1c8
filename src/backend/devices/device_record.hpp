#pragma once

// What a worker publishes about its devices. Text, one line, of parts separated by a space:
//
//   counts     <kind>:<count>, with commas in between; "-": none; "?": not counted, since no option named a device
//   devices    <kind>:<index>, ...; "-": none
//   and for each map, by the name of the worker that it leads to: this name, and <kind>:<index>><kind>:<index>, ...; "-": empty
//
// Kinds are the numbers of device_kind; a kind that this program does not support is kept as a number.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/backend/device_map.hpp>

namespace ferry::inline v0::detail {

struct device_record {
  device_counts counts;         ///< of a kind that is missing there are none
  std::vector<device> devices;  ///< declared; empty: none declared
  device_map_table maps;        ///< its own
  bool counted = true;          ///< false: the counts are not known, and not checked against

  static constexpr std::size_t max_text = std::size_t{128} << 10U;

  [[nodiscard]] std::string encode() const;
  /// Throws errc::malformed, errc::limit_exceeded.
  static device_record decode(std::string_view text);

  friend bool operator==(const device_record&, const device_record&) = default;
};

}  // namespace ferry::inline v0::detail
