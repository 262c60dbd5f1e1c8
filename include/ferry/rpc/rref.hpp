#pragma once

// References to objects of other workers: remote<f>(worker, args...) keeps the result of f at the worker that runs it,
// and rref<T> refers to it. docs/references.md describes the protocol.

#include <concepts>
#include <cstddef>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <ferry/rpc/call.hpp>
#include <ferry/rpc/detail/object_call.hpp>
#include <ferry/rpc/detail/reference_handle.hpp>
#include <ferry/rpc/object_traits.hpp>

namespace ferry::inline v0 {

class any_rref;
template <class T>
class rref;

namespace detail {

template <class T>
inline constexpr bool is_rref = false;
template <class T>
inline constexpr bool is_rref<rref<T>> = true;

/// Queries common to all reference types.
class reference_base {
 public:
  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(handle_); }
  [[nodiscard]] bool is_owner() const { return handle_.is_owner(); }
  [[nodiscard]] worker_info owner() const { return handle_.owner(); }
  [[nodiscard]] std::string owner_name() const { return handle_.owner().name(); }
  /// Whether the owner has registered this reference. Always true at the owner, and in a handler for references among
  /// its arguments.
  [[nodiscard]] bool confirmed_by_owner() const { return handle_.confirmed(); }
  /// Completes once the owner has made the object or, for a received reference, has registered the reference. Fails
  /// with the error of the call that makes the object if that call itself fails; an exception thrown by the called
  /// function is the object's error instead. If a handler waits for this future while the object waits for that
  /// handler, the wait fails with errc::would_deadlock. All who ask get one future: its cancel() does nothing.
  /// If the last handle is dropped before, it fails with errc::reference_deleted.
  [[nodiscard]] future<void> created() const { return handle_.created(); }

  // For the library.
  [[nodiscard]] const reference_handle& handle() const noexcept { return handle_; }

 protected:
  reference_base() noexcept = default;
  explicit reference_base(reference_handle handle) noexcept : handle_(std::move(handle)) {}

  reference_handle handle_;
};

/// The function that to_here() calls at the owner.
template <class T>
const T& value_of(const T& object) {
  return object;
}
/// Waits until the object has been made; its type does not matter.
void await_object(owned_object& object);

// Whether a function for objects of type C can be called on a T: T is C, derives from C, or is a smart pointer to one
// of these.
template <class T, class C>
consteval bool leads_to() {
  if constexpr (std::is_same_v<C, owned_object> || std::is_same_v<T, C> || std::is_base_of_v<C, T>) {
    return true;
  } else if constexpr (pointer_like<T>) {
    return std::is_same_v<typename T::element_type, C> || std::is_base_of_v<C, typename T::element_type>;
  } else {
    return false;
  }
}

template <auto F, class T, method_flavour Flavour>
consteval void check_object() {
  static_assert(leads_to<T, typename parts_of<F, Flavour>::object>(),
                "ferry: this function works on objects of another type, which is not a base of the type that the "
                "reference refers to");
}

}  // namespace detail

/// A reference to an object of one worker, its owner. The object is transferred only when it is fetched. Copies share
/// one reference. Sending an rref as an argument or result, or inside one, creates another reference at the receiver.
/// The object lives as long as any worker in the group has a reference to it, and while calls on it run. T needs a
/// serialiser only if values are fetched, and need not be movable.
///
/// After the owner has terminated or left, every use fails with errc::peer_lost. References held by a worker that
/// terminates are released. Thread-safe as std::shared_ptr is: different handles may be used concurrently.
///
/// Calls on an object whose tensors are on devices are ordered after device work that was queued on it earlier
/// (docs/references.md).
///
/// Every member except the constructors, bool and comparisons throws errc::invalid_argument on an empty reference.
/// Every member except these and the queries (is_owner, confirmed_by_owner, ...) also throws the error that the reference has failed
/// with: the error of the call that makes the object if that call itself failed (timeout, lost peer),
/// errc::reference_deleted after shutdown, or errc::peer_lost.
template <class T>
class rref : public detail::reference_base {
  static_assert(
      !std::is_const_v<T>,
      "ferry: a reference to a const object protects nothing: the object of rref<T> changes as its functions say. "
      "Use rref<T>");

