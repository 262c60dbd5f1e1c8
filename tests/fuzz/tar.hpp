#pragma once

// The archives that hold the corpus: ustar (POSIX.1-1988), of files without folders, as tools/fuzz.py writes them.

#include <string>
#include <vector>

#include "target.hpp"

namespace fuzz {

struct tar_member {
  std::string name;
  bytes content;  // in the archive
};

/// The files of an archive, all of which has been checked; what does not end as an archive ends was cut short, and is none.
/// Throws std::runtime_error, which says what is wrong and at which byte.
std::vector<tar_member> read_tar(bytes archive);

}  // namespace fuzz
