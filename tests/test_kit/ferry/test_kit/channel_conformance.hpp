#pragma once

// Part of the test kit: the suite that every channel must pass. For a channel of your own, describe it and run the
// suite in a test case:
//
//   struct my_channel_under_test {
//     using tag = my_channel;                                   // channel_traits<my_channel> exists
//     static ferry::device from() { return {}; }                // a pair of devices that it serves
//     static ferry::device to() { return {my_kind, 0}; }
//     static std::string missing() { return {}; }               // why this machine cannot run it, if so
//   };
//   TEST_CASE("my_channel conforms") { ferry::test_kit::channel_conformance<my_channel_under_test>(); }
//
// A channel whose bytes go through a byte stream is tested between threads and between processes.

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <ferry/device/current.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/pack.hpp>
#include <ferry/test_kit/child_process.hpp>
#include <ferry/test_kit/transport_kit.hpp>
#include <ferry/transport/channel.hpp>

namespace ferry::test_kit {

/// The part of a connection in the work of a channel's ends, with its notifications.
class channel_kit {
 public:
  channel_kit() : context_(make_channel_context(test_reactor(), [shared = news_] { shared->come(); })) {}
  [[nodiscard]] const channel_context& context() const noexcept { return context_; }
  /// The number of notifications so far.
  [[nodiscard]] std::uint64_t seen() const { return news_->count(); }
  /// Waits for more than that.
  void wait_beyond(std::uint64_t seen) const { REQUIRE(news_->wait_beyond(seen)); }

