#pragma once

// Streams and events: the order of work on a device. A stream is a value, as cheap as a pointer; an event is a resource
// with one owner.
//
//   ferry::stream side = ferry::pool_stream({ferry::device_kind::cuda, 1});
//   ferry::event filled = ferry::current_stream(side.device()).record();
//   side.wait(filled);                                        // the device waits, the host does not
//   kernel<<<blocks, threads, 0, side.native<ferry::cuda>()>>>(...);

#include <atomic>
#include <cstddef>
#include <utility>

#include <ferry/device/device.hpp>
#include <ferry/device/traits.hpp>

namespace ferry::inline v0 {

class event;

class stream;
namespace detail {
[[noreturn]] void refuse_native(device_kind wanted, device where);
/// A stream from its parts, which must match.
stream stream_of(device where, void* handle) noexcept;
}  // namespace detail

/// A queue of work of one device, executed in order. Does not own the queue: the streams of pool_stream and
/// default_stream exist as long as the process, and foreign ones as long as their creators keep them. Cannot be made
/// from 0 or nullptr: a stream always belongs to a device.
///
/// Member functions are thread-safe. They throw errc::bad_device if the device does not exist, and errc::device_failure
/// (also for an earlier error of the device, which its runtime reports late).
class stream {
 public:
  /// The CPU's stream: its work completes at once.
  stream() noexcept = default;

  /// A stream created elsewhere on device number `index`, of the kind's own type: from_native<cuda>(handle, 1). It must
  /// exist as long as it is used here, and as long as any tensor made or used on it. A null pointer in a variable of that type
  /// means the default stream, as in CUDA; cudaStreamLegacy is that stream, too. cudaStreamPerThread is another queue in
  /// each thread, and a stream may be used by any: errc::invalid_argument.
  template <class Tag>
  static stream from_native(typename device_traits<Tag>::stream_handle handle, int index) {
    const ferry::device where{device_traits<Tag>::kind, index};
    if constexpr (detail::imports_streams<Tag>) {
      return {where, device_traits<Tag>::import_stream(where, handle)};
    } else {
      return {where, handle ? handle : device_traits<Tag>::default_stream(where)};
    }
  }
  template <class Tag>
  static stream from_native(std::nullptr_t, int) = delete;
  template <class Tag>
  static stream from_native(int, int) = delete;
  /// The kind's own handle. Throws errc::bad_device if this is a stream of another kind.
  template <class Tag>
  [[nodiscard]] typename device_traits<Tag>::stream_handle native() const {
    if (where_.kind != device_traits<Tag>::kind) detail::refuse_native(device_traits<Tag>::kind, where_);
    return static_cast<typename device_traits<Tag>::stream_handle>(handle_);
  }

  [[nodiscard]] ferry::device device() const noexcept { return where_; }
  /// Whether all queued work has completed. Does not wait.
  [[nodiscard]] bool done() const;
  /// Whether work that it is given is recorded in a graph instead of being done (CUDA's stream capture). ferry allocates
  /// and sends nothing in the order of such a stream: errc::device_failure.
  [[nodiscard]] bool capturing() const;
  /// The host waits until all work queued so far has completed; the thread sleeps.
  void synchronize() const;
  /// Work queued later on this stream waits for the work that `mark` has recorded so far; the host does not. The event
  /// may be of another device, and may be recorded again or destroyed at once.
  void wait(const event& mark) const;
  /// Work queued later on this stream waits for all work queued on `other` so far; the host does not.
  void wait(const stream& other) const;
  /// An event that marks the end of the work queued so far.
  [[nodiscard]] event record() const;
  /// Calls function(argument) when the work queued so far has completed, before later work; on a thread of the device's
  /// runtime (on this one, at once, if the device executes everything at once), which it must not block and from which
  /// it must not call the runtime. Must not throw. Not called if the device has failed.
  void call_on_host(void (*function)(void*), void* argument) const;

  /// The stream's handle without its type, for the functions of device_operations.
  [[nodiscard]] void* handle() const noexcept { return handle_; }