 public:
  using value_type = T;

  /// Empty.
  rref() noexcept = default;
  /// Creates an object owned by the current worker, from a value or in place. Sends no message. Throws
  /// errc::not_initialized.
  template <class U>
    requires(!detail::is_rref<std::remove_cvref_t<U>> && !std::same_as<std::remove_cvref_t<U>, std::in_place_t> &&
             !std::same_as<std::remove_cvref_t<U>, detail::reference_handle> && std::is_constructible_v<T, U>)
  explicit rref(U&& value) : rref(std::in_place, std::forward<U>(value)) {}
  template <class... A>
    requires(std::is_constructible_v<T, A...>)
  explicit rref(std::in_place_t, A&&... args)
      : reference_base(detail::reference_handle::own(
            std::make_unique<detail::owned_value_of<T>>([&] { return T(std::forward<A>(args)...); }))) {}
  /// Converts to a reference to a base: calls use the base part of the object.
  template <class Derived>
    requires(!std::same_as<Derived, T> && std::is_base_of_v<T, Derived> && std::is_convertible_v<Derived*, T*>)
  rref(const rref<Derived>& other) noexcept : reference_base(other.handle()) {}  // NOLINT(google-explicit-constructor)

  /// At the owner: returns the object itself, after waiting until it has been made, as created() does. The result is
  /// valid as long as a reference exists, at most until the worker's shutdown, which destroys its objects. The thread's
  /// current streams wait for all device work queued on the object; the object's next user waits for work that the
  /// handler queues after this call. Throws the exception of the function that makes the object, errc::device_failure,
  /// and errc::not_owner on other workers.
  [[nodiscard]] std::add_lvalue_reference_t<T> local_value() const {
    if constexpr (std::is_void_v<T>) {
      (void)handle_.local().value_made();
    } else {
      return handle_.local().template as<T>();
    }
  }
  /// Returns a copy of the object, fetched anew by each call; at the owner it is copied directly. Waits until the
  /// object has been made. The thread's current streams wait for the copy's tensors on devices. Throws the exception of
  /// the function that makes the object, and the errors of a call.
  T to_here(const call_options& options = {}) const {
    if constexpr (std::is_void_v<T>) {
      rpc_sync<&detail::await_object>(options);
    } else {
      if constexpr (detail::is_copyable<T>()) {
        const detail::streams_scope streams({options.streams.first(), options.streams.count()});
        if (const auto object = handle_.local_unguarded(options)) {
          T copy(object->template as<T>());
          if (object->on_devices()) detail::record_use_of(copy);
          return copy;
        }
      }
      return rpc_sync<&detail::value_of<T>>(options);
    }
  }
  T to_here(timeout limit) const { return to_here(call_options{.timeout = limit}); }
  /// Like to_here(), but does not wait: returns a future.
  [[nodiscard]] future<T> to_here_async(const call_options& options = {}) const {
    if constexpr (std::is_void_v<T>) {
      return rpc_async<&detail::await_object>(options);
    } else {
      return rpc_async<&detail::value_of<T>>(options);
    }
  }

