#include <ferry/rpc/worker.hpp>

#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/ids.hpp>
#include <ferry/base/log.hpp>
#include <ferry/base/secret.hpp>
#include <ferry/store/prefix_store.hpp>
#include <ferry/store/rendezvous.hpp>

#include "../../base/parse_number.hpp"
#include "../../transport/reactor/io_threads.hpp"
#include "worker_core.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

constexpr std::chrono::seconds failure_drain_limit{2};

// The use of a store: static groups, one after the other, or one dynamic group.
//
// Consecutive static groups in one store must not find each other's keys: every rank counts the groups that it has left
// there. A store that was emptied in between, or a restarted server, counts as another store.
class turn {
 public:
  /// Throws errc::group_mismatch if the store is for the other kind of groups.
  turn(store& where, const worker_config& config, timeout limit) : dynamic_(config.world_size == 0) {
    const std::string_view kind = dynamic_ ? "dynamic" : "static";
    const std::string there =
        where.compare_set("ferry/store", "", fmt::format("{} {:016x}", kind, incarnation_id::random().value), limit);
    if (!there.starts_with(kind)) {
      throw_error(
          errc::group_mismatch,
          fmt::format(
              "'{}' would join a {} group, but the {} is for {} ones: static and dynamic members cannot "
              "be mixed. Give every worker the same world_size, or none of them any. If this is what a group that "
              "has ended, or was killed, left behind, meet elsewhere: at another path or port, or in a store that "
              "was started afresh",
              config.name, kind, where.describe(), dynamic_ ? "static" : "dynamic"));
    }
    place_ = {there, config.rank};
    std::lock_guard lock(table().mutex);
    number_ = table().left[place_];
  }
  [[nodiscard]] std::string prefix() const { return dynamic_ ? "ferry/dynamic" : fmt::format("ferry/{}", number_); }
  /// For an error text: that workers wait in this store for another one of its groups. Empty: none does.
  [[nodiscard]] std::string others(store& where) const noexcept {
    if (dynamic_) return {};
    try {
      for (const store_entry& each : where.list("ferry/", std::chrono::seconds(1))) {
        const auto number =
            parse_number<std::uint64_t>(std::string_view(each.key).substr(6, each.key.find('/', 6) - 6));
        if (!number || *number == number_) continue;
        return fmt::format(
            ". There are records of group {} of this store, and this is group {}, as this process counts those that "
            "it has formed there: one that was started anew meets no process that has formed a group before. Use a "
            "store, or a file, of its own for each group",
            *number, number_);
      }
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the error that is told is another one
    }
    return {};
  }
  void left() const {
    if (dynamic_) return;
    std::lock_guard lock(table().mutex);
    ++table().left[place_];
  }

 private:
  struct left_groups {
    std::mutex mutex;
    std::map<std::pair<std::string, int>, std::uint64_t> left;
  };
  static left_groups& table() {
    static auto* instance = new left_groups;  // outlives static destruction on purpose
    return *instance;
  }

  bool dynamic_;
  std::pair<std::string, int> place_;
  std::uint64_t number_ = 0;
};

// Finds the store, and completes what the config leaves open: rank, world size (0: dynamic) and name.
std::shared_ptr<store> find_store(worker_config& config) {
  if (config.world_size < dynamic_world) {
    throw_error(errc::invalid_argument, fmt::format("world_size {} is neither a number of workers, nor 0, nor "
                                                    "dynamic_world",
                                                    config.world_size));
  }
  const bool any = config.rank == any_rank;
  rendezvous_result group =
      rendezvous(config.stores, {.init_method = config.init_method,
                                 .rank = config.rank == -1 || any ? std::nullopt : std::optional(config.rank),
                                 .world_size = config.world_size <= 0 ? std::nullopt : std::optional(config.world_size),
                                 .dynamic = config.world_size == dynamic_world,
                                 .any_size = true,
                                 .any_rank = any,
                                 .limit = config.init_timeout.value_or(config.rpc_timeout),
                                 .secret = config.secret,
                                 .allow_unauthenticated = config.allow_unauthenticated});
  config.rank = group.rank.value_or(any_rank);
  config.world_size = group.world_size.value_or(0);
  if (config.rank == any_rank && config.world_size != 0) {
    throw_error(errc::invalid_argument,
                "any_rank is for dynamic groups; in a static one every worker has its own rank");
  }
  if (config.name.empty()) {
    config.name = config.rank == any_rank ? fmt::format("worker-{:016x}", incarnation_id::random().value)
                                          : fmt::format("worker{}", config.rank);
  }
  check_worker_name(config.name);
  return std::move(group.store);
}

