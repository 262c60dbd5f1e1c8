#pragma once

// A worker: this process's (or thread's) membership in a group.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/backend/backend.hpp>
#include <ferry/rpc/call.hpp>

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

  template <auto F, class... A>
  auto rpc_sync(const to& destination, const A&... args) const {
    return detail::call_sync<detail::resolve<F, A...>::function>(core(), destination, args...);
  }
  template <auto F, class... A>
  [[nodiscard]] auto rpc_async(const to& destination, const A&... args) const {
    return detail::call_async<detail::resolve<F, A...>::function>(core(), destination, args...);
  }
  template <auto F, class... A>
  void notify(const to& destination, const A&... args) const {
    detail::call_one_way<detail::resolve<F, A...>::function>(core(), destination, args...);
  }

  /// Leaves the group. Graceful: first waits, serving meanwhile, until every worker of the group has called shutdown and no
  /// call is running or under way anywhere; `limit` bounds that (unset or never: for ever). The local end is always done,
  /// also when this throws (errc::shutdown_timeout naming who was missing, or what the store throws). Idempotent.
  void shutdown(bool graceful = true, timeout limit = no_timeout);

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

/// The same with a backend known at compile time and its own options.
template <rpc_backend Backend>
worker init_rpc(const worker_config& config, const typename backend_traits<Backend>::options_type& options) {
  return detail::start_worker(
      config,
      [](std::shared_ptr<store> group_store, const worker_config& completed, const void* own) {
        return backend_traits<Backend>::init(std::move(group_store), completed,
                                             *static_cast<const typename backend_traits<Backend>::options_type*>(own));
      },
      &options);
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

/// What a handler knows of the call that it serves. On other threads: a call that nobody made, never stopped.
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