  /// Calls F on the object at its owner and waits for the result. F is a member function of T or of a base, or a
  /// function whose first parameter is the object (T&, const T&). If the object has not been made yet, the call waits
  /// for it at the owner. Otherwise like ferry::rpc_sync.
  ///
  ///     ref.rpc_sync<&model::forward>(x)      ref.rpc_sync<&model::forward>({.timeout = 5s}, x)
  template <auto F, class... A>
    requires(!detail::begins_with_options<A...>)
  auto rpc_sync(A&&... args) const {
    return rpc_sync<F>(call_options{}, std::forward<A>(args)...);
  }
  template <auto F, class... A>
  auto rpc_sync(const call_options& options, A&&... args) const {
    auto call = begin<F, detail::method_flavour::object_call>(options, detail::call_mode::waiting);
    return detail::finish_sync<F, detail::method_flavour::object_call>(call, static_cast<detail::passed<A>>(args)...);
  }
  /// Like rpc_sync(), but does not wait: returns a future. The object is kept alive until the call has ended.
  template <auto F, class... A>
    requires(!detail::begins_with_options<A...>)
  [[nodiscard]] auto rpc_async(A&&... args) const {
    return rpc_async<F>(call_options{}, std::forward<A>(args)...);
  }
  template <auto F, class... A>
  [[nodiscard]] auto rpc_async(const call_options& options, A&&... args) const {
    auto call = begin<F, detail::method_flavour::object_call>(options, detail::call_mode::later);
    return detail::finish_async<F, detail::method_flavour::object_call>(call, static_cast<detail::passed<A>>(args)...);
  }
  /// Like rpc_sync(), but without a reply. A one-way call that arrives after the last reference has been released is
  /// dropped.
  template <auto F, class... A>
    requires(!detail::begins_with_options<A...>)
  void notify(A&&... args) const {
    notify<F>(call_options{}, std::forward<A>(args)...);
  }
  template <auto F, class... A>
  void notify(const call_options& options, A&&... args) const {
    auto call = begin<F, detail::method_flavour::object_call>(options, detail::call_mode::one_way);
    detail::finish_one_way<F, detail::method_flavour::object_call>(call, static_cast<detail::passed<A>>(args)...);
  }
  /// Calls F on the object and keeps the result at the owner as a new object; returns a reference to it at once.
  /// Chained calls need no round trip between their steps.
  template <auto F, class... A>
    requires(!detail::begins_with_options<A...>)
  [[nodiscard]] auto remote(A&&... args) const {
    return remote<F>(call_options{}, std::forward<A>(args)...);
  }
  template <auto F, class... A>
  [[nodiscard]] auto remote(const call_options& options, A&&... args) const {
    auto call = begin<F, detail::method_flavour::object_creation>(options, detail::call_mode::detached);
    return rref<detail::result_of<F, detail::method_flavour::object_creation>>(
        detail::finish_creation<F, detail::method_flavour::object_creation>(call,
                                                                            static_cast<detail::passed<A>>(args)...));
  }

  /// Whether both refer to the same object.
  friend bool operator==(const rref& a, const rref& b) noexcept { return a.handle_ == b.handle_; }
  friend std::string to_string(const rref& ref) { return ref.handle_.describe(type_name<T>()); }
  template <class Traits>
  friend std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, const rref& ref) {
    return out << to_string(ref);
  }

  // For the library.
  explicit rref(detail::reference_handle handle) noexcept : reference_base(std::move(handle)) {}

 private:
  template <auto F, detail::method_flavour Flavour>
  detail::object_call begin(const call_options& options, detail::call_mode mode) const {
    detail::check_object<F, T, Flavour>();
    return detail::object_call(handle_, options, detail::usable_method<F, Flavour>(), mode);
  }
};

template <class T>
rref(T) -> rref<T>;

/// A reference without a static object type. Converts from any rref<T>; as<T>() converts back, and the owner checks T
/// when the reference is used. May be sent. Thread safety and errors as for rref<T>.
class any_rref : public detail::reference_base {
 public:
  any_rref() noexcept = default;
  template <class T>
  any_rref(const rref<T>& ref) noexcept : reference_base(ref.handle()) {}  // NOLINT(google-explicit-constructor)

