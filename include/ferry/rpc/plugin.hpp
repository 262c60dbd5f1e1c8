#pragma once

// Shared libraries with methods, loaded and unloaded at run time.

#include <string>
#include <utility>

#include <ferry/base/time.hpp>

namespace ferry::inline v0 {

/// Owns a loaded library. Its methods can be called as soon as it is loaded and end with errc::unknown_method once it is
/// unloaded; a call that comes at that moment is either served or ends so. What the library registers is what it names in
/// a call or in ferry::provide<...>. A method that the program or another library has as well is
/// then served by that one. Several handles of one library may exist; the last one unloads. Moved, not copied; a handle is
/// for one thread at a time.
///
/// Plain dlopen and dlclose work, too, but dlclose waits for running handlers while it holds the loader's lock: a handler
/// that needs it then (to load something, to use a thread-local variable for the first time) waits for ever. A handler that
/// closes its own library ends the program, with a message. unload() has neither problem.
///
/// The library's code must really go with it: build it with g++'s -fno-gnu-unique (docs/binaries.md says why). If it stays,
/// its methods are gone all the same, and a message is logged.
class plugin {
 public:
  /// None.
  plugin() noexcept = default;
  /// Loads a library, with RTLD_NOW and RTLD_LOCAL; `path` as dlopen takes it. Throws errc::system_failure with the loader's
  /// text, or if the library has another libferry than the program; errc::duplicate_method if a method of the program has the id of another one here; then nothing stays loaded.
  explicit plugin(std::string path);
  plugin(plugin&& other) noexcept
      : path_(std::move(other.path_)),
        handle_(std::exchange(other.handle_, nullptr)),
        library_(std::exchange(other.library_, nullptr)) {}
  /// Unloads the present one first, as the destructor does.
  plugin& operator=(plugin&& other) noexcept;
  /// Unloads, waiting without limit. Where unload() throws, the error is logged and the library stays loaded for ever.
  ~plugin();

  /// Takes its methods away and waits until their running handlers have answered and nothing of their code runs any more
  /// (continuations and coroutines of these handlers, asynchronous calls that the library has under way), then unloads it.
  /// Threads, futures and callbacks that the library keeps beyond that are its own to end first. Throws errc::method_busy,
  /// with the methods in place as before, when called by a handler of the library, or when `limit` has passed (unset or
  /// never: no limit); errc::system_failure. Does nothing if nothing is loaded.
  void unload(timeout limit = no_timeout);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] explicit operator bool() const noexcept { return handle_ != nullptr; }

 private:
  std::string path_;
  void* handle_ = nullptr;         // of dlopen
  const void* library_ = nullptr;  // its link_map
};

}  // namespace ferry::inline v0
