#pragma once

// Channels move the bytes of tensors between a device of one worker and a device of another, beside or within the
// messages of a connection. Each is a specialisation of channel_traits; the channel for a pair of devices is the first
// usable one.

#include <chrono>
#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/device/device.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/tensor/tensor.hpp>
#include <ferry/transport/reactor.hpp>

namespace ferry::inline v0 {

namespace detail {
class direct_memory;
class staging_ring;
}  // namespace detail

/// The two ends between which a channel moves tensors, and the connection in between.
struct channel_path {
  device from;  ///< of the sender
  device to;    ///< of the receiver
  bool same_process = false;
  bool device_tensors = false;     ///< the connection carries messages whose tensors are on devices
  std::string_view obstacle = {};  ///< why it does not; a literal
  /// Why the receiver's device does not read the sender's memory itself; empty: it does. As long-lived as the path.
  std::string_view not_direct = "the connection shares no memory";
};

/// What the ends of a channel get from their connection. Made by make_channel_context().
struct channel_context {
  std::shared_ptr<reactor> loop;
  /// Reports that there is more to send, or room again, or that it is time to check whether a device has exceeded its
  /// limit. Called on threads of the reactor, also after the end was destroyed.
  std::function<void()> news;
  /// The copies under way of one direction of the connection: bounds the host memory of those that are received, and
  /// notices those that make no progress.
  std::shared_ptr<detail::staging_ring> ring;
  /// The memory that the two processes read from each other; null: none.
  std::shared_ptr<detail::direct_memory> direct = {};
};

/// A context with a ring of its own. Copies that make no progress for `device_timeout` fail with errc::device_timeout.
[[nodiscard]] channel_context make_channel_context(
    std::shared_ptr<reactor> loop, std::function<void()> news,
    std::chrono::milliseconds device_timeout = std::chrono::milliseconds(30'000));

/// The sending end, of one tensor: returns its bytes, front to back. Not thread-safe, except that it may be destroyed
/// on any thread, at any time: memory that a device still reads or writes is kept until the device has finished.
class tensor_source {
 public:
  virtual ~tensor_source() = default;
  /// Ensures that up to `ahead` bytes are ready or being fetched, or fewer where the device makes no progress. Does not
  /// block. Throws errc::device_failure, errc::device_timeout, errc::out_of_memory.
  virtual void fetch(std::size_t ahead) = 0;
  /// Bytes fetched and not yet consumed.
  [[nodiscard]] virtual std::size_t fetched() const noexcept = 0;
  /// The next bytes that may be sent. Empty: at the end, or not ready before news() is called. Throws
  /// errc::device_failure, errc::device_timeout.
  virtual std::span<const std::byte> ready() = 0;
  /// The first `bytes` bytes of ready() have been sent.
  virtual void consume(std::size_t bytes) noexcept = 0;
};

/// The receiving end, of one tensor: receives its bytes, front to back. As thread-safe as the other end.
class tensor_sink {
 public:
  virtual ~tensor_sink() = default;
  /// The buffer for the next bytes. Empty: at the end, or not ready before news() is called. Throws
  /// errc::device_failure, errc::device_timeout, errc::out_of_memory.
  virtual std::span<std::byte> room() = 0;
  /// `bytes` bytes have been received into room(). Once all have, the tensor is valid in the order of its stream.
  /// Throws errc::device_failure.
  virtual void commit(std::size_t bytes) = 0;
  /// Once all have been received: whether the sender's memory is read no more. If not, news() is called later. Throws
  /// errc::device_failure, errc::device_timeout.
  virtual bool settled() { return true; }
};

/// Customisation point: specialise for a tag type.
///   static constexpr std::string_view name;            unique, lower case
///   static constexpr int priority;                     higher is tried first
///   static std::string unusable(const channel_path&);  empty if it can move tensors on this path, else why not
/// and, for a channel whose bytes travel in the byte stream of the message,
///   static std::unique_ptr<tensor_source> open_source(const tensor& packed, const stream& on, const channel_context&);
///   static std::unique_ptr<tensor_sink> open_sink(const tensor& into, const stream& on, const channel_context&);
/// where the tensor may be read, or written, in the order of `on`, a stream of its device, and is kept as long as
/// needed; or, for one within a process,
///   static tensor copy(const tensor& packed, device to, const stream& on);
/// which queues a copy on `on`, a stream of `to`, or of the tensor's device if that is the CPU, without waiting. All
/// throw errc::bad_device, errc::out_of_memory, errc::device_failure. Called on any thread.
template <class Tag>
struct channel_traits;

namespace detail {
template <class Tag>
concept has_channel_traits = requires { sizeof(channel_traits<Tag>); };
template <class Tag>
concept has_channel_name = requires {
  { channel_traits<Tag>::name } -> std::convertible_to<std::string_view>;
};
template <class Tag>
concept has_channel_priority = requires {
  { channel_traits<Tag>::priority } -> std::convertible_to<int>;
};
template <class Tag>
concept says_where_unusable = requires(const channel_path& path) {
  { channel_traits<Tag>::unusable(path) } -> std::same_as<std::string>;
};
template <class Tag>
concept streams_tensors = requires(const tensor& t, const stream& on, const channel_context& context) {
  { channel_traits<Tag>::open_source(t, on, context) } -> std::same_as<std::unique_ptr<tensor_source>>;
  { channel_traits<Tag>::open_sink(t, on, context) } -> std::same_as<std::unique_ptr<tensor_sink>>;
};
template <class Tag>
concept copies_tensors = requires(const tensor& t, device to, const stream& on) {
  { channel_traits<Tag>::copy(t, to, on) } -> std::same_as<tensor>;
};

/// Instantiated for a tag, reports in a sentence why it is not a channel.
template <class Tag>
struct channel_diagnosis {
  static constexpr bool there = has_channel_traits<Tag>;
  static_assert(there,
                "ferry: this type is no channel: specialise ferry::channel_traits for it, as "
                "ferry/transport/channel.hpp shows");
  static_assert(!there || has_channel_name<Tag>,
                "ferry: channel_traits of this channel lacks `name`: add static constexpr std::string_view name = "
                "\"my_channel\";");
  static_assert(!there || has_channel_priority<Tag>,
                "ferry: channel_traits of this channel lacks `priority`: add static constexpr int priority = 50; "
                "(cuda_staged has 0, inline 100, shm 140, cuda_ipc 150, inproc 200; higher is tried first)");
  static_assert(!there || says_where_unusable<Tag>,
                "ferry: channel_traits of this channel lacks `unusable`: add static std::string unusable(const "
                "ferry::channel_path& path); which is empty where the channel works and else says why not");
  static_assert(!there || streams_tensors<Tag> || copies_tensors<Tag>,
                "ferry: channel_traits of this channel moves nothing: add open_source and open_sink, or copy, as "
                "ferry/transport/channel.hpp has them");
};

template <class... Tags>
consteval bool channels_differ_in_name() {
  if constexpr ((has_channel_name<Tags> && ...)) {
    const std::string_view names[]{channel_traits<Tags>::name...};
    for (std::size_t i = 0; i != sizeof...(Tags); ++i) {
      for (std::size_t j = 0; j != i; ++j) {
        if (names[i] == names[j]) return false;
      }
    }
  }
  return true;
}
}  // namespace detail

/// A tag whose channel_traits is complete.
template <class Tag>
concept tensor_channel =
    detail::has_channel_name<Tag> && detail::has_channel_priority<Tag> && detail::says_where_unusable<Tag> &&
    (detail::streams_tensors<Tag> || detail::copies_tensors<Tag>);

/// From CPU to CPU, in the byte stream of the message: written from, and received into, the memory of the tensors.
struct inline_tensors {};
/// Between GPUs of two processes of a machine, over `shm`: the receiver's GPU copies from the sender's memory, and only the name of
/// that memory is in the byte stream. For tensors of least_direct bytes and more in memory that ferry allocated; it is lent until
/// the copy has been made, and the message arrives then. docs/devices.md says between which devices.
struct cuda_ipc {};
/// From CPU to CPU of another process of the machine, over `shm`: the receiver has a tensor over the sender's memory, and only the
/// place of that memory is in the byte stream. For tensors of shared_allocator(), of least_shared bytes and more; they are lent
/// until the receiver has dropped its tensor.
struct shm_tensors {};
/// Within a process: copied by the devices, or by the sender from CPU to CPU, unless the tensor can be handed over.
struct inproc_tensors {};
/// From and to CUDA devices, and devices of user-defined kinds, in the byte stream: through page-locked host memory, in
/// pieces, while others are being written or received. At most staging_window bytes of a tensor are in such memory at
/// either end, and at most that of all tensors that a connection receives, besides one piece for each further device
/// and what a device that makes no progress keeps: 2 * staging_window, and a piece for each of its streams.
struct cuda_staged {};

inline constexpr std::size_t staging_piece = std::size_t{1} << 20;
inline constexpr std::size_t staging_window = 4 * staging_piece;

inline constexpr std::size_t least_direct = std::size_t{1} << 20;

template <>
struct channel_traits<cuda_ipc> {
  static constexpr std::string_view name = "cuda_ipc";
  static constexpr int priority = 150;
  static std::string unusable(const channel_path& path);
  /// Null: the tensor's memory cannot be lent, or too much is lent; another channel takes it.
  static std::unique_ptr<tensor_source> open_source(const tensor& packed, const stream& on,
                                                    const channel_context& context);
  static std::unique_ptr<tensor_sink> open_sink(const tensor& into, const stream& on, const channel_context& context);
};
template <>
struct channel_traits<shm_tensors> {
  static constexpr std::string_view name = "shm";
  static constexpr int priority = 140;
  static std::string unusable(const channel_path& path);
  /// Null: the tensor's memory cannot be lent, or too much is lent; another channel takes it.
  static std::unique_ptr<tensor_source> open_source(const tensor& packed, const stream& on,
                                                    const channel_context& context);
  /// Copies into the memory that there is.
  static std::unique_ptr<tensor_sink> open_sink(const tensor& into, const stream& on, const channel_context& context);
};
template <>
struct channel_traits<inline_tensors> {
  static constexpr std::string_view name = "inline";
  static constexpr int priority = 100;
  static std::string unusable(const channel_path& path);
  static std::unique_ptr<tensor_source> open_source(const tensor& packed, const stream& on,
                                                    const channel_context& context);
  static std::unique_ptr<tensor_sink> open_sink(const tensor& into, const stream& on, const channel_context& context);
};
template <>
struct channel_traits<inproc_tensors> {
  static constexpr std::string_view name = "inproc";
  static constexpr int priority = 200;
  static std::string unusable(const channel_path& path);
  static tensor copy(const tensor& packed, device to, const stream& on);
};
template <>
struct channel_traits<cuda_staged> {
  static constexpr std::string_view name = "cuda_staged";
  static constexpr int priority = 0;
  static std::string unusable(const channel_path& path);
  static std::unique_ptr<tensor_source> open_source(const tensor& packed, const stream& on,
                                                    const channel_context& context);
  static std::unique_ptr<tensor_sink> open_sink(const tensor& into, const stream& on, const channel_context& context);
};

/// A channel chosen at compile time, as a value. Functions it does not support are null.
struct channel_factory {
  std::string_view name;
  int priority;
  std::string (*unusable)(const channel_path&);
  std::unique_ptr<tensor_source> (*open_source)(const tensor&, const stream&, const channel_context&);
  std::unique_ptr<tensor_sink> (*open_sink)(const tensor&, const stream&, const channel_context&);
  tensor (*copy)(const tensor&, device, const stream&);
};

template <class Tag>
constexpr channel_factory make_channel_factory() noexcept {
  static_assert(sizeof(detail::channel_diagnosis<Tag>) != 0);
  channel_factory made{};
  if constexpr (tensor_channel<Tag>) {  // else one message is enough
    using traits = channel_traits<Tag>;
    made.name = traits::name;
    made.priority = traits::priority;
    made.unusable = &traits::unusable;
    if constexpr (detail::streams_tensors<Tag>) {
      made.open_source = &traits::open_source;
      made.open_sink = &traits::open_sink;
    }
    if constexpr (detail::copies_tensors<Tag>) made.copy = &traits::copy;
  }
  return made;
}

/// The channels to choose from: `channel_list<cuda_staged, my_channel>`.
template <class... Tags>
struct channel_list {
  static_assert(sizeof...(Tags) != 0,
                "ferry: a channel_list names at least one channel, for example channel_list<inline_tensors>");
  static_assert(detail::channels_differ_in_name<Tags...>(), "ferry: two channels of a channel_list have the same name");

  static std::vector<channel_factory> factories() { return {make_channel_factory<Tags>()...}; }
};
using default_channels = channel_list<inproc_tensors, cuda_ipc, shm_tensors, inline_tensors, cuda_staged>;

/// A route that was not used, and why.
struct rejected_route {
  std::string name;
  std::string reason;
};

struct channel_choice {
  const channel_factory* used = nullptr;     ///< of the list; null: none is usable
  std::vector<rejected_route> skipped = {};  ///< the ones tried before it
};
/// Tries the channels for a path, best first.
[[nodiscard]] channel_choice choose_channel(std::span<const channel_factory> channels, const channel_path& path);
/// The same for default_channels, which ferry's own connections use, without the list of skipped channels. Null: none
/// is usable.
[[nodiscard]] const channel_factory* find_channel(const channel_path& path);
/// default_channels, best first.
[[nodiscard]] std::span<const channel_factory> known_channels();

}  // namespace ferry::inline v0
