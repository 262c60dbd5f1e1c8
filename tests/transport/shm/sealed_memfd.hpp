#pragma once

#include <cstdint>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/unique_fd.hpp"

namespace shm_test {

/// Memory of so many bytes, with these seals; 0: none.
inline ferry::detail::unique_fd sealed_memfd(std::uint64_t bytes, int seals) {
  ferry::detail::unique_fd result(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(result);
  REQUIRE(::ftruncate(result.get(), static_cast<off_t>(bytes)) == 0);
  if (seals != 0) REQUIRE(::fcntl(result.get(), F_ADD_SEALS, seals) == 0);
  return result;
}

}  // namespace shm_test
