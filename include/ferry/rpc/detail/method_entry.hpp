#pragma once

// The methods of this program at run time: entries that register themselves, and the table in which requests find them.

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

/// Counts who uses one entry at the moment. Outlives the entry (the table keeps and reuses it), so that a request may
/// look at it while the entry goes away.
struct alignas(64) method_use {
  std::atomic<const method_entry*> entry{nullptr};  ///< null: withdrawn
  std::atomic<std::uint32_t> running{0};

  /// May wake who waits for the last user.
  void release() noexcept;
};

/// What a request of a function does with it. Each is a method of its own, so that none pays for the others, and each has
/// its own needs: an object that is made and stays where it is needs no serialiser.
enum class method_flavour : std::uint8_t {
  call,             ///< the result is sent back
  creation,         ///< the result becomes an object of the callee
  object_call,      ///< the function works on an object of the callee; the result is sent back
  object_creation,  ///< both
};
constexpr bool on_object(method_flavour flavour) noexcept { return flavour >= method_flavour::object_call; }
constexpr bool creates(method_flavour flavour) noexcept {
  return flavour == method_flavour::creation || flavour == method_flavour::object_creation;
}

/// What the templates know of a method.
struct method_source {
  method_flavour flavour = method_flavour::call;
  const std::type_info* tag = nullptr;   ///< method_tag of the function; null: the program has only a stub of it
  const std::type_info* type = nullptr;  ///< of the function
  std::string_view public_name = {};     ///< of named<> and stub<>; empty: the function's own name counts
  std::string (*signature)() = nullptr;
  void (*serve)(incoming_call& call) = nullptr;  ///< null: a stub
  bool inline_handler = false;
};

/// One method of one object file of this program (a library has entries of its own for what it shares with others).
/// Lives as long as the code it names.
struct method_entry {
  std::uint64_t id = 0;         ///< fingerprint of key
  std::uint64_t signature = 0;  ///< fingerprint of signature_text
  std::string key;              ///< the flavour, then the mangled name, or "name:" and the public name
  std::string name;             ///< for people
  std::string function;         ///< the function behind it, mangled; empty for a stub
  std::string function_name;    ///< the same for people
  std::string signature_text;
  void (*serve)(incoming_call& call) = nullptr;  ///< null: a stub
  bool inline_handler = false;
  method_flavour flavour{};
  method_use* use = nullptr;

  explicit method_entry(const method_source& source);
  /// Withdraws the method and, when a library is being unloaded, waits until it has no user left.
  ~method_entry();
  method_entry(const method_entry&) = delete;
  method_entry& operator=(const method_entry&) = delete;
};

/// Keeps a method's code from being unloaded. Holding it is one atomic increment.
class method_hold {
 public:
  method_hold() noexcept = default;
  /// Of a method whose code the caller is part of.
  explicit method_hold(const method_entry& entry) noexcept : entry_(&entry) {
    entry.use->running.fetch_add(1, std::memory_order_relaxed);
  }
  /// The method with that id that this program can serve, or empty. Thread-safe; takes no lock.
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

/// Throws errc::duplicate_method if two different functions of the program have one method id.
void check_methods();

/// The name, for people, of the method with that id; empty if this program has neither the method nor a stub of it.
[[nodiscard]] std::string known_method_name(std::uint64_t id);

/// Static destructors run for one of two reasons: a library is unloaded, or the process ends, perhaps while handlers
/// run, which are not waited for then. Called after an entry was made: tells the second case in time for its destructor.
void note_process_exit();

/// The ids that ferry::serve<...>() lists for workers that start later.
void add_served_methods(const std::vector<std::uint64_t>& ids);

/// The ids of methods that the library itself needs at its workers, which serve them whatever their lists say. Called
/// when the program is loaded.
void add_library_methods(const std::vector<std::uint64_t>& ids);

}  // namespace ferry::inline v0::detail
