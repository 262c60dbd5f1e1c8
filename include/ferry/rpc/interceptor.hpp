#pragma once

// Interceptors: what travels with calls beside their arguments, and what happens around them. Authorisation, tenant ids,
// tracing, quotas and distributed autograd attach here. docs/interceptors.md has examples.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/backend/agent.hpp>
#include <ferry/rpc/attached.hpp>
#include <ferry/rpc/context.hpp>
#include <ferry/rpc/context_values.hpp>
#include <ferry/rpc/detail/kept_hooks.hpp>
#include <ferry/wire/message.hpp>

namespace ferry::inline v0 {

namespace detail {
struct call_facts;
struct method_entry;
class incoming_call;
}  // namespace detail

class caller_hooks;

// ---------------------------------------------------------------- views of messages

/// A request that is about to be sent: its arguments are encoded, and where its tensors arrive is decided. Valid during
/// the call that it is passed to.
class outgoing_request {
 public:
  /// The readable name of the method.
  [[nodiscard]] std::string_view method() const noexcept;
  [[nodiscard]] const worker_info& destination() const noexcept;
  /// The destination's incarnation; none if the backend does not know it.
  [[nodiscard]] incarnation_id incarnation() const noexcept;
  [[nodiscard]] ferry::deadline deadline() const noexcept;
  /// Nothing is sent back.
  [[nodiscard]] bool one_way() const noexcept;
  /// The calling code gets, or may get, the result. False for one-way calls and for those that make a remote object.
  [[nodiscard]] bool awaited() const noexcept { return awaited_; }
  /// The calling thread blocks until the call has ended.
  [[nodiscard]] bool blocks_caller() const noexcept { return blocks_caller_; }
  /// The same, and it runs a handler.
  [[nodiscard]] bool blocks_handler() const noexcept { return blocks_handler_; }

  /// The caller's own tensor handles, each once, in the order in which the payload names them.
  [[nodiscard]] std::span<tensor> tensors() noexcept { return message_.tensors; }
  /// The device on which each of them arrives; empty: the CPU, for all of them.
  [[nodiscard]] std::span<const device> targets() const noexcept { return message_.targets; }

  /// Adds an extension record (docs/protocol.md lists the ranges of types). A receiver that has no interceptor for the
  /// type fails the call with errc::unknown_extension if the record is critical, else skips it. Throws
  /// errc::limit_exceeded.
  void add_record(std::uint16_t type, bool critical, std::span<const std::byte> content) {
    message_.add_extension(type, critical, content);
  }
  /// Tells `hooks` what becomes of the call, after those that were kept before. For travelling values and callee_hooks;
  /// interceptors return theirs.
  void keep(std::unique_ptr<caller_hooks> hooks) noexcept;

  /// The attachment of the calling worker.
  template <class T>
  [[nodiscard]] std::shared_ptr<T> attached(const attached_key<T>& key) const {
    return detail::attached_to(core(), key);
  }

  // For the library.
  outgoing_request(outgoing_message& message, const detail::call_facts& facts, detail::kept_hooks& hooks,
                   ferry::deadline until, bool awaited, bool blocks_caller, bool blocks_handler) noexcept
      : message_(message),
        facts_(facts),
        hooks_(hooks),
        until_(until),
        awaited_(awaited),
        blocks_caller_(blocks_caller),
        blocks_handler_(blocks_handler) {}
  [[nodiscard]] outgoing_message& message() noexcept { return message_; }
  [[nodiscard]] detail::worker_core& core() const noexcept;

 private:
  outgoing_message& message_;
  const detail::call_facts& facts_;
  detail::kept_hooks& hooks_;
  ferry::deadline until_;
  bool awaited_;
  bool blocks_caller_;
  bool blocks_handler_;
};

/// The records of a message, and their reading. Each function throws errc::truncated or errc::malformed if the block is
/// damaged.
class extension_records {
 public:
  explicit extension_records(std::span<const std::byte> block) noexcept : block_(block) {}
  [[nodiscard]] bool empty() const noexcept { return block_.empty(); }
  /// The content of the first record of that type; empty optional: there is none.
  [[nodiscard]] std::optional<std::span<const std::byte>> find(std::uint16_t type) const;
  /// All records, in the order in which they were added.
  [[nodiscard]] std::vector<extension_record> all() const;

  // For the library.
  [[nodiscard]] std::span<const std::byte> block() const noexcept { return block_; }

