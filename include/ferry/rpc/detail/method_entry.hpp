#pragma once

// The methods of this program at run time: self-registering entries, and the table in which incoming requests look them
// up.

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ferry/base/time.hpp>

namespace ferry::inline v0::detail {

class incoming_call;
struct method_entry;

/// Counts the current users of one entry. Outlives the entry (the table keeps and reuses it), so a request may read it
/// while the entry is being destroyed.
struct alignas(64) method_use {
  std::atomic<const method_entry*> entry{nullptr};  ///< null: unregistered
  std::atomic<std::uint32_t> running{0};

  /// May wake a thread that waits for the last user.
  void release() noexcept;
};

/// What a request does with a function. Each flavour is a separate method with separate requirements, so a program
/// instantiates only those it uses: the result of a creation stays at the callee and needs no serialiser.
enum class method_flavour : std::uint8_t {
  call,             ///< the result is sent back
  creation,         ///< the result becomes an object of the callee
  object_call,      ///< the function is called on an object of the callee; the result is sent back
  object_creation,  ///< called on an object of the callee; the result becomes another one
};
constexpr bool on_object(method_flavour flavour) noexcept { return flavour >= method_flavour::object_call; }
constexpr bool creates(method_flavour flavour) noexcept {
  return flavour == method_flavour::creation || flavour == method_flavour::object_creation;
}

/// What the templates pass to the registration of a method.
struct method_source {
  method_flavour flavour = method_flavour::call;
  const std::type_info* tag = nullptr;   ///< method_tag of the function; null: this program has only a stub
  const std::type_info* type = nullptr;  ///< of the function
  std::string_view public_name = {};     ///< from named<> or stub<>; empty: the function's own name is used
  std::string (*signature)() = nullptr;
  void (*serve)(incoming_call& call) = nullptr;  ///< null: a stub
  bool inline_handler = false;
  bool protocol = false;
};

/// One method of one binary of this program: every shared library has its own entry, even for a method that others also
/// have. Lives as long as the code it refers to.
struct method_entry {
  std::uint64_t id = 0;         ///< of key (docs/protocol.md)
  std::uint64_t signature = 0;  ///< fingerprint of signature_text
  std::string key;              ///< the flavour, then the mangled name, or "name:" and the public name
  std::string name;             ///< readable
  std::string function;         ///< mangled name of the underlying function; empty for a stub
  std::string function_name;    ///< the same, readable
  std::string signature_text;
  void (*serve)(incoming_call& call) = nullptr;  ///< null: a stub
  bool inline_handler = false;
  bool protocol = false;  ///< part of the library's own protocol: interceptors do not see it
  method_flavour flavour{};
  method_use* use = nullptr;

  explicit method_entry(const method_source& source);
  /// Unregisters the method and, if a library is being unloaded, waits until the entry has no users.
  ~method_entry();
  method_entry(const method_entry&) = delete;
  method_entry& operator=(const method_entry&) = delete;
};

/// Whether the process exits, and the entry lies in the program itself: it stays as it is then, since a worker that is destroyed later (one at
/// namespace scope) still serves the method.
[[nodiscard]] bool stays_at_exit(const method_entry& entry) noexcept;

/// An entry of static storage duration.
class static_method_entry {
 public:
  explicit static_method_entry(const method_source& source) : entry_(source) {}
  ~static_method_entry() {
    if (!stays_at_exit(entry_)) entry_.~method_entry();
  }
  static_method_entry(const static_method_entry&) = delete;
  static_method_entry& operator=(const static_method_entry&) = delete;
  [[nodiscard]] const method_entry& get() const noexcept { return entry_; }

 private:
  union {
    method_entry entry_;
  };
};

/// Keeps a method's code loaded. Acquiring a hold costs one atomic increment.
class method_hold {
 public:
  method_hold() noexcept = default;
  /// For a method whose code contains the caller.
  explicit method_hold(const method_entry& entry) noexcept : entry_(&entry) {
    entry.use->running.fetch_add(1, std::memory_order_relaxed);
  }
  /// The method with that id if this program can serve it, else empty. Thread-safe and lock-free.
  static method_hold find(std::uint64_t id) noexcept;

  method_hold(method_hold&& other) noexcept : entry_(std::exchange(other.entry_, nullptr)) {}
  method_hold& operator=(method_hold&& other) noexcept {
    std::swap(entry_, other.entry_);
    return *this;
  }
  ~method_hold() {
    if (entry_) entry_->use->release();
  }
  [[nodiscard]] const method_entry* get() const noexcept { return entry_; }

 private:
  struct adopt {};
  method_hold(const method_entry* entry, adopt) noexcept : entry_(entry) {}
  const method_entry* entry_ = nullptr;
};

/// Throws errc::duplicate_method if two different functions of the program have the same method id.
void check_methods();

/// The readable name of the method with that id; empty if this program has neither the method nor a stub of it.
[[nodiscard]] std::string known_method_name(std::uint64_t id);

/// Static destructors run when a library is unloaded or when the process exits. At process exit handlers may still run,
/// and entry destructors must not wait for them. Call this after an entry is constructed: it registers an exit hook
/// that runs before the entry's destructor and marks the process as exiting.
void note_process_exit();

/// Adds method ids listed by ferry::serve<...>(); applies to workers that start later.
void add_served_methods(const std::vector<std::uint64_t>& ids);

/// Adds ids of methods that the library itself uses: every worker serves them, whatever its list contains. Called
/// during static initialisation.
void add_library_methods(const std::vector<std::uint64_t>& ids);

}  // namespace ferry::inline v0::detail
