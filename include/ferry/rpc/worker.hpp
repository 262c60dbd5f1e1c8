#pragma once

// A worker: this process's (or thread's) membership in a group.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ferry/backend/backend.hpp>
#include <ferry/rpc/call.hpp>
#include <ferry/rpc/debug.hpp>
#include <ferry/rpc/detail/members.hpp>
#include <ferry/rpc/rref.hpp>

namespace ferry::inline v0 {

class store;

/// Owns a membership; moved, not copied. All members but the destructor, assignment and shutdown are thread-safe.
class worker {
 public:
  /// None: every call throws errc::not_initialized.
  worker() noexcept = default;
  worker(worker&&) noexcept = default;
  /// Shuts the present one down first, as the destructor does.
  worker& operator=(worker&& other) noexcept;
  /// Shuts down: gracefully, with the deadline worker_config::exit_timeout, and at once if that fails or if the stack is
  /// being unwound by an exception. Errors are logged.
  ~worker();

  [[nodiscard]] const worker_info& info() const;
  [[nodiscard]] const std::string& name() const { return info().name(); }
  [[nodiscard]] worker_id id() const { return info().id(); }
  /// Everybody in the group, by id.
  [[nodiscard]] std::vector<worker_info> workers() const;
  [[nodiscard]] worker_info get_worker_info(std::string_view name) const;
  [[nodiscard]] worker_info get_worker_info(worker_id id) const;

  /// The default timeout of calls. A change affects calls made afterwards.
  [[nodiscard]] timeout rpc_timeout() const;
  void set_rpc_timeout(timeout value);

  /// `observer` is told of every worker of the group that dies, or that the group declares dead, and why: those before this
  /// call, too. Not of those that leave by their own will. It runs on the handler threads, may block and may call; what it
  /// throws is logged. Observers live as long as the worker.
  ///
  /// The loss of a connection alone is no death: it fails the calls pending on it, and the next call opens another.
  void on_peer_lost(std::function<void(const worker_info& who, const std::string& reason)> observer) const;
  /// `observer` is told of every worker that joins the group, leaves it or dies, in the order in which this worker hears of it;
  /// of those that were lost before, too, and of those that are members now, this one included, as joined. It runs as the
  /// observers of on_peer_lost do.
  void on_member_event(std::function<void(const member_event& event)> observer) const;
  /// Blocks until the group has a worker of that name. `limit`: unset for the default of calls; in a handler its
  /// deadline bounds it, too. Throws errc::rpc_timeout; in a static group, which no worker can join later,
  /// errc::unknown_worker at once.
  worker_info wait_for_worker(std::string_view name, timeout limit = {}) const;  // NOLINT(modernize-use-nodiscard)
  /// What that worker gave as worker_config::metadata. Throws errc::unknown_worker.
  [[nodiscard]] std::string metadata(std::string_view name) const;
  /// The devices beside the CPU that this worker's messages may be on: `devices` of its configuration, else those in the device
  /// maps from and to it.
  [[nodiscard]] std::vector<device> devices() const;
  /// Where tensors of requests to that worker arrive there; empty: only CPU tensors travel. Throws errc::unknown_worker.
  [[nodiscard]] device_map device_map_to(std::string_view name) const;
  /// The same for tensors of answers to requests of that worker: the inverse of its own map.
  [[nodiscard]] device_map device_map_back_to(std::string_view name) const;
  /// What is used to reach that worker, and why nothing faster is: the transport of the connection over which calls go, and the
  /// channel for each pair of devices. The connection opens with the first call. Throws errc::unknown_worker.
  [[nodiscard]] route_info route(std::string_view name) const;
  /// Whether the group has declared this worker dead, as it does with one that was stopped for too long: every call of it then
  /// fails with errc::fenced.
  [[nodiscard]] bool fenced() const;

