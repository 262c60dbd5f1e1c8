#pragma once

// Context values: typed, immutable values that go along with the code of a call from thread to thread (a tenant, a
// gradient mode, the range of a profiler), without being parameters of every function on the way.
//
// Each thread has its own values, empty at first. A scope changes them. What runs later (a continuation, a coroutine
// that resumes) runs with the values that were in force where it was attached or suspended, on whatever thread. A
// handler begins with the initial values of its call (call_context::initial_values()).

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <ferry/base/detail/ref_ptr.hpp>

namespace ferry::inline v0 {

/// A request that is about to leave.
class outgoing_request;

/// Base class of values that add something to the requests of calls made under them. A value of a type derived from it
/// travels: each call made while it is in force calls on_request().
class travelling_value {
 public:
  travelling_value() = default;
  travelling_value(const travelling_value&) = default;
  travelling_value& operator=(const travelling_value&) = default;
  virtual ~travelling_value() = default;

  /// Called once for each call, on the thread that makes it, before the request is sent. Several threads may call it at
  /// once. If it throws, the call is not made and its caller receives the exception.
  virtual void on_request(outgoing_request& request) const = 0;
};

namespace detail {

struct context_key_base {
  constexpr explicit context_key_base(const char* key_name) noexcept : name(key_name) {}
  context_key_base(const context_key_base&) = delete;
  context_key_base& operator=(const context_key_base&) = delete;
  const char* const name;
};

/// A value, shared by all maps that hold it.
class held_value {
 public:
  held_value() noexcept = default;
  held_value(const held_value&) = delete;
  held_value& operator=(const held_value&) = delete;
  /// The value itself if it travels, else null.
  [[nodiscard]] const travelling_value* travels() const noexcept { return travels_; }
  void add_ref() const noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() const noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  /// The caller's reference is the only one, and what was done with the others is seen.
  [[nodiscard]] bool is_last_reference() const noexcept { return references_.load(std::memory_order_acquire) == 1; }

 protected:
  virtual ~held_value() = default;
  const travelling_value* travels_ = nullptr;

 private:
  mutable std::atomic<std::uint32_t> references_{1};
};

template <class T>
class held_value_of final : public held_value {
 public:
  template <class V>
  explicit held_value_of(V&& from) : value(std::forward<V>(from)) {
    if constexpr (std::derived_from<T, travelling_value>) this->travels_ = std::addressof(value);
  }
  const T value;
};

struct value_entry {
  const context_key_base* key;
  const held_value* value;
};

/// A map of keys to values: one block of memory, never changed once it is shared. The entries follow it, those that
/// travel first.
class alignas(value_entry) value_map {
 public:
  value_map(const value_map&) = delete;
  value_map& operator=(const value_map&) = delete;

  /// A new map, with one more or another value. Throws std::bad_alloc.
  static ref_ptr<const value_map> with(const value_map* from, const context_key_base& key,
                                       ref_ptr<const held_value> value);
  /// A new map without the key, or the same one if it has no value; null if nothing is left. Throws std::bad_alloc.
  static ref_ptr<const value_map> without(const value_map* from, const context_key_base& key);

  void add_ref() const noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() const noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) destroy();
  }
  [[nodiscard]] const held_value* find(const context_key_base& key) const noexcept {
    for (const value_entry *each = begin(), *last = end(); each != last; ++each) {
      if (each->key == &key) return each->value;
    }
    return nullptr;
  }
  [[nodiscard]] const value_entry* begin() const noexcept { return reinterpret_cast<const value_entry*>(this + 1); }
  [[nodiscard]] const value_entry* end() const noexcept { return begin() + count_; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// No other map has its values, and whatever had them has let go of them before.
  [[nodiscard]] bool is_sole_owner() const noexcept;
  [[nodiscard]] const value_entry* end_of_travelling() const noexcept { return begin() + travelling_; }

 private:
  value_map() = default;
  ~value_map() = default;
  static value_map* allocate(std::size_t entries);
  void append(const value_entry& entry) noexcept;
  void destroy() const noexcept;

  mutable std::atomic<std::uint32_t> references_{1};
  std::uint32_t count_ = 0;
  std::uint32_t travelling_ = 0;
};

/// Whether the program has ever had context values.
extern std::atomic<bool> values_in_use;

struct thread_values;
/// The calling thread's map; borrowed from it, null if it has no values.
[[nodiscard]] const value_map* thread_value_map() noexcept;

/// The value of `key` in `map`, which may be null; null if there is none.
template <class Key>
[[nodiscard]] const typename Key::value_type* find_value(const value_map* map, const Key& key) noexcept {
  if (!map) return nullptr;
  const held_value* found = map->find(key);
  return found ? std::addressof(static_cast<const held_value_of<typename Key::value_type>*>(found)->value) : nullptr;
}

}  // namespace detail

