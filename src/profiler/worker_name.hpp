#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ferry/profiler/profile.hpp>

namespace ferry::inline v0::detail {

class worker_core;

/// The name that the profile has for a worker, else "worker ID".
std::string worker_name(const profiler::profile& in, std::int32_t node);

/// Those of workers that have events and that no recorded call has named, as that worker knows them.
void add_worker_names(profiler::profile& to, const std::weak_ptr<worker_core>& known_by);

}  // namespace ferry::inline v0::detail
