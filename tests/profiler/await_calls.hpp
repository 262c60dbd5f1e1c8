#pragma once

#include <thread>

#include <ferry/rpc/worker.hpp>

namespace ferry_test {

/// Waits until no call of the worker is open: those that make an object are answered by the by, after their objects may be used.
inline void await_calls(const ferry::worker& of) {
  while (of.debug_info("agent.client_active_calls") != "0") std::this_thread::yield();
}

}  // namespace ferry_test
