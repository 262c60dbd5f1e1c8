#pragma once

// Asynchronous calls as Asio operations that accept any completion token:
//
//   int sum = co_await ferry::async_rpc<add>("worker1", 1, 2, asio::use_awaitable);
//   std::future<int> later = ferry::async_rpc<add>({"worker1", {.timeout = 5s}}, 1, 2, asio::use_future);
//   ferry::async_rpc<add>("worker1", 1, 2, asio::bind_executor(io, [](std::exception_ptr error, int sum) { ... }));
//   int same = co_await ferry::async_get(future, asio::use_awaitable);
//
// The completion signature is void(std::exception_ptr, T), or void(std::exception_ptr) without a result, so exceptions
// of ferry and of the callee keep their types. All errors are passed to the handler, including errc::unknown_worker.
//
// * Completion: the handler is posted to its associated executor (asio::system_executor if it has none, or one that
//   cannot post, such as asio::inline_executor) and never runs inside the initiating function. Outstanding work is
//   tracked on that executor until then.
// * Cancellation: `terminal` and `partial` cancel the call like future::cancel() (the callee is notified; the method
//   may have run partly or completely). `total` alone, which requires that the operation has no side effects, is
//   ignored.
// * Destruction: an execution context that is destroyed first destroys the handlers of its pending calls, as for Asio's
//   own operations, and cancels these calls.
// * Thread safety: initiating functions are thread-safe, except for objects that the token refers to.
//
// Needs standalone Asio 1.22 or newer. No other header of ferry includes this one.

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <asio/associated_allocator.hpp>
#include <asio/associated_cancellation_slot.hpp>
#include <asio/associated_executor.hpp>
#include <asio/async_result.hpp>
#include <asio/cancellation_type.hpp>
#include <asio/execution/blocking.hpp>
#include <asio/execution/context.hpp>
#include <asio/execution/executor.hpp>
#include <asio/execution_context.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <asio/query.hpp>
#include <asio/require.hpp>
#include <asio/system_context.hpp>
#include <asio/system_executor.hpp>

#include <ferry/backend/device_map.hpp>
#include <ferry/base/log.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/rpc/call.hpp>
#include <ferry/rpc/future.hpp>
#include <ferry/rpc/promise.hpp>
#include <ferry/rpc/worker.hpp>

namespace ferry::inline v0 {
namespace detail::asio_adapter {

/// A handler, bound to an execution context, that waits for a result.
class waiting {
 public:
  virtual ~waiting() = default;
  /// Called when the context shuts down: destroys the handler and cancels the call.
  virtual void abandon() noexcept = 0;
};

/// The waiting handlers of one execution context. May outlive the context.
class waiting_list {
 public:
  using place = std::list<std::shared_ptr<waiting>>::iterator;

  /// Returns nullopt if the context is shutting down.
  std::optional<place> add(std::shared_ptr<waiting> entry) {
    std::list<std::shared_ptr<waiting>> fresh;
    fresh.push_back(std::move(entry));
    const std::lock_guard lock(mutex_);
    if (closed_) return std::nullopt;
    entries_.splice(entries_.begin(), fresh);
    return entries_.begin();
  }
  /// If true, the caller must post to the context and then call end_post(); the context is not destroyed before that.
  /// If false, the entry has been abandoned, or is being abandoned.
  bool begin_post(place at) noexcept {
    std::list<std::shared_ptr<waiting>> taken;  // destroyed after the lock is released
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    taken.splice(taken.begin(), entries_, at);
    ++posting_;
    return true;
  }
  void end_post() noexcept {
    const std::lock_guard lock(mutex_);
    --posting_;
    changed_.notify_all();
  }
  void close() noexcept {
    std::list<std::shared_ptr<waiting>> abandoned;
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      abandoned.swap(entries_);
    }
    for (const auto& each : abandoned) each->abandon();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return posting_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  std::size_t posting_ = 0;
  std::list<std::shared_ptr<waiting>> entries_;
};

/// Abandons the waiting handlers of a context when the context shuts down.
class waiting_service : public asio::execution_context::service {
 public:
  using key_type = waiting_service;
  static inline asio::execution_context::id id;