/// The key of a context value. Its address is its identity, so that it has static storage duration and one definition
/// in the program; the name is for diagnostics, and need not be unique:
///
///     inline constexpr ferry::context_key<std::string> tenant("tenant");
///
/// A key must outlive all values that are stored under it: a key of a shared object that is unloaded leaves an address
/// that another key may take, with another type. In a plug-in that may be unloaded, use a key only in scopes of its own
/// handlers; a value that outlives them needs a key outside of the plug-in. Shared objects with hidden visibility that
/// share the header of an inline key each have a key of their own.
template <class T>
class context_key : public detail::context_key_base {
  static_assert(std::is_object_v<T> && !std::is_const_v<T> && !std::is_volatile_v<T>,
                "context_key<T>: T must be a type of objects without const or volatile; values are never changed");

 public:
  using value_type = T;
  /// `name` must live as long as the key.
  constexpr explicit context_key(const char* name) noexcept : context_key_base(name) {}
};

/// An immutable map of keys to values. A value type of one pointer: copies share the map, and a copy of the empty map
/// costs nothing. Made for a few values: looking one up compares addresses in order.
///
/// Different threads may use copies, and one map, at once. The values are shared between threads, too, so that their
/// const members must be thread-safe. The last owner of a value destroys it, on its own thread, which may be one that
/// reads a connection: a destructor must not block.
class context_values {
 public:
  context_values() noexcept = default;

  [[nodiscard]] bool empty() const noexcept { return !map_; }
  [[nodiscard]] std::size_t size() const noexcept { return map_ ? map_->count() : 0; }

  /// The value of `key`; null if it has none. It lives as long as a copy of this map, or of a map made from it in which
  /// `key` still has this value.
  template <class T>
  [[nodiscard]] const T* get(const context_key<T>& key) const noexcept {
    return detail::find_value(map_.get(), key);
  }

  /// A map in which `key` has a value constructed from `value`, and all others are as here. Throws std::bad_alloc, and
  /// what the constructor throws.
  template <class T, class V = T>
    requires std::constructible_from<T, V>
  [[nodiscard]] context_values with(const context_key<T>& key, V&& value) const {
    using held = detail::ref_ptr<const detail::held_value>;
    return context_values(
        detail::value_map::with(map_.get(), key, held::adopt(new detail::held_value_of<T>(std::forward<V>(value)))));
  }
  /// A map in which `key` has no value. Throws std::bad_alloc.
  template <class T>
  [[nodiscard]] context_values without(const context_key<T>& key) const {
    return context_values(detail::value_map::without(map_.get(), key));
  }

  [[nodiscard]] bool has_travelling() const noexcept { return map_ && map_->end_of_travelling() != map_->begin(); }
  /// Calls `visit` with each value that travels, as a const travelling_value&, in the order in which their keys were
  /// first given a value.
  template <class F>
  void for_each_travelling(F&& visit) const {
    if (!map_) return;
    for (const detail::value_entry *each = map_->begin(), *last = map_->end_of_travelling(); each != last; ++each) {
      visit(*each->value->travels());
    }
  }

  /// The names of the keys that have values, separated by ", "; empty if there are none.
  [[nodiscard]] std::string describe() const;

  // For the library: there is no copy of this map, and no other map has its values.
  [[nodiscard]] bool is_sole_owner() const noexcept { return map_ && map_->is_sole_owner(); }

 private:
  friend struct detail::thread_values;
  explicit context_values(detail::ref_ptr<const detail::value_map> map) noexcept : map_(std::move(map)) {}
  detail::ref_ptr<const detail::value_map> map_;
};

/// The values that are in force on the calling thread.
[[nodiscard]] context_values current_values() noexcept;

/// The value of `key` on the calling thread; null if it has none. It lives at least as long as the scope that gave it.
template <class T>
[[nodiscard]] const T* current_value(const context_key<T>& key) noexcept {
  return detail::find_value(detail::thread_value_map(), key);
}

/// Puts `values` in force on the calling thread, in place of all others, for the scope. Scopes nest.
///
/// A scope may be held across a co_await in a coroutine that returns ferry::task or ferry::future: it then holds
/// wherever the coroutine resumes, whatever it awaits, and not for the code that started or resumed the coroutine once
/// that suspends. In a coroutine of another type it must end before the coroutine suspends.
class [[nodiscard]] context_values_scope {
 public:
  explicit context_values_scope(context_values values) noexcept;
  /// Ends the scope on the calling thread, which need not be the one that began it.
  ~context_values_scope();
  context_values_scope(const context_values_scope&) = delete;
  context_values_scope& operator=(const context_values_scope&) = delete;

 private:
  const context_values own_;
  context_values former_;
};

/// Gives `key` a value on the calling thread for the scope; see context_values_scope.
class [[nodiscard]] context_value_scope {
 public:
  /// Throws std::bad_alloc, and what the constructor of the value throws.
  template <class T, class V = T>
    requires std::constructible_from<T, V>
  context_value_scope(const context_key<T>& key, V&& value)
      : scope_(current_values().with(key, std::forward<V>(value))) {}

 private:
  const context_values_scope scope_;
};

}  // namespace ferry::inline v0
