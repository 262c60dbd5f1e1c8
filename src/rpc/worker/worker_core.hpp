#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/backend/agent.hpp>
#include <ferry/backend/served_methods.hpp>
#include <ferry/rpc/context.hpp>
#include <ferry/rpc/debug.hpp>
#include <ferry/rpc/detail/incoming_call.hpp>
#include <ferry/rpc/worker_snapshot.hpp>
#include <ferry/store/store.hpp>

#include "../diagnostics/collective_sources.hpp"
#include "../diagnostics/flight_observer.hpp"
#include "../diagnostics/flight_recorder.hpp"
#include "../pipeline/attachments.hpp"
#include "../pipeline/call_observers.hpp"
#include "../pipeline/interceptor_table.hpp"
#include "../serving/handler_pool.hpp"
#include "../serving/late_calls.hpp"

namespace ferry::inline v0::detail {

/// The state shared by the handle `worker` and the contexts of its calls. Inert once shut down.
class worker_core final : public executor, public request_handler, public std::enable_shared_from_this<worker_core> {
 public:
  /// `on_left` is called once the worker leaves its group.
  worker_core(std::shared_ptr<store> group_store, std::unique_ptr<ferry::agent> agent, const worker_config& config,
              std::function<void()> on_left);

  /// Joins the group and becomes the process's current worker.
  void start();
  enum class shutdown_mode : std::uint8_t { together, alone, at_once };  ///< in order of urgency
  /// A second call waits for the first; if its mode is more urgent it also ends the first one's wait for others.
  void shutdown(shutdown_mode how, timeout limit);
  void serve_forever();
  /// Ends serve_forever(), or a shutdown's wait for others. Does not wait.
  void ask_to_leave(timeout limit);
  /// Whether the current thread runs a handler or continuation of this worker, for which shutdown() would wait.
  [[nodiscard]] bool runs_here() const noexcept;

  /// Throws errc::not_initialized once shut down.
  [[nodiscard]] ferry::agent& agent() const;
  [[nodiscard]] ferry::agent& agent_unchecked() const noexcept { return *agent_; }
  [[nodiscard]] timeout default_timeout() const noexcept { return default_timeout_.load(std::memory_order_relaxed); }
  void set_default_timeout(timeout value) { default_timeout_.store(value, std::memory_order_relaxed); }
  [[nodiscard]] timeout exit_timeout() const noexcept { return exit_timeout_; }
  [[nodiscard]] const wire_limits& limits() const noexcept { return agent_->options().transport.limits; }
  [[nodiscard]] bool serves(std::uint64_t method) const noexcept {
    return served_.contains(method) || is_library_method(method);
  }
  /// Whether the method is one of the library's own, which every worker serves.
  [[nodiscard]] bool is_library_method(std::uint64_t method) const noexcept {
    return std::find(library_methods_.begin(), library_methods_.end(), method) != library_methods_.end();
  }
  [[nodiscard]] bool is_shut_down() const noexcept { return shut_down_.load(); }

  void request_done() noexcept;
  /// The handler of a request has returned and its answer is pending (1), or that answer was sent (-1).
  void count_later(int change) noexcept { later_.fetch_add(change, std::memory_order_relaxed); }
  [[nodiscard]] detail::late_calls& late_calls() noexcept { return late_calls_; }
  void enlist_one_way(incoming_call& call) noexcept;
  void delist_one_way(incoming_call& call) noexcept;

  // For diagnosis (inspection.cpp).
  /// Ages are those at `now`: a call that a handler has made is younger than the request.
  [[nodiscard]] std::vector<pending_call_info> pending_calls(clock::time_point now = clock::now()) const;
  [[nodiscard]] std::vector<served_call_info> served_calls(clock::time_point now = clock::now()) const;
  /// The same of collectives: what the floor of groups tells of them (collective_sources.cpp).
  [[nodiscard]] collectives_of_worker collectives(clock::time_point now = clock::now()) const;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> debug_info() const;
  void add_debug_info(std::string_view provider, std::vector<debug_figure> figures);
  [[nodiscard]] flight_recorder& recorder() noexcept { return recorder_; }
  [[nodiscard]] worker_snapshot snapshot(std::string reason, bool with_events) const;
  [[nodiscard]] std::string flight_record(std::string_view reason) const;
  /// Runs `what` on a thread that may block; the worker's end waits for it, for some seconds. False: the worker has ended.
  bool run_record_work(std::function<void()> what);
  /// A call has timed out: writes the flight record if that is configured, unless one was written recently.
  void record_timeout() noexcept;

  // What calls pass on their way.
  [[nodiscard]] const call_observers& observers() const noexcept { return observers_of_calls_; }
  [[nodiscard]] call_observers& observers() noexcept { return observers_of_calls_; }
  [[nodiscard]] const interceptor_table& interceptors() const noexcept { return interceptors_; }
  /// Begins to carry handles to that worker. Throws errc::not_serialisable if no part of the library does.
  [[nodiscard]] std::unique_ptr<carried_handles> carry(const call_target& to);
  /// State of other floors and rooms for this worker.
  [[nodiscard]] detail::attachments& attached() noexcept { return attached_; }
  [[nodiscard]] const detail::attachments& attached() const noexcept { return attached_; }

