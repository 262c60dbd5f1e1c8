#include "../cpu_kernels.hpp"

#include <cstdlib>
#include <new>
#include <string>
#include <string_view>

#include <ferry/base/log.hpp>
#include <ferry/config.hpp>

namespace ferry::inline v0::detail {

// Builds with sanitizers have no others.
#if FERRY_WITH_CPU_KERNELS && defined(__x86_64__) && !defined(FERRY_ONLY_BASELINE_KERNELS)
  #define FERRY_WIDE_CPU_KERNELS 1
#else
  #define FERRY_WIDE_CPU_KERNELS 0
#endif

#if FERRY_WITH_CPU_KERNELS
extern const cpu_kernels cpu_kernels_baseline;
  #if FERRY_WIDE_CPU_KERNELS
extern const cpu_kernels cpu_kernels_v3;
extern const cpu_kernels cpu_kernels_v4;
  #endif
#endif

namespace {

bool runs_everywhere() noexcept { return true; }

#if FERRY_WIDE_CPU_KERNELS
// The flags with which src/meson.build compiles the kernels. __builtin_cpu_supports asks the operating system, too, whether it
// keeps the registers.
bool runs_v3() noexcept {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}
bool runs_v4() noexcept {
  return runs_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

struct kernels_entry {
  std::string_view name;
  const cpu_kernels* table;  // null: not in this build
  bool (*runs)() noexcept;   // on this CPU
};

// The widest instructions first.
constexpr kernels_entry all_kernels[] = {
#if FERRY_WIDE_CPU_KERNELS
    {"v4", &cpu_kernels_v4, &runs_v4},
    {"v3", &cpu_kernels_v3, &runs_v3},
#else
    {"v4", nullptr, &runs_everywhere},
    {"v3", nullptr, &runs_everywhere},
#endif
#if FERRY_WITH_CPU_KERNELS
    {"baseline", &cpu_kernels_baseline, &runs_everywhere},
#else
    {"baseline", nullptr, &runs_everywhere},
#endif
    {"plain", &plain_kernels, &runs_everywhere},
};

const cpu_kernels& widest_kernels() noexcept {
  for (const kernels_entry& each : all_kernels) {
    if (each.table && each.runs()) return *each.table;
  }
  return plain_kernels;
}

void warn_of_kernels(std::string_view wanted, std::string_view why, const cpu_kernels& taken) {
  log(log_level::warning, "FERRY_CPU_KERNELS='" + std::string(wanted) + "' " + std::string(why) +
                              "; ferry computes with '" + taken.name + "'");
}

const cpu_kernels& choose_kernels() noexcept {
  const cpu_kernels& widest = widest_kernels();
  const char* const value = std::getenv("FERRY_CPU_KERNELS");
  const std::string_view wanted = value ? value : "";
  if (wanted.empty()) return widest;
  try {
    for (const kernels_entry& each : all_kernels) {
      if (each.name != wanted) continue;
      if (each.table && each.runs()) return *each.table;
      warn_of_kernels(wanted, each.table ? "needs instructions that this CPU lacks" : "is not in this build", widest);
      return widest;
    }
    warn_of_kernels(wanted, "is none of baseline, v3, v4, plain", widest);
  } catch (const std::bad_alloc&) {
    return widest;  // without the warning
  }
  return widest;
}

}  // namespace

const cpu_kernels* find_cpu_kernels(const char* name) noexcept {
  for (const kernels_entry& each : all_kernels) {
    if (each.name == name) return each.table && each.runs() ? each.table : nullptr;
  }
  return nullptr;
}

const cpu_kernels& cpu_kernels_in_use() noexcept {
  static const cpu_kernels& chosen = choose_kernels();
  return chosen;
}

}  // namespace ferry::inline v0::detail
