#pragma once

// Calls: rpc_sync, rpc_async, notify.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ferry/backend/agent.hpp>
#include <ferry/rpc/detail/call_lifecycle.hpp>
#include <ferry/rpc/detail/given_value.hpp>
#include <ferry/rpc/detail/incoming_call.hpp>
#include <ferry/rpc/future.hpp>
#include <ferry/rpc/method.hpp>
#include <ferry/rpc/named.hpp>
#include <ferry/rpc/to.hpp>

namespace ferry::inline v0 {
namespace detail {

class worker_core;

/// The worker that free functions use: the worker of the handler that runs on this thread, else the last one
/// initialised in the process. Throws errc::not_initialized, errc::forked_process.
std::shared_ptr<worker_core> current_worker();

/// How the answer of a call is received.
enum class call_mode : std::uint8_t {
  waiting,    ///< the calling thread waits for it
  later,      ///< by a future
  unhurried,  ///< the same; its reply may lie for some milliseconds, unless a thread waits for it (or another one) there
  detached,   ///< it makes something at the callee that the caller often uses at once; no caller's code waits for it
  one_way,    ///< no reply
};

/// Where a call goes when that is not a worker's name or id, and what it keeps alive meanwhile.
struct call_place {
  located_worker (*find)(const void* what, deadline until);
  const void* what;
  std::shared_ptr<const void> held;
  const char* hint;                 ///< call_facts::hint
  void (*check)(const void* what);  ///< throws what `what` has ended with
};

/// A call being made: destination, method and options resolved, message begun. Not thread-safe.
class outgoing_call {
 public:
  /// Throws errc::unknown_worker, errc::not_initialized, errc::rpc_timeout if the deadline of the running handler has
  /// passed or passes while the destination is looked up, errc::call_cancelled if the stop token is stopped.
  outgoing_call(std::shared_ptr<worker_core> worker, const to& destination, const method_entry& method, call_mode mode);
  /// The same, and what `find` throws.
  outgoing_call(std::shared_ptr<worker_core> worker, call_place where, const call_options& options,
                const method_entry& method, call_mode mode);
  ~outgoing_call();
  outgoing_call(const outgoing_call&) = delete;
  outgoing_call& operator=(const outgoing_call&) = delete;

  outgoing_message message;
  inbound_message reply;  ///< after run()

  /// Call after the arguments have been written, and after any other record: places the tensors, and lets interceptors
  /// see the request.
  void seal();
  /// Whether rvalue arguments are given to the message, which is sealed: to a worker of this process their tensors are then
  /// handed over. Throws what outgoing_message::finish() throws; afterwards only full queues and a shutdown keep it from being
  /// sent. The stop token may then be a part of an argument.
  [[nodiscard]] bool gives_values();

  /// Sends and blocks until the reply arrives. Throws the error that the call ended with.
  void run();
  /// Sends without waiting for anything.
  void send_one_way();

  [[nodiscard]] const std::shared_ptr<worker_core>& worker() const noexcept { return life_.facts.worker; }
  [[nodiscard]] const call_target& target() const noexcept { return target_; }
  [[nodiscard]] const worker_info& peer() const noexcept { return life_.facts.peer; }
  [[nodiscard]] const method_entry& method() const noexcept { return *life_.facts.method; }
  /// How the reply of an asynchronous call is read.
  [[nodiscard]] reply_wait reader() const noexcept {
    return mode_ == call_mode::unhurried  ? reply_wait::unhurried
           : mode_ == call_mode::detached ? reply_wait::bundled
                                          : reply_wait::none;
  }
  [[nodiscard]] clock::time_point began() const noexcept { return began_; }
  [[nodiscard]] deadline until() const noexcept { return until_; }
  [[nodiscard]] const std::stop_token* stop() const noexcept { return stop_; }
  /// For errors while decoding the reply.
  [[nodiscard]] const call_facts& facts() const noexcept { return life_.facts; }
  /// For the state of an asynchronous call, which goes on with it.
  [[nodiscard]] call_lifecycle& life() noexcept { return life_; }

