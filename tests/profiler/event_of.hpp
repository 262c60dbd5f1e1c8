#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <ferry/profiler/profile.hpp>

namespace profiler_test {

/// On thread 10 of worker 0, 11 of worker 1, and so on.
inline ferry::profiler::event event_of(std::string name, ferry::range_kind kind, std::int32_t node,
                                       std::uint64_t number, std::uint64_t parent, std::int64_t from, std::int64_t to) {
  ferry::profiler::event made;
  made.name = std::move(name);
  made.kind = kind;
  made.node = node;
  made.thread = static_cast<std::uint32_t>(10 + node);
  made.number = number;
  made.parent = parent;
  made.began_ns = from;
  made.ended_ns = to;
  return made;
}

}  // namespace profiler_test