  /// The calls that this worker has made and that have not ended, those to itself included; the oldest first. One-way calls
  /// are over when they are made. A snapshot; costs nothing but when it is asked for.
  [[nodiscard]] std::vector<pending_call_info> pending_calls() const;
  /// The requests that this worker has got and not answered yet, the oldest first. A snapshot.
  [[nodiscard]] std::vector<served_call_info> served_calls() const;
  /// What has gone between this worker and each peer that it has had to do with, itself included, by id.
  [[nodiscard]] std::vector<peer_traffic> traffic() const;

  /// Figures for people who look for a fault, as text, sorted by name: agent.thread_pool_size (num_worker_threads),
  /// agent.num_idle_threads, agent.client_active_calls, agent.server_active_calls, agent.server_active_async_calls (whose
  /// handlers have returned a future or a task), agent.blocked_handlers (that wait in ferry), agent.late_replies,
  /// agent.lost_workers, and those of add_debug_info(). Snapshots.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> debug_info() const;
  /// One of them; throws errc::invalid_argument listing the names.
  [[nodiscard]] std::string debug_info(std::string_view figure) const;
  /// Adds figures of a part of the program, called `provider` in errors, until the worker ends. Throws
  /// errc::invalid_argument if a name is empty or taken (then none is added), errc::not_initialized after shutdown.
  void add_debug_info(std::string_view provider, std::vector<debug_figure> figures) const;

  /// What happened last at this worker (worker_config::flight_events), with its pending and served calls, traffic and figures:
  /// a JSON object, described in docs/debugging.md.
  [[nodiscard]] std::string flight_record() const;

  template <auto F, class... A>
  auto rpc_sync(const to& destination, const A&... args) const {
    return detail::call_sync<detail::resolve<F, A...>::function>(core(), destination, args...);
  }
  template <auto F, class... A>
  [[nodiscard]] auto rpc_async(const to& destination, const A&... args) const {
    return detail::call_async<detail::resolve<F, A...>::function>(core(), destination, args...);
  }
  template <auto F, class... A>
  [[nodiscard]] auto remote(const to& destination, const A&... args) const {
    return detail::create<detail::resolve<F, A...>::function>(core(), destination, args...);
  }
  template <auto F, class... A>
  void notify(const to& destination, const A&... args) const {
    detail::call_one_way<detail::resolve<F, A...>::function>(core(), destination, args...);
  }

  /// rref<T>(value) and rref<T>(std::in_place, args...) of this worker, where several live in one process: the object is its own.
  template <class T>
  [[nodiscard]] rref<std::decay_t<T>> make_rref(T&& value) const {
    return make_rref<std::decay_t<T>>(std::in_place, std::forward<T>(value));
  }
  template <class T, class... A>
  [[nodiscard]] rref<T> make_rref(std::in_place_t, A&&... args) const {
    return rref<T>(detail::reference_handle::own(
        *core(), std::make_unique<detail::owned_value_of<T>>([&] { return T(std::forward<A>(args)...); })));
  }

  /// ferry::all_gather and ferry::barrier of this worker; both are defined in ferry/group/.
  template <class T>
  auto all_gather(const T& value, const members& among = all_workers, timeout limit = {}) const;
  void barrier(const members& among = all_workers, timeout limit = {}) const;

  /// Ends this worker. Graceful, in a static group: first waits, serving meanwhile, until every worker of the group has
  /// called shutdown and no call is running or under way anywhere; `limit` bounds that (unset or never: for ever). The
  /// local end is always done, also when this throws (errc::shutdown_timeout naming who was missing, or what the store
  /// throws). Idempotent. Graceful, in a dynamic group: the same as leave().
  void shutdown(bool graceful = true, timeout limit = no_timeout);
  /// Leaves the group alone, without waiting for what others do: tells them, waits until this worker's own calls and handlers
  /// have ended (`limit`, unset: worker_config::exit_timeout; then errc::shutdown_timeout), and ends this worker in any case.
  /// The others go on; their calls to this worker end with errc::peer_lost. Idempotent. Another thread's serve_forever() or
  /// graceful shutdown() returns then.
  ///
  /// In a handler, which cannot be waited for, it returns at once: serve_forever(), now or later, does the rest.
  void leave(timeout limit = {});
  /// Serves the calls of others until leave() is called, on another thread or in a handler, and, in a static group, until
  /// every other worker has shut down, left or died. Then this worker has ended. Throws errc::fenced if the group has declared
  /// it dead, and what leave() and shutdown() throw.
  void serve_forever();

