#include "sealed_memory.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>

namespace ferry::inline v0::detail {

std::string_view why_not_sealed(int descriptor) noexcept {
  constexpr int size_seals = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  if (seals < 0) return "the descriptor is not of sealed memory";
  if ((seals & size_seals) != size_seals) return "its size is not sealed";
  struct statfs system {};
  // Huge pages can be taken away again, and then an access fails.
  if (::fstatfs(descriptor, &system) != 0 || system.f_type != TMPFS_MAGIC) return "it is not ordinary memory";
  return {};
}

}  // namespace ferry::inline v0::detail
