#pragma once

// A worker: the membership of this process in a group. A process may have several.

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

/// Owns a membership in a group. Movable, not copyable. All members except the destructor, assignment and shutdown are
/// thread-safe.
class worker {
 public:
  /// An empty handle: every call throws errc::not_initialized.
  worker() noexcept = default;
  worker(worker&&) noexcept = default;
  /// Shuts down the current worker first, as the destructor does.
  worker& operator=(worker&& other) noexcept;
  /// Shuts down gracefully, bounded by worker_config::exit_timeout; without waiting if that fails or if an exception is
  /// unwinding the stack. Errors are logged.
  ~worker();

  [[nodiscard]] const worker_info& info() const;
  [[nodiscard]] const std::string& name() const { return info().name(); }
  [[nodiscard]] worker_id id() const { return info().id(); }
  /// All workers of the group, ordered by id.
  [[nodiscard]] std::vector<worker_info> workers() const;
  [[nodiscard]] worker_info get_worker_info(std::string_view name) const;
  [[nodiscard]] worker_info get_worker_info(worker_id id) const;
  template <detail::worker_number Id>
  [[nodiscard]] worker_info get_worker_info(Id id) const {
    return get_worker_info(detail::worker_id_of(id));
  }

  /// The default timeout of calls. A change affects calls made afterwards. This and the observers below throw
  /// errc::not_initialized once the worker has been shut down.
  [[nodiscard]] timeout rpc_timeout() const;
  void set_rpc_timeout(timeout value);

  /// Calls `observer` for every worker of the group that terminates without leaving or that the group declares dead,
  /// with the reason, including those lost before this call; not for workers that leave gracefully. It runs on the
  /// handler threads, may block and may make calls; what it throws is logged. Observers live as long as the worker.
  ///
  /// The loss of a connection alone does not make a peer lost: the calls pending on the connection fail, and the next
  /// call opens another one.
  void on_peer_lost(std::function<void(const worker_info& peer, const std::string& reason)> observer) const;
  /// Calls `observer` for every worker that joins the group, leaves it or is lost, in the order in which this worker
  /// receives these events. First reports workers that were lost earlier, and every current member, this worker
  /// included, as joined. It runs like the observers of on_peer_lost.
  void on_member_event(std::function<void(const member_event& event)> observer) const;
  /// Blocks until the group has a worker of that name. `limit`: unset means the default timeout of calls; in a handler,
  /// the handler's deadline also applies. Throws errc::rpc_timeout; in a static group, which no worker can join later,
  /// errc::unknown_worker at once.
  worker_info wait_for_worker(std::string_view name, timeout limit = {}) const;  // NOLINT(modernize-use-nodiscard)
  template <detail::worker_number Id>
  worker_info wait_for_worker(Id, timeout = {}) const = delete;  // by name: an id says nothing of who has it next
  /// The worker_config::metadata of that worker. Throws errc::unknown_worker.
  [[nodiscard]] std::string metadata(std::string_view name) const;
  template <detail::worker_number Id>
  [[nodiscard]] std::string metadata(Id id) const {
    return metadata(get_worker_info(id).name());
  }
  /// The devices other than the CPU that tensors in this worker's messages may be on: worker_config::devices, else
  /// those in the device maps from and to this worker.
  [[nodiscard]] std::vector<device> devices() const;
  /// The device map for tensors in requests to that worker; empty: only CPU tensors can be sent. Throws
  /// errc::unknown_worker.
  [[nodiscard]] device_map device_map_to(std::string_view name) const;
  template <detail::worker_number Id>
  [[nodiscard]] device_map device_map_to(Id id) const {
    return device_map_to(get_worker_info(id).name());
  }
  /// The device map for tensors in answers to requests of that worker: the inverse of that worker's map.
  [[nodiscard]] device_map device_map_back_to(std::string_view name) const;
  template <detail::worker_number Id>
  [[nodiscard]] device_map device_map_back_to(Id id) const {
    return device_map_back_to(get_worker_info(id).name());
  }
  /// How this worker reaches that worker: the transport of the connection that carries calls, the channel for each pair
  /// of devices, and why faster ones are not used. The first call opens the connection. Throws errc::unknown_worker.
  [[nodiscard]] route_info route(std::string_view name) const;
  template <detail::worker_number Id>
  [[nodiscard]] route_info route(Id id) const {
    return route(get_worker_info(id).name());
  }
  /// Whether the group has declared this worker dead, for example because its process was suspended for too long. Every
  /// call that it makes then fails with errc::fenced.
  [[nodiscard]] bool fenced() const;

