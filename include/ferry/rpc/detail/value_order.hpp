#pragma once

// Stream order of a complete value whose tensors devices may still be working on: a future's record of the streams that
// its value was made on.

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <ferry/device/current.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/rpc/context.hpp>
#include <ferry/tensor/storage.hpp>
#include <ferry/tensor/tensor.hpp>
#include <ferry/wire/archive.hpp>
#include <ferry/wire/serialize.hpp>

namespace ferry::inline v0::detail {

class read_marks;

/// Events recorded on the streams that were current when the value was made, one for each device that its tensors are
/// on. Keeps their memory alive independently of the tensors. For the result of a call it also holds the events
/// recorded after the arguments were read. Immutable once its future is complete: any thread may read it.
class value_order {
 public:
  /// Returns null if none of the tensors is on a device with streams. Throws errc::bad_device, errc::device_failure.
  static std::unique_ptr<value_order> of(std::span<const tensor> tensors);
  /// For the value of a call that is still pending, whose arguments have been read when the events in `reads` are
  /// reached.
  static std::unique_ptr<value_order> behind(std::shared_ptr<const read_marks> reads);
  /// Takes the read marks of the call that made the value.
  void add_reads_of(value_order& call) noexcept { reads_ = std::move(call.reads_); }

  /// The calling thread's current streams wait for the value, and count as users of its memory; the host does not wait.
  /// Throws errc::device_failure.
  void let_current_streams_wait() const;
  /// The devices whose streams wait.
  [[nodiscard]] std::vector<device> devices() const;
  /// The device that was current when the value was made; none if it has no tensors on devices.
  [[nodiscard]] const std::optional<device>& current_device() const noexcept { return current_; }

 private:
  std::vector<event> events_;
  std::vector<storage> memory_;
  std::optional<device> current_;
  std::shared_ptr<const read_marks> reads_;
};

/// Sets streams and current device for a callback. For each device of the value the current stream is one of the
/// callback's context, if it has one, else a separate stream; it waits for the value. The current device is the one
/// that was current when the value was made.
class callback_streams {
 public:
  /// Null: no effect. If streams cannot be obtained, the current ones stay in use, which is slower but equally correct.
  explicit callback_streams(const value_order* order) noexcept {
    if (order) enter(*order);
  }
  callback_streams(const callback_streams&) = delete;
  callback_streams& operator=(const callback_streams&) = delete;

 private:
  void enter(const value_order& order) noexcept;
  std::optional<streams_scope> streams_;
  std::optional<device_guard> device_;
};

/// Whether values of the type can never contain tensors.
template <class T>
inline constexpr bool free_of_tensors = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_empty_v<T>;
template <class Character, class Traits, class Allocator>
inline constexpr bool free_of_tensors<std::basic_string<Character, Traits, Allocator>> = true;
template <class T, class Allocator>
inline constexpr bool free_of_tensors<std::vector<T, Allocator>> = free_of_tensors<T>;
template <>
inline constexpr bool free_of_tensors<std::exception_ptr> = true;

/// Ignores references while a value is searched for tensors: referenced objects are not searched.
class passed_handles final : public handle_writer {
 public:
  std::uint32_t put(const void*) override { return 0; }
};

/// The tensors in a value, found by serialising it as for a message, without sending it. Types that cannot be sent, and
/// objects behind references, are not searched.
template <class T>
std::vector<tensor> tensors_in(const T& value) {
  std::vector<tensor> found;
  if constexpr (std::is_same_v<T, tensor>) {
    if (value.defined()) found.push_back(value);
  } else if constexpr (!free_of_tensors<T> && wire_serialisable<T>) {
    byte_buffer unused;
    passed_handles elsewhere;
    try {
      wire_output_archive archive(unused, found, &elsewhere);
      archive(value);
    } catch (...) {  // NOLINT(bugprone-empty-catch): a value that cannot be sent: keep what was found so far
    }
  }
  return found;
}

/// The order of a value that was just made on the calling thread's current streams.
template <class T>
std::unique_ptr<value_order> order_of_value(const T& value) {
  return value_order::of(tensors_in(value));
}

/// The calling thread's current streams count as users of the memory of the value's tensors.
template <class T>
void record_use_of(const T& value) {
  for (const tensor& each : tensors_in(value)) {
    if (!each.device().is_cpu()) each.storage().record_use(current_stream(each.device()));
  }
}

}  // namespace ferry::inline v0::detail