 private:
  void bound();
  /// The destination is known.
  void begin(peer_route&& there);
  void place_tensors();
  void let_interceptors_see(const context_values& values);
  [[nodiscard]] bool awaited() const noexcept { return mode_ <= call_mode::unhurried; }
  void take_over_streams();

  const streams_scope streams_;  // from the options
  call_lifecycle life_;
  call_target target_ = worker_id{};
  const call_mode mode_;
  message_handles handles_;
  clock::time_point began_ = clock::now();
  deadline until_;
  const std::stop_token* stop_;
  std::stop_token own_stop_;
  const device_map* placement_;
};

/// Passes the records of `reply` to their readers. Returns if `reply` is a value; otherwise throws the error it carries.
void check_reply(const call_facts& facts, inbound_message& reply);
/// Throws `problem`, which ended the encoding of arguments, again, with the call's name.
[[noreturn]] void throw_not_encoded(const call_facts& facts, const error& problem);
/// Throws errc::bad_result, wrapping the current exception.
[[noreturn]] void throw_bad_result(const call_facts& facts);
const wire_limits& reply_limits(const call_facts& facts) noexcept;

/// What a result is decoded into.
template <class R>
R empty_result(const call_facts& facts) {
  static_assert(std::is_default_constructible_v<R>,
                "ferry: the result type of a remote call must be default-constructible");
  if constexpr (std::is_nothrow_default_constructible_v<R>) {
    return R{};
  } else {
    try {
      return R{};
    } catch (...) {
      throw_bad_result(facts);
    }
  }
}

template <class R>
R decode_result(const call_facts& facts, inbound_message& reply) {
  check_reply(facts, reply);
  if constexpr (!std::is_void_v<R>) {
    R value = empty_result<R>(facts);
    try {
      decode_payload(reply, reply_limits(facts), value);
    } catch (...) {
      throw_bad_result(facts);
    }
    reply.tensors.clear();  // they are the value's alone
    return value;
  }
}

/// Whether decoding a T runs no user code.
template <class T>
inline constexpr bool decodes_alone = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_void_v<T>;
template <>
inline constexpr bool decodes_alone<std::string> = true;
template <>
inline constexpr bool decodes_alone<tensor> = true;
template <class T, class A>
inline constexpr bool decodes_alone<std::vector<T, A>> = decodes_alone<T>;

/// The part of an asynchronous call that does not depend on the result type.
class async_call : public pending_call {
 public:
  void on_reply(inbound_message&& reply) noexcept final;
  void on_failure(errc code, call_phase phase, const std::string& detail) noexcept final;

 protected:
  async_call(outgoing_call& call, bool decodes_alone) noexcept
      : life_(std::move(call.life())), decodes_alone_(decodes_alone) {}
  ~async_call();
  /// Sends the call of the constructor. It may be complete on return. Throws if nothing was sent.
  void start(outgoing_call& call);
  /// The user has cancelled the call.
  void give_up() noexcept;
  /// The current thread processes incoming messages until the result has arrived or the deadline has passed. Returns
  /// true if the result has arrived.
  bool help(const future_state_base& state, deadline until);

  /// Completes the state with the value or the error of the reply.
  virtual void complete(inbound_message& reply) noexcept = 0;
  virtual void set_error(std::exception_ptr error) noexcept = 0;
  virtual void set_cancelled(std::exception_ptr error) noexcept = 0;
  virtual void keep() noexcept = 0;  ///< adds a reference to the state
  virtual void drop() noexcept = 0;  ///< drops a reference to the state
  [[nodiscard]] const call_facts& facts() const noexcept { return life_.facts; }

 private:
  struct decoding;
  struct helping;
  struct stopper {
    async_call* call;
    void operator()() const noexcept { call->give_up(); }
  };
  void wake_helper() noexcept;
  /// Tells the hooks of the reply, and completes the state with it.
  void deliver(inbound_message& reply) noexcept;
  void let_go_of_hooks() noexcept;
  /// The call has its result; drops the pending reference.
  void finish() noexcept;

