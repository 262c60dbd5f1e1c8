#pragma once

// Calls on objects of other workers, and calls that make them. Internal.

#include <memory>
#include <utility>

#include <ferry/rpc/call.hpp>
#include <ferry/rpc/detail/object_serving.hpp>
#include <ferry/rpc/detail/reference_handle.hpp>

namespace ferry::inline v0::detail {

/// A call on an object at its owner, or one that makes an object, or both. Not thread-safe.
class object_call : public outgoing_call {
 public:
  /// A call on the object that `object` refers to. Throws as outgoing_call, and the error that the reference has failed
  /// with: the error of its creation, errc::reference_deleted or peer_lost.
  object_call(const reference_handle& object, const call_options& options, const method_entry& method, call_mode mode);
  /// A call that makes an object and is on none.
  object_call(std::shared_ptr<worker_core> worker, const to& destination, const method_entry& method);

  /// Makes the result a new object at the callee. Call before the arguments are written.
  reference_handle make_object();
  /// Drops that object because writing the arguments failed and nothing is sent.
  static void drop_object(const reference_handle& made) noexcept;
  /// As outgoing_call::seal(), with the records of objects.
  void seal();
  /// Sends the call that makes `object`, and passes its outcome to `object`.
  void run_creation(const reference_handle& object);

 private:
  reference_handle object_;  // empty: none
  reference_handle made_;
};

template <auto F, method_flavour Flavour, class... A>
reference_handle finish_creation(object_call& call, A&&... args) {
  reference_handle made = call.make_object();
  try {
    write_arguments<F, Flavour>(call, std::forward<A>(args)...);
  } catch (...) {
    object_call::drop_object(made);
    throw;
  }
  call.run_creation(made);
  return made;
}

}  // namespace ferry::inline v0::detail
