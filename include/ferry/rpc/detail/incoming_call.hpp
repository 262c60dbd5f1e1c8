#pragma once

// A request in the worker that serves it. Internal; the templates of method.hpp use it.

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include <ferry/base/work.hpp>
#include <ferry/rpc/context.hpp>
#include <ferry/rpc/debug.hpp>
#include <ferry/rpc/detail/call_lifecycle.hpp>
#include <ferry/rpc/detail/given_value.hpp>
#include <ferry/rpc/detail/reply_writer.hpp>
#include <ferry/rpc/future.hpp>
#include <ferry/rpc/method.hpp>
#include <ferry/rpc/task.hpp>
#include <ferry/wire/message.hpp>

namespace ferry::inline v0 {

class callee_hooks;
class handler_result;
class handler_start;
class outgoing_reply;
class outgoing_request;
class reply_channel;

namespace detail {

class worker_core;
enum class call_moment : std::uint8_t;

/// A base class, so that it is destroyed after all other parts of the call, including objects that users put into its
/// context.
struct held_method {
  method_hold method;
};

/// Also the context of the call, so that a request is one object. Lives until the reply has been sent and no owner
/// holds the context; until then the method's code stays loaded. A thread that runs code of the method (a handler, its
/// continuations and coroutines) holds the context in a frame of libferry's own code, outside the code that may be
/// unloaded.
class incoming_call final : public work, private held_method, public call_context {
 public:
  incoming_call(std::shared_ptr<worker_core> worker, std::shared_ptr<reply_channel> channel, worker_id from,
                inbound_message&& request, clock::time_point now);
  ~incoming_call() override;

