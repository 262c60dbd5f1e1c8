#pragma once

// What a kind of device must provide: the customisation point, its concept, and the table used when the kind is known
// only at run time.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include <ferry/device/device.hpp>

namespace ferry::inline v0 {

/// Tag of the host's processor and memory.
struct cpu {};

/// How a kind of device is used. Undefined: a kind is added by specialising it for a tag type with the following static
/// members, and by naming the tag in register_devices. All of them are called from any thread. Handles are pointers;
/// their pointees are private to the kind. "In the order of a stream" means: after work queued on the stream earlier,
/// before work queued later, without the host waiting. Unless noexcept, they report failures by throwing
/// (errc::device_failure, errc::out_of_memory).
///
///   static constexpr std::string_view name;                 "npu": lower case, for parse_device and to_string
///   static constexpr device_kind kind;                      a number from first_foreign_kind on
///   static int count() noexcept;                            devices in this process, 0 if unusable
///
/// The calling thread's current device. A kind without one returns 0 and does nothing.
///   static int current() noexcept;
///   static void make_current(int index);
///   static void restore_current(int former) noexcept;       the former current device; may be skipped for a reason
///
/// Memory, aligned to at least 64 bytes and uninitialised; nullptr for 0 bytes. It may be used in the order of the
/// stream from allocate on, and until deallocate. `bytes` as given to allocate.
///   static void* allocate(device, std::size_t bytes, stream_handle);
///   static void deallocate(device, void*, std::size_t bytes, stream_handle) noexcept;
///   static std::uint64_t reserved_bytes(device);            obtained from the device, in use or cached; 0 if unknown
///   static void trim(device);                               releases cached memory; does not wait
///
/// Streams: queues of work, each of one device, executed in order. Every device has a default one, which is not
/// destroyed.
///   using stream_handle = my_stream*;
///   static stream_handle default_stream(device) noexcept;
///   static stream_handle create_stream(device);
///   static void destroy_stream(device, stream_handle) noexcept;
///   static bool stream_done(device, stream_handle);         whether all queued work has completed; does not wait
///   static void synchronize_stream(device, stream_handle);  the host waits for all queued work
///   static void call_on_host(device, stream_handle, void (*)(void*), void*);   in the order of the stream
///
/// Events: marks in streams. An event that was never recorded is done.
///   using event_handle = my_event*;
///   static event_handle create_event(device);
///   static void destroy_event(device, event_handle) noexcept;
///   static void record_event(device, event_handle, stream_handle);         both of this device
///   static void wait_event(device, stream_handle, event_handle);  the stream waits; the event may be on another device
///   static bool event_done(device, event_handle);                  does not wait
///   static void synchronize_event(device, event_handle);           the host waits
///
/// Bytes. `to` and `from` are devices of this kind, or one of them is the CPU; the stream is of `on`, which is one of
/// the two. The source may be overwritten, and the target read, in the order of the stream.
///   static void copy(device to, void*, device from, const void*, std::size_t bytes, device on, stream_handle);
///   static void fill(device, void*, unsigned char value, std::size_t bytes, stream_handle);
///   static bool peer_access(device from, device to) noexcept;      whether one can access the other's memory directly
///
/// Optional: host memory from which and to which the device copies without blocking any thread; ordinary memory is used
/// where it is missing. It is kept and reused.
///   static void* allocate_staging(device, std::size_t bytes);
///   static void deallocate_staging(device, void*, std::size_t bytes) noexcept;
///
/// Optional: an event for which synchronize_event lets the thread sleep, where it keeps a processor busy otherwise.
///   static event_handle create_waiting_event(device);
///
/// Optional: recording of work. A stream that is capturing keeps what it is given in a graph instead of doing it, so ferry
/// queues nothing of its own there.
///   static bool capturing(device, stream_handle);
///
/// Optional: makes everything that the device is slow to make, or has to stand still for (contexts, pools, kernels), so
/// that no later function makes it. Called when a worker starts, once for each of its devices.
///   static void warm_up(device);
///
/// Optional: checks a handle that the program brings, and returns the one to use (a null one becomes the default stream's).
/// Throws errc::invalid_argument for a handle that ferry cannot use.
///   static stream_handle import_stream(device, stream_handle);
///
/// Optional: why count() is 0: "cudaGetDeviceCount: no CUDA-capable device is detected". Empty: no reason is known.
///   static std::string obstacle();
///
/// A kind whose memory the host can read and write, and which executes everything at once, can inherit most of this
/// from immediate_device.
template <class Tag>
struct device_traits;

/// Base for the device_traits of kinds that execute everything at once, in memory that the host can access: they have
/// one stream for each device, whose work is always complete. The kind adds name, kind, count, allocate and deallocate.
struct immediate_device {
  struct nothing;
  using stream_handle = nothing*;
  using event_handle = nothing*;

