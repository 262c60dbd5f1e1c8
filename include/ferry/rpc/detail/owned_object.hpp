#pragma once

// An object that remote references refer to, at its owner. Users access it through rref<T>.

#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ferry/base/type_name.hpp>
#include <ferry/rpc/detail/future_state.hpp>
#include <ferry/rpc/detail/method_entry.hpp>
#include <ferry/rpc/object_traits.hpp>

namespace ferry::inline v0::detail {

class object_order;
class object_turns;

/// The type-erased value.
class owned_value {
 public:
  virtual ~owned_value() = default;
  owned_value(const owned_value&) = delete;
  owned_value& operator=(const owned_value&) = delete;

  [[nodiscard]] void* address() const noexcept { return address_; }
  [[nodiscard]] const std::type_info& type() const noexcept { return type_; }
  [[nodiscard]] execution_policy policy() const noexcept { return policy_; }
  /// Whether it may hold tensors on devices.
  [[nodiscard]] virtual bool may_use_devices() const noexcept { return true; }
  /// Its device if it is a tensor; else the CPU.
  [[nodiscard]] virtual device where() const { return {}; }
  [[nodiscard]] virtual std::string type_name() const = 0;
  /// Throws the address as a pointer to the value's type, so that a handler that catches a pointer to a base class
  /// converts it. throw_pointee() does the same for the pointee, if the value is a smart pointer.
  virtual void throw_address() const = 0;
  virtual void throw_pointee() const {}
  /// A smart pointer's pointee and its static type, without exceptions; no type if the value is not a smart pointer, or
  /// its pointee is const.
  struct pointee {
    const std::type_info* type = nullptr;
    void* address = nullptr;
  };
  [[nodiscard]] virtual pointee points_to() const noexcept { return {}; }

 protected:
  owned_value(const std::type_info& type, execution_policy policy) noexcept : type_(type), policy_(policy) {}
  void* address_ = nullptr;

 private:
  const std::type_info& type_;
  execution_policy policy_;
};

template <class T>
concept pointer_like = requires(const T& pointer) {
  typename T::element_type;
  { pointer.get() } -> std::same_as<typename T::element_type*>;
};

template <class T>
class owned_value_of final : public owned_value {
 public:
  template <class Make>
  explicit owned_value_of(Make&& make) : owned_value(typeid(T), policy_of<T>()), value_(std::forward<Make>(make)()) {
    address_ = const_cast<void*>(static_cast<const void*>(std::addressof(value_)));
  }
  [[nodiscard]] std::string type_name() const override { return ferry::type_name<T>(); }
  [[nodiscard]] bool may_use_devices() const noexcept override { return !free_of_tensors<T>; }
  [[nodiscard]] device where() const override {
    if constexpr (std::is_same_v<T, tensor>) return value_.defined() ? value_.device() : device();
    return {};
  }
  void throw_address() const override { throw static_cast<T*>(address_); }
  void throw_pointee() const override {
    if constexpr (pointer_like<T>) throw value_.get();
  }
  [[nodiscard]] pointee points_to() const noexcept override {
    if constexpr (pointer_like<T>) {
      using element = typename T::element_type;
      if constexpr (std::is_object_v<element> && !std::is_const_v<element>) return {&typeid(element), value_.get()};
    }
    return {};
  }

 private:
  T value_;
};
/// For functions that return void.
template <>
class owned_value_of<void> final : public owned_value {
 public:
  template <class Make>
  explicit owned_value_of(Make&& make) : owned_value(typeid(void), {}) {
    std::forward<Make>(make)();
  }
  [[nodiscard]] std::string type_name() const override { return "void"; }
  [[nodiscard]] bool may_use_devices() const noexcept override { return false; }
  void throw_address() const override {}
};

/// An object, from its first reference until its last. Complete once it has been made or its creation has failed.
/// Thread-safe; access to the value is synchronised by the value itself or as object_traits specifies.
class owned_object : public future_state<void> {
 public:
  [[nodiscard]] static ref_ptr<owned_object> make();

  /// Sets the value, which was made on the streams of the calling thread's context and on its current streams of
  /// `devices`. Call once. Throws errc::bad_device, errc::device_failure; then the object is still incomplete.
  void finish(std::unique_ptr<owned_value> value, std::span<const device> devices = {});
  /// Completes with the error of a failed creation.
  void fail(std::exception_ptr error) noexcept;

  /// The value as a C. It must have been made. Throws what its creation threw, and errc::reference_mismatch if it is
  /// not a C.
  template <class C>
  C& as() {
    const owned_value& own = value_made();
    if (own.type() == typeid(C)) return *static_cast<C*>(own.address());
    return *static_cast<C*>(as_other(typeid(C), &ferry::type_name<C>, [](const owned_value& from) -> other {
      try {
        from.throw_address();
      } catch (C* found) {
        return {found, true};
      } catch (...) {  // NOLINT(bugprone-empty-catch): it is not a C
      }
      try {
        from.throw_pointee();
      } catch (C* found) {
        return {found, false};
      } catch (...) {  // NOLINT(bugprone-empty-catch): as above
      }
      return {};
    }));
  }
  [[nodiscard]] const owned_value& value_made() const;

  /// Keeps the library that made the value loaded until the value has been destroyed.
  void keep_code(const method_entry& entry) noexcept { code_ = method_hold(entry); }

  [[nodiscard]] object_turns& turns() const noexcept { return turns_; }
  [[nodiscard]] object_order& order() const noexcept { return order_; }
  /// Call before the calling thread uses the value directly: its current streams wait for all work on the value, and
  /// work queued on them counts as work on the value until the thread's current call is answered. Throws
  /// errc::device_failure.
  void use_here();
  /// Whether any device may have been used on the value so far.
  [[nodiscard]] bool on_devices() const noexcept;

  /// Link in a list of objects without references.
  ref_ptr<owned_object> next_released;

 protected:
  owned_object(object_turns& turns, object_order& order) noexcept : turns_(turns), order_(order) {}
  ~owned_object() override = default;
  void drop_value() noexcept { value_.reset(); }

 private:
  struct whole;
  void on_cancel() override {}  // no handle can cancel it
  // The value's address as another type. The address of a base subobject never changes; a smart pointer may point to
  // another object at the next call.
  struct other {
    void* address = nullptr;
    bool stays = false;
  };
  void* as_other(const std::type_info& type, std::string (*name)(), other (*find)(const owned_value& from));

  method_hold code_;  // destroyed last
  object_turns& turns_;
  object_order& order_;
  std::unique_ptr<owned_value> value_;
  std::mutex mutex_;                                             // guards the next one
  std::vector<std::pair<const std::type_info*, void*>> others_;  // addresses by requested type
};

}  // namespace ferry::inline v0::detail
