#pragma once

// The context of a call: the state that is passed along with it (deadline, stop, streams) and the executor of its
// continuations. Beside it stand the context values of a thread (context_values.hpp). Continuations, coroutines and calls
// capture both where they are made.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <utility>
#include <vector>

#include <ferry/base/ids.hpp>
#include <ferry/base/time.hpp>
#include <ferry/base/work.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/rpc/context_values.hpp>

namespace ferry::inline v0 {

class call_context;

namespace detail {
class incoming_call;
class lazy_streams;

/// Sets the calling thread's current streams of their devices for the duration of the scope; no effect for an empty
/// list. Devices that no longer exist are skipped. Memory that the thread frees in the scope is freed in the order of
/// these streams.
class streams_scope {
 public:
  explicit streams_scope(std::span<const stream> now) noexcept {
    if (!now.empty()) enter(now, nullptr, false);
  }
  /// Those of a context, and for its other devices streams that it takes when they are asked for. The current device is
  /// that of the first stream that its call brought.
  explicit streams_scope(const call_context* context) noexcept;
  streams_scope(const streams_scope&) = delete;
  streams_scope& operator=(const streams_scope&) = delete;
  ~streams_scope() {
    if (former_) leave();
  }

 private:
  void enter(std::span<const stream> now, lazy_streams* later, bool first_is_current) noexcept;
  void leave() noexcept;
  struct former_streams;
  former_streams* former_ = nullptr;
};
}  // namespace detail

/// Shared ownership of a call_context (one atomic counter inside it). Value type; thread-safe like std::shared_ptr.
class context_ptr {
 public:
  context_ptr() noexcept = default;
  explicit context_ptr(call_context* adopted) noexcept : context_(adopted) {}
  /// Adds an owner to a context that already has one.
  static context_ptr share(call_context* context) noexcept;
  context_ptr(const context_ptr& other) noexcept;
  context_ptr(context_ptr&& other) noexcept : context_(std::exchange(other.context_, nullptr)) {}
  context_ptr& operator=(context_ptr other) noexcept {
    std::swap(context_, other.context_);
    return *this;
  }
  ~context_ptr();
  [[nodiscard]] call_context* get() const noexcept { return context_; }
  call_context* operator->() const noexcept { return context_; }
  call_context& operator*() const noexcept { return *context_; }
  explicit operator bool() const noexcept { return context_ != nullptr; }

 private:
  call_context* context_ = nullptr;
};

/// The context of one call at its handler, or the root context of a worker. Thread-safe.
class call_context : public stoppable {
 public:
  explicit call_context(std::shared_ptr<ferry::executor> threads, ferry::deadline until = {}, worker_id caller = {});
  virtual ~call_context();
  call_context(const call_context&) = delete;
  call_context& operator=(const call_context&) = delete;

  /// Where continuations and coroutines made in this context resume.
  [[nodiscard]] const std::shared_ptr<ferry::executor>& executor() const noexcept { return executor_; }
  [[nodiscard]] ferry::deadline deadline() const noexcept { return deadline_; }
  /// The id of the calling worker; -1 for a root context.
  [[nodiscard]] worker_id caller() const noexcept { return caller_; }

  /// Whether the caller has cancelled or terminated, or the deadline has passed.
  [[nodiscard]] bool stop_requested() const noexcept {
    return stopped_.load(std::memory_order_acquire) || deadline_.expired();
  }
  /// A token that stops when the caller cancels or times out. Created on first use.
  [[nodiscard]] std::stop_token stop_token();
  void mark_stopped() noexcept override { stopped_.store(true, std::memory_order_release); }
  void request_stop() noexcept override;

