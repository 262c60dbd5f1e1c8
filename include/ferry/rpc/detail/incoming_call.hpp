#pragma once

// A request in the worker that serves it. Internal; the templates of method.hpp use it.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ferry/base/work.hpp>
#include <ferry/rpc/context.hpp>
#include <ferry/rpc/debug.hpp>
#include <ferry/rpc/detail/owned_object.hpp>
#include <ferry/rpc/detail/reference_handle.hpp>
#include <ferry/rpc/future.hpp>
#include <ferry/rpc/method.hpp>
#include <ferry/rpc/task.hpp>
#include <ferry/wire/message.hpp>

namespace ferry::inline v0 {

class reply_channel;

namespace detail {

class worker_core;
struct call_references;
struct object_mark;
class read_marks;
enum class flight_event : std::uint8_t;

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

  /// The caller; its id may since have been reassigned to another worker. Null: the backend does not report it. Valid
  /// until the call is answered.
  [[nodiscard]] const worker_info* sender() const noexcept;
  /// The caller's incarnation. None: the backend does not report it.
  [[nodiscard]] incarnation_id sender_incarnation() const noexcept;
  /// Null: this worker serves no such method.
  [[nodiscard]] const method_entry* method() const noexcept { return held_method::method.get(); }

  [[nodiscard]] bool has_extensions() const noexcept { return !request_.extensions.empty(); }

  // Called by serve_method, in this order.
  /// Decodes the arguments.
  template <class... Ts>
  void read(Ts&... values) {
    decode_payload(request_, limits(), values...);
    stage_ = stage::running;
  }
  /// Encodes the result (none for void) and sends the reply.
  template <class... Wire, class... Ts>
  void answer(const Ts&... result) {
    stage_ = stage::encoding;
    if (!needs_answer()) return done();
    answer_message reply(*this);
    if constexpr (sizeof...(Ts) != 0) encode_payload<Wire...>(reply.message, result...);
    reply.send();
  }
  /// The object that the request addresses; it has been made. Throws what its creation threw. Valid while this call
  /// holds its references.
  template <class C>
  [[nodiscard]] C& object() {
    if constexpr (std::is_same_v<C, owned_object>) {
      (void)target().value_made();
      return target();
    } else {
      return target().template as<C>();
    }
  }
  /// Stores the value that `make` returns as a new object of this worker.
  template <class T, class Make>
  void keep(Make&& make) {
    (void)creation();
    keep_value(std::make_unique<owned_value_of<T>>(std::forward<Make>(make)));
  }
  /// Call before a callback that calls answer(), keep() or fail(), on any thread, is attached to the handler's future.
  void expect_later() noexcept { late_ = true; }
  /// Call first in that callback.
  void begin_answer() noexcept;
  /// Call after that callback has been attached.
  void answer_later() noexcept;
  /// If the call waits for its handler's future: it no longer counts as being served, and gets no answer. The future,
  /// the arguments, and the call's turn at an object remain until the future is ready: code of the handler may use them.
  void give_up() noexcept;
  /// Whether give_up() has an effect.
  [[nodiscard]] bool answers_later() const noexcept { return progress_.load() == progress::later; }

  /// Answers with the exception; the stage that was reached determines the error code. Never throws.
  void fail(const std::exception_ptr& thrown) noexcept;

  /// Runs the method: from the request to the answer, or to answer_later(). Never throws.
  void serve() noexcept;

  void count_wait(int change) noexcept override;
  [[nodiscard]] const call_chain* chain() const noexcept override;
  bool uses_object(owned_object& object) override;
  void request_stop() noexcept override;
  /// The call whose handler runs on this thread and has not returned. Null if there is none, or if the thread runs a
  /// continuation or coroutine of a handler that has returned.
  [[nodiscard]] static const call_context* on_this_thread() noexcept;
  /// A snapshot for debugging. May be called on any thread until the call is done.
  [[nodiscard]] served_call_info describe_now(const worker_info& from, std::uint64_t id, clock::time_point now) const;

 private:
  friend class worker_core;      // keeps a list of the one-way calls
  friend class reference_table;  // reads the references of the request and holds it until it may start
  friend class object_turns;
  friend class turn_executor;
  friend class turn_waits;

  // Ensures that the call has current streams for all devices that messages of the worker may be on.
  void take_streams();
  // The objects that the call uses, and the device work on them that its streams have already waited for. After the
  // call has released its turn at an object, it waits again.
  struct object_use {
    ref_ptr<owned_object> object;
    std::vector<std::shared_ptr<const object_mark>> before;
  };

  // Records the work that the call has queued as work on these objects: the next user of an object waits for it, and
  // for `reads`. Call before the end of the call is visible to any other thread. Throws errc::device_failure;
  // end_uses_quietly() then handles the remaining objects and logs errors.
  void end_uses(const std::shared_ptr<read_marks>& reads);
  void end_uses_quietly() noexcept;
  [[nodiscard]] bool works_on_objects();
  // For the object whose turn the call releases and re-acquires while it waits.
  void pause_use() noexcept;
  void resume_use() noexcept;
  void keep_value(std::unique_ptr<owned_value> made);
  // Determines the placement of an answer's tensors at the receiver. Throws what agent::place_response throws.
  void place(outgoing_message& answer) const;

  // An answer with its references. If it is not sent, they are released.
  class answer_message {
   public:
    explicit answer_message(incoming_call& call);
    ~answer_message();
    answer_message(const answer_message&) = delete;
    answer_message& operator=(const answer_message&) = delete;
    void send();

    outgoing_message message;

