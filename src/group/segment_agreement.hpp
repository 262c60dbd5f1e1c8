#pragma once

// Whether the members of a group that is being made share memory: all of them, or none.

#include <memory>
#include <string>

#include <ferry/base/time.hpp>

#include "group_segment.hpp"

namespace ferry::inline v0::detail {

struct group_facts;
class worker_core;

struct segment_agreement {
  std::shared_ptr<group_segment> memory;
  std::string why_not;  ///< there is none
  bool failed = false;  ///< there would have been one
};
/// Collective: every member calls it once it is connected to each other one. Throws as all_gather() does.
segment_agreement agree_on_segment(const std::shared_ptr<worker_core>& worker, const group_facts& facts,
                                   deadline until);

}  // namespace ferry::inline v0::detail
