#pragma once

// Parsing of the lists in Slurm's variables.

#include <optional>
#include <string>
#include <string_view>

namespace ferry::inline v0::detail {

/// The first host of a list such as "node[01-03,7],login2" ("node01"); nothing if it is malformed.
std::optional<std::string> first_host(std::string_view list);

/// The number at `index` of a list such as "4(x2),3", which stands for 4,4,3; nothing if it is malformed or shorter.
std::optional<int> repeated_number(std::string_view list, int index);

}  // namespace ferry::inline v0::detail
