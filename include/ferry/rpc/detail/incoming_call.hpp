#pragma once

// A request on its way through the worker that serves it. Users never see it; the templates of method.hpp run on it.

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

/// A base, so that it is there until everything else of the call, what users put into its context included, is gone.
struct held_method {
  method_hold method;
};

/// Also the context of the call, so that a request is one object. Lives until the reply has been sent and no owner holds
/// the context any more; until then the method's code stays, too. A thread that runs code of the method (a handler, its
/// continuations and coroutines) holds the context from outside, in the library's own code.
class incoming_call final : public work, private held_method, public call_context {
 public:
  incoming_call(std::shared_ptr<worker_core> worker, std::shared_ptr<reply_channel> channel, worker_id from,
                inbound_message&& request, clock::time_point now);
  ~incoming_call() override;

  /// Who made the call; another worker may have its id by now. Null: the backend does not say. Until it is answered.
  [[nodiscard]] const worker_info* sender() const noexcept;
  /// The same, in which life. None: the backend does not say.
  [[nodiscard]] incarnation_id sender_incarnation() const noexcept;
  /// Null: this worker serves no such method.
  [[nodiscard]] const method_entry* method() const noexcept { return held_method::method.get(); }

  [[nodiscard]] bool has_extensions() const noexcept { return !request_.extensions.empty(); }

  // For serve_method, in this order.
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
    if (one_way()) return done();
    answer_message reply(*this);
    if constexpr (sizeof...(Ts) != 0) encode_payload<Wire...>(reply.message, result...);
    reply.send();
  }
  /// The object that the request is for, made; throws what its making threw. While this call has references.
  template <class C>
  [[nodiscard]] C& object() {
    if constexpr (std::is_same_v<C, owned_object>) {
      (void)target().value_made();
      return target();
    } else {
      return target().template as<C>();
    }
  }
  /// The result becomes an object here: what `make` returns.
  template <class T, class Make>
  void keep(Make&& make) {
    (void)creation();
    keep_value(std::make_unique<owned_value_of<T>>(std::forward<Make>(make)));
  }
  /// The handler's future is about to get a callback that calls answer(), keep() or fail(), on any thread.
  void expect_later() noexcept { late_ = true; }
  /// It has got it.
  void answer_later() noexcept;

  /// Answers with what was thrown; uses the stage that was reached. Never throws.
  void fail(const std::exception_ptr& reason) noexcept;

  /// Runs the method: from the request to the answer, or to answer_later(). Never throws.
  void serve() noexcept;

  void count_wait(int change) noexcept override;
  [[nodiscard]] const call_chain* chain() const noexcept override;
  bool uses_object(owned_object& object) override;
  void request_stop() noexcept override;
  /// The one whose handler runs on this thread: it has not returned. Null: none, or a continuation or coroutine that goes on.
  [[nodiscard]] static const call_context* on_this_thread() noexcept;
  /// As it is now; on any thread, until it is done.
  [[nodiscard]] served_call_info describe_now(const worker_info& from, std::uint64_t id, clock::time_point now) const;

 private:
  friend class worker_core;      // keeps those that are one-way in a list
  friend class reference_table;  // reads the references of the request, and holds it back until it may begin
  friend class object_turns;
  friend class turn_executor;
  friend class turn_waits;

  // Sees to it that the call has current streams, of all devices that messages of the worker may be on.
  void take_streams();
  // The objects that the call works on, and what of the work on them its streams have waited for. One whose turn the call has
  // given away meanwhile it waits for again.
  struct object_use {
    ref_ptr<owned_object> object;
    std::vector<std::shared_ptr<const object_mark>> before;
  };

  // What the call has queued is the work on these objects: the next user of one waits for it, and for `reads`. Before any other
  // can know that the call is over. Throws errc::device_failure; what is left then is for the second one, which logs it.
  void end_uses(const std::shared_ptr<read_marks>& reads);
  void end_uses_quietly() noexcept;
  [[nodiscard]] bool works_on_objects();
  // The same of the object whose turn it gives away, and gets again.
  void pause_use() noexcept;
  void resume_use() noexcept;
  void keep_value(std::unique_ptr<owned_value> made);
  // Decides where the tensors of an answer arrive. Throws what agent::place_response throws.
  void place(outgoing_message& answer) const;

  // The answer with its references, which are taken back if it is not sent.
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

  /// Has a handler thread run it, now that nothing holds it back.
  void launch() noexcept;
  /// Is held back by what it needs: from when its references are there.
  void hold() noexcept { progress_.store(progress::held, std::memory_order_release); }
  [[nodiscard]] std::string describe_plainly() const;
  [[nodiscard]] std::string describe_target() const;
  [[nodiscard]] const wire_limits& limits() const noexcept;
  [[nodiscard]] bool one_way() const noexcept { return is_one_way_; }
  void send(outgoing_message&& reply);
  [[nodiscard]] owned_object& target() const;
  [[nodiscard]] owned_object& creation() const;
  [[nodiscard]] bool gives_turn_away() const noexcept;
  void fail_plainly() noexcept;
  void done() noexcept;
  [[nodiscard]] std::string describe() const;
  void record(flight_event what, std::uint64_t bytes, errc code = {}) noexcept;

  std::shared_ptr<worker_core> worker_;
  std::shared_ptr<reply_channel> channel_;
  inbound_message request_;
  std::unique_ptr<call_references> references_;  // of most calls: none
  stage stage_ = stage::decoding;
  bool late_ = false;  // set before another thread has to do with this call
  bool later_ = false;
  bool tried_ = false;
  bool had_to_wait_ = false;  // for a place, or until answers to the caller are written
  std::mutex uses_mutex_;     // guards the next two
  std::vector<object_use> uses_;
  bool uses_ended_ = false;

  // For those who ask, on other threads.
  const clock::time_point arrived_;
  const std::uint64_t bytes_;
  const bool is_one_way_;
  enum class progress : std::uint8_t { queued, held, running, later, done };
  std::atomic<progress> progress_{progress::queued};
  std::atomic<int> waits_{0};  // threads of it that wait in ferry
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
    try {
      result.shared_state()->let_streams_wait();  // those on which the answer is sent
      if constexpr (creates(Flavour)) {
        call.keep<T>([&] { return result.get(); });
      } else if constexpr (std::is_void_v<T>) {
        result.value();
        call.answer();
      } else {
        call.template answer<wire_type<T>>(result.value());
      }
    } catch (...) {
      call.fail(std::current_exception());
    }
  }
};

/// A decoded argument as the parameter of type P takes it: moved into values, by reference otherwise; views are made of
/// what was decoded.
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
    // What the parameters refer to lives until the answer: the arguments are moved nowhere once the method has them.
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
