#pragma once

// Shared libraries with methods that are loaded and unloaded at run time.

#include <string>
#include <utility>

#include <ferry/base/time.hpp>

namespace ferry::inline v0 {

/// Owns a loaded library. Its methods can be called as soon as it is loaded; calls fail with errc::unknown_method once
/// it is unloaded, and a call that arrives during unloading is either served or fails this way. The library registers
/// the methods that it names in a call or in ferry::provide<...>. After unloading, a method that the program or another
/// library also has is served by that one. Several handles of one library may exist; the last one unloads it. Movable,
/// not copyable; not thread-safe.
///
/// dlopen and dlclose work, too, but dlclose waits for running handlers while it holds the loader's lock: a handler
/// that needs this lock (to load a library, or to use a thread-local variable for the first time) deadlocks. A handler
/// that closes its own library terminates the program with a message. unload() has neither problem.
///
/// The loader must be able to unmap the library's code: build it with g++'s -fno-gnu-unique (docs/binaries.md gives the
/// reason). If the code stays mapped, the methods are unregistered nevertheless, and a message is logged.
class plugin {
 public:
  /// An empty handle.
  plugin() noexcept = default;
  /// Loads a library with RTLD_NOW and RTLD_LOCAL; `path` is passed to dlopen. Throws errc::system_failure with the
  /// loader's text, or if the library uses a different libferry than the program; errc::duplicate_method if one of its
  /// methods has the id of a different method of the program. On error nothing stays loaded.
  explicit plugin(std::string path);
  plugin(plugin&& other) noexcept
      : path_(std::move(other.path_)),
        handle_(std::exchange(other.handle_, nullptr)),
        library_(std::exchange(other.library_, nullptr)) {}
  /// Unloads the current library first, as the destructor does.
  plugin& operator=(plugin&& other) noexcept;
  /// Unloads, waiting without limit. If unload() throws, the error is logged and the library stays loaded.
  ~plugin();

  /// Unregisters its methods, waits until their running handlers have answered and none of their code is in use
  /// (continuations and coroutines of these handlers, pending asynchronous calls made by the library), then unloads the
  /// library. Any other threads, futures and callbacks of the library must have ended before this call. Throws
  /// errc::method_busy if called by a handler of the library, or after `limit` (unset or never: no limit), with the
  /// methods registered as before; errc::system_failure. No effect if nothing is loaded.
  void unload(timeout limit = no_timeout);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] explicit operator bool() const noexcept { return handle_ != nullptr; }

 private:
  std::string path_;
  void* handle_ = nullptr;         // of dlopen
  const void* library_ = nullptr;  // its link_map
};

}  // namespace ferry::inline v0