 private:
  struct news {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t times = 0;
    void come() {
      const std::lock_guard lock(mutex);
      ++times;
      changed.notify_all();
    }
    std::uint64_t count() {
      const std::lock_guard lock(mutex);
      return times;
    }
    bool wait_beyond(std::uint64_t seen) {
      std::unique_lock lock(mutex);
      return wait_for(lock, changed, [&] { return times > seen; });
    }
  };
  const std::shared_ptr<news> news_ = std::make_shared<news>();
  const channel_context context_;
};

namespace detail {

inline constexpr std::array<std::int64_t, 7> channel_sizes{
    0, 1, 4096, staging_piece - 1, staging_piece, staging_piece + 1, 6 * staging_piece + 17};

/// On a device, once its stream has reached this point.
inline tensor tensor_for_channel(std::uint64_t seed, std::int64_t bytes, device where) {
  const tensor made = make_tensor(seed, bytes);
  return where.is_cpu() ? made : made.to(where);
}
/// A new stream, ordered behind the current one.
inline stream stream_behind(device where) {
  const stream on = pool_stream(where);
  on.wait(current_stream(where));
  return on;
}
inline tensor empty_for_channel(std::int64_t bytes, device where, const stream& on) {
  const stream_guard guard(on);
  return empty({bytes}, dtype::u8, where);
}
/// As seen by a reader whose stream waits for `on`.
inline bool arrived(const tensor& t, std::uint64_t seed, std::int64_t bytes, const stream& on) {
  if (!t.device().is_cpu()) {
    current_stream(t.device()).wait(on);
    t.storage().record_use(current_stream(t.device()));
  }
  return is_tensor(t.device().is_cpu() ? t : t.to(device()), seed, bytes);
}

/// Passes all data of a source to `write`, which accepts some of it, or returns 0 to be called again after a
/// notification.
template <class Write>
void drain_source(tensor_source& source, std::size_t bytes, const channel_kit& kit, Write&& write) {
  while (bytes != 0) {
    const std::uint64_t seen = kit.seen();
    source.fetch(staging_window);
    const auto ready = source.ready();
    REQUIRE(ready.size() <= bytes);
    const std::size_t taken = ready.empty() ? 0 : write(ready);
    if (taken == 0) {
      kit.wait_beyond(seen);
      continue;
    }
    source.consume(taken);
    bytes -= taken;
  }
  CHECK(source.ready().empty());
  CHECK(source.fetched() == 0);
}

/// Writes at most this many bytes into the sink.
inline std::size_t fill_sink(tensor_sink& sink, std::span<const std::byte> bytes) {
  const auto room = sink.room();
  const std::size_t part = std::min({room.size(), bytes.size(), std::size_t{300'000}});
  if (part == 0) return 0;
  std::memcpy(room.data(), bytes.data(), part);
  sink.commit(part);
  return part;
}

template <class Under>
tensor through(const tensor& from, std::int64_t bytes, stream& on) {
  using traits = channel_traits<typename Under::tag>;
  const stream reading = from.device().is_cpu() ? stream() : stream_behind(from.device());
  if constexpr (ferry::detail::copies_tensors<typename Under::tag>) {
    on = Under::to().is_cpu() ? reading : pool_stream(Under::to());
    if (!Under::to().is_cpu() && !from.device().is_cpu()) on.wait(reading);
    const tensor copy = traits::copy(from, Under::to(), on);
    if (copy.device().is_cpu() && !on.device().is_cpu()) on.synchronize();
    return copy;
  } else {
    const channel_kit kit;
    on = Under::to().is_cpu() ? stream() : pool_stream(Under::to());
    const tensor into = empty_for_channel(bytes, Under::to(), on);
    const auto source = traits::open_source(from, reading, kit.context());
    const auto sink = traits::open_sink(into, on, kit.context());
    drain_source(*source, static_cast<std::size_t>(bytes), kit,
                 [&](std::span<const std::byte> ready) { return fill_sink(*sink, ready); });
    CHECK(sink->room().empty());
    return into;
  }
}

template <class Under>
void check_bytes() {
  std::uint64_t seed = 0;
  for (const std::int64_t bytes : channel_sizes) {
    const tensor sent = tensor_for_channel(++seed, bytes, Under::from());
    stream on;
    const tensor got = through<Under>(sent, bytes, on);
    CHECK(got.device() == Under::to());
    CHECK(arrived(got, seed, bytes, on));
  }
}

template <class Under>
void check_threads() {
  std::vector<std::thread> threads;
  std::array<bool, 4> right{};
  for (std::size_t i = 0; i != right.size(); ++i) {
    threads.emplace_back([&right, i] {
      for (int round = 0; round != 3; ++round) {
        const std::int64_t bytes = 3 * static_cast<std::int64_t>(staging_piece) + round;
        stream on;
        const tensor got = through<Under>(tensor_for_channel(i, bytes, Under::from()), bytes, on);
        right[i] = arrived(got, i, bytes, on);
        if (!right[i]) return;
      }
    });
  }
  for (auto& each : threads) each.join();
  for (const bool each : right) CHECK(each);
}

/// Page-locked and device memory in use.
template <class Under>
std::array<std::uint64_t, 4> in_use() {
  const auto blocks = [](device where) { return where.is_cpu() ? 0 : get_device_memory_stats(where).blocks; };
  const auto staging = [](device where) {
    return where.is_cpu() ? 0 : get_staging_memory_stats(where.kind).blocks_in_use;
  };
  return {blocks(Under::from()), blocks(Under::to()), staging(Under::from()), staging(Under::to())};
}

// An end that gives up in the middle: nothing stays in use, and nothing is reused too early.
template <class Under>
void check_abandoned() {
  using traits = channel_traits<typename Under::tag>;
  const auto before = in_use<Under>();
  for (int round = 0; round != 8; ++round) {
    const std::int64_t bytes = 3 * static_cast<std::int64_t>(staging_piece);
    const channel_kit kit;
    const tensor sent = tensor_for_channel(5, bytes, Under::from());
    const stream reading = sent.device().is_cpu() ? stream() : stream_behind(sent.device());
    const stream on = Under::to().is_cpu() ? stream() : pool_stream(Under::to());
    const tensor into = empty_for_channel(bytes, Under::to(), on);
    const auto source = traits::open_source(sent, reading, kit.context());
    const auto sink = traits::open_sink(into, on, kit.context());
    source->fetch(staging_window);
    if (round % 2 == 0) {
      std::vector<std::byte> some(staging_piece + 1000);
      for (std::span<const std::byte> left = some; !left.empty();) {
        const std::uint64_t seen = kit.seen();
        const std::size_t part = fill_sink(*sink, left);
        left = left.subspan(part);
        if (part == 0) kit.wait_beyond(seen);
      }
    }
  }
  // Other tests may have held a piece at the start; a leak of this one accumulates over several rounds.
  const auto no_more_than_before = [&] {
    const auto now = in_use<Under>();
    return std::equal(now.begin(), now.end(), before.begin(), std::less_equal<>());
  };
  for (const auto until = std::chrono::steady_clock::now() + patience;
       !no_more_than_before() && std::chrono::steady_clock::now() < until;) {
    std::this_thread::yield();
  }
  CHECK(no_more_than_before());
  check_bytes<Under>();
}

inline void write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    REQUIRE(written > 0);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

// The child receives; a named pipe is the byte stream.
template <class Under>
void check_processes(const std::string& role) {
  using traits = channel_traits<typename Under::tag>;
  const channel_kit kit;
  if (role == "channel receiver") {
    const int from = ::open(given("FERRY_TEST_CHANNEL").c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(from >= 0);
    bool right = true;
    std::uint64_t seed = 0;
    for (const std::int64_t bytes : channel_sizes) {
      const stream on = Under::to().is_cpu() ? stream() : pool_stream(Under::to());
      const tensor into = empty_for_channel(bytes, Under::to(), on);
      const auto sink = traits::open_sink(into, on, kit.context());
      for (std::size_t left = static_cast<std::size_t>(bytes); left != 0;) {
        const std::uint64_t seen = kit.seen();
        const auto room = sink->room();
        if (room.empty()) {
          kit.wait_beyond(seen);
          continue;
        }
        const auto got = ::read(from, room.data(), std::min(room.size(), left));
        if (got < 0 && errno == EINTR) continue;
        REQUIRE(got > 0);
        sink->commit(static_cast<std::size_t>(got));
        left -= static_cast<std::size_t>(got);
      }
      right = arrived(into, ++seed, bytes, on) && right;
    }
    child_process::tell_parent(right ? "right" : "wrong");
    return;
  }
  const std::string name = (std::filesystem::temp_directory_path() /
                            ("ferry-channel-" + std::to_string(::getpid()) + "-" + std::string(traits::name)))
                               .string();
  REQUIRE(::mkfifo(name.c_str(), 0600) == 0);
  auto child = child_process::in_role("channel receiver", {{"FERRY_TEST_CHANNEL", name}});
  const int to = ::open(name.c_str(), O_WRONLY | O_CLOEXEC);
  REQUIRE(to >= 0);
  ::unlink(name.c_str());
  std::uint64_t seed = 0;
  for (const std::int64_t bytes : channel_sizes) {
    const tensor sent = tensor_for_channel(++seed, bytes, Under::from());
    const stream reading = sent.device().is_cpu() ? stream() : stream_behind(sent.device());
    const auto source = traits::open_source(sent, reading, kit.context());
    drain_source(*source, static_cast<std::size_t>(bytes), kit, [&](std::span<const std::byte> ready) {
      write_all(to, ready);
      return ready.size();
    });
  }
  CHECK(child.read_line() == "right");
  ::close(to);
  CHECK(child.wait() == 0);
}

}  // namespace detail

/// Runs the whole suite. Its test case is run again in other processes (child_process::in_role).
template <class Under>
void channel_conformance() {
  using tag = typename Under::tag;
  using traits = channel_traits<tag>;
  static_assert(tensor_channel<tag>);
  if (const std::string missing = Under::missing(); !missing.empty()) {
    MESSAGE("skipped: ", missing);
    return;
  }
  if constexpr (ferry::detail::streams_tensors<tag>) {
    if (const std::string role = child_process::current_role(); !role.empty())
      return detail::check_processes<Under>(role);
  }
  constexpr bool within = !ferry::detail::streams_tensors<tag>;
  CHECK_FALSE(traits::name.empty());
  CHECK(traits::unusable({Under::from(), Under::to(), within, true, ""}).empty());
  CHECK_FALSE(traits::unusable({Under::from(), Under::to(), !within, true, ""}).empty());
  detail::check_bytes<Under>();
  detail::check_threads<Under>();
  if constexpr (ferry::detail::streams_tensors<tag>) {
    detail::check_abandoned<Under>();
    detail::check_processes<Under>("");
  }
}

}  // namespace ferry::test_kit
