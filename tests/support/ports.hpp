// Ports for servers that a test starts later, or that it never starts.

#pragma once

#include <cstdint>

namespace ferry_test {

/// The first of `count` adjacent TCP ports without a listener. They lie below the ports that the kernel hands out for
/// connections and for listeners at port 0, so other programs do not get them by chance, and no other test process gets them from here
/// while this one runs. Throws std::runtime_error if there are none. Thread-safe.
std::uint16_t free_port(int count = 1);

}  // namespace ferry_test
