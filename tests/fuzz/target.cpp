#include "target.hpp"

#include <cstdio>
#include <cstdlib>

namespace fuzz {

void fail(std::string_view what) {
  std::fprintf(stderr, "fuzz target: does not hold: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

void check_error(const ferry::error& thrown) {
  if (ferry::errc_name(thrown.kind()) != "unknown") return;
  std::fprintf(stderr, "fuzz target: an error with the unknown number %d: %s\n", thrown.code().value(), thrown.what());
  std::abort();
}

}  // namespace fuzz