  using member_observer = std::function<void(const member_event& event)>;
  /// Reports all later events, the present members as joined, and earlier losses; on request, earlier leaves, too. Of
  /// each id only the last holder is recorded.
  void observe_members(member_observer function, bool and_departed = false);
  void on_peer_lost(std::function<void(const worker_info& who, const std::string& reason)> function);
  [[nodiscard]] bool fenced() const noexcept { return fenced_.load(); }

  // executor
  void post(work* item) noexcept override { pool_->submit(item); }

  // request_handler
  void on_request(const std::shared_ptr<reply_channel>& channel, const worker_info& from,
                  inbound_message&& request) noexcept override;
  void on_member_event(const member_event& event) noexcept override;
  void on_link_event(const link_event& event) noexcept override;
  void on_member_end(worker_id id, incarnation_id incarnation) noexcept override;
  void on_question(std::shared_ptr<observer_question> question) noexcept override;
  void on_group_quiet(deadline until, bool alone) override;
  [[nodiscard]] std::uint64_t loose_ends() const noexcept override;
  [[nodiscard]] bool busy() const noexcept override { return requests_.load() != 0 || pool_->busy(); }

 private:
  void end(shutdown_mode how, timeout limit);
  void end_and_tell(shutdown_mode how, timeout limit);
  void part(shutdown_mode how, timeout limit);
  [[nodiscard]] shutdown_mode effective_mode(shutdown_mode how) const;
  void stop_waiting(shutdown_mode how) noexcept;
  void check_leaks() const;
  [[nodiscard]] std::vector<interceptor*> make_library_clients();
  void drop_observers() noexcept;
  void add_own_figures();
  void drop_figures() noexcept;
  void await_records() noexcept;
  struct observer;
  struct event_report;
  void report(const std::shared_ptr<observer>& whom, const member_event& event);
  void drop_request(reply_channel& channel, const worker_info& from, std::optional<std::uint64_t> id,
                    const std::exception& why) noexcept;
  void add_observer(member_observer function, bool of_members, bool of_departed);

  std::shared_ptr<store> store_;  // null once ended; guarded by shutdown_mutex_ while another thread may use it
  const std::unique_ptr<ferry::agent> agent_;
  flight_recorder recorder_;
  const timeout exit_timeout_;
  const served_methods served_;
  const std::vector<std::uint64_t> library_methods_;
  trace_observer trace_;
  flight_observer flight_{*this};
  call_observers observers_of_calls_;
  const bool ignore_rref_leaks_;
  const std::function<void()> on_left_;
  const std::shared_ptr<handler_pool> pool_;
  std::atomic<timeout> default_timeout_;
  std::atomic<bool> shut_down_{false};
  mutable std::mutex shutdown_mutex_;  // guards the next four
  enum class progress : std::uint8_t { running, serving, ending, ended } progress_ = progress::running;
  std::condition_variable shutdown_changed_;
  shutdown_mode requested_mode_ = shutdown_mode::together;
  timeout requested_limit_;
  std::atomic<bool> fenced_{false};
  std::mutex events_mutex_;  // guards the next five
  bool observers_dropped_ = false;
  std::map<worker_id, member_event> members_;     // as joined
  std::map<worker_id, member_event> losses_;      // of ids that are free
  std::map<worker_id, member_event> departures_;  // the same, of those that left
  std::vector<std::shared_ptr<observer>> observers_;
  std::atomic<std::uint64_t> requests_{0};  // being served, including pending answers
  std::atomic<int> later_{0};               // of these, those whose handlers have returned
  detail::late_calls late_calls_{*this};
  // One-way requests, which no channel keeps; several lists, to reduce contention.
  struct alignas(64) one_way_list {
    mutable std::mutex mutex;
    incoming_call* first = nullptr;
  };
  std::array<one_way_list, 8> one_way_;
  struct figures_of {
    std::string provider;
    std::vector<debug_figure> figures;
  };
  std::mutex records_mutex_;  // guards the next three
  clock::time_point next_record_{};
  int records_under_way_ = 0;
  bool no_more_records_ = false;
  std::condition_variable records_changed_;
  mutable std::mutex figures_mutex_;  // guards the next two
  bool figures_dropped_ = false;
  std::vector<std::shared_ptr<const figures_of>> figures_;
  // Last: their parts know the worker.
  detail::attachments attached_;
  interceptor_table interceptors_;  // fixed once the worker has started
};

/// The list of ferry::serve<...>(), or everything if it was never called.
served_methods served_by_default();
std::vector<std::uint64_t> library_methods();
/// The workers of this process, the current one last.
std::vector<std::shared_ptr<worker_core>> running_workers();
/// The method whose handler, continuation or coroutine runs on this thread; null if none.
const method_entry* running_method() noexcept;

/// Encodes an exception of a method: its type's name, its text and further bytes.
void encode_exception(const std::exception_ptr& thrown, outgoing_message& message);
/// Rethrows it. `where` is put in front of the text of ferry's own errors.
[[nodiscard]] std::exception_ptr decode_exception(const inbound_message& reply, const wire_limits& limits);
/// "std::runtime_error: text", for logs.
std::string describe_exception(const std::exception_ptr& thrown);

}  // namespace ferry::inline v0::detail