  [[nodiscard]] const std::shared_ptr<worker_core>& worker() const noexcept { return worker_; }
  /// The caller; its id may since have been reassigned to another worker. Null: the backend does not report it. Valid
  /// until the call is answered.
  [[nodiscard]] const worker_info* sender() const noexcept;
  /// The caller's incarnation. None: the backend does not report it.
  [[nodiscard]] incarnation_id sender_incarnation() const noexcept;
  /// Null: this worker serves no such method.
  [[nodiscard]] const method_entry* method() const noexcept { return held_method::method.get(); }
  /// Until the call is answered.
  [[nodiscard]] inbound_message& request() noexcept { return request_; }
  [[nodiscard]] clock::time_point arrived() const noexcept { return arrived_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool one_way() const noexcept { return is_one_way_; }
  /// The request is over: its hooks have been told, or are being told.
  [[nodiscard]] bool is_over() const noexcept { return over_.load(); }
  [[nodiscard]] bool has_records() const noexcept { return !request_.extensions.empty(); }

  // ---- arrival, on the reading thread

  /// Lets interceptors see the request, then begins it, unless they hold it. Takes over a reference to the call.
  void arrive() noexcept;
  /// On any thread; hooks added later come first. Once the handler runs, hooks with a key only.
  void add_hooks(std::unique_ptr<callee_hooks> hooks) noexcept;
  /// The hooks with that key; if there are none, `make` makes them. Thread-safe.
  callee_hooks& find_or_add_hooks(const void* key, std::unique_ptr<callee_hooks> (*make)(incoming_call& call));
  [[nodiscard]] callee_hooks* find_hooks(const void* key) const noexcept;
  [[nodiscard]] bool has_hooks() const noexcept { return hooks_.load(std::memory_order_acquire) != nullptr; }
  /// Code of the call makes another call. Throws what hooks throw.
  void on_nested_request(outgoing_request& request);
  /// Each hold() needs one release(); the last one begins the call. hold() only before that.
  void hold() noexcept { holds_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept;
  /// Where the answer's tensors arrive, in place of the caller's device map.
  void place_answer_by(device_map placement);
  /// Continuations of the call run there. Before any code of the call runs.
  void run_on(std::shared_ptr<ferry::executor> threads) noexcept { set_executor(std::move(threads)); }

  // ---- called by serve_method, in this order

  /// Decodes the arguments.
  template <class... Ts>
  void read(Ts&... values) {
    decode_payload(request_, limits(), values...);
    request_.tensors.clear();  // they are the values' alone
    stage_ = stage::running;
  }
  /// Encodes the result (none for void) and sends the reply. Results that are given away are dropped in between.
  template <class... Wire, class... Ts>
  void answer(Ts&&... result) {
    begin_encoding();
    tell_result();
    if (!needs_answer()) return done();
    reply_writer reply(*this);
    if constexpr (sizeof...(Ts) != 0) {
      encode_payload<Wire...>(reply.message, result...);
      if constexpr ((is_given<Ts> || ...)) {
        if (gives_values(reply.message)) drop_given_values<Ts...>(result...);
      }
    }
    send(reply);
  }
  /// The handler has returned a value: what is thrown from here on concerns the answer.
  void begin_encoding() noexcept { stage_ = stage::encoding; }
  /// Call before a callback that calls answer() or fail(), on any thread, is attached to the handler's future.
  void expect_later() noexcept { late_ = true; }
  /// Call first in that callback.
  void begin_answer() noexcept;
  /// Call after that callback has been attached.
  void answer_later() noexcept;
  /// If the call waits for its handler's future: it no longer counts as being served, and gets no answer. The future,
  /// the arguments, and what hooks keep for the call remain until the future is ready: code of the handler may use them.
  void give_up() noexcept;
  /// Whether give_up() has an effect.
  [[nodiscard]] bool answers_later() const noexcept { return progress_.load() == progress::later; }

  /// Answers with the exception; the stage that was reached determines the error code. Never throws.
  void fail(const std::exception_ptr& thrown) noexcept;

  /// Runs the method: from the request to the answer, or to answer_later(). Never throws.
  void serve() noexcept;

  void count_wait(int change) noexcept override;
  void request_stop() noexcept override;
  /// The call whose handler runs on this thread and has not returned. Null if there is none, or if the thread runs a
  /// continuation or coroutine of a handler that has returned.
  [[nodiscard]] static const call_context* on_this_thread() noexcept;
  /// A snapshot for debugging. May be called on any thread until the call is done.
  [[nodiscard]] served_call_info describe_now(const worker_info& from, std::uint64_t id, clock::time_point now) const;
  /// "worker_info(...): 'f' called by worker 1"
  [[nodiscard]] std::string describe() const;
  /// The same without this worker.
  [[nodiscard]] std::string describe_plainly() const;

 private:
  friend class worker_core;   // keeps a list of the one-way calls
  friend class reply_writer;  // answers it

  enum class stage : std::uint8_t { intercepting, decoding, running, encoding, done };

  // Ensures that the call has current streams for all devices that messages of the worker may be on.
  void take_streams();
  /// Tells each of the hooks, in the order of the interceptors or in the reverse one.
  template <class Tell>
  void tell_in_order(const Tell& tell);
  template <class Tell>
  void tell_in_reverse(const Tell& tell);
  void begin_handler(handler_start& start);
  [[noreturn]] void refuse_unknown_method() const;
  void refuse_if_too_late() const;
  void tell_result();
  /// All of them, in reverse, whatever one throws; returns the first exception.
  template <class Tell>
  [[nodiscard]] std::exception_ptr tell_all(const Tell& tell) noexcept;
  [[nodiscard]] std::exception_ptr tell_handler_ended(handler_result& result) noexcept;
  [[nodiscard]] std::exception_ptr tell_reply(outgoing_reply& reply) noexcept;
  void launch() noexcept;
  void mark_held() noexcept { progress_.store(progress::held, std::memory_order_release); }
  void tell_stopped() noexcept;
  [[nodiscard]] bool is_stopped() noexcept { return (ends_.fetch_or(0, std::memory_order_acq_rel) & stopped_bit) != 0; }
  [[nodiscard]] const wire_limits& limits() const noexcept;
  [[nodiscard]] bool needs_answer() const noexcept { return !is_one_way_ && !given_up_; }
  /// Whether results that are given away are dropped before the answer is sent.
  [[nodiscard]] bool gives_values(const outgoing_message& answer) const noexcept;
  void send(reply_writer& reply);
  [[nodiscard]] std::exception_ptr name_method(const std::exception_ptr& reason) const;
  struct failure;
  [[nodiscard]] failure failure_of(const std::exception_ptr& reason) const;
  void log_failure(const failure& what, bool expected) const noexcept;
  [[nodiscard]] std::exception_ptr send_failure(const std::exception_ptr& thrown, bool again) noexcept;
  void fail_plainly(const std::exception_ptr& thrown) noexcept;
  void fail_unanswered(const std::exception_ptr& thrown) noexcept;
  void release_request() noexcept;
  void done() noexcept;
  void report(call_moment what, std::uint64_t bytes, errc code = {}) noexcept;

  std::shared_ptr<worker_core> worker_;
  std::shared_ptr<reply_channel> channel_;
  inbound_message request_;
  std::atomic<callee_hooks*> hooks_{nullptr};          // owned; null for most calls; the last added first
  std::unique_ptr<const device_map> reply_placement_;  // null for most calls
  std::exception_ptr refusal_;                         // why the handler must not run
  std::atomic<int> holds_{1};                          // one for arrive() itself
  stage stage_ = stage::intercepting;
  bool late_ = false;  // set before another thread can access this call
  bool later_ = false;
  bool given_up_ = false;  // set by begin_answer(); another thread may still be in give_up() and use the next members
  bool result_told_ = false;  // to the hooks
  bool reply_told_ = false;   // the same
  bool skipped_ = false;      // the handler, by a hook
  bool tried_ = false;
  bool had_to_wait_ = false;  // for a num_worker_threads slot, or until answers to the caller are written
  // Written by the thread that serves the call, then by the one that ends it.
  bool end_reported_ = false;        // to the observers
  clock::time_point handler_began_;  // unset: it has not, or no observer asks

  // Read by debugging functions on other threads.
  const clock::time_point arrived_;
  const std::uint64_t bytes_;
  const bool is_one_way_;
  enum class progress : std::uint8_t { queued, held, running, later, given_up, answering, done };
  std::atomic<progress> progress_{progress::queued};
  // The stop and the return of the handler, each of which must see the other.
  static constexpr std::uint8_t stopped_bit = 1;
  static constexpr std::uint8_t returned_bit = 2;
  static constexpr std::uint8_t stop_told_bit = 4;
  std::atomic<std::uint8_t> ends_{0};
  std::atomic<bool> over_{false};
  std::atomic<int> waits_{0};  // threads of this call that wait in ferry
  incoming_call* previous_ = nullptr;
  incoming_call* following_ = nullptr;
};

/// Passes a decoded argument to a parameter of type P: moved for values, by reference for references; views
/// (string_view, span) are constructed over the decoded object.
template <class P, class Holder>
decltype(auto) pass(Holder& holder) {
  if constexpr (std::is_lvalue_reference_v<P>) {
    return static_cast<const Holder&>(holder);
  } else if constexpr (std::is_same_v<std::remove_cvref_t<P>, Holder>) {
    return static_cast<Holder&&>(holder);
  } else {
    return std::remove_cvref_t<P>(holder);  // string_view, span
  }
}

/// How a method of one flavour is run, and what becomes of its result. The primary template runs a plain call and sends
/// the result back.
template <method_flavour Flavour>
struct serving_of {
  template <auto F, class Arguments, std::size_t... I>
  static decltype(auto) invoke(incoming_call&, Arguments& arguments, std::index_sequence<I...>) {
    using parameters = typename parts_of<F, Flavour>::parameters;
    if constexpr (std::is_member_function_pointer_v<decltype(F)>) {
      auto& object = std::get<0>(arguments);
      return [&]<std::size_t First, std::size_t... Rest>(std::index_sequence<First, Rest...>) -> decltype(auto) {
        if constexpr (parts_of<F>::on_rvalue) {
          return (std::move(object).*F)(pass<std::tuple_element_t<Rest, parameters>>(std::get<Rest>(arguments))...);
        } else {
          return (object.*F)(pass<std::tuple_element_t<Rest, parameters>>(std::get<Rest>(arguments))...);
        }
      }(std::index_sequence<I...>{});
    } else {
      return F(pass<std::tuple_element_t<I, parameters>>(std::get<I>(arguments))...);
    }
  }
  /// `get` returns the result, perhaps by running the method; T is its type.
  template <class T, class Get>
  static void answer(incoming_call& call, const Get& get) {
    if constexpr (std::is_void_v<T>) {
      get();
      call.answer();
    } else {
      // A value that was returned is the message's; what a reference leads to may have other users.
      auto&& result = get();
      if constexpr (std::is_reference_v<decltype(get())>) {
        call.template answer<wire_type<T>>(std::as_const(result));
      } else {
        call.template answer<wire_type<T>>(std::move(result));
      }
    }
  }
};

/// Keeps a call and its arguments until the future that it returned is ready. `Sole`: the future of a task, which no other code
/// has a handle of.
template <method_flavour Flavour, class Arguments, class T, bool Sole>
struct answering {
  context_ptr keep;
  incoming_call& call;
  Arguments arguments;

  void operator()(const future<T>& result) noexcept {
    call.begin_answer();
    const auto failure = caught([&] {
      result.shared_state()->let_streams_wait();  // the streams on which the answer is sent
      if constexpr (creates(Flavour)) {
        serving_of<Flavour>::template answer<T>(call, [&] { return result.get(); });
      } else if constexpr (Sole && !std::is_void_v<T> && std::is_nothrow_move_constructible_v<stored_t<T>>) {
        serving_of<Flavour>::template answer<T>(call, [&] {
          result.shared_state()->throw_if_failed();
          return result.shared_state()->take();
        });
      } else {
        serving_of<Flavour>::template answer<T>(call, [&]() -> decltype(auto) { return result.value(); });
      }
    });
    if (failure) call.fail(failure);
  }
};

template <class Parameters>
struct holders;
template <class... P>
struct holders<std::tuple<P...>> {
  using type = std::tuple<wire_type<P>...>;
};

template <auto F, method_flavour Flavour>
void serve_method(incoming_call& call) {
  using parts = parts_of<F, Flavour>;
  using parameters = typename parts::parameters;
  using arguments = typename holders<parameters>::type;
  using indices = std::make_index_sequence<std::tuple_size_v<arguments>>;
  using result = typename parts::result;
  using serving = serving_of<Flavour>;

  if constexpr (!std::is_default_constructible_v<arguments>) {
    static_assert(dependent_false<arguments>,
                  "ferry: the type of a parameter has no default constructor, which the receiver needs to decode into. "
                  "Add one, or send a std::unique_ptr to it with cereal's load_and_construct");
  } else if constexpr (is_future_v<result> || is_task_v<result>) {
    using value = unwrap_async_t<result>;
    // The arguments live until the answer is sent, because parameters may refer to them; they are not moved after the
    // method has been called.
    auto kept = std::make_unique<arguments>();
    std::apply([&](auto&... values) { call.read(values...); }, *kept);
    auto pending = [&] {
      if constexpr (is_task_v<result>) {
        result made = serving::template invoke<F>(call, *kept, indices{});
        if (!made.valid()) throw_error(errc::no_state, "the method returned an empty task");
        return start(std::move(made));
      } else {
        return serving::template invoke<F>(call, *kept, indices{});
      }
    }();
    if (!pending.valid()) throw_error(errc::no_state, "the method returned an empty future");
    call.expect_later();
    pending.add_done_callback(answering<Flavour, std::unique_ptr<arguments>, value, is_task_v<result>>{
        context_ptr::share(&call), call, std::move(kept)});
    call.answer_later();
  } else {
    arguments values;
    std::apply([&](auto&... each) { call.read(each...); }, values);
    serving::template answer<result>(
        call, [&]() -> decltype(auto) { return serving::template invoke<F>(call, values, indices{}); });
  }
}

}  // namespace detail
}  // namespace ferry::inline v0
