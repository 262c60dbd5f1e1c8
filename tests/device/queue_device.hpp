#pragma once

// A user-defined kind of device: three devices whose streams are queues with a thread each. What an accelerator's
// author writes.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <ferry/device/traits.hpp>

struct queue_device {};
struct work_queue;
struct work_mark;

template <>
struct ferry::device_traits<queue_device> {
  static constexpr std::string_view name = "queue";
  static constexpr device_kind kind = static_cast<device_kind>(130);
  using stream_handle = work_queue*;
  using event_handle = work_mark*;

  static int count() noexcept { return 3; }
  static int current() noexcept;
  static void make_current(int index);
  static void restore_current(int former) noexcept;
  static void* allocate(device where, std::size_t bytes, stream_handle stream);
  static void deallocate(device where, void* memory, std::size_t bytes, stream_handle stream) noexcept;
  static std::uint64_t reserved_bytes(device) { return 0; }
  static void trim(device) {}
  static stream_handle default_stream(device where) noexcept;
  static stream_handle create_stream(device where);
  static void destroy_stream(device where, stream_handle stream) noexcept;
  static bool stream_done(device where, stream_handle stream);
  static void synchronize_stream(device where, stream_handle stream);
  static void call_on_host(device where, stream_handle stream, void (*function)(void*), void* argument);
  static event_handle create_event(device where);
  static void destroy_event(device where, event_handle event) noexcept;
  static void record_event(device where, event_handle event, stream_handle stream);
  static void wait_event(device where, stream_handle stream, event_handle event);
  static bool event_done(device where, event_handle event);
  static void synchronize_event(device where, event_handle event);
  static void copy(device to, void* target, device from, const void* source, std::size_t bytes, device on,
                   stream_handle stream);
  static void fill(device where, void* memory, unsigned char value, std::size_t bytes, stream_handle stream);
  static bool peer_access(device, device) noexcept { return true; }
};
