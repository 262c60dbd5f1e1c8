#pragma once

// The untyped part of rref<T>, and the references that are sent in a message.

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

/// Shares one fork, or one local reference at the owner. Copies are cheap and local to this process. Distinct handles
/// may be used concurrently. Accessors throw errc::invalid_argument on an empty handle.
class reference_handle {
 public:
  reference_handle() noexcept = default;
  explicit reference_handle(std::shared_ptr<reference_state> state) noexcept : state_(std::move(state)) {}
  [[nodiscard]] reference_state* get() const noexcept { return state_.get(); }
  explicit operator bool() const noexcept { return state_ != nullptr; }
  friend bool operator==(const reference_handle& a, const reference_handle& b) noexcept;
  [[nodiscard]] std::size_t hash() const noexcept;

  /// Creates an object owned by the current worker, or by `worker`.
  static reference_handle own(std::unique_ptr<owned_value> value);
  static reference_handle own(worker_core& worker, std::unique_ptr<owned_value> value);

  [[nodiscard]] bool is_owner() const;
  [[nodiscard]] bool confirmed() const;
  [[nodiscard]] worker_info owner() const;
  /// Returns "rref<T>(...)" with `type` as T, for logs and error texts.
  [[nodiscard]] std::string describe(const std::string& type) const;
  /// At the owner: blocks until the object has been made and returns it. Throws errc::not_owner elsewhere, and the
  /// exception that its creation threw.
  [[nodiscard]] owned_object& local() const;
  /// At the owner, if calls on the object may run concurrently: like local(), with a timeout. Otherwise null.
  [[nodiscard]] ref_ptr<owned_object> local_unguarded(const call_options& options) const;
  /// The reference's state. If the reference has failed, throws its error.
  [[nodiscard]] reference_state& usable() const;
  /// Complete once the owner has made the object, or has registered this reference; fails if that fails.
  [[nodiscard]] future<void> created() const;
  /// The name of the object's type. A failed request is repeated by the next call.
  [[nodiscard]] future<std::string> type(const call_options& options) const;

 private:
  reference_state& state() const;

  std::shared_ptr<reference_state> state_;
};

/// Whether calls of this method only query the object and therefore run without waiting for their turn.
bool only_queries_object(std::uint64_t method) noexcept;

/// For the serialiser of rref<T>. Throw errc::not_serialisable outside messages between workers.
void write_reference(wire_output_archive& archive, const reference_handle& handle);
reference_handle read_reference(wire_input_archive& archive);

}  // namespace ferry::inline v0::detail
