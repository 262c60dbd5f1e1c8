#pragma once

// What the plug-ins of test_binaries bring, as callers see it.

#include <cstdint>
#include <string>

#include <ferry/ferry.hpp>

namespace plugin_test {

/// In the test program and in the plug-ins.
inline int everywhere(int value) { return value + 100; }
/// In plug-ins only, as "plugins.shared".
inline int in_plugins(int value) { return value + 1000; }

constexpr auto shared = ferry::stub<"plugins.shared", int(int)>;

/// What the test program offers to handlers of plug-ins: it ends when the test says so.
constexpr auto wait_for_gate = ferry::stub<"test.wait_for_gate", int()>;

// Of alpha and, built from the same source, of pinned.
constexpr auto triple = ferry::stub<"alpha.triple", int(int)>;
constexpr auto greet = ferry::stub<"alpha.greet", std::string(std::string)>;
/// Handlers that wait for the gate of worker0: on their thread, as a coroutine, through a future, and one that answers at
/// once and leaves a call under way.
constexpr auto blocking = ferry::stub<"alpha.blocking", int()>;
constexpr auto coroutine = ferry::stub<"alpha.coroutine", int()>;
constexpr auto continued = ferry::stub<"alpha.continued", int()>;
constexpr auto leaving = ferry::stub<"alpha.leaving", int()>;
/// Calls the function at that address, on the thread of the handler.
constexpr auto call_back = ferry::stub<"alpha.call_back", void(std::uint64_t)>;
/// Throws an exception whose type only the plug-in has.
constexpr auto fail = ferry::stub<"alpha.fail", void()>;
/// Throws one that the plug-in has registered.
constexpr auto fail_as_registered = ferry::stub<"alpha.fail_as_registered", void()>;

}  // namespace plugin_test