  explicit waiting_service(asio::execution_context& owner) : service(owner) {}
  [[nodiscard]] const std::shared_ptr<waiting_list>& list() const noexcept { return list_; }

 private:
  void shutdown() override { list_->close(); }
  std::shared_ptr<waiting_list> list_ = std::make_shared<waiting_list>();
};

/// The list of an executor's context; null for executors without a context and for the system context, which is never
/// destroyed before exit.
template <class Executor>
std::shared_ptr<waiting_list> list_of(const Executor& executor) {
  const auto of = [](auto& context) -> std::shared_ptr<waiting_list> {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(context)>, asio::system_context>) {
      return nullptr;
    } else {
      return asio::use_service<waiting_service>(static_cast<asio::execution_context&>(context)).list();
    }
  };
  if constexpr (asio::can_query<const Executor&, asio::execution::context_t>::value) {
    return of(asio::query(executor, asio::execution::context));
  } else if constexpr (requires { executor.context(); }) {
    return of(executor.context());
  } else {
    return nullptr;
  }
}

/// The executor that runs the handler. The default is explicit because Asio's default executor differs between
/// releases.
template <class Handler>
using executor_of = asio::associated_executor_t<Handler, asio::system_executor>;

/// False for executors that can only run functions inline (asio::inline_executor).
template <class Executor>
constexpr bool can_post_to = !asio::execution::is_executor<Executor>::value ||
                             asio::can_require<const Executor&, asio::execution::blocking_t::never_t>::value;

template <class T>
struct signature {
  using type = void(std::exception_ptr, T);
};
template <>
struct signature<void> {
  using type = void(std::exception_ptr);
};

/// Calls the handler with the outcome of `state`; runs on the handler's executor.
template <class T, class Handler>
class completion {
 public:
  using allocator_type = asio::associated_allocator_t<Handler>;

  completion(Handler handler, ref_ptr<future_state<T>> state, bool sole) noexcept
      : handler_(std::move(handler)), state_(std::move(state)), sole_(sole) {}
  [[nodiscard]] allocator_type get_allocator() const noexcept { return asio::get_associated_allocator(handler_); }

  void operator()() {
    std::exception_ptr error = state_->error();
    // As in get(): what the handler's thread queues on devices comes after the value.
    if (auto failure = caught([&] { state_->let_streams_wait(); }); failure && !error) error = std::move(failure);
    if constexpr (std::is_void_v<T>) {
      state_ = {};
      std::move(handler_)(std::move(error));
    } else {
      std::optional<T> value;
      if (!error) {
        try {
          value.emplace(sole_ ? state_->take() : state_->copy_or_take());
        } catch (...) {
          error = std::current_exception();
        }
      }
      state_ = {};
      std::move(handler_)(std::move(error), value ? std::move(*value) : T{});
    }
  }

 private:
  Handler handler_;
  ref_ptr<future_state<T>> state_;
  bool sole_;  // this is the only handle of the future: the value may be moved out
};

/// A handler that waits for a future. Kept alive by the future until it is complete.
template <class T, class Handler>
class operation final : public waiting, private continuation {
  using executor_type = executor_of<Handler>;

 public:
  static void start(Handler handler, future<T> from, bool sole) {
    auto slot = asio::get_associated_cancellation_slot(handler);
    auto self = std::make_shared<operation>(std::move(handler), std::move(from), sole);
    if (slot.is_connected()) {
      slot.assign([watched = std::weak_ptr<operation>(self)](asio::cancellation_type type) {
        constexpr auto handled = asio::cancellation_type::terminal | asio::cancellation_type::partial;
        if ((type & handled) == asio::cancellation_type::none) return;
        if (const auto alive = watched.lock()) alive->state_->cancel();
      });
    }
    if (self->list_) {
      self->place_ = self->list_->add(self);
      if (!self->place_) return self->give_up();  // the context is shutting down; the handler is destroyed with *self
    }
    operation& started = *self;
    started.self_ = std::move(self);
    // A continuation without a context runs on the completing thread. It only posts the handler.
    const ref_ptr<future_state<T>> state = started.state_;
    state->attach(&started);
  }