  call_lifecycle life_;
  std::atomic<int> hook_users_{2};
  decoding* delivery_ = nullptr;  // of the reply, made before the call is sent; null if there are no hooks
  call_ticket ticket_;
  // The code of the derived class belongs to the library that made the call: it stays loaded while the call is pending.
  method_hold code_;
  const bool decodes_alone_;
  std::atomic<bool> sent_{false};  // ticket_ is set
  std::atomic<bool> unwanted_{false};
  std::optional<std::stop_callback<stopper>> stop_;
};

/// Registers the call with the wait_all() whose body runs on this thread, if any.
void record_call(future_state_base& call);

/// A call and its future in one object.
template <class R>
class call_state final : public future_state<R>, public async_call {
 public:
  explicit call_state(outgoing_call& call) noexcept : async_call(call, decodes_alone<R>) {}
  static future<R> send(outgoing_call& call) {
    auto self = ref_ptr<call_state>::adopt(new call_state(call));
    if (call.message.reads) self->set_order(value_order::behind(call.message.reads));
    self->start(call);
    record_call(*self);
    return future<R>(ref_ptr<future_state<R>>(std::move(self)));
  }

 private:
  void on_cancel() override { give_up(); }
  bool help_wait(deadline until) override { return this->help(*this, until); }
  void complete(inbound_message& reply) noexcept override {
    const streams_scope streams(reply.streams);  // the value is decoded in the order of these streams
    auto failure = caught([&] {
      if constexpr (std::is_void_v<R>) {
        decode_result<R>(facts(), reply);
        this->try_set_value();
      } else {
        this->try_set_value(decode_result<R>(facts(), reply));
      }
    });
    if (failure) this->try_set_error(std::move(failure));
  }
  void set_error(std::exception_ptr error) noexcept override { this->try_set_error(std::move(error)); }
  void set_cancelled(std::exception_ptr error) noexcept override { this->complete_cancelled(std::move(error)); }
  void keep() noexcept override { this->add_ref(); }
  void drop() noexcept override { this->release(); }
};

// Encodes `args` as the parameters of F. Exceptions of the arguments' own functions pass as they are.
template <class... Wire, class... A>
void encode_arguments(outgoing_call& call, std::tuple<Wire...>*, const A&... args) {
  try {
    encode_payload<Wire...>(call.message, args...);
  } catch (const error& problem) {
    throw_not_encoded(call.facts(), problem);
  }
}

/// The diagnosis of one argument, whose place counts from 1: compilers print the types of what they instantiate.
template <std::size_t Place, class Parameter, class Argument>
struct argument {
  static_assert(
      encodable_as<wire_type<Parameter>, Argument>,
      "ferry: an argument of the call cannot be converted to the method's parameter: argument<place, parameter, "
      "argument> says which one");
};

template <auto F, method_flavour Flavour, class... A>
consteval void check_arguments() {
  using parameters = typename parts_of<F, Flavour>::parameters;
  static_assert(sizeof...(A) == std::tuple_size_v<parameters>,
                "ferry: the call passes a number of arguments that differs from the method's number of parameters "
                "(a member function takes its object first). Default arguments do not count, and options go with the "
                "destination: {\"worker1\", options}");
  if constexpr (sizeof...(A) == std::tuple_size_v<parameters>) {
    []<std::size_t... I>(std::index_sequence<I...>) {
      if constexpr (!(encodable_as<wire_type<std::tuple_element_t<I, parameters>>, A> && ...))
        (static_cast<void>(sizeof(argument<I + 1, std::tuple_element_t<I, parameters>, A>)), ...);
    }(std::index_sequence_for<A...>{});
  }
}

// `call` is an outgoing_call, or derived from it with a seal() of its own.
template <auto F, method_flavour Flavour, class Call, class... A>
void write_arguments(Call& call, A&&... args) {
  check_arguments<F, Flavour, std::remove_cvref_t<A>...>();
  using wires = typename holders<typename parts_of<F, Flavour>::parameters>::type;
  encode_arguments(call, static_cast<wires*>(nullptr), args...);
  call.seal();
  if constexpr ((is_given<A> || ...)) {
    if (call.gives_values()) drop_given_values<A...>(args...);
  }
}

template <auto F, method_flavour Flavour, class Call, class... A>
auto finish_sync(Call& call, A&&... args) -> result_of<F, Flavour> {
  write_arguments<F, Flavour>(call, std::forward<A>(args)...);
  call.run();
  return decode_result<result_of<F, Flavour>>(call.facts(), call.reply);
}
template <auto F, method_flavour Flavour, class Call, class... A>
auto finish_async(Call& call, A&&... args) -> future<result_of<F, Flavour>> {
  write_arguments<F, Flavour>(call, std::forward<A>(args)...);
  return call_state<result_of<F, Flavour>>::send(call);
}
template <auto F, method_flavour Flavour, class Call, class... A>
void finish_one_way(Call& call, A&&... args) {
  write_arguments<F, Flavour>(call, std::forward<A>(args)...);
  call.send_one_way();
}

template <auto F, class... A>
auto call_sync(std::shared_ptr<worker_core> worker, const to& destination, A&&... args) -> result_of<F> {
  outgoing_call call(std::move(worker), destination, usable_method<F>(), call_mode::waiting);
  return finish_sync<F, method_flavour::call>(call, std::forward<A>(args)...);
}

template <auto F, class... A>
auto call_async(std::shared_ptr<worker_core> worker, const to& destination, A&&... args) -> future<result_of<F>> {
  outgoing_call call(std::move(worker), destination, usable_method<F>(), call_mode::later);
  return finish_async<F, method_flavour::call>(call, std::forward<A>(args)...);
}

template <auto F, class... A>
auto call_unhurried(std::shared_ptr<worker_core> worker, const to& destination, A&&... args) -> future<result_of<F>> {
  outgoing_call call(std::move(worker), destination, usable_method<F>(), call_mode::unhurried);
  return finish_async<F, method_flavour::call>(call, std::forward<A>(args)...);
}

template <auto F, class... A>
void call_one_way(std::shared_ptr<worker_core> worker, const to& destination, A&&... args) {
  outgoing_call call(std::move(worker), destination, usable_method<F>(), call_mode::one_way);
  finish_one_way<F, method_flavour::call>(call, std::forward<A>(args)...);
}

}  // namespace detail

/// Calls F on another worker (or this one) and waits for its result. Argument tensors are not copied: they must not be
/// written until the call has returned; from then on the current streams of the thread wait until devices have read
/// them. Arguments that are rvalues (temporaries, std::move(t)) may be moved from once they have been encoded: to a worker of
/// the same process the memory of their tensors is handed over (docs/tensors.md). Throws what F threw, or errc::rpc_timeout,
/// call_cancelled, peer_lost, unknown_worker, ...: the call ends exactly once, even if the peer fails. Thread-safe.
template <auto F, class... A>
auto rpc_sync(const to& destination, A&&... args)
    -> detail::result_of<detail::resolve<F, std::remove_cvref_t<A>...>::function> {
  return detail::call_sync<detail::resolve<F, std::remove_cvref_t<A>...>::function>(
      detail::current_worker(), destination, static_cast<detail::passed<A>>(args)...);
}

/// Like rpc_sync(), but does not wait: returns a future. Errors detected before sending (unknown worker, an argument
/// that cannot be encoded) are thrown here; all others complete the future. Argument tensors must not be written until
/// the future is ready. Thread-safe.
template <auto F, class... A>
[[nodiscard]] auto rpc_async(const to& destination, A&&... args)
    -> future<detail::result_of<detail::resolve<F, std::remove_cvref_t<A>...>::function>> {
  return detail::call_async<detail::resolve<F, std::remove_cvref_t<A>...>::function>(
      detail::current_worker(), destination, static_cast<detail::passed<A>>(args)...);
}

/// Calls F without waiting; no reply is sent. The result of F is dropped; the callee logs its exceptions. Thread-safe.
template <auto F, class... A>
void notify(const to& destination, A&&... args) {
  detail::call_one_way<detail::resolve<F, std::remove_cvref_t<A>...>::function>(
      detail::current_worker(), destination, static_cast<detail::passed<A>>(args)...);
}

}  // namespace ferry::inline v0
