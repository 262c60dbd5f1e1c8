// What libFuzzer calls; compiled once for each target, whose name the build passes.

#include <cstddef>
#include <cstdint>

#include <ferry/base/log.hpp>

#include "targets.hpp"

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  ferry::set_log_level(ferry::log_level::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::FERRY_FUZZ_TARGET.run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
