#pragma once

// Part of the test kit. Helpers for tests of transports: workers that accept, receivers that record, recognisable
// messages.

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/transport/transport.hpp>

namespace ferry::test_kit {

/// No wait in these tests takes that long; an expiry is a failure.
inline constexpr std::chrono::seconds patience{60};

/// The reactor that the tests run on.
inline std::shared_ptr<ferry::reactor> test_reactor() { return ferry::shared_reactor(); }

/// Waits until `condition` holds, which other threads change under `mutex` and report through `news`.
template <class Condition>
bool wait_for(std::unique_lock<std::mutex>& lock, std::condition_variable& news, Condition condition) {
  return news.wait_for(lock, patience, condition);
}

/// Records what a connection delivers, or passes it to `on_arrival`.
class recorder : public ferry::connection_receiver {
 public:
  std::function<void(ferry::connection&, ferry::inbound_message&)> on_arrival;
  std::function<void(ferry::connection&)> on_room;
  std::atomic<std::size_t> expected{1};

  void on_message(ferry::connection& from, ferry::inbound_message&& message) noexcept override {
    if (on_arrival) on_arrival(from, message);
    const std::lock_guard lock(mutex_);
    if (closed_ != 0) late_ = true;
    ++count_;
    if (keep_) messages_.push_back(std::move(message));
    news_.notify_all();
  }
  void on_closed(ferry::connection&, std::exception_ptr reason) noexcept override {
    const std::lock_guard lock(mutex_);
    ++closed_;
    reason_ = std::move(reason);
    news_.notify_all();
  }
  void on_written(ferry::connection& which) noexcept override {
    if (on_room) on_room(which);
    const std::lock_guard lock(mutex_);
    ++written_;
    news_.notify_all();
  }
  [[nodiscard]] std::size_t expected_messages() const noexcept override { return expected; }

  /// Only counts messages from now on.
  void forget_messages() { keep_ = false; }
  /// All messages so far, once there are `count`; fewer after a long time.
  std::vector<ferry::inbound_message> take(std::size_t count) {
    std::unique_lock lock(mutex_);
    wait_for(lock, news_, [&] { return messages_.size() >= count; });
    return std::exchange(messages_, {});
  }
  bool wait_for_count(std::size_t count) {
    std::unique_lock lock(mutex_);
    return wait_for(lock, news_, [&] { return count_ >= count; });
  }
  bool wait_closed() {
    std::unique_lock lock(mutex_);
    return wait_for(lock, news_, [&] { return closed_ != 0; });
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  int times_closed() {
    const std::lock_guard lock(mutex_);
    return closed_;
  }
  /// How often on_written was called.
  int times_written() {
    const std::lock_guard lock(mutex_);
    return written_;
  }
  /// Whether a message came after on_closed.
  bool saw_late_message() {
    const std::lock_guard lock(mutex_);
    return late_;
  }
  std::string reason() {
    const std::lock_guard lock(mutex_);
    try {
      if (reason_) std::rethrow_exception(reason_);
    } catch (const ferry::error& error) {
      return error.what();
    }
    return "no reason";
  }

 private:
  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<ferry::inbound_message> messages_;
  std::size_t count_ = 0;
  std::exception_ptr reason_;
  int closed_ = 0;
  int written_ = 0;
  bool late_ = false;
  bool keep_ = true;
};

/// A worker that accepts every connection and records its messages.
class accepting_worker : public ferry::connection_acceptor {
 public:
  explicit accepting_worker(std::string name) : name_(std::move(name)) {}

  std::function<void(const ferry::hello&)> on_greeting;

  ferry::hello_reply on_hello(const ferry::hello& from) override {
    if (on_greeting) on_greeting(from);
    return {name_, ferry::worker_id{7}, ferry::incarnation_id{99}, from.features & 0xff};
  }
  void on_accepted(std::shared_ptr<ferry::connection> accepted, const ferry::hello& from) noexcept override {
    auto log = std::make_shared<recorder>();
    if (prepare) prepare(*log);
    accepted->start(log);
    const std::lock_guard lock(mutex_);
    links_.emplace_back(std::move(accepted), std::move(log));
    greetings_.push_back(from);
    news_.notify_all();
  }