  /// A reference to the object as a T or a base of its type. If the object is not a T, using the result throws
  /// errc::reference_mismatch.
  template <class T>
  [[nodiscard]] rref<T> as() const {
    return rref<T>(handle_);
  }
  /// The name of the object's type (ferry::type_name), once the object has been made. Requested once for all handles
  /// that share this reference: later calls return the same future, unless the request failed, which the next call
  /// repeats with its own options. Fails with the exception of the function that makes the object, and with the errors of a call.
  [[nodiscard]] future<std::string> type(const call_options& options = {}) const { return handle_.type(options); }

  friend bool operator==(const any_rref& a, const any_rref& b) noexcept { return a.handle_ == b.handle_; }
  friend std::string to_string(const any_rref& ref) { return ref.handle_.describe("?"); }
  friend std::ostream& operator<<(std::ostream& out, const any_rref& ref) { return out << to_string(ref); }

  // For the library.
  explicit any_rref(detail::reference_handle handle) noexcept : reference_base(std::move(handle)) {}
};

namespace detail {

template <auto F, class... A>
auto create(std::shared_ptr<worker_core> worker, const to& destination, A&&... args)
    -> rref<result_of<F, method_flavour::creation>> {
  object_call call(std::move(worker), destination, usable_method<F, method_flavour::creation>());
  return rref<result_of<F, method_flavour::creation>>(
      finish_creation<F, method_flavour::creation>(call, std::forward<A>(args)...));
}

}  // namespace detail

/// Calls F on another worker (or this one), keeps the result there as an object, and returns a reference to it at once.
/// Accepts everything that rpc_sync accepts: functions, member functions, tasks, and make<T>, which constructs the
/// object in place. An exception thrown by F becomes the object's error, which every use of the object throws. Errors
/// detected before sending are thrown here; if the call itself fails (timeout, lost peer), the reference fails
/// permanently. Thread-safe.
template <auto F, class... A>
[[nodiscard]] auto remote(const to& destination, A&&... args) {
  return detail::create<detail::resolve<F, std::remove_cvref_t<A>...>::function>(
      detail::current_worker(), destination, static_cast<detail::passed<A>>(args)...);
}

// References can only be sent between workers: a file or text archive would not keep the object alive.

template <class Archive, class T>
void save(Archive& archive, const rref<T>& ref) {
  static_assert(std::is_same_v<Archive, wire_output_archive>,
                "ferry: an rref cannot be saved: it is valid only in its group, and a saved copy would not keep the "
                "object alive. Save what to_here() returns");
  if constexpr (std::is_same_v<Archive, wire_output_archive>) detail::write_reference(archive, ref.handle());
}
template <class Archive, class T>
void load(Archive& archive, rref<T>& ref) {
  static_assert(std::is_same_v<Archive, wire_input_archive>, "ferry: an rref cannot be loaded from an archive");
  if constexpr (std::is_same_v<Archive, wire_input_archive>) ref = rref<T>(detail::read_reference(archive));
}
template <class Archive>
void save(Archive& archive, const any_rref& ref) {
  static_assert(std::is_same_v<Archive, wire_output_archive>, "ferry: an any_rref cannot be saved");
  if constexpr (std::is_same_v<Archive, wire_output_archive>) detail::write_reference(archive, ref.handle());
}
template <class Archive>
void load(Archive& archive, any_rref& ref) {
  static_assert(std::is_same_v<Archive, wire_input_archive>, "ferry: an any_rref cannot be loaded from an archive");
  if constexpr (std::is_same_v<Archive, wire_input_archive>) ref = any_rref(detail::read_reference(archive));
}

}  // namespace ferry::inline v0

template <class T>
struct std::hash<ferry::rref<T>> {
  std::size_t operator()(const ferry::rref<T>& ref) const noexcept { return ref.handle().hash(); }
};
template <>
struct std::hash<ferry::any_rref> {
  std::size_t operator()(const ferry::any_rref& ref) const noexcept { return ref.handle().hash(); }
};