  void add_reference() noexcept override { references_.fetch_add(1, std::memory_order_relaxed); }
  void drop_reference() noexcept override {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  /// Called when a thread in this context begins (1) or ends (-1) a wait in ferry.
  virtual void count_wait(int change) noexcept { (void)change; }

  /// The initial current streams on any thread that runs the call: those that its arguments arrived on, and those that
  /// code of the call has asked for so far.
  [[nodiscard]] std::vector<stream> streams() const;
  /// Whether code of the call has a stream of the call's on `where`, or gets one when it asks for it.
  [[nodiscard]] bool has_stream(device where) const;
  /// Whether that is so for any device. If not, the current streams of the thread are used.
  [[nodiscard]] bool has_streams() const noexcept { return !streams_.empty() || later_; }
  /// The call's stream on a device for which has_stream() is true, as code of the call would get it.
  [[nodiscard]] stream take_stream(device where) const;

  /// The context values with which a thread that enters the context begins. Never changed while code of the call runs.
  [[nodiscard]] const context_values& initial_values() const noexcept { return initial_values_; }

  /// The call whose context this is; null for the root context of a worker, and for contexts of other code.
  [[nodiscard]] detail::incoming_call* call() const noexcept { return call_; }

 protected:
  /// Call in the constructor of the call.
  void set_call(detail::incoming_call* call) noexcept { call_ = call; }
  /// Call before any code of the call runs.
  void set_initial_values(context_values values) noexcept { initial_values_ = std::move(values); }
  /// Call before any code of the call runs.
  void set_executor(std::shared_ptr<ferry::executor> threads) noexcept { executor_ = std::move(threads); }
  /// Call before any code of the call runs. `others`: devices on which the call takes a stream when it needs one.
  void set_streams(std::vector<stream> streams, const std::vector<device>& others);

 private:
  friend class detail::streams_scope;
  std::atomic<std::uint32_t> references_{1};
  std::atomic<bool> stopped_{false};
  std::shared_ptr<ferry::executor> executor_;
  ferry::deadline deadline_;
  worker_id caller_;
  std::vector<stream> streams_;
  std::unique_ptr<detail::lazy_streams> later_;
  context_values initial_values_;
  detail::incoming_call* call_ = nullptr;
  mutable std::mutex mutex_;  // guards what follows
  std::unique_ptr<std::stop_source> stop_source_;
};

inline context_ptr::context_ptr(const context_ptr& other) noexcept : context_(other.context_) {
  if (context_) context_->add_reference();
}
inline context_ptr context_ptr::share(call_context* context) noexcept {
  if (context) context->add_reference();
  return context_ptr(context);
}
inline context_ptr::~context_ptr() {
  if (context_) context_->drop_reference();
}

/// The context of the current thread: that of the handler or continuation it runs, else the root context of the
/// process's current worker, else empty.
[[nodiscard]] context_ptr current_context();
/// The context that the thread has entered, without the fall-back to the process's worker; a borrowed pointer, null if
/// none.
[[nodiscard]] call_context* thread_context() noexcept;

/// What code that runs later, perhaps on another thread, needs to run as if it ran here: the call context and the
/// context values.
struct captured_context {
  context_ptr context;
  context_values values;

  /// Those of the calling thread.
  [[nodiscard]] static captured_context current() { return {current_context(), current_values()}; }
};

/// Makes a context the current one of this thread for a scope, and its streams the current streams, unless the thread is
/// in that context already. Cheap. The thread has other context values for the scope, too: those that were captured, or,
/// for a context alone, its initial values (none for no context).
///
///     pool.submit([here = ferry::captured_context::current()] {
///       const ferry::context_scope scope(here);
///       // as if it ran where submit() was called
///     });
class [[nodiscard]] context_scope {
 public:
  explicit context_scope(call_context* context) noexcept
      : context_scope(context, context ? context->initial_values() : context_values()) {}
  explicit context_scope(const context_ptr& context) noexcept : context_scope(context.get()) {}
  explicit context_scope(const captured_context& captured) noexcept
      : context_scope(captured.context.get(), captured.values) {}
  context_scope(call_context* context, context_values values) noexcept;
  ~context_scope();
  context_scope(const context_scope&) = delete;
  context_scope& operator=(const context_scope&) = delete;

 private:
  call_context* previous_;
  context_values former_values_;
  detail::streams_scope streams_;
};

namespace detail {
/// The call whose code (handler, continuation or coroutine) runs on this thread; null if there is none.
[[nodiscard]] inline incoming_call* thread_call() noexcept {
  const call_context* context = thread_context();
  return context ? context->call() : nullptr;
}

/// Sets the fall-back of current_context() (the root context of the last initialised worker).
void set_root_context(context_ptr context);
}  // namespace detail

}  // namespace ferry::inline v0
