#pragma once

// A request on its way through the worker that serves it. Users never see it; the templates of method.hpp run on it.

#include <atomic>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>

#include <ferry/base/work.hpp>
#include <ferry/rpc/context.hpp>
#include <ferry/rpc/debug.hpp>
#include <ferry/rpc/future.hpp>
#include <ferry/rpc/method.hpp>
#include <ferry/rpc/task.hpp>
#include <ferry/wire/message.hpp>

namespace ferry::inline v0 {

class reply_channel;

namespace detail {

class worker_core;
enum class flight_event : std::uint8_t;

/// A base, so that it is there until everything else of the call, what users put into its context included, is gone.
struct held_method {
  method_hold method;
};

/// Also the context of the call, so that a request is one object. Lives until the reply has been sent and nobody holds
/// the context any more; until then the method's code stays, too. Whoever runs code of the method (a handler, its
/// continuations and coroutines) holds the context from outside, in the library's own code.
class served_call final : public work, private held_method, public call_context {
 public:
  served_call(std::shared_ptr<worker_core> worker, std::shared_ptr<reply_channel> channel, worker_id from,
              inbound_message&& request, clock::time_point now);
  ~served_call() override;

  /// Null: this worker serves no such method.
  [[nodiscard]] const method_entry* method() const noexcept { return held_method::method.get(); }

  // For serve_method, in this order.
  /// Decodes the arguments.
  template <class... Ts>
  void read(Ts&... values) {
    decode_values(request_.payload, request_.tensors, limits(), values...);
    stage_ = stage::running;
  }
  /// Encodes the result (none for void) and sends the reply.
  template <class... Wire, class... Ts>
  void answer(const Ts&... result) {
    stage_ = stage::encoding;
    if (one_way()) return done();
    outgoing_message reply;
    reply.begin_payload();
    if constexpr (sizeof...(Ts) != 0) encode_values<Wire...>(reply.bytes, reply.tensors, result...);
    send(std::move(reply));
  }
  /// The handler's future is about to get a callback that calls answer() or fail(), on any thread.
  void expect_later() noexcept { late_ = true; }
  /// It has got it.
  void answer_later() noexcept;

  /// Answers with what was thrown; uses the stage that was reached. Never throws.
  void fail(const std::exception_ptr& reason) noexcept;

  /// Runs the method: from the request to the answer, or to answer_later(). Never throws.
  void serve() noexcept;

  void count_wait(int change) noexcept override { waits_.fetch_add(change, std::memory_order_relaxed); }
  /// As it is now; on any thread, until it is done.
  [[nodiscard]] served_call_info describe_now(const worker_info& from, std::uint64_t id, clock::time_point now) const;

 private:
  friend class worker_core;  // keeps those that are one-way in a list
  enum class stage : std::uint8_t { decoding, running, encoding, done };

  [[nodiscard]] const wire_limits& limits() const noexcept;
  [[nodiscard]] bool one_way() const noexcept { return is_one_way_; }
  void send(outgoing_message&& reply);
  void fail_plainly() noexcept;
  void done() noexcept;
  [[nodiscard]] std::string describe() const;
  void record(flight_event what, std::uint64_t bytes, errc code = {}) noexcept;

  std::shared_ptr<worker_core> worker_;
  std::shared_ptr<reply_channel> channel_;
  inbound_message request_;
  stage stage_ = stage::decoding;
  bool late_ = false;  // set before another thread has to do with this call
  bool later_ = false;
  bool tried_ = false;
  bool had_to_wait_ = false;  // for a place, or until answers to the caller are written

  // For those who ask, on other threads.
  const clock::time_point arrived_;
  const std::uint64_t bytes_;
  const bool is_one_way_;
  enum class progress : std::uint8_t { queued, running, later, done };
  std::atomic<progress> progress_{progress::queued};
  std::atomic<int> waits_{0};  // threads of it that wait in ferry
  served_call* previous_ = nullptr;
  served_call* following_ = nullptr;
};

/// Keeps a call and its arguments until the future that it returned is ready.
template <class Arguments, class T>
struct answering {
  context_ptr keep;
  served_call& call;
  Arguments arguments;

  void operator()(const future<T>& result) noexcept {
    try {
      if constexpr (std::is_void_v<T>) {
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

template <auto F, class Arguments, std::size_t... I>
decltype(auto) invoke_method(Arguments& arguments, std::index_sequence<I...>) {
  using parameters = typename parts_of<F>::parameters;
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

template <class Parameters>
struct holders;
template <class... P>
struct holders<std::tuple<P...>> {
  using type = std::tuple<wire_type<P>...>;
};

template <auto F>
void serve_method(served_call& call) {
  using parts = parts_of<F>;
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
        return start(invoke_method<F>(*kept, indices{}));
      } else {
        return invoke_method<F>(*kept, indices{});
      }
    }();
    if (!pending.valid()) throw_error(errc::no_state, "the method returned an empty future");
    call.expect_later();
    pending.add_done_callback(
        answering<std::unique_ptr<arguments>, value>{context_ptr::share(&call), call, std::move(kept)});
    call.answer_later();
  } else {
    arguments values;
    std::apply([&](auto&... each) { call.read(each...); }, values);
    if constexpr (std::is_void_v<result>) {
      invoke_method<F>(values, indices{});
      call.answer();
    } else {
      const auto& answer = invoke_method<F>(values, indices{});
      call.answer<wire_type<result>>(answer);
    }
  }
}

}  // namespace detail
}  // namespace ferry::inline v0