template <class Make>
worker start(worker_config config, Make make) {
  check_not_forked();
  if (config.secret.empty())
    config.secret = config.transport.secret.empty() ? secret_from_environment() : config.transport.secret;
  if (config.serve.everything()) config.serve = served_by_default();
  // A worker that serves only a list of methods needs no secret.
  config.allow_unauthenticated =
      config.allow_unauthenticated || !config.serve.everything() || unauthenticated_allowed_by_environment();
  const rpc_options options = config.options();
  (void)interceptor_table({}, config.interceptors);  // throws before anything is started
  const auto found = find_store(config);
  const turn here(*found, config, config.init_timeout.value_or(config.rpc_timeout));
  auto group_store = std::make_shared<prefix_store>(here.prefix(), found);
  try {
    auto core =
        std::make_shared<worker_core>(group_store, make(group_store, config, options), config, [here] { here.left(); });
    core->start();
    return worker(std::move(core));
  } catch (...) {
    // The others may have failed for the same reason: let them read it before a store served here ends.
    try {
      (void)group_store->drain(failure_drain_limit);
    } catch (const std::exception& e) {
      log(log_level::info, fmt::format("{}: while the others left the store: {}", config.name, e.what()));
    }
    const std::string elsewhere = here.others(*found);
    group_store->close();
    if (elsewhere.empty()) throw;
    try {
      throw;
    } catch (const error& problem) {
      if (problem.kind() != errc::store_timeout) throw;
      throw_error(errc::store_timeout, std::string(problem.message()) + elsewhere);
    }
  }
}

}  // namespace

namespace {
template <class Pointer>
Pointer need_agent(Pointer made) {
  if (made) return made;
  throw_error(errc::invalid_argument, "backend_traits::init returned a null pointer: the backend has no agent");
}
}  // namespace

worker start_worker(worker_config config, const backend_factory& backend) {
  return start(std::move(config),
               [&](const std::shared_ptr<store>& group_store, const worker_config& completed,
                   const rpc_options& options) { return need_agent(backend.init(group_store, completed, options)); });
}

worker start_worker(worker_config config, agent_maker make, const void* options) {
  return start(std::move(config),
               [&](const std::shared_ptr<store>& group_store, const worker_config& completed, const rpc_options&) {
                 return need_agent(make(group_store, completed, options));
               });
}

}  // namespace detail

worker init_rpc(const worker_config& config) {
  return detail::start_worker(config, backend_list<native>::factories().front());
}

worker init_rpc() { return init_rpc(worker_config{}); }

namespace detail {
namespace {
using shutdown_mode = detail::worker_core::shutdown_mode;

void leave_with(detail::worker_core& core, timeout limit) {
  if (core.runs_here()) return core.ask_to_leave(limit);
  core.shutdown(shutdown_mode::alone, limit);
}
}  // namespace
}  // namespace detail

worker& worker::operator=(worker&& other) noexcept {
  if (this != &other) {
    worker previous(std::move(*this));
    core_ = std::move(other.core_);
  }
  return *this;
}

worker::~worker() {
  if (!core_) return;
  if (detail::
          is_forked_child()) {  // threads and connections belong to the parent process: nothing can be ended or waited for here
    new std::shared_ptr<detail::worker_core>(std::move(core_));
    return;
  }
  try {
    if (core_->runs_here()) {  // shutdown would wait for the running handler
      log(log_level::warning, fmt::format("the last handle of {} went in one of its own handlers: it leaves at once",
                                          to_string(core_->agent_unchecked().self())));
      std::thread([core = core_] { core->shutdown(detail::shutdown_mode::at_once, no_timeout); }).detach();
      return;
    }
    core_->shutdown(std::uncaught_exceptions() == 0 ? detail::shutdown_mode::together : detail::shutdown_mode::at_once,
                    core_->exit_timeout());
  } catch (const std::exception& e) {
    log(log_level::warning, fmt::format("{} was not shut down together with its group: {}",
                                        to_string(core_->agent_unchecked().self()), e.what()));
  }
}

const std::shared_ptr<detail::worker_core>& worker::core() const {
  detail::check_not_forked();
  if (!core_) throw_error(errc::not_initialized, "this worker handle is empty (moved from, or never initialised)");
  return core_;
}

