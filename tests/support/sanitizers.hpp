#pragma once

// Which sanitizer this build has, of those that take time and memory of their own.
#if defined(__has_feature)
  #if __has_feature(address_sanitizer)
    #define FERRY_TEST_ADDRESS_SANITIZER 1
  #elif __has_feature(thread_sanitizer)
    #define FERRY_TEST_THREAD_SANITIZER 1
  #endif
#endif
#if defined(__SANITIZE_ADDRESS__)
  #define FERRY_TEST_ADDRESS_SANITIZER 1
#elif defined(__SANITIZE_THREAD__)
  #define FERRY_TEST_THREAD_SANITIZER 1
#endif
#if !defined(FERRY_TEST_ADDRESS_SANITIZER)
  #define FERRY_TEST_ADDRESS_SANITIZER 0
#endif
#if !defined(FERRY_TEST_THREAD_SANITIZER)
  #define FERRY_TEST_THREAD_SANITIZER 0
#endif

namespace ferry_test {
inline constexpr bool thread_sanitized = FERRY_TEST_THREAD_SANITIZER != 0;
inline constexpr bool sanitized = thread_sanitized || FERRY_TEST_ADDRESS_SANITIZER != 0;
}  // namespace ferry_test
