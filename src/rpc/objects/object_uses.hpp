#pragma once

// The objects that a call works on, and the device work that it leaves on them.

#include <memory>
#include <mutex>
#include <vector>

#include <ferry/rpc/detail/incoming_call.hpp>
#include <ferry/rpc/detail/owned_object.hpp>
#include <ferry/rpc/interceptor.hpp>

#include "object_order.hpp"

namespace ferry::inline v0::detail {

/// Kept by a call that uses objects with device work. Thread-safe.
class object_uses final : public callee_hooks {
 public:
  static constexpr char key_of = 0;

  explicit object_uses(incoming_call& call) noexcept : call_(call) {}

  /// A thread of the call obtains the object: the call's streams wait for earlier work on it, and work that they are given
  /// from now on is work on the object. False: the call has ended already. Throws errc::device_failure.
  bool use(owned_object& object);
  /// Records the work that the call has queued as work on its objects: the next user of an object waits for it, and for
  /// `reads`. Call before the end of the call is visible to any other thread. Throws errc::device_failure.
  void end(const std::shared_ptr<read_marks>& reads);
  /// The call releases its turn at the object, or has it again.
  void pause(owned_object& object) noexcept;
  void resume(owned_object& object) noexcept;

  void handler_ended(handler_result& result) override;
  void on_reply(outgoing_reply& reply) override;
  void ended() noexcept override { end_quietly(); }
  [[nodiscard]] const void* key() const noexcept override { return &key_of; }

 private:
  // An object, and the device work on it that the call's streams have already waited for. After the call has released its
  // turn at the object, it waits again.
  struct use_of {
    ref_ptr<owned_object> object;
    std::vector<std::shared_ptr<const object_mark>> before;
  };

  void end_quietly() noexcept;
  void complain(std::string_view what, const std::exception& problem) const noexcept;

  incoming_call& call_;
  std::mutex mutex_;  // guards the next two
  std::vector<use_of> uses_;
  bool ended_ = false;
};

/// Of the running call; false: it does not report the end of the use. Throws errc::device_failure.
bool use_object(incoming_call& call, owned_object& object);
/// No effect if the call has not used the object.
void pause_use(incoming_call& call, owned_object& object) noexcept;
void resume_use(incoming_call& call, owned_object& object) noexcept;
/// The device work of the call so far is work on its objects. Throws errc::device_failure.
void end_uses(incoming_call& call);

}  // namespace ferry::inline v0::detail
