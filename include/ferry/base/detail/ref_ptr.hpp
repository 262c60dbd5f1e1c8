#pragma once

// Shared ownership of objects that count their own references.

#include <type_traits>
#include <utility>

namespace ferry::inline v0::detail {

/// Shared ownership of an object that counts its own references (add_ref, release).
template <class S>
class ref_ptr {
 public:
  ref_ptr() noexcept = default;
  /// Takes ownership of a reference that the caller holds.
  static ref_ptr adopt(S* object) noexcept { return ref_ptr(object); }
  /// Adds a reference.
  static ref_ptr share(S* object) noexcept {
    if (object) object->add_ref();
    return ref_ptr(object);
  }
  ref_ptr(const ref_ptr& other) noexcept : object_(other.object_) {
    if (object_) object_->add_ref();
  }
  ref_ptr(ref_ptr&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  template <class D>
    requires std::is_convertible_v<D*, S*>
  ref_ptr(ref_ptr<D>&& other) noexcept : object_(other.detach()) {}  // NOLINT(google-explicit-constructor)
  ref_ptr& operator=(ref_ptr other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~ref_ptr() {
    if (object_) object_->release();
  }
  [[nodiscard]] S* get() const noexcept { return object_; }
  S* operator->() const noexcept { return object_; }
  S& operator*() const noexcept { return *object_; }
  explicit operator bool() const noexcept { return object_ != nullptr; }
  /// Transfers the reference to the caller.
  [[nodiscard]] S* detach() noexcept { return std::exchange(object_, nullptr); }

 private:
  explicit ref_ptr(S* object) noexcept : object_(object) {}
  S* object_ = nullptr;
};

}  // namespace ferry::inline v0::detail
