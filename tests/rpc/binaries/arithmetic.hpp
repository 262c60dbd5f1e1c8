#pragma once

// A library of functions that knows nothing of calls; a static archive, of which a linker takes only what is named.

#include <string_view>
#include <vector>

namespace arithmetic {

double dot(const std::vector<double>& a, const std::vector<double>& b);
int letters(std::string_view text);
int negate(int value);
int unlisted(int value);

}  // namespace arithmetic
