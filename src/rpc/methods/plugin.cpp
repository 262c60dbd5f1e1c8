#include <ferry/rpc/plugin.hpp>

#include <exception>
#include <map>
#include <mutex>

#include <dlfcn.h>
#include <link.h>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

#include "../worker/worker_core.hpp"
#include "method_table.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

constexpr const char* mark_symbol = "_ZN5ferry2v06detail12library_markE";  // of detail::library_mark

// How many handles each library has. The loader counts them too, but has no function that reports the count.
struct library_counts {
  std::mutex mutex;
  std::map<const void*, int> handles;
};
library_counts& counts() {
  static auto* instance = new library_counts;  // handles may be destroyed during static destruction
  return *instance;
}

std::string loader_error() {
  const char* text = ::dlerror();
  return text ? text : "no reason given";
}

// Why a library cannot be loaded, and what to do if the missing symbol is one of ferry.
std::string load_failure() {
  std::string reason = loader_error();
  if (reason.find("undefined symbol") != std::string::npos && reason.find("5ferry") != std::string::npos) {
    reason +=
        ". That is a name of ferry: link the plug-in with the shared libferry; or, if the program has the static one, "
        "link "
        "all of it into the program (-Wl,--whole-archive) and let it show its names (-rdynamic)";
  }
  return reason;
}

bool drop_count(const void* library) {
  std::lock_guard lock(counts().mutex);
  const auto found = counts().handles.find(library);
  if (--found->second != 0) return false;
  counts().handles.erase(found);
  return true;
}

void add_count(const void* library) {
  std::lock_guard lock(counts().mutex);
  ++counts().handles[library];
}

}  // namespace
}  // namespace detail

plugin::plugin(std::string path) : path_(std::move(path)) {
  handle_ = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle_)
    throw_error(errc::system_failure, fmt::format("a plug-in cannot be loaded: {}", detail::load_failure()));
  if (const void* mark = ::dlsym(handle_, detail::mark_symbol); mark && mark != &detail::library_mark) {
    ::dlclose(handle_);
    throw_error(
        errc::system_failure,
        fmt::format("the plug-in '{}' has another libferry than the program, with a table of methods of its own. Link "
                    "both with the same shared libferry; or, if the program has the static one, link the plug-in "
                    "with none, and the program so that it shows its names (-Wl,--whole-archive, -rdynamic)",
                    path_));
  }
  link_map* map = nullptr;
  if (::dlinfo(handle_, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0) {
    const std::string reason = detail::loader_error();
    ::dlclose(handle_);
    throw_error(errc::system_failure, fmt::format("the plug-in '{}' is loaded, but unknown: {}", path_, reason));
  }
  library_ = map;
  detail::add_count(library_);
  // A library whose code could not be unloaded is not initialised again: publish its methods again here.
  const auto entries = detail::entries_in(library_);
  detail::publish(entries);
  try {
    detail::check_entries(entries);
  } catch (...) {
    unload();
    throw;
  }
}

plugin& plugin::operator=(plugin&& other) noexcept {
  if (this != &other) {
    plugin previous(std::move(*this));
    path_ = std::move(other.path_);
    handle_ = std::exchange(other.handle_, nullptr);
    library_ = std::exchange(other.library_, nullptr);
  }
  return *this;
}

plugin::~plugin() {
  try {
    unload();
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("the plug-in '{}' stays loaded: {}", path_, e.what()));
  }
}

void plugin::unload(timeout limit) {
  if (!handle_) return;
  if (const detail::method_entry* running = detail::running_method();
      running && detail::library_of(running) == library_) {
    throw_error(
        errc::method_busy,
        fmt::format("the plug-in '{}' cannot be unloaded by its own method '{}', whose code would be gone when it "
                    "returns; do it on another thread",
                    path_, running->name));
  }
  const bool last = detail::drop_count(library_);
  if (last) {
    const auto entries = detail::entries_in(library_);
    detail::withdraw(entries);
    const deadline until = deadline::after(limit);
    for (const detail::method_entry* entry : entries) {
      if (detail::wait_unused(*entry, until)) continue;
      detail::add_count(library_);
      detail::publish(entries);
      throw_error(errc::method_busy,
                  fmt::format("the plug-in '{}' was not unloaded: its method '{}' is still in use after {} ms. Let its "
                              "handlers look at ferry::this_call().stop_requested(), or give unload() more time",
                              path_, entry->name,
                              std::chrono::duration_cast<std::chrono::milliseconds>(limit.duration()).count()));
    }
  }
  library_ = nullptr;
  if (::dlclose(std::exchange(handle_, nullptr)) != 0) {
    throw_error(errc::system_failure, fmt::format("the plug-in '{}': {}", path_, detail::loader_error()));
  }
  if (!last) return;
  if (void* still = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_NOLOAD)) {
    ::dlclose(still);
    log(log_level::info,
        fmt::format("the methods of the plug-in '{}' are gone, but its code stays in memory: another owner "
                    "has loaded it, too, or it has symbols that are unique in the process (build it with "
                    "-fno-gnu-unique), or threads that go on have its thread-local variables",
                    path_));
  }
}

}  // namespace ferry::inline v0