 private:
  std::span<const std::byte> block_;
};

/// The reply to a call, before its value is decoded. Valid during the call that it is passed to.
class incoming_reply {
 public:
  /// A value; otherwise an exception of the method, or a failure.
  [[nodiscard]] bool has_value() const noexcept { return message_.header.kind == frame_kind::reply; }
  /// The tensors of the value: the handles that the decoded value will share.
  [[nodiscard]] std::span<tensor> tensors() noexcept { return message_.tensors; }
  [[nodiscard]] extension_records records() const noexcept { return extension_records(message_.extensions); }
  [[nodiscard]] std::string_view method() const noexcept;
  /// The worker that was called.
  [[nodiscard]] const worker_info& sender() const noexcept;
  [[nodiscard]] incarnation_id incarnation() const noexcept;
  template <class T>
  [[nodiscard]] std::shared_ptr<T> attached(const attached_key<T>& key) const {
    return detail::attached_to(core(), key);
  }

  // For the library.
  incoming_reply(inbound_message& message, const detail::call_facts& facts) noexcept
      : message_(message), facts_(facts) {}
  [[nodiscard]] inbound_message& message() noexcept { return message_; }
  [[nodiscard]] detail::worker_core& core() const noexcept;

 private:
  inbound_message& message_;
  const detail::call_facts& facts_;
};

/// Keeps the handler of a request from beginning, for as long as it exists. Move-only.
class request_hold {
 public:
  request_hold() noexcept = default;
  request_hold(request_hold&& other) noexcept : call_(std::exchange(other.call_, nullptr)) {}
  request_hold& operator=(request_hold&& other) noexcept {
    if (this != &other) {
      release();
      call_ = std::exchange(other.call_, nullptr);
    }
    return *this;
  }
  ~request_hold() { release(); }
  request_hold(const request_hold&) = delete;
  request_hold& operator=(const request_hold&) = delete;
  /// The handler begins as soon as nothing else holds it. Thread-safe against other holds of the request.
  void release() noexcept;

  // For the library: adopts one hold of the call, and one reference to it.
  explicit request_hold(detail::incoming_call* call) noexcept : call_(call) {}

 private:
  detail::incoming_call* call_ = nullptr;
};

/// A request that is being served and has not been decoded. Valid during the call that it is passed to.
class served_request {
 public:
  /// The readable name of the method; empty if this worker does not serve it.
  [[nodiscard]] std::string_view method() const noexcept;
  /// Null if the backend does not report it.
  [[nodiscard]] const worker_info* sender() const noexcept;
  [[nodiscard]] worker_id caller() const noexcept;
  [[nodiscard]] incarnation_id incarnation() const noexcept;
  [[nodiscard]] ferry::deadline deadline() const noexcept;
  [[nodiscard]] bool one_way() const noexcept;
  [[nodiscard]] std::uint64_t bytes() const noexcept;
  [[nodiscard]] extension_records records() const noexcept;
  /// Its tensors: the handles that the decoded arguments will share.
  [[nodiscard]] std::span<tensor> tensors() noexcept;

  template <class T>
  [[nodiscard]] std::shared_ptr<T> attached(const attached_key<T>& key) const {
    return detail::attached_to(core(), key);
  }

  // For the library.
  explicit served_request(detail::incoming_call& call) noexcept : call_(call) {}
  [[nodiscard]] detail::incoming_call& call() noexcept { return call_; }
  [[nodiscard]] detail::worker_core& core() const noexcept;

 private:
  detail::incoming_call& call_;
};

/// A request that has just arrived.
class incoming_request : public served_request {
 public:
  using served_request::served_request;

  /// Holds the request back. Its caller may give it up meanwhile (callee_hooks::stopped), or another interceptor may
  /// refuse it (callee_hooks::refused).
  [[nodiscard]] request_hold hold();
};

/// A handler that is about to run: in its context, before its arguments are decoded.
class handler_start : public served_request {
 public:
  /// Adds a context value: the handler, its coroutines and continuations, and the calls that they make have it.
  template <class T, class V = T>
    requires std::constructible_from<T, V>
  void set_value(const context_key<T>& key, V&& value) {
    values_ = values_.with(key, std::forward<V>(value));
  }
  /// The handler does not run, and the caller gets an empty value. For methods without a result: others fail with
  /// errc::bad_result at the caller.
  void skip_handler() noexcept { skipped_ = true; }

