#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <ferry/profiler/profile.hpp>

namespace ferry::inline v0::detail {

/// Appends a key to a colour of the page, which has its name.
void append_key(std::string& to, std::string_view colour);
/// Appends what threads did when, as SVG: at most the longest `most` events.
void append_timeline(std::string& to, const profiler::profile& from, std::size_t most);

}  // namespace ferry::inline v0::detail