  operation(Handler handler, future<T> from, bool sole)
      : work_(std::in_place, asio::get_associated_executor(handler, asio::system_executor())),
        handler_(std::move(handler)),
        state_(from.shared_state()),
        sole_(sole),
        list_(list_of(work_->get_executor())) {
    this->invoke = &complete;
  }

  void abandon() noexcept override {
    handler_.reset();
    work_.reset();
    give_up();
  }

 private:
  // Do not cancel a future that may have other handles.
  void give_up() noexcept {
    if (sole_) state_->cancel();
  }
  static void complete(continuation* node) noexcept {
    const std::shared_ptr<operation> self = std::move(static_cast<operation*>(node)->self_);
    if (self->list_ && !self->list_->begin_post(*self->place_)) return;
    try {
      completion<T, Handler> last(std::move(*self->handler_), self->state_, self->sole_);
      if constexpr (can_post_to<executor_type>) {
        asio::post(work_executor(*self), std::move(last));
      } else {
        asio::post(asio::system_executor(), std::move(last));
      }
    } catch (const std::exception& e) {
      log(log_level::error, std::string("posting a completion handler failed, it will not be called: ") + e.what());
    } catch (...) {
      log(log_level::error, "posting a completion handler failed, it will not be called");
    }
    self->handler_.reset();
    self->work_.reset();
    if (self->list_) self->list_->end_post();
  }
  static executor_type work_executor(const operation& self) { return self.work_->get_executor(); }

  std::optional<asio::executor_work_guard<executor_type>> work_;
  std::optional<Handler> handler_;
  const ref_ptr<future_state<T>> state_;
  const bool sole_;
  const std::shared_ptr<waiting_list> list_;
  std::optional<waiting_list::place> place_;
  std::shared_ptr<operation> self_;  // while attached
};

/// A destination that owns its name and its options, for tokens that start the call later.
class kept_destination {
 public:
  explicit kept_destination(const to& from) : timeout_(from.options().timeout) {
    const call_options& given = from.options();
    if (const std::stop_token* stop = given.stop.get()) stop_ = *stop;
    if (const device_map* placement = given.placement.get()) placement_ = *placement;
    if (given.streams.count() != 0)
      streams_.assign(given.streams.first(), given.streams.first() + given.streams.count());
    if (!from.by_id()) {
      who_ = std::string(from.name());
    } else if (from.name().empty()) {
      who_ = from.id();
    } else {
      who_ = worker_info(std::string(from.name()), from.id());
    }
  }
  /// The result borrows from *this.
  [[nodiscard]] to get() const {
    const call_options options{timeout_, stop_ ? stop_ref(*stop_) : stop_ref(),
                               placement_ ? placement_ref(*placement_) : placement_ref(), streams_ref(streams_)};
    return std::visit([&](const auto& who) { return to(who, options); }, who_);
  }

 private:
  std::variant<std::string, worker_id, worker_info> who_;
  timeout timeout_;
  std::optional<std::stop_token> stop_;
  std::optional<device_map> placement_;
  std::vector<stream> streams_;
};

/// Converts `argument` to its wire type. Returns it as it is if it already has that type (a token that starts the call
/// later copies or moves it); otherwise converts now, because views may be dangling by then.
template <class Wire, class A>
decltype(auto) keep(A&& argument) {
  using given = std::remove_cvref_t<A>;
  if constexpr (std::is_same_v<given, Wire>) {
    return std::forward<A>(argument);
  } else if constexpr (std::is_same_v<Wire, std::string> && std::is_convertible_v<const given&, std::string_view>) {
    return std::string(static_cast<std::string_view>(argument));
  } else if constexpr (written_as_vector<Wire, given>) {
    const auto view = static_cast<std::span<const typename Wire::value_type>>(argument);
    return Wire(view.begin(), view.end());
  } else if constexpr (written_as_array<Wire, given>) {
    return array_of<Wire>(argument);
  } else {
    return static_cast<Wire>(std::forward<A>(argument));
  }
}

/// The initiation of Asio's asynchronous operation: makes the call and attaches the handler to its future.
template <auto F>
struct start_call {
  using result = result_of<F>;