const worker_info& worker::info() const { return core()->agent_unchecked().self(); }
std::vector<worker_info> worker::workers() const { return core()->agent().members().workers(); }
worker_info worker::get_worker_info(std::string_view name) const { return core()->agent().members().find(name); }
worker_info worker::get_worker_info(worker_id id) const { return core()->agent().members().find(id); }
timeout worker::rpc_timeout() const { return core()->default_timeout(); }
void worker::set_rpc_timeout(timeout value) {
  if (!value.is_set()) throw_error(errc::invalid_argument, "set_rpc_timeout needs a duration or no_timeout");
  (void)core()->agent();  // throws once shut down
  core()->set_default_timeout(value);
}
void worker::on_peer_lost(std::function<void(const worker_info& who, const std::string& reason)> observer) const {
  if (!observer) throw_error(errc::invalid_argument, "on_peer_lost needs a function");
  (void)core()->agent();
  core()->on_peer_lost(std::move(observer));
}
bool worker::fenced() const { return core()->fenced(); }
std::vector<pending_call_info> worker::pending_calls() const { return core()->pending_calls(); }
std::vector<served_call_info> worker::served_calls() const { return core()->served_calls(); }
std::vector<pending_collective_info> worker::pending_collectives() const {
  detail::collectives_of_worker all = core()->collectives();
  for (pending_collective_info& each : all.pending) {
    const auto group = std::find_if(all.groups.begin(), all.groups.end(),
                                    [&](const group_progress_info& one) { return one.id == each.group_id; });
    if (each.members.empty() && group != all.groups.end()) each.members = group->members;
  }
  return std::move(all.pending);
}
std::vector<peer_traffic> worker::traffic() const { return core()->agent_unchecked().inspection().traffic(); }
namespace detail {
namespace {
using debug_figures = std::vector<std::pair<std::string, std::string>>;

std::string figure_of(const debug_figures& all, std::string_view figure) {
  std::string known;
  for (const auto& [name, value] : all) {
    if (name == figure) return value;
    known += (known.empty() ? "" : ", ") + name;
  }
  throw_error(errc::invalid_argument, fmt::format("debug_info has no figure '{}'; it has {}", figure, known));
}
}  // namespace
}  // namespace detail

std::vector<std::pair<std::string, std::string>> worker::debug_info() const {
  (void)core()->agent();  // throws once it has been shut down
  return core()->debug_info();
}
std::string worker::flight_record() const { return core()->flight_record("asked for"); }
void worker::add_debug_info(std::string_view provider, std::vector<debug_figure> figures) const {
  core()->add_debug_info(provider, std::move(figures));
}
std::string worker::debug_info(std::string_view figure) const { return detail::figure_of(debug_info(), figure); }
void worker::on_member_event(std::function<void(const member_event& event)> observer) const {
  if (!observer) throw_error(errc::invalid_argument, "on_member_event needs a function");
  (void)core()->agent();
  core()->observe_members(std::move(observer));
}
worker_info worker::wait_for_worker(std::string_view name, timeout limit) const {
  const auto until = deadline::after(limit.value_or(core()->default_timeout()));
  return core()->agent().members().wait_for(name, std::min(until, this_call().deadline()));
}
std::string worker::metadata(std::string_view name) const {
  const group_view& group = core()->agent().members();
  return group.metadata(group.find(name).id());
}
std::vector<device> worker::devices() const { return core()->agent().members().devices(); }
device_map worker::device_map_to(std::string_view name) const {
  const group_view& group = core()->agent().members();
  return group.request_map(group.find(name).id());
}
route_info worker::route(std::string_view name) const {
  const agent& own = core()->agent();
  return own.inspection().route(own.members().find(name).id());
}
device_map worker::device_map_back_to(std::string_view name) const {
  const group_view& group = core()->agent().members();
  return group.response_map(group.find(name).id());
}

void worker::shutdown(bool graceful, timeout limit) {
  core()->shutdown(graceful ? detail::shutdown_mode::together : detail::shutdown_mode::at_once, limit);
}
void worker::leave(timeout limit) { detail::leave_with(*core(), limit); }
void worker::serve_forever() { core()->serve_forever(); }

worker_info get_worker_info() { return detail::current_worker()->agent().self(); }
worker_info get_worker_info(std::string_view name) { return detail::current_worker()->agent().members().find(name); }
worker_info get_worker_info(worker_id id) { return detail::current_worker()->agent().members().find(id); }
std::vector<worker_info> get_worker_infos() { return detail::current_worker()->agent().members().workers(); }

std::vector<std::pair<std::string, std::string>> debug_info() {
  const auto own = detail::current_worker();
  (void)own->agent();  // throws once it has been shut down
  return own->debug_info();
}
std::string debug_info(std::string_view figure) { return detail::figure_of(debug_info(), figure); }

bool is_initialized() noexcept {
  try {
    return !detail::current_worker()->is_shut_down();
  } catch (const error&) {
    return false;
  }
}

void shutdown(bool graceful, timeout limit) {
  detail::current_worker()->shutdown(graceful ? detail::shutdown_mode::together : detail::shutdown_mode::at_once,
                                     limit);
}
void leave(timeout limit) { detail::leave_with(*detail::current_worker(), limit); }
void serve_forever() { detail::current_worker()->serve_forever(); }
worker_info wait_for_worker(std::string_view name, timeout limit) {
  const auto own = detail::current_worker();
  const auto until = deadline::after(limit.value_or(own->default_timeout()));
  return own->agent().members().wait_for(name, std::min(until, this_call().deadline()));
}

}  // namespace ferry::inline v0