  static std::uint64_t reserved_bytes(device) { return 0; }
  static void trim(device) {}
  static int current() noexcept { return 0; }
  static void make_current(int) {}
  static void restore_current(int) noexcept {}
  static stream_handle default_stream(device) noexcept { return nullptr; }
  static stream_handle create_stream(device) { return nullptr; }
  static void destroy_stream(device, stream_handle) noexcept {}
  static bool stream_done(device, stream_handle) { return true; }
  static void synchronize_stream(device, stream_handle) {}
  static void call_on_host(device, stream_handle, void (*function)(void*), void* argument) { function(argument); }
  static event_handle create_event(device) { return nullptr; }
  static void destroy_event(device, event_handle) noexcept {}
  static void record_event(device, event_handle, stream_handle) {}
  static void wait_event(device, stream_handle, event_handle) {}
  static bool event_done(device, event_handle) { return true; }
  static void synchronize_event(device, event_handle) {}
  static void copy(device, void* to, device, const void* from, std::size_t bytes, device, stream_handle) {
    if (bytes != 0) std::memmove(to, from, bytes);
  }
  static void fill(device, void* memory, unsigned char value, std::size_t bytes, stream_handle) {
    if (bytes != 0) std::memset(memory, value, bytes);
  }
  static bool peer_access(device, device) noexcept { return true; }
};

namespace detail {

// From the CPU's pool.
void* allocate_plain_staging(device where, std::size_t bytes);
void deallocate_plain_staging(device where, void* memory, std::size_t bytes) noexcept;

template <class Tag>
concept has_staging_memory = requires(device where, void* memory, std::size_t bytes) {
  { device_traits<Tag>::allocate_staging(where, bytes) } -> std::same_as<void*>;
  { device_traits<Tag>::deallocate_staging(where, memory, bytes) } noexcept -> std::same_as<void>;
};

template <class Tag>
concept captures_on_device = requires(device where, typename device_traits<Tag>::stream_handle stream) {
  { device_traits<Tag>::capturing(where, stream) } -> std::same_as<bool>;
};
template <class Tag>
concept has_waiting_events = requires(device where) {
  { device_traits<Tag>::create_waiting_event(where) } -> std::same_as<typename device_traits<Tag>::event_handle>;
};
template <class Tag>
concept warms_up = requires(device where) {
  { device_traits<Tag>::warm_up(where) } -> std::same_as<void>;
};
template <class Tag>
concept imports_streams = requires(device where, typename device_traits<Tag>::stream_handle stream) {
  { device_traits<Tag>::import_stream(where, stream) } -> std::same_as<typename device_traits<Tag>::stream_handle>;
};
template <class Tag>
concept knows_obstacle = requires {
  { device_traits<Tag>::obstacle() } -> std::same_as<std::string>;
};

template <class Tag>
concept has_device_traits = requires { sizeof(device_traits<Tag>); };
template <class Tag>
concept has_device_name = requires {
  { device_traits<Tag>::name } -> std::convertible_to<std::string_view>;
};
template <class Tag>
concept has_device_kind = requires {
  { device_traits<Tag>::kind } -> std::convertible_to<device_kind>;
};
template <class Tag>
concept counts_devices = requires {
  { device_traits<Tag>::count() } noexcept -> std::same_as<int>;
};
template <class Tag>
concept has_current_device = requires(int index) {
  { device_traits<Tag>::current() } noexcept -> std::same_as<int>;
  { device_traits<Tag>::make_current(index) } -> std::same_as<void>;
  { device_traits<Tag>::restore_current(index) } noexcept -> std::same_as<void>;
};
template <class Tag>
concept has_device_handles =
    requires {
      typename device_traits<Tag>::stream_handle;
      typename device_traits<Tag>::event_handle;
    } && std::is_pointer_v<typename device_traits<Tag>::stream_handle> &&
    std::is_pointer_v<typename device_traits<Tag>::event_handle>;
template <class Tag>
concept allocates_on_device = has_device_handles<Tag> && requires(device where, void* memory, std::size_t bytes,
                                                                  typename device_traits<Tag>::stream_handle stream) {
  { device_traits<Tag>::allocate(where, bytes, stream) } -> std::same_as<void*>;
  { device_traits<Tag>::deallocate(where, memory, bytes, stream) } noexcept -> std::same_as<void>;
  { device_traits<Tag>::reserved_bytes(where) } -> std::same_as<std::uint64_t>;
  { device_traits<Tag>::trim(where) } -> std::same_as<void>;
};
template <class Tag>
concept has_device_streams =
    has_device_handles<Tag> &&
    requires(device where, typename device_traits<Tag>::stream_handle stream, void (*function)(void*), void* argument) {
      { device_traits<Tag>::default_stream(where) } noexcept -> std::same_as<decltype(stream)>;
      { device_traits<Tag>::create_stream(where) } -> std::same_as<decltype(stream)>;
      { device_traits<Tag>::destroy_stream(where, stream) } noexcept -> std::same_as<void>;
      { device_traits<Tag>::stream_done(where, stream) } -> std::same_as<bool>;
      { device_traits<Tag>::synchronize_stream(where, stream) } -> std::same_as<void>;
      { device_traits<Tag>::call_on_host(where, stream, function, argument) } -> std::same_as<void>;
    };
template <class Tag>
concept has_device_events =
    has_device_handles<Tag> && requires(device where, typename device_traits<Tag>::stream_handle stream,
                                        typename device_traits<Tag>::event_handle event) {
      { device_traits<Tag>::create_event(where) } -> std::same_as<decltype(event)>;
      { device_traits<Tag>::destroy_event(where, event) } noexcept -> std::same_as<void>;
      { device_traits<Tag>::record_event(where, event, stream) } -> std::same_as<void>;
      { device_traits<Tag>::wait_event(where, stream, event) } -> std::same_as<void>;
      { device_traits<Tag>::event_done(where, event) } -> std::same_as<bool>;
      { device_traits<Tag>::synchronize_event(where, event) } -> std::same_as<void>;
    };
template <class Tag>
concept copies_on_device =
    has_device_handles<Tag> && requires(device where, void* to, const void* from, std::size_t bytes,
                                        unsigned char value, typename device_traits<Tag>::stream_handle stream) {
      { device_traits<Tag>::copy(where, to, where, from, bytes, where, stream) } -> std::same_as<void>;
      { device_traits<Tag>::fill(where, to, value, bytes, stream) } -> std::same_as<void>;
      { device_traits<Tag>::peer_access(where, where) } noexcept -> std::same_as<bool>;
    };

/// Instantiated for a tag, reports in a sentence why it is not a kind of device.
template <class Tag>
struct device_diagnosis {
  static constexpr bool there = has_device_traits<Tag>;
  static_assert(there,
                "ferry: this type is no kind of device: specialise ferry::device_traits for it, as "
                "ferry/device/traits.hpp shows");
  static_assert(
      !there || has_device_name<Tag>,
      "ferry: device_traits of this kind lacks `name`: add static constexpr std::string_view name = \"npu\";");
  static_assert(
      !there || has_device_kind<Tag>,
      "ferry: device_traits of this kind lacks `kind`: add static constexpr ferry::device_kind kind = "
      "static_cast<ferry::device_kind>(128); with a number from 128 on that no other kind of the program has");
  static_assert(!there || counts_devices<Tag>,
                "ferry: device_traits of this kind lacks `count`: add static int count() noexcept; which is the number "
                "of its devices in this process");
  static_assert(!there || has_device_handles<Tag>,
                "ferry: device_traits of this kind lacks `stream_handle` or `event_handle`, which are pointer types; "
                "derive it from ferry::immediate_device if it has no streams");
  static_assert(
      !there || has_current_device<Tag>,
      "ferry: device_traits of this kind lacks the calling thread's device: add static int current() noexcept; "
      "static void make_current(int index); and static void restore_current(int former) noexcept;");
  static_assert(!has_device_handles<Tag> || allocates_on_device<Tag>,
                "ferry: device_traits of this kind lacks memory: add static void* allocate(ferry::device, std::size_t "
                "bytes, stream_handle); static void deallocate(ferry::device, void*, std::size_t bytes, "
                "stream_handle) noexcept; static std::uint64_t reserved_bytes(ferry::device); and static void "
                "trim(ferry::device);");
  static_assert(!has_device_handles<Tag> || has_device_streams<Tag>,
                "ferry: device_traits of this kind lacks streams: it needs default_stream, create_stream, "
                "destroy_stream, stream_done, synchronize_stream and call_on_host as ferry/device/traits.hpp has them");
  static_assert(!has_device_handles<Tag> || has_device_events<Tag>,
                "ferry: device_traits of this kind lacks events: it needs create_event, destroy_event, record_event, "
                "wait_event, event_done and synchronize_event as ferry/device/traits.hpp has them");
  static_assert(
      !has_device_handles<Tag> || copies_on_device<Tag>,
      "ferry: device_traits of this kind lacks copy, fill or peer_access, as ferry/device/traits.hpp has them");
};

}  // namespace detail

/// A tag whose device_traits is complete.
template <class Tag>
concept device_type =
    detail::has_device_name<Tag> && detail::has_device_kind<Tag> && detail::counts_devices<Tag> &&
    detail::has_current_device<Tag> && detail::allocates_on_device<Tag> && detail::has_device_streams<Tag> &&
    detail::has_device_events<Tag> && detail::copies_on_device<Tag>;

template <>
struct device_traits<cpu> : immediate_device {
  static constexpr std::string_view name = "cpu";
  static constexpr device_kind kind = device_kind::cpu;
  static int count() noexcept { return 1; }
  static void* allocate(device where, std::size_t bytes, stream_handle);
  static void deallocate(device where, void* memory, std::size_t bytes, stream_handle) noexcept;
};
static_assert(device_type<cpu>);

/// A device_traits as a value, for code that learns the kind at run time. Handles are type-erased.
struct device_operations {
  std::string_view name;
  device_kind kind;
  int (*count)() noexcept;
  int (*current)() noexcept;
  void (*make_current)(int index);
  void (*restore_current)(int former) noexcept;
  void* (*allocate)(device where, std::size_t bytes, void* stream);
  void (*deallocate)(device where, void* memory, std::size_t bytes, void* stream) noexcept;
  std::uint64_t (*reserved_bytes)(device where);
  void (*trim)(device where);
  void* (*default_stream)(device where) noexcept;
  void* (*create_stream)(device where);
  void (*destroy_stream)(device where, void* stream) noexcept;
  bool (*stream_done)(device where, void* stream);
  void (*synchronize_stream)(device where, void* stream);
  void (*call_on_host)(device where, void* stream, void (*function)(void*), void* argument);
  void* (*create_event)(device where);
  void (*destroy_event)(device where, void* event) noexcept;
  void (*record_event)(device where, void* event, void* stream);
  void (*wait_event)(device where, void* stream, void* event);
  bool (*event_done)(device where, void* event);
  void (*synchronize_event)(device where, void* event);
  void (*copy)(device to, void* target, device from, const void* source, std::size_t bytes, device on, void* stream);
  void (*fill)(device where, void* memory, unsigned char value, std::size_t bytes, void* stream);
  bool (*peer_access)(device from, device to) noexcept;
  void* (*allocate_staging)(device where, std::size_t bytes);
  void (*deallocate_staging)(device where, void* memory, std::size_t bytes) noexcept;
  void* (*create_waiting_event)(device where);
  bool (*capturing)(device where, void* stream);
  void (*warm_up)(device where);
  std::string (*obstacle)();
  /// Whether this kind executes everything at once in host memory (immediate_device).
  bool immediate;
};

template <class Tag>
constexpr device_operations make_device_operations() noexcept {
  static_assert(sizeof(detail::device_diagnosis<Tag>) != 0);
  if constexpr (device_type<Tag>) {
    using traits = device_traits<Tag>;
    using stream = typename traits::stream_handle;
    using event = typename traits::event_handle;
    void* (*allocate_staging)(device, std::size_t) = &detail::allocate_plain_staging;
    void (*deallocate_staging)(device, void*, std::size_t) noexcept = &detail::deallocate_plain_staging;
    if constexpr (detail::has_staging_memory<Tag>) {
      allocate_staging = &traits::allocate_staging;
      deallocate_staging = &traits::deallocate_staging;
    }
    void* (*create_waiting_event)(device) = [](device where) -> void* { return traits::create_event(where); };
    if constexpr (detail::has_waiting_events<Tag>)
      create_waiting_event = [](device where) -> void* { return traits::create_waiting_event(where); };
    bool (*capturing)(device, void*) = [](device, void*) { return false; };
    if constexpr (detail::captures_on_device<Tag>)
      capturing = [](device where, void* on) { return traits::capturing(where, static_cast<stream>(on)); };
    void (*warm_up)(device) = [](device) {};
    if constexpr (detail::warms_up<Tag>) warm_up = &traits::warm_up;
    std::string (*obstacle)() = [] { return std::string(); };
    if constexpr (detail::knows_obstacle<Tag>) obstacle = &traits::obstacle;
    return {
        .name = traits::name,
        .kind = traits::kind,
        .count = &traits::count,
        .current = &traits::current,
        .make_current = &traits::make_current,
        .restore_current = &traits::restore_current,
        .allocate = [](device where, std::size_t bytes, void* on) -> void* {
          return traits::allocate(where, bytes, static_cast<stream>(on));
        },
        .deallocate = [](device where, void* memory, std::size_t bytes,
                         void* on) noexcept { traits::deallocate(where, memory, bytes, static_cast<stream>(on)); },
        .reserved_bytes = &traits::reserved_bytes,
        .trim = &traits::trim,
        .default_stream = [](device where) noexcept -> void* { return traits::default_stream(where); },
        .create_stream = [](device where) -> void* { return traits::create_stream(where); },
        .destroy_stream = [](device where,
                             void* on) noexcept { traits::destroy_stream(where, static_cast<stream>(on)); },
        .stream_done = [](device where, void* on) { return traits::stream_done(where, static_cast<stream>(on)); },
        .synchronize_stream = [](device where,
                                 void* on) { traits::synchronize_stream(where, static_cast<stream>(on)); },
        .call_on_host =
            [](device where, void* on, void (*function)(void*), void* argument) {
              traits::call_on_host(where, static_cast<stream>(on), function, argument);
            },
        .create_event = [](device where) -> void* { return traits::create_event(where); },
        .destroy_event = [](device where, void* e) noexcept { traits::destroy_event(where, static_cast<event>(e)); },
        .record_event = [](device where, void* e,
                           void* on) { traits::record_event(where, static_cast<event>(e), static_cast<stream>(on)); },
        .wait_event = [](device where, void* on,
                         void* e) { traits::wait_event(where, static_cast<stream>(on), static_cast<event>(e)); },
        .event_done = [](device where, void* e) { return traits::event_done(where, static_cast<event>(e)); },
        .synchronize_event = [](device where, void* e) { traits::synchronize_event(where, static_cast<event>(e)); },
        .copy = [](device to, void* target, device from, const void* source, std::size_t bytes, device on,
                   void* s) { traits::copy(to, target, from, source, bytes, on, static_cast<stream>(s)); },
        .fill = [](device where, void* memory, unsigned char value, std::size_t bytes,
                   void* on) { traits::fill(where, memory, value, bytes, static_cast<stream>(on)); },
        .peer_access = &traits::peer_access,
        .allocate_staging = allocate_staging,
        .deallocate_staging = deallocate_staging,
        .create_waiting_event = create_waiting_event,
        .capturing = capturing,
        .warm_up = warm_up,
        .obstacle = obstacle,
        .immediate = std::is_base_of_v<immediate_device, traits>,
    };
  } else {  // one message is enough
    return {};
  }
}

namespace detail {

/// Makes a kind known to the process; the table is never removed.
void register_device(const device_operations& operations);

template <class Tag>
inline constexpr device_operations operations_for = make_device_operations<Tag>();

template <class... Tags>
consteval bool device_kinds_differ() {
  if constexpr ((device_type<Tags> && ...)) {
    const std::string_view names[]{device_traits<Tags>::name..., {}};
    const device_kind kinds[]{device_traits<Tags>::kind..., {}};
    for (std::size_t i = 0; i != sizeof...(Tags); ++i) {
      for (std::size_t j = 0; j != i; ++j) {
        if (names[i] == names[j] || kinds[i] == kinds[j]) return false;
      }
    }
  }
  return true;
}

template <class Tag>
consteval bool foreign_kind() {
  if constexpr (device_type<Tag>) return device_traits<Tag>::kind >= first_foreign_kind;
  return true;
}

}  // namespace detail

/// Makes kinds of devices known to this process, in main() before they are used: register_devices<npu, dsp>();. From
/// then on parse_device, to_string and tensors accept them. Registering a kind again has no effect. Throws
/// errc::invalid_argument if another kind already has its number or name, or if the name has characters other than
/// lower-case letters, digits and underscores. Thread-safe.
template <class... Tags>
void register_devices() {
  static_assert(sizeof...(Tags) != 0, "ferry: register_devices names at least one kind: register_devices<npu>()");
  static_assert(detail::device_kinds_differ<Tags...>(),
                "ferry: two kinds of register_devices have the same name or the same number");
  static_assert((detail::foreign_kind<Tags>() && ...),
                "ferry: the number of a kind of device that is not ferry's own is 128 or more: static constexpr "
                "ferry::device_kind kind = static_cast<ferry::device_kind>(128);");
  (detail::register_device(detail::operations_for<Tags>), ...);
}

/// The operations of a kind. Throws errc::bad_device if this program has no such kind. Thread-safe.
[[nodiscard]] const device_operations& operations_of(device_kind kind);

/// Throws errc::bad_device unless the device exists in this process; the text lists those that do. Thread-safe.
void check_device(device where);

}  // namespace ferry::inline v0