  /// The calls that this worker has made and that have not ended, including those to itself, oldest first. One-way
  /// calls end when they are made. A snapshot; nothing is recorded between requests for it.
  [[nodiscard]] std::vector<pending_call_info> pending_calls() const;
  /// The requests that this worker has received and not answered yet, oldest first. A snapshot.
  [[nodiscard]] std::vector<served_call_info> served_calls() const;
  /// The collectives that this worker has begun and that have not ended, oldest first, and the barriers and gathers for which it
  /// collects. A snapshot.
  [[nodiscard]] std::vector<pending_collective_info> pending_collectives() const;
  /// The traffic between this worker and each peer that it has communicated with, including itself, ordered by id.
  [[nodiscard]] std::vector<peer_traffic> traffic() const;

  /// Diagnostic figures as text, sorted by name: agent.thread_pool_size (num_worker_threads), agent.num_idle_threads,
  /// agent.client_active_calls, agent.server_active_calls, agent.server_active_async_calls (the handler has returned a
  /// future or a task), agent.blocked_handlers (waiting in ferry), agent.late_replies, agent.lost_workers, and those of
  /// add_debug_info(). Snapshots.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> debug_info() const;
  /// One of these figures; throws errc::invalid_argument, listing the names, if there is none of that name.
  [[nodiscard]] std::string debug_info(std::string_view figure) const;
  /// Adds figures of a part of the program until the worker ends; error texts name it `provider`. Throws
  /// errc::invalid_argument if a name is empty or already used (no figure is then added), errc::not_initialized after
  /// shutdown.
  void add_debug_info(std::string_view provider, std::vector<debug_figure> figures) const;

  /// The last events at this worker (worker_config::flight_events), its pending and served calls, traffic and figures,
  /// as a JSON object (docs/debugging.md).
  [[nodiscard]] std::string flight_record() const;

  template <auto F, class... A>
  auto rpc_sync(const to& destination, A&&... args) const {
    return detail::call_sync<detail::resolve<F, std::remove_cvref_t<A>...>::function>(
        core(), destination, static_cast<detail::passed<A>>(args)...);
  }
  template <auto F, class... A>
  [[nodiscard]] auto rpc_async(const to& destination, A&&... args) const {
    return detail::call_async<detail::resolve<F, std::remove_cvref_t<A>...>::function>(
        core(), destination, static_cast<detail::passed<A>>(args)...);
  }
  template <auto F, class... A>
  [[nodiscard]] auto remote(const to& destination, A&&... args) const {
    return detail::create<detail::resolve<F, std::remove_cvref_t<A>...>::function>(
        core(), destination, static_cast<detail::passed<A>>(args)...);
  }
  template <auto F, class... A>
  void notify(const to& destination, A&&... args) const {
    detail::call_one_way<detail::resolve<F, std::remove_cvref_t<A>...>::function>(
        core(), destination, static_cast<detail::passed<A>>(args)...);
  }

  /// Like rref<T>(value) and rref<T>(std::in_place, args...), with this worker as owner; for processes with several
  /// workers.
  template <class T>
  [[nodiscard]] rref<std::decay_t<T>> make_rref(T&& value) const {
    return make_rref<std::decay_t<T>>(std::in_place, std::forward<T>(value));
  }
  template <class T, class... A>
  [[nodiscard]] rref<T> make_rref(std::in_place_t, A&&... args) const {
    return rref<T>(detail::reference_handle::own(
        *core(), std::make_unique<detail::owned_value_of<T>>([&] { return T(std::forward<A>(args)...); })));
  }