  [[nodiscard]] explicit operator bool() const noexcept { return core_ != nullptr; }

  // For the library.
  explicit worker(std::shared_ptr<detail::worker_core> core) noexcept : core_(std::move(core)) {}
  [[nodiscard]] const std::shared_ptr<detail::worker_core>& core() const;

 private:
  std::shared_ptr<detail::worker_core> core_;
};

namespace detail {
/// Completes `config` from its init method and the environment, makes the store and the agent, joins the group.
worker start_worker(worker_config config, const backend_factory& backend);
/// The same with the backend's own options.
using agent_maker = std::unique_ptr<agent> (*)(std::shared_ptr<store>, const worker_config&, const void* options);
worker start_worker(worker_config config, agent_maker make, const void* options);
}  // namespace detail

/// Starts a worker with the native backend and joins its group; blocks until all are there. Throws what keeps the group
/// from forming, with nothing left behind.
worker init_rpc(const worker_config& config);

/// The same with everything from the environment, as ferry-run, torchrun, Slurm, Open MPI and MPICH set it (this_launch(),
/// docs/launching.md). The worker is called "worker<rank>".
worker init_rpc();

/// The same with a backend of `list`, picked by name.
///     init_rpc(ferry::backend_list<ferry::native, my_backend>{}, "my_backend", {.name = ...});
template <class... Tags>
worker init_rpc(backend_list<Tags...>, std::string_view backend, const worker_config& config) {
  return detail::start_worker(config, backend_list<Tags...>::find(backend));
}

namespace detail {
template <class Backend>
struct options_of {
  using type = rpc_options;  // of what is no backend: its diagnosis says more
};
template <has_backend_options Backend>
struct options_of<Backend> {
  using type = typename backend_traits<Backend>::options_type;
};

template <class Backend>
worker start_with_options(worker_config config, typename options_of<Backend>::type options) {
  reconcile(config, options);
  if constexpr (rpc_backend<Backend>) {
    using own_options = typename options_of<Backend>::type;
    return start_worker(
        std::move(config),
        [](std::shared_ptr<store> group_store, const worker_config& completed, const void* own) {
          return backend_traits<Backend>::init(std::move(group_store), completed,
                                               *static_cast<const own_options*>(own));
        },
        &options);
  }
}

template <class Options>
concept backend_options = std::derived_from<Options, rpc_options>;

template <class Options>
struct declared_backend {
  static constexpr bool there = requires { typename Options::backend; };
  static_assert(
      there,
      "ferry: these options do not say whose they are: add using backend = my_backend; to their class, or call "
      "init_rpc<my_backend>(config, options)");
};
template <class Options>
  requires requires { typename Options::backend; }
struct declared_backend<Options> {
  using type = typename Options::backend;
  static_assert(
      takes_options<type, Options>,
      "ferry: the backend that these options name (`using backend = ...`, possibly of a base class) has another "
      "options_type; say which one is meant: init_rpc<my_backend>(config, options)");
};
}  // namespace detail

/// The same with a backend known at compile time and its own options. What only `config` or only `options` sets to other
/// than its default is taken from there; throws errc::invalid_argument if both set it, and differently.
template <class Backend, class Options = typename detail::options_of<Backend>::type>
worker init_rpc(const worker_config& config, const Options& options) {
  static_assert(sizeof(detail::backend_diagnosis<Backend>) != 0);
  static_assert(!rpc_backend<Backend> || detail::takes_options<Backend, Options>,
                "ferry: these options are not of this backend's options_type; make them with "
                "construct_rpc_backend_options<my_backend>()");
  if constexpr (detail::takes_options<Backend, Options>) {
    return detail::start_with_options<Backend>(config, options);
  } else {
    return {};
  }
}

/// The same with the backend that the options' class names: `struct my_options : ferry::rpc_options { using backend =
/// my_backend; };`, where my_options is the backend's options_type.
template <detail::backend_options Options>
worker init_rpc(const worker_config& config, const Options& options) {
  using declared = detail::declared_backend<Options>;
  if constexpr (requires { typename declared::type; }) {
    return init_rpc<typename declared::type, Options>(config, options);
  } else {
    return {};
  }
}

/// The same with the one backend of `list` that has these options.
template <class... Tags, detail::backend_options Options>
worker init_rpc(backend_list<Tags...>, const worker_config& config, const Options& options) {
  using backend = typename detail::inferred_backend<Options, Tags...>::type;
  if constexpr (detail::takes_options<backend, Options>) {
    return init_rpc<backend, Options>(config, options);
  } else {
    return {};
  }
}

/// The same with a backend of `list` picked by name and its own options. Throws errc::unknown_backend, and
/// errc::invalid_argument if the backend of that name takes other options.
template <class... Tags, detail::backend_options Options>
worker init_rpc(backend_list<Tags...>, std::string_view backend, const worker_config& config, const Options& options) {
  static_assert((detail::takes_options<Tags, Options> || ...),
                "ferry: no backend of this backend_list has this options_type");
  (void)backend_list<Tags...>::find(backend);
  worker started;
  const auto try_one = [&]<class Tag>(std::type_identity<Tag>) {
    if (backend_traits<Tag>::name != backend) return;
    if constexpr (detail::takes_options<Tag, Options>) {
      started = init_rpc<Tag, Options>(config, options);
    } else {
      detail::throw_foreign_options(backend, type_name<typename backend_traits<Tag>::options_type>(),
                                    type_name<Options>());
    }
  };
  (try_one(std::type_identity<Tags>()), ...);
  return started;
}

/// Of the current worker (detail::current_worker). Throw errc::not_initialized.
[[nodiscard]] worker_info get_worker_info();
/// Throws errc::unknown_worker.
[[nodiscard]] worker_info get_worker_info(std::string_view name);
[[nodiscard]] worker_info get_worker_info(worker_id id);
[[nodiscard]] std::vector<worker_info> get_worker_infos();
/// Whether free functions would find a worker.
[[nodiscard]] bool is_initialized() noexcept;
/// Shuts the current worker down; its handle then is only good for destruction.
void shutdown(bool graceful = true, timeout limit = no_timeout);
/// worker::leave, serve_forever and wait_for_worker of the current worker.
void leave(timeout limit = {});
void serve_forever();
worker_info wait_for_worker(std::string_view name, timeout limit = {});  // NOLINT(modernize-use-nodiscard)

/// What a handler knows of the call that it serves. On other threads: a call without a caller, never stopped.
class call_view {
 public:
  explicit call_view(context_ptr context) noexcept : context_(std::move(context)) {}
  /// The caller cancelled, timed out or is gone: the result will be dropped.
  [[nodiscard]] bool stop_requested() const noexcept { return context_ && context_->stop_requested(); }
  [[nodiscard]] std::stop_token stop_token() const { return context_ ? context_->stop_token() : std::stop_token(); }
  /// When the caller stops waiting. Nested calls end by then, too.
  [[nodiscard]] ferry::deadline deadline() const noexcept {
    return context_ ? context_->deadline() : ferry::deadline();
  }
  /// Who called; -1 outside handlers.
  [[nodiscard]] worker_id caller() const noexcept { return context_ ? context_->caller() : worker_id(); }

 private:
  context_ptr context_;
};
[[nodiscard]] inline call_view this_call() { return call_view(current_context()); }

}  // namespace ferry::inline v0
