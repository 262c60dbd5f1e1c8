#pragma once

#if defined(__x86_64__)
  #include <immintrin.h>
#endif

namespace ferry::inline v0::detail {

/// Between two looks at a variable for which a thread spins.
inline void pause_processor() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace ferry::inline v0::detail