  /// ferry::all_gather and ferry::barrier with this worker as member; both are defined in ferry/group/.
  template <class T>
  auto all_gather(const T& value, const members& among = all_workers, timeout limit = {}) const;
  void barrier(const members& among = all_workers, timeout limit = {}) const;

  /// Ends this worker. Graceful, in a static group: serves requests and waits until every worker of the group has
  /// called shutdown and no call is running or in transit in the group; `limit` bounds the wait (unset or never: no
  /// limit). Graceful, in a dynamic group: the same as leave(). The local shutdown is always completed, even if this
  /// throws (errc::shutdown_timeout naming the missing workers, or the error of the store). After that, graceful or not, it waits
  /// up to five seconds more for handlers that still run, whose code may be the program's to unload. Idempotent.
  void shutdown(bool graceful = true, timeout limit = no_timeout);
  /// Leaves the group without waiting for the other workers: sends goodbye to them, waits until this worker's own calls
  /// and handlers have ended (`limit`, unset: worker_config::exit_timeout; after that throws errc::shutdown_timeout),
  /// and ends this worker in any case, as shutdown() does. The other workers continue; their calls to this worker fail with
  /// errc::peer_lost. Idempotent. A serve_forever() or graceful shutdown() on another thread then returns.
  ///
  /// In a handler it returns at once, because it cannot wait for that handler itself: a running or later
  /// serve_forever() completes the leave.
  void leave(timeout limit = {});
  /// Serves requests until leave() is called on another thread or in a handler; in a static group also until every
  /// other worker has shut down, left or been lost. This worker has ended when it returns. Throws errc::fenced if the
  /// group has declared this worker dead, and the errors of leave() and shutdown().
  void serve_forever();

  [[nodiscard]] explicit operator bool() const noexcept { return core_ != nullptr; }

  // For the library.
  explicit worker(std::shared_ptr<detail::worker_core> core) noexcept : core_(std::move(core)) {}
  [[nodiscard]] const std::shared_ptr<detail::worker_core>& core() const;

 private:
  std::shared_ptr<detail::worker_core> core_;
};

namespace detail {
/// Completes `config` from its init method and the environment, creates the store and the agent, and joins the group.
worker start_worker(worker_config config, const backend_factory& backend);
/// Like the above, with options of the backend's own type.
using agent_maker = std::unique_ptr<agent> (*)(std::shared_ptr<store>, const worker_config&, const void* options);
worker start_worker(worker_config config, agent_maker make, const void* options);
}  // namespace detail

/// Starts a worker with the native backend and joins its group. In a static group, blocks until all workers have
/// joined. If the group cannot form, throws the reason and releases everything it has started.
worker init_rpc(const worker_config& config);

/// Starts a worker with a configuration read from the environment, as set by ferry-run, torchrun, Slurm, Open MPI and
/// MPICH (this_launch(), docs/launching.md). The worker's name is "worker<rank>".
worker init_rpc();

/// Starts a worker with the backend of the backend_list that has the name `backend`.
///     init_rpc(ferry::backend_list<ferry::native, my_backend>{}, "my_backend", {.name = ...});
template <class... Tags>
worker init_rpc(backend_list<Tags...>, std::string_view backend, const worker_config& config) {
  return detail::start_worker(config, backend_list<Tags...>::find(backend));
}