   private:
    incoming_call& call_;
    handed_references references_;
  };

  enum class stage : std::uint8_t { decoding, running, encoding, done };

  /// Schedules the call on a handler thread. Call once nothing holds it.
  void launch() noexcept;
  void log_given_up() const noexcept;
  /// For the thread that has marked it as held: a stop that found it otherwise is seen here.
  [[nodiscard]] bool is_stopped() noexcept { return (ends_.fetch_or(0, std::memory_order_acq_rel) & stopped_bit) != 0; }
  /// Marks the call as held. Call after references_ has been set: other threads then read it.
  void hold() noexcept { progress_.store(progress::held, std::memory_order_release); }
  [[nodiscard]] std::string describe_plainly() const;
  [[nodiscard]] std::string describe_target() const;
  [[nodiscard]] const wire_limits& limits() const noexcept;
  [[nodiscard]] bool one_way() const noexcept { return is_one_way_; }
  [[nodiscard]] bool needs_answer() const noexcept { return !is_one_way_ && !given_up_; }
  void send(outgoing_message&& reply);
  [[nodiscard]] owned_object& target() const;
  [[nodiscard]] owned_object& creation() const;
  [[nodiscard]] bool gives_turn_away() const noexcept;
  [[nodiscard]] std::exception_ptr name_method(const std::exception_ptr& reason) const;
  void fail_plainly() noexcept;
  void fail_unanswered(const std::exception_ptr& thrown) noexcept;
  void release_request() noexcept;
  void done() noexcept;
  [[nodiscard]] std::string describe() const;
  void record(flight_event what, std::uint64_t bytes, errc code = {}) noexcept;

  std::shared_ptr<worker_core> worker_;
  std::shared_ptr<reply_channel> channel_;
  inbound_message request_;
  std::unique_ptr<call_references> references_;  // null for most calls
  stage stage_ = stage::decoding;
  bool late_ = false;  // set before another thread can access this call
  bool later_ = false;
  bool given_up_ = false;  // set by begin_answer(); another thread may still be in give_up() and use the next members
  bool tried_ = false;
  bool had_to_wait_ = false;  // for a num_worker_threads slot, or until answers to the caller are written
  std::mutex uses_mutex_;     // guards the next two
  std::vector<object_use> uses_;
  bool uses_ended_ = false;

  // Read by debugging functions on other threads.
  const clock::time_point arrived_;
  const std::uint64_t bytes_;
  const bool is_one_way_;
  enum class progress : std::uint8_t { queued, held, running, later, given_up, answering, done };
  std::atomic<progress> progress_{progress::queued};
  // The stop and the return of the handler, each of which must see the other.
  static constexpr std::uint8_t stopped_bit = 1;
  static constexpr std::uint8_t returned_bit = 2;
  std::atomic<std::uint8_t> ends_{0};
  std::atomic<int> waits_{0};  // threads of this call that wait in ferry
  incoming_call* previous_ = nullptr;
  incoming_call* following_ = nullptr;
};

/// Keeps a call and its arguments until the future that it returned is ready.
template <method_flavour Flavour, class Arguments, class T>
struct answering {
  context_ptr keep;
  incoming_call& call;
  Arguments arguments;

  void operator()(const future<T>& result) noexcept {
    call.begin_answer();
    const auto failure = caught([&] {
      result.shared_state()->let_streams_wait();  // the streams on which the answer is sent
      if constexpr (creates(Flavour)) {
        call.keep<T>([&] { return result.get(); });
      } else if constexpr (std::is_void_v<T>) {
        result.value();
        call.answer();
      } else {
        call.template answer<wire_type<T>>(result.value());
      }
    });
    if (failure) call.fail(failure);
  }
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

template <auto F, method_flavour Flavour, class Arguments, std::size_t... I>
decltype(auto) invoke_method([[maybe_unused]] incoming_call& call, Arguments& arguments, std::index_sequence<I...>) {
  using parameters = typename parts_of<F, Flavour>::parameters;
  if constexpr (on_object(Flavour)) {
    auto& object = call.object<typename parts_of<F, Flavour>::object>();
    if constexpr (std::is_member_function_pointer_v<decltype(F)>) {
      return (object.*F)(pass<std::tuple_element_t<I, parameters>>(std::get<I>(arguments))...);
    } else {
      return F(object, pass<std::tuple_element_t<I, parameters>>(std::get<I>(arguments))...);
    }
  } else if constexpr (std::is_member_function_pointer_v<decltype(F)>) {
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
        return start(invoke_method<F, Flavour>(call, *kept, indices{}));
      } else {
        return invoke_method<F, Flavour>(call, *kept, indices{});
      }
    }();
    if (!pending.valid()) throw_error(errc::no_state, "the method returned an empty future");
    call.expect_later();
    pending.add_done_callback(
        answering<Flavour, std::unique_ptr<arguments>, value>{context_ptr::share(&call), call, std::move(kept)});
    call.answer_later();
  } else {
    arguments values;
    std::apply([&](auto&... each) { call.read(each...); }, values);
    if constexpr (creates(Flavour)) {
      call.keep<wire_type<result>>(
          [&]() -> decltype(auto) { return invoke_method<F, Flavour>(call, values, indices{}); });
    } else if constexpr (std::is_void_v<result>) {
      invoke_method<F, Flavour>(call, values, indices{});
      call.answer();
    } else {
      const auto& answer = invoke_method<F, Flavour>(call, values, indices{});
      call.answer<wire_type<result>>(answer);
    }
  }
}

}  // namespace detail
}  // namespace ferry::inline v0
