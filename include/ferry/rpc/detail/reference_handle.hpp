#pragma once

// The untyped part of rref<T>, and the references that go into a message.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <ferry/backend/agent.hpp>
#include <ferry/backend/worker_info.hpp>
#include <ferry/base/ids.hpp>
#include <ferry/rpc/detail/owned_object.hpp>
#include <ferry/rpc/future.hpp>
#include <ferry/rpc/to.hpp>
#include <ferry/wire/archive.hpp>
#include <ferry/wire/message.hpp>

namespace ferry::inline v0::detail {

class worker_core;
class reference_state;

/// Shares one fork, or one local hold at the owner. Copies are cheap and stay in this process. Distinct handles may be
/// used concurrently. Accessors throw errc::invalid_argument on an empty handle.
class reference_handle {
 public:
  reference_handle() noexcept = default;
  explicit reference_handle(std::shared_ptr<reference_state> state) noexcept : state_(std::move(state)) {}
  [[nodiscard]] reference_state* get() const noexcept { return state_.get(); }
  explicit operator bool() const noexcept { return state_ != nullptr; }
  friend bool operator==(const reference_handle& a, const reference_handle& b) noexcept;
  [[nodiscard]] std::size_t hash() const noexcept;

  /// A new object of the current worker.
  static reference_handle own(std::unique_ptr<owned_value> value);
  static reference_handle own(worker_core& worker, std::unique_ptr<owned_value> value);

  [[nodiscard]] bool is_owner() const;
  [[nodiscard]] bool confirmed() const;
  [[nodiscard]] worker_info owner() const;
  /// "rref<T>(...)" with the given T, for logs and error texts.
  [[nodiscard]] std::string describe(const std::string& type) const;
  /// At the owner: the object, once it has been made; blocks. Throws errc::not_owner, and what its creation threw.
  [[nodiscard]] owned_object& local() const;
  /// At the owner, for an object whose calls run concurrently: the same with a timeout; otherwise null.
  [[nodiscard]] owned_object* local_unguarded(const call_options& options) const;
  /// The reference's state. Throws the error it has failed with.
  [[nodiscard]] reference_state& usable() const;
  /// Complete once the owner has made the object, or has registered this reference; fails if that fails.
  [[nodiscard]] future<void> created() const;
  /// The name of the object's type; requested again after a failure.
  [[nodiscard]] future<std::string> type() const;

 private:
  reference_state& state() const;

  std::shared_ptr<reference_state> state_;
};

/// Whether calls of this method only query the object, and so need no turn at it.
bool only_queries_object(std::uint64_t method) noexcept;

/// The references that go into one message: sent with it, or released if it is not sent.
class handed_references final : public handle_writer {
 public:
  handed_references() noexcept = default;
  /// If `to` has no incarnation, the group's current one is used.
  handed_references(worker_core& worker, const call_target& to) noexcept : worker_(&worker), to_(to) {}
  handed_references(handed_references&& other) noexcept = default;
  handed_references& operator=(handed_references&& other) noexcept = default;
  /// Releases references that were not sent, and watches those that were.
  ~handed_references();

  std::uint32_t put(const void* handle) override;
  /// Adds the record to the message, once its payload is there.
  void seal(outgoing_message& message) {
    if (list_) write(message);
  }
  [[nodiscard]] bool empty() const noexcept { return !list_; }
  /// The message has been sent.
  void sent() noexcept;
  /// It has been answered.
  void arrived() noexcept {
    if (list_) settle(true);
  }
  /// It will not be answered: whether it has arrived is unknown.
  void query() noexcept {
    if (list_) settle(false);
  }

 private:
  struct list;
  struct drop_list {
    void operator()(list* dropped) const noexcept;
  };
  void write(outgoing_message& message);
  void settle(bool answered) noexcept;

  worker_core* worker_ = nullptr;
  call_target to_ = worker_id{};
  std::unique_ptr<list, drop_list> list_;
};

/// For the serialiser of rref<T>. Throw errc::not_serialisable outside messages between workers.
void write_reference(wire_output_archive& archive, const reference_handle& handle);
reference_handle read_reference(wire_input_archive& archive);

}  // namespace ferry::inline v0::detail