  // For the library.
  using served_request::served_request;
  [[nodiscard]] const context_values& values() const noexcept { return values_; }
  [[nodiscard]] context_values take_values() noexcept { return std::move(values_); }
  /// As set_value(), of a value that a map has already, which has no other.
  template <class T>
  void set_value_of(const context_key<T>& key, context_values only) {
    values_ = values_.empty() ? std::move(only) : values_.with(key, *only.get(key));
  }
  [[nodiscard]] bool skipped() const noexcept { return skipped_; }

 private:
  context_values values_;
  bool skipped_ = false;
};

/// How a handler ended, or why it did not run; in the handler's context, before the answer is encoded.
class handler_result {
 public:
  /// Null: it returned a value, which is encoded next. Should that fail, on_reply() sees it.
  [[nodiscard]] const std::exception_ptr& error() const noexcept { return error_; }
  /// The handler ran; otherwise the error says why it did not, or why its result cannot be sent.
  [[nodiscard]] bool ran() const noexcept { return ran_; }
  /// The caller gets this exception instead; no effect if the handler returned a value.
  void replace_error(std::exception_ptr error) noexcept {
    if (!error || !error_) return;
    error_ = std::move(error);
    replaced_ = true;
  }
  /// The caller gets an empty value instead of the error. For methods without a result: others fail with errc::bad_result
  /// at the caller.
  void answer_empty() noexcept { absorbed_ = true; }
  /// The error is an ordinary event: it is logged as information only.
  void expect_error() noexcept { expected_ = true; }

  // For the library.
  handler_result(std::exception_ptr error, bool ran) noexcept : error_(std::move(error)), ran_(ran) {}
  [[nodiscard]] bool absorbed() const noexcept { return absorbed_; }
  [[nodiscard]] bool replaced() const noexcept { return replaced_; }
  [[nodiscard]] bool expected() const noexcept { return expected_; }

 private:
  std::exception_ptr error_;
  bool ran_;
  bool absorbed_ = false;
  bool replaced_ = false;
  bool expected_ = false;
};

/// An answer that is about to be sent: it is encoded, and where its tensors arrive is decided.
class outgoing_reply {
 public:
  /// A value; otherwise an exception of the method, or a failure.
  [[nodiscard]] bool has_value() const noexcept { return message_.header.kind == frame_kind::reply; }
  /// The handler's own tensor handles.
  [[nodiscard]] std::span<tensor> tensors() noexcept { return message_.tensors; }
  [[nodiscard]] std::span<const device> targets() const noexcept { return message_.targets; }
  /// As outgoing_request::add_record(). A caller without an interceptor for a critical record gets
  /// errc::unknown_extension in place of the value.
  void add_record(std::uint16_t type, bool critical, std::span<const std::byte> content) {
    message_.add_extension(type, critical, content);
  }

  // For the library.
  explicit outgoing_reply(outgoing_message& message) noexcept : message_(message) {}
  [[nodiscard]] outgoing_message& message() noexcept { return message_; }

 private:
  outgoing_message& message_;
};

/// How a call ended without a reply.
struct call_end {
  errc code{};  ///< zero: it wanted none, and was sent
  call_phase phase{};
  std::string_view text;  ///< valid during the call that it is passed to
};

// ---------------------------------------------------------------- the state of a call

/// What an interceptor keeps of one call at its caller. For every call exactly one of sent() and not_sent() is called,
/// then exactly one of replied() and ended(). Not called concurrently.
class caller_hooks {
 public:
  caller_hooks() = default;
  virtual ~caller_hooks() = default;
  caller_hooks(const caller_hooks&) = delete;
  caller_hooks& operator=(const caller_hooks&) = delete;

  /// The request was taken by the transport, or waits in the queue of its peer, which may still be lost before it is
  /// reached (ended() with call_phase::connecting or queued). On the calling thread, or on one that reads; must not block.
  virtual void sent() noexcept {}
  /// The request will not be sent: a later argument or record could not be encoded, the peer cannot be reached, a limit.
  /// The caller gets the error. Undoes what was done for the message.
  virtual void not_sent() noexcept {}
  /// A reply is there. In the context in which the call was made, before its value is decoded; on a thread that may
  /// block. If it throws, the call fails with that.
  virtual void replied(incoming_reply& reply) { (void)reply; }
  /// No reply will come: the call timed out, was cancelled, lost its peer, was one-way, or was not sent. On any thread;
  /// must not block.
  virtual void ended(const call_end& how) noexcept { (void)how; }