namespace detail {
template <class Backend>
struct options_of {
  using type = rpc_options;  // for types that are not backends: backend_diagnosis reports the reason
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
      "ferry: these options do not name their backend: add using backend = my_backend; to their class, or call "
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

/// Starts a worker with a backend known at compile time: init_rpc<my_backend>({.name = ...}). Its options are those of
/// backend_traits<Backend>::construct_options(), with what `config` says.
template <class Backend>
worker init_rpc(const worker_config& config) {
  static_assert(sizeof(detail::backend_diagnosis<Backend>) != 0);
  if constexpr (rpc_backend<Backend>) {
    return init_rpc(backend_list<Backend>{}, backend_traits<Backend>::name, config);
  } else {
    return {};
  }
}

/// Starts a worker with a backend known at compile time and options of its own type. A setting that only `config` or
/// only `options` changes from its default is taken from there; throws errc::invalid_argument if both set it to
/// different values.
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

/// Starts a worker with the backend that the options' class names: `struct my_options : ferry::rpc_options { using
/// backend = my_backend; };`, where my_options is the backend's options_type.
template <detail::backend_options Options>
worker init_rpc(const worker_config& config, const Options& options) {
  using declared = detail::declared_backend<Options>;
  if constexpr (requires { typename declared::type; }) {
    return init_rpc<typename declared::type, Options>(config, options);
  } else {
    return {};
  }
}

/// Starts a worker with the backend of the backend_list whose options_type is Options.
template <class... Tags, detail::backend_options Options>
worker init_rpc(backend_list<Tags...>, const worker_config& config, const Options& options) {
  using backend = typename detail::inferred_backend<Options, Tags...>::type;
  if constexpr (detail::takes_options<backend, Options>) {
    return init_rpc<backend, Options>(config, options);
  } else {
    return {};
  }
}

/// Starts a worker with the backend of the backend_list that has the name `backend`, and options of its own type.
/// Throws errc::unknown_backend, and errc::invalid_argument if the backend of that name takes other options.
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

/// Functions of the current worker (the worker of the running handler, else the last one initialised). Throw
/// errc::not_initialized.
[[nodiscard]] worker_info get_worker_info();
/// Throws errc::unknown_worker.
[[nodiscard]] worker_info get_worker_info(std::string_view name);
[[nodiscard]] worker_info get_worker_info(worker_id id);
template <detail::worker_number Id>
[[nodiscard]] worker_info get_worker_info(Id id) {
  return get_worker_info(detail::worker_id_of(id));
}
[[nodiscard]] std::vector<worker_info> get_worker_infos();
/// worker::debug_info of the current worker: a handler can report figures of the worker that it runs at.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> debug_info();
[[nodiscard]] std::string debug_info(std::string_view figure);
/// Whether free functions would find a worker.
[[nodiscard]] bool is_initialized() noexcept;
/// Shuts down the current worker; afterwards its handle can only be destroyed.
void shutdown(bool graceful = true, timeout limit = no_timeout);
/// worker::leave, serve_forever and wait_for_worker of the current worker.
void leave(timeout limit = {});
void serve_forever();
worker_info wait_for_worker(std::string_view name, timeout limit = {});  // NOLINT(modernize-use-nodiscard)
template <detail::worker_number Id>
worker_info wait_for_worker(Id, timeout = {}) = delete;

/// The running handler's view of the call that it serves. Outside handlers: a call without a caller that is never
/// stopped.
class call_view {
 public:
  explicit call_view(context_ptr context) noexcept : context_(std::move(context)) {}
  /// Whether the caller has cancelled, timed out or terminated: the result will be dropped.
  [[nodiscard]] bool stop_requested() const noexcept { return context_ && context_->stop_requested(); }
  [[nodiscard]] std::stop_token stop_token() const { return context_ ? context_->stop_token() : std::stop_token(); }
  /// The caller's deadline. Nested calls inherit it.
  [[nodiscard]] ferry::deadline deadline() const noexcept {
    return context_ ? context_->deadline() : ferry::deadline();
  }
  /// The id of the calling worker; -1 outside handlers.
  [[nodiscard]] worker_id caller() const noexcept { return context_ ? context_->caller() : worker_id(); }

 private:
  context_ptr context_;
};
[[nodiscard]] inline call_view this_call() { return call_view(current_context()); }

}  // namespace ferry::inline v0
