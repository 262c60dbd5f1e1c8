#pragma once

// The context of a call: what travels with it (deadline, stop, open slots) and where its continuations run. Promises,
// continuations and tasks capture the context of where they were made.

#include <array>
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

namespace ferry::inline v0 {

class call_context;

namespace detail {
struct call_chain;
class owned_object;

/// Makes streams the calling thread's current ones of their devices for as long as it lives; for none it does nothing. A device
/// that is not there any more is left out. What the thread gives back meanwhile is given back in the order of these streams.
class streams_scope {
 public:
  explicit streams_scope(std::span<const stream> now) noexcept {
    if (!now.empty()) enter(now);
  }
  streams_scope(const streams_scope&) = delete;
  streams_scope& operator=(const streams_scope&) = delete;
  ~streams_scope() {
    if (former_) leave();
  }

 private:
  void enter(std::span<const stream> now) noexcept;
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
  /// A further owner of a context that already has one.
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

/// One call as seen by its handler, or the root context of a worker. Thread-safe.
class call_context : public stoppable {
 public:
  /// Slots that higher floors fill: each has a fixed number.
  enum slot : std::size_t { autograd_slot = 0, profiler_slot = 1, stream_slot = 2, user_slot = 3, slot_count = 4 };

  explicit call_context(std::shared_ptr<ferry::executor> threads, ferry::deadline until = {}, worker_id caller = {})
      : executor_(std::move(threads)), deadline_(until), caller_(caller) {}
  virtual ~call_context() = default;
  call_context(const call_context&) = delete;
  call_context& operator=(const call_context&) = delete;

  /// Where continuations and coroutines made in this context resume.
  [[nodiscard]] const std::shared_ptr<ferry::executor>& executor() const noexcept { return executor_; }
  [[nodiscard]] ferry::deadline deadline() const noexcept { return deadline_; }
  /// Who called; -1 for a root context.
  [[nodiscard]] worker_id caller() const noexcept { return caller_; }

  /// The caller cancelled or went away, or the deadline has passed.
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

  /// A thread that works in this context begins (1) or ends (-1) a wait in ferry.
  virtual void count_wait(int change) noexcept { (void)change; }
  /// A thread that works in this context has got the object itself: what it is about to queue on devices is work on the object,
  /// which its streams wait for. False: its end is not reported. Throws errc::device_failure.
  virtual bool uses_object(detail::owned_object& object) {
    (void)object;
    return false;
  }
  /// The objects that this call, and those that wait for it, have to themselves; null: none. Lives as long as the context.
  [[nodiscard]] virtual const detail::call_chain* chain() const noexcept { return nullptr; }

  /// Which streams are current, at first, wherever the call runs: those that its arguments arrived on, and others of the
  /// devices that messages of the worker may be on. None: those of the thread.
  [[nodiscard]] const std::vector<stream>& streams() const noexcept { return streams_; }

  [[nodiscard]] std::shared_ptr<void> get_slot(slot which) const;
  void set_slot(slot which, std::shared_ptr<void> value);

 protected:
  /// Before anything of the call runs.
  void set_executor(std::shared_ptr<ferry::executor> threads) noexcept { executor_ = std::move(threads); }
  /// The same.
  void set_streams(std::vector<stream> streams) noexcept { streams_ = std::move(streams); }

 private:
  std::atomic<std::uint32_t> references_{1};
  std::atomic<bool> stopped_{false};
  std::shared_ptr<ferry::executor> executor_;
  ferry::deadline deadline_;
  worker_id caller_;
  std::vector<stream> streams_;
  mutable std::mutex mutex_;  // guards what follows
  std::unique_ptr<std::stop_source> stop_source_;
  std::unique_ptr<std::array<std::shared_ptr<void>, slot_count>> slots_;
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

/// The context that the current thread works in: that of the handler or continuation it runs, else the root context of
/// the process's current worker, else empty.
[[nodiscard]] context_ptr current_context();
/// Only what the thread itself entered, without the fall-back to the process's worker; a borrowed pointer.
[[nodiscard]] call_context* thread_context() noexcept;

/// Makes `context` the current one of this thread for a scope, and its streams the current ones unless the thread is in it
/// already. Cheap.
class context_scope {
 public:
  explicit context_scope(call_context* context) noexcept;
  explicit context_scope(const context_ptr& context) noexcept : context_scope(context.get()) {}
  ~context_scope();
  context_scope(const context_scope&) = delete;
  context_scope& operator=(const context_scope&) = delete;

 private:
  call_context* previous_;
  detail::streams_scope streams_;
};

namespace detail {
/// Sets what current_context() falls back to (the root context of the last initialised worker).
void set_root_context(context_ptr context);
}  // namespace detail

}  // namespace ferry::inline v0