 private:
  friend class detail::kept_hooks;
  caller_hooks* previous_ = nullptr;
  caller_hooks* next_ = nullptr;
};

inline void outgoing_request::keep(std::unique_ptr<caller_hooks> hooks) noexcept { hooks_.add(std::move(hooks)); }

inline caller_hooks* detail::kept_hooks::after(const caller_hooks& one) noexcept { return one.next_; }
inline caller_hooks* detail::kept_hooks::before(const caller_hooks& one) noexcept { return one.previous_; }

/// What an interceptor keeps of one request at its callee. The first five are called in the order in which they stand here;
/// of these only on_nested_request() may run beside others. stopped(), refused(), waiting() and suspended() come at any
/// time, from any thread, beside any of the others, and may come a moment after ended(): what they share with the
/// others needs a lock.
class callee_hooks {
 public:
  callee_hooks() = default;
  virtual ~callee_hooks() = default;
  callee_hooks(const callee_hooks&) = delete;
  callee_hooks& operator=(const callee_hooks&) = delete;

  /// On the thread that will run the handler. If it throws, the handler does not run, and the caller gets the error.
  virtual void before_handler(handler_start& start) { (void)start; }
  /// The handler, one of its coroutines or continuations makes a call, which is about to be sent; on the thread that makes
  /// it, perhaps several at once, perhaps after ended(). If it throws, that call is not sent.
  virtual void on_nested_request(outgoing_request& request) { (void)request; }
  /// The handler has returned a value, a future or task that is complete now, or an error; or could not run.
  virtual void handler_ended(handler_result& result) { (void)result; }
  /// Once at most: not for one-way requests, not for those that their callers have given up, and not for the error in
  /// place of an answer that hooks have refused. If it throws, the caller gets the error.
  virtual void on_reply(outgoing_reply& reply) { (void)reply; }
  /// The request is over, answered or not. Called exactly once, whatever happened before.
  virtual void ended() noexcept {}

  /// Its caller has cancelled the call, has timed out, or is lost, while the request was held back.
  virtual void stopped() noexcept {}
  /// Another interceptor has refused the request while these hooks hold it back: they must let go of it.
  virtual void refused(const std::exception_ptr& why) noexcept { (void)why; }
  /// A thread of the handler begins (1) or ends (-1) a wait in ferry. May block in the latter.
  virtual void waiting(int change) noexcept { (void)change; }
  /// The handler has returned a future or a task that is not ready: until it is, no thread runs the handler.
  virtual void suspended() noexcept {}

  // For the library: identifies hooks that are looked up. Null: none.
  [[nodiscard]] virtual const void* key() const noexcept { return nullptr; }

 private:
  friend class detail::incoming_call;
  callee_hooks* next_ = nullptr;  // the hooks added before these; owned
};

// ---------------------------------------------------------------- interceptors

/// Sees the calls of one worker, made and served. Registered by worker_config::interceptors, in the order in which they
/// see requests; answers they see in the reverse order. Shared by threads: every function may be called concurrently.
class interceptor {
 public:
  interceptor() = default;
  virtual ~interceptor() = default;
  interceptor(const interceptor&) = delete;
  interceptor& operator=(const interceptor&) = delete;

  /// Unique among the interceptors of a worker, at most 127 characters.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// The types of records that it reads. Each type has one reader.
  [[nodiscard]] virtual std::span<const std::uint16_t> record_types() const noexcept { return {}; }
  /// Whether it sees every request; otherwise on_arrival() is called only for those with records of its types, and
  /// on_request() not at all.
  [[nodiscard]] virtual bool sees_all_requests() const noexcept { return true; }

  /// On the calling thread, in the caller's context. Returns what it keeps of the call; null: nothing. If it throws, the
  /// call is not sent, and the caller gets the error.
  [[nodiscard]] virtual std::unique_ptr<caller_hooks> on_request(outgoing_request& request) {
    (void)request;
    return nullptr;
  }
  /// On a thread that reads: must be quick, not block, and run no user code. Returns what it keeps of the request; null:
  /// nothing. If it throws, the handler does not run, and the caller gets the error.
  [[nodiscard]] virtual std::unique_ptr<callee_hooks> on_arrival(incoming_request& request) {
    (void)request;
    return nullptr;
  }
  /// A reply has records of its types. At the caller, before the value is decoded, after caller_hooks::replied(). If it
  /// throws, the call fails with that.
  virtual void on_reply_records(incoming_reply& reply) { (void)reply; }
};

}  // namespace ferry::inline v0