  using link = std::pair<std::shared_ptr<ferry::connection>, std::shared_ptr<recorder>>;
  /// The connection accepted as the `index`-th.
  link accepted(std::size_t index = 0) {
    std::unique_lock lock(mutex_);
    if (!wait_for(lock, news_, [&] { return links_.size() > index; }))
      throw std::runtime_error("no connection was accepted");
    return links_[index];
  }
  std::size_t accepted_count() {
    const std::lock_guard lock(mutex_);
    return links_.size();
  }
  ferry::hello greeting(std::size_t index = 0) {
    const std::lock_guard lock(mutex_);
    return greetings_.at(index);
  }
  /// Called before a connection starts.
  std::function<void(recorder&)> prepare;

 private:
  const std::string name_;
  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<link> links_;
  std::vector<ferry::hello> greetings_;
};

/// Connects and waits for the result.
inline ferry::connect_result connect(ferry::transport& over, const std::string& address, const ferry::hello& self,
                                     const ferry::transport_options& options = {},
                                     ferry::deadline until = ferry::deadline::after(patience)) {
  auto outcome = std::make_shared<std::promise<ferry::connect_result>>();
  auto result = outcome->get_future();
  over.connect(address, self, options, until,
               [outcome](ferry::connect_result done) { outcome->set_value(std::move(done)); });
  return result.get();
}

/// The kind and the text of a failed connect.
inline std::pair<ferry::errc, std::string> failure_of(const ferry::connect_result& result) {
  try {
    if (result.error) std::rethrow_exception(result.error);
  } catch (const ferry::error& error) {
    return {error.kind(), error.what()};
  }
  return {ferry::errc{}, "no error"};
}

inline ferry::hello hello_to(std::string target, std::string group = "group") {
  ferry::hello result;
  result.group = std::move(group);
  result.name = "caller";
  result.id = ferry::worker_id{3};
  result.incarnation = ferry::incarnation_id{12345};
  result.target = std::move(target);
  result.features = 0x1234;
  return result;
}

/// The byte at `index` of the payload of message `seed`.
inline std::byte pattern(std::uint64_t seed, std::size_t index) {
  return static_cast<std::byte>((index * 131U + (index >> 8U) + seed * 29U + 7U) & 0xffU);
}

inline ferry::outgoing_message make_message(std::uint64_t id, std::size_t payload_bytes,
                                            std::vector<ferry::tensor> tensors = {}) {
  ferry::outgoing_message message;
  message.header.kind = ferry::frame_kind::request;
  message.header.call_id = id;
  message.header.method = id * 3;
  std::byte* at = message.bytes.extend(payload_bytes);
  for (std::size_t i = 0; i < payload_bytes; ++i) at[i] = pattern(id, i);
  message.tensors = std::move(tensors);
  message.finish();
  return message;
}

/// Whether `message` equals the result of make_message(id, payload_bytes).
inline bool is_message(const ferry::inbound_message& message, std::uint64_t id, std::size_t payload_bytes) {
  if (message.header.call_id != id || message.header.method != id * 3 || message.payload.size() != payload_bytes)
    return false;
  for (std::size_t i = 0; i < payload_bytes; ++i) {
    if (message.payload[i] != pattern(id, i)) return false;
  }
  return true;
}

/// A u8 tensor of `count` elements that encodes its `seed`.
inline ferry::tensor make_tensor(std::uint64_t seed, std::int64_t count) {
  auto result = ferry::empty({count}, ferry::dtype::u8);
  auto* at = static_cast<std::byte*>(result.data());
  for (std::int64_t i = 0; i < count; ++i) at[i] = pattern(seed, static_cast<std::size_t>(i));
  return result;
}

inline bool is_tensor(const ferry::tensor& t, std::uint64_t seed, std::int64_t count) {
  if (t.dtype() != ferry::dtype::u8 || t.rank() != 1 || t.size(0) != count) return false;
  const auto* at = static_cast<const std::byte*>(t.data());
  for (std::int64_t i = 0; i < count; ++i) {
    if (at[i] != pattern(seed, static_cast<std::size_t>(i))) return false;
  }
  return true;
}

}  // namespace ferry::test_kit
