// What libFuzzer calls. The environment variable FERRY_FUZZ_TARGET names the target.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include <ferry/base/log.hpp>

#include "targets.hpp"

namespace {
const fuzz::target* chosen = nullptr;
}

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  ferry::set_log_level(ferry::log_level::off);
  const char* const wanted = std::getenv("FERRY_FUZZ_TARGET");
  for (const fuzz::target* each : fuzz::all_targets()) {
    if (wanted && each->name == wanted) chosen = each;
  }
  if (chosen) return 0;
  std::fprintf(stderr, "FERRY_FUZZ_TARGET is %s%s; it names one of:", wanted ? "no target: " : "not set",
               wanted ? wanted : "");
  for (const fuzz::target* each : fuzz::all_targets())
    std::fprintf(stderr, " %.*s", static_cast<int>(each->name.size()), each->name.data());
  std::fputc('\n', stderr);
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  chosen->run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
