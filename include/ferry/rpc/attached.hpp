#pragma once

// State of libraries above the calls, one object for each worker: gradients, collectives, counters.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <ferry/backend/agent.hpp>

namespace ferry::inline v0 {

class worker;

namespace detail {
class worker_core;
}

/// State that is attached to one worker, and what it is told of that worker. None of the functions may throw, and unless
/// stated otherwise they must neither block nor run user code: they are called on threads that read. Attachments are
/// told in the order of their creation, and closed, cleared and destroyed in the reverse order.
class worker_attachment {
 public:
  worker_attachment() = default;
  virtual ~worker_attachment() = default;
  worker_attachment(const worker_attachment&) = delete;
  worker_attachment& operator=(const worker_attachment&) = delete;

  /// Events after the creation of the attachment, in their order.
  virtual void on_member_event(const member_event& event) noexcept { (void)event; }
  /// A member that was lost, or that left, has now ended its calls and handlers: nothing more comes from it.
  virtual void on_member_end(worker_id id, incarnation_id incarnation) noexcept { (void)id, (void)incarnation; }

  /// A graceful shutdown has reached the point where no call runs or is under way, at this worker (`alone`) or in the
  /// group: the last chance to send messages. May block, at most until the deadline.
  virtual void on_group_quiet(deadline until, bool alone) noexcept { (void)until, (void)alone; }
  /// How much on_group_quiet() has to do; summed over the group: at 0 it is not called.
  [[nodiscard]] virtual std::uint64_t loose_ends() const noexcept { return 0; }
  /// Ends a wait in on_group_quiet(), also a later one: one that is not `alone`, or (`entirely`) any.
  virtual void stop_waiting(bool entirely) noexcept { (void)entirely; }
  /// What other workers still hold after a graceful shutdown of a whole static group, as texts; empty: nothing. May block
  /// briefly.
  [[nodiscard]] virtual std::vector<std::string> leaks() const { return {}; }

  /// The worker has left its group and its connections are closed: no request arrives any more. Handlers may still run;
  /// what they wait for here must end now. May run user code.
  virtual void close() noexcept {}
  /// After close(); `idle`: no handler or continuation of the worker runs any more (otherwise some did not end within
  /// their limit). May run user code.
  virtual void clear(bool idle) noexcept { (void)idle; }
};

/// Names the attachment of type T. Its address is its identity, so that it has static storage duration and one definition
/// in the program; the name is for error texts.
///
///     inline constexpr ferry::attached_key<my_counters> counters("my_library.counters");
template <class T>
class attached_key {
 public:
  /// `name` must live as long as the key.
  constexpr explicit attached_key(const char* name) noexcept : name_(name) {}
  attached_key(const attached_key&) = delete;
  attached_key& operator=(const attached_key&) = delete;
  [[nodiscard]] const char* name() const noexcept { return name_; }

 private:
  const char* name_;
};

namespace detail {
using attachment_maker = std::shared_ptr<worker_attachment> (*)(worker_core& worker);
/// Throws errc::not_initialized once the worker has closed its attachments.
std::shared_ptr<worker_attachment> attachment_of(worker_core& worker, const void* key, std::string_view name,
                                                 attachment_maker make);
worker_core& core_of(const worker& of);
/// The worker that free functions use.
std::shared_ptr<worker_core> current_worker();
}  // namespace detail

/// For constructors of attachments that need to know their worker.
class attachment_owner {
 public:
  explicit attachment_owner(detail::worker_core& core) noexcept : core_(core) {}
  [[nodiscard]] const worker_info& info() const noexcept;
  [[nodiscard]] incarnation_id incarnation() const noexcept;

  // For the library.
  [[nodiscard]] detail::worker_core& core() const noexcept { return core_; }

 private:
  detail::worker_core& core_;
};

namespace detail {
template <class T>
std::shared_ptr<T> attached_to(worker_core& worker, const attached_key<T>& key) {
  static_assert(std::is_base_of_v<worker_attachment, T>, "ferry: an attachment derives from ferry::worker_attachment");
  return std::static_pointer_cast<T>(
      attachment_of(worker, &key, key.name(), [](worker_core& owner) -> std::shared_ptr<worker_attachment> {
        if constexpr (std::is_constructible_v<T, attachment_owner>) {
          return std::make_shared<T>(attachment_owner(owner));
        } else {
          return std::make_shared<T>();
        }
      }));
}
}  // namespace detail

/// The T of this worker: made on first use, by T(attachment_owner) or T(), and destroyed when the worker has shut down
/// and its last user has gone. Throws errc::not_initialized if there is none and the worker shuts down, and what the
/// constructor throws. The constructor may attach others; it must
/// neither block nor make calls. Thread-safe.
template <class T>
std::shared_ptr<T> attached(const attached_key<T>& key, const worker& of) {
  return detail::attached_to(detail::core_of(of), key);
}
/// The same of the current worker: of the running handler, else the last one initialised.
template <class T>
std::shared_ptr<T> attached(const attached_key<T>& key) {
  return detail::attached_to(*detail::current_worker(), key);
}

}  // namespace ferry::inline v0
