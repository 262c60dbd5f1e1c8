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

#include "../transport/io_threads.hpp"
#include "worker_core.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

constexpr std::chrono::seconds failure_drain_limit{2};

// Workers that meet in one store again and again find no keys of the time before: every rank counts the groups that it has
// left there. A store that was emptied in between, or a server that was started again, is another one.
class turn {
 public:
  turn(store& where, int rank)
      : place_(where.compare_set("ferry/store", "", fmt::format("{:016x}", incarnation::random().value)), rank) {
    std::lock_guard lock(table().mutex);
    number_ = table().left[place_];
  }
  [[nodiscard]] std::string prefix() const { return fmt::format("ferry/{}", number_); }
  void left() const {
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

  std::pair<std::string, int> place_;
  std::uint64_t number_ = 0;
};

template <class Make>
worker start(worker_config config, Make make) {
  check_not_forked();
  if (config.secret.empty())
    config.secret = config.transport.secret.empty() ? secret_from_environment() : config.transport.secret;
  if (config.serve.everything()) config.serve = served_by_default();
  // Who calls what is listed, and nothing else, needs no secret.
  config.allow_unauthenticated =
      config.allow_unauthenticated || !config.serve.everything() || unauthenticated_allowed_by_environment();
  const rpc_options options = config.options();
  const timeout limit = config.init_timeout.value_or(config.rpc_timeout);
  rendezvous_result group =
      rendezvous({.init_method = config.init_method,
                  .rank = config.rank == -1 ? std::nullopt : std::optional(config.rank),
                  .world_size = config.world_size == 0 ? std::nullopt : std::optional(config.world_size),
                  .limit = limit,
                  .secret = config.secret,
                  .allow_unauthenticated = config.allow_unauthenticated});
  config.rank = group.rank;
  config.world_size = group.world_size.value();
  if (config.name.empty()) config.name = fmt::format("worker{}", config.rank);
  const worker_info checked(config.name, config.rank);
  const turn here(*group.store, config.rank);
  auto group_store = std::make_shared<prefix_store>(here.prefix(), group.store);
  try {
    auto core = std::make_shared<worker_core>(group_store, make(group_store, config, options), config.exit_timeout,
                                              config.serve, [here] { here.left(); });
    core->start();
    return worker(std::move(core));
  } catch (...) {
    // The others may have failed for the same reason: they shall read it before a store that is served here goes.
    try {
      (void)group_store->drain(failure_drain_limit);
    } catch (const std::exception& e) {
      log(log_level::info, fmt::format("{}: while the others left the store: {}", config.name, e.what()));
    }
    group_store->close();
    throw;
  }
}

}  // namespace

worker start_worker(worker_config config, const backend_factory& backend) {
  return start(std::move(config),
               [&](const std::shared_ptr<store>& group_store, const worker_config& completed,
                   const rpc_options& options) { return backend.init(group_store, completed, options); });
}

worker start_worker(worker_config config, agent_maker make, const void* options) {
  return start(std::move(config), [&](const std::shared_ptr<store>& group_store, const worker_config& completed,
                                      const rpc_options&) { return make(group_store, completed, options); });
}

}  // namespace detail

worker init_rpc(const worker_config& config) {
  return detail::start_worker(config, backend_list<native>::factories().front());
}

worker init_rpc() { return init_rpc(worker_config{}); }

namespace {
bool is_forked_child() noexcept {
  try {
    detail::check_not_forked();
    return false;
  } catch (const error&) {
    return true;
  }
}
}  // namespace

worker& worker::operator=(worker&& other) noexcept {
  if (this != &other) {
    worker previous(std::move(*this));
    core_ = std::move(other.core_);
  }
  return *this;
}

worker::~worker() {
  if (!core_) return;
  if (is_forked_child()) {  // the threads and connections are the parent's: nothing here can be ended, or waited for
    new std::shared_ptr<detail::worker_core>(std::move(core_));
    return;
  }
  try {
    if (core_->runs_here()) {  // shutdown would wait for this very handler
      log(log_level::warning, fmt::format("the last handle of {} went in one of its own handlers: it leaves at once",
                                          to_string(core_->agent_unchecked().self())));
      std::thread([core = core_] { core->shutdown(false, no_timeout); }).detach();
      return;
    }
    core_->shutdown(std::uncaught_exceptions() == 0, core_->exit_timeout());
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
std::vector<worker_info> worker::workers() const { return core()->agent().workers(); }
worker_info worker::get_worker_info(std::string_view name) const { return core()->agent().find(name); }
worker_info worker::get_worker_info(worker_id id) const { return core()->agent().find(id); }
timeout worker::rpc_timeout() const { return core()->default_timeout(); }
void worker::set_rpc_timeout(timeout value) {
  if (!value.is_set()) throw_error(errc::invalid_argument, "set_rpc_timeout needs a duration or no_timeout");
  core()->set_default_timeout(value);
}
void worker::on_peer_lost(std::function<void(const worker_info& who, const std::string& reason)> observer) const {
  if (!observer) throw_error(errc::invalid_argument, "on_peer_lost needs a function");
  core()->on_peer_lost(std::move(observer));
}
bool worker::fenced() const { return core()->fenced(); }
std::vector<pending_call_info> worker::pending_calls() const { return core()->pending_calls(); }
std::vector<served_call_info> worker::served_calls() const { return core()->served_calls(); }
std::vector<peer_traffic> worker::traffic() const { return core()->agent_unchecked().traffic(); }
std::vector<std::pair<std::string, std::string>> worker::debug_info() const {
  (void)core()->agent();  // throws once it has been shut down
  return core()->debug_info();
}
std::string worker::flight_record() const { return core()->flight_record("asked for"); }
void worker::add_debug_info(std::string_view provider, std::vector<debug_figure> figures) const {
  core()->add_debug_info(provider, std::move(figures));
}
std::string worker::debug_info(std::string_view figure) const {
  std::string known;
  for (auto& [name, value] : debug_info()) {
    if (name == figure) return value;
    known += (known.empty() ? "" : ", ") + name;
  }
  throw_error(errc::invalid_argument, fmt::format("debug_info has no figure '{}'; it has {}", figure, known));
}
void worker::shutdown(bool graceful, timeout limit) { core()->shutdown(graceful, limit); }

worker_info get_worker_info() { return detail::current_worker()->agent().self(); }
worker_info get_worker_info(std::string_view name) { return detail::current_worker()->agent().find(name); }
worker_info get_worker_info(worker_id id) { return detail::current_worker()->agent().find(id); }
std::vector<worker_info> get_worker_infos() { return detail::current_worker()->agent().workers(); }

bool is_initialized() noexcept {
  try {
    return !detail::current_worker()->is_shut_down();
  } catch (const error&) {
    return false;
  }
}

void shutdown(bool graceful, timeout limit) { detail::current_worker()->shutdown(graceful, limit); }

}  // namespace ferry::inline v0