  template <class Handler, class... Wire>
  void operator()(Handler&& handler, const std::shared_ptr<worker_core>& worker, const kept_destination& destination,
                  const Wire&... arguments) const {
    future<result> reply;
    try {
      reply = call_async<F>(worker ? worker : current_worker(), destination.get(), arguments...);
    } catch (...) {
      reply = make_failed_future<result>(std::current_exception());
    }
    operation<result, std::decay_t<Handler>>::start(std::forward<Handler>(handler), std::move(reply), true);
  }
};

template <class T>
struct start_wait {
  template <class Handler>
  void operator()(Handler&& handler, const future<T>& from) const {
    operation<T, std::decay_t<Handler>>::start(std::forward<Handler>(handler), from, false);
  }
};

template <auto F, class Arguments, std::size_t... I>
decltype(auto) initiate(std::shared_ptr<worker_core> worker, const to& destination, Arguments arguments,
                        std::index_sequence<I...>) {
  check_arguments<F, method_flavour::call, std::remove_cvref_t<std::tuple_element_t<I, Arguments>>...>();
  using wires = typename holders<typename parts_of<F>::parameters>::type;
  using token = std::tuple_element_t<sizeof...(I), Arguments>;
  return asio::async_initiate<token, typename signature<result_of<F>>::type>(
      start_call<F>{}, std::get<sizeof...(I)>(arguments), std::move(worker), kept_destination(destination),
      keep<std::tuple_element_t<I, wires>>(
          std::forward<std::tuple_element_t<I, Arguments>>(std::get<I>(arguments)))...);
}

// Resolves the function that a call of F with these arguments, without the token, invokes.
template <auto F, class Arguments, std::size_t... I>
consteval auto called(std::index_sequence<I...>) {
  return resolve<F, std::remove_cvref_t<std::tuple_element_t<I, Arguments>>...>::function;
}

template <auto F, class Arguments>
decltype(auto) split(std::shared_ptr<worker_core> worker, const to& destination, Arguments&& arguments) {
  constexpr auto indices = std::make_index_sequence<std::tuple_size_v<Arguments> - 1>{};
  constexpr auto function = called<F, Arguments>(indices);
  (void)registered<function>::at_startup;
  return initiate<function>(std::move(worker), destination, std::forward<Arguments>(arguments), indices);
}

}  // namespace detail::asio_adapter

/// rpc_async<F>(destination, arguments...) of the current worker as an Asio operation; the completion token is the last
/// argument: async_rpc<f>(to, args..., token). Returns what the token specifies (an awaitable<T>, a std::future<T>,
/// nothing). A token that starts the operation later (use_awaitable, deferred) stores the arguments. Argument tensors
/// must not be written until the handler is called.
template <auto F, class... ArgumentsAndToken>
  requires(sizeof...(ArgumentsAndToken) != 0)
decltype(auto) async_rpc(const to& destination, ArgumentsAndToken&&... arguments_and_token) {
  return detail::asio_adapter::split<F>(is_initialized() ? detail::current_worker() : nullptr, destination,
                                        std::forward_as_tuple(std::forward<ArgumentsAndToken>(arguments_and_token)...));
}
/// Like the above, on the given worker, which may be destroyed before the call ends.
template <auto F, class... ArgumentsAndToken>
  requires(sizeof...(ArgumentsAndToken) != 0)
decltype(auto) async_rpc(const worker& self, const to& destination, ArgumentsAndToken&&... arguments_and_token) {
  return detail::asio_adapter::split<F>(self.core(), destination,
                                        std::forward_as_tuple(std::forward<ArgumentsAndToken>(arguments_and_token)...));
}

/// Waits for a future as an Asio operation. Throws errc::no_state if the future is empty. The value is copied, or moved
/// out once if it cannot be copied, as by future::get(). Cancelling the operation cancels the future; destroying the
/// execution context does not.
template <class T, class Token>
  requires(std::is_void_v<T> || std::is_default_constructible_v<T>)
decltype(auto) async_get(const future<T>& from, Token&& token) {
  static_cast<void>(from.ready());  // throws for an empty one
  return asio::async_initiate<Token, typename detail::asio_adapter::signature<T>::type>(
      detail::asio_adapter::start_wait<T>{}, token, from);
}

}  // namespace ferry::inline v0