  friend bool operator==(const stream&, const stream&) noexcept = default;

 private:
  friend stream detail::stream_of(ferry::device where, void* handle) noexcept;
  stream(ferry::device where, void* handle) noexcept : where_(where), handle_(handle) {}

  ferry::device where_;
  void* handle_ = nullptr;
};

namespace detail {
/// Set once this process has used a stream that does not execute everything at once.
extern std::atomic<bool> streams_in_use;
inline stream stream_of(device where, void* handle) noexcept { return {where, handle}; }
}  // namespace detail

/// A mark in the work of a stream, recorded once or repeatedly. Its handle comes from a pool of the process and returns
/// there; nothing waits for the work. Not thread-safe, except that several threads may query it and have streams wait
/// for it while no thread records it.
class event {
 public:
  /// Marks nothing: it is done, and waiting for it returns at once.
  event() noexcept = default;
  event(event&& other) noexcept
      : where_(other.where_), handle_(std::exchange(other.handle_, nullptr)), for_waiting_(other.for_waiting_) {}
  event& operator=(event&& other) noexcept {
    std::swap(where_, other.where_);
    std::swap(handle_, other.handle_);
    std::swap(for_waiting_, other.for_waiting_);
    return *this;
  }
  ~event();

  /// One for a thread that waits for it: synchronize() lets the thread sleep, where for CUDA it keeps a processor busy
  /// otherwise. To mark it costs the device a little more. Marks nothing yet.
  [[nodiscard]] static event for_waiting() noexcept {
    event result;
    result.for_waiting_ = true;
    return result;
  }

  /// Takes ownership of an event created elsewhere on device number `index`: from_native<cuda>(handle, 1).
  template <class Tag>
  static event from_native(typename device_traits<Tag>::event_handle handle, int index) {
    event result;
    result.where_ = {device_traits<Tag>::kind, index};
    result.handle_ = handle;
    return result;
  }
  template <class Tag>
  static event from_native(std::nullptr_t, int) = delete;
  template <class Tag>
  static event from_native(int, int) = delete;
  /// The kind's own handle, null if the event marks nothing. Throws errc::bad_device if it is of another kind.
  template <class Tag>
  [[nodiscard]] typename device_traits<Tag>::event_handle native() const {
    if (where_.kind != device_traits<Tag>::kind) detail::refuse_native(device_traits<Tag>::kind, where_);
    return static_cast<typename device_traits<Tag>::event_handle>(handle_);
  }

  /// The device on which it was last recorded; the CPU if it marks nothing.
  [[nodiscard]] ferry::device device() const noexcept { return where_; }
  /// Marks the end of the work queued on `on` so far, replacing the former mark. The stream may be of another device
  /// than the last one.
  void record(const stream& on);
  /// Whether the marked work has completed. Does not wait.
  [[nodiscard]] bool done() const;
  /// The host waits until the marked work has completed.
  void synchronize() const;

 private:
  friend class stream;
  void release() noexcept;

  ferry::device where_;
  void* handle_ = nullptr;
  bool for_waiting_ = false;
};

/// The device's default stream: for CUDA, the legacy one, on which kernels without a stream run. Throws
/// errc::bad_device.
/// Thread-safe.
[[nodiscard]] stream default_stream(device where);

/// One of the streams of a device that the whole process shares, stream_pool_size() of them, created on first use. Of the
/// eight that were handed out longest ago, the first that has nothing left to do, if there is one. They do not wait for the
/// default stream. Throws errc::bad_device, errc::device_failure. Thread-safe.
[[nodiscard]] stream pool_stream(device where);

/// How many streams pool_stream() hands out per device; 32 at first. Call it before devices are used: streams that exist
/// stay. More streams than the device has queues (CUDA_DEVICE_MAX_CONNECTIONS) share these, and may wait for each other
/// there. Throws errc::invalid_argument unless from 1 to 1024. Thread-safe.
void set_stream_pool_size(std::size_t streams);
[[nodiscard]] std::size_t stream_pool_size() noexcept;

}  // namespace ferry::inline v0
