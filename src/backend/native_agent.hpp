#pragma once

// The agent of the native backend. The core is shared with its links; the agent is the handle that closes it.

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <ferry/backend/agent.hpp>
#include <ferry/backend/backend.hpp>
#include <ferry/store/store.hpp>

#include "links.hpp"

namespace ferry::inline v0::detail {

/// What a worker tells the others through the store.
struct worker_record {
  worker_info who;
  incarnation life;
  std::vector<std::string> addresses;  // best first

  [[nodiscard]] std::string encode() const;
  /// Throws errc::malformed.
  static worker_record decode(const std::string& text, int id);
};

class native_core final : public link_owner,
                          public connection_acceptor,
                          public std::enable_shared_from_this<native_core> {
 public:
  native_core(std::shared_ptr<store> group_store, const worker_config& config, const rpc_options& options,
              const std::vector<transport_factory>& transports);

  /// Joins the static group: agrees with the others, publishes this worker, waits for all, opens the doors.
  void join();
  void leave_together(deadline until);
  void stop_leaving() noexcept;
  void close() noexcept;

  [[nodiscard]] const worker_info& self() const noexcept { return self_; }
  [[nodiscard]] incarnation life() const noexcept { return life_; }
  [[nodiscard]] std::vector<worker_info> workers() const;
  [[nodiscard]] worker_info find(std::string_view name) const;
  [[nodiscard]] worker_info find(worker_id id) const;

  call_ticket call(worker_id to, outgoing_message&& request, pending_call& call, deadline until, bool driven);
  void notify(worker_id to, outgoing_message&& request);
  void finished_calls(std::uint64_t count) noexcept;
  void activity_changed() noexcept;
  void set_request_handler(request_handler* handler) noexcept { handler_.store(handler); }
  [[nodiscard]] const std::shared_ptr<ferry::reactor>& reactor() const noexcept { return reactor_; }
  [[nodiscard]] const rpc_options& options() const noexcept { return options_; }
  [[nodiscard]] agent_counters counters() const noexcept;

  // link_owner
  void on_link_closed(void* link) noexcept override;
  void count_late_reply() noexcept override { late_replies_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] bool closing() const noexcept override { return closing_.load(); }
  void check_deadlines_at(deadline at) noexcept override;
  void count_sent(std::int64_t change) noexcept override { sent_.fetch_add(static_cast<std::uint64_t>(change)); }
  void count_handled(std::int64_t change) noexcept override { handled_.fetch_add(static_cast<std::uint64_t>(change)); }
  void run_later(work* item) noexcept override { reactor_->post(item); }

  // connection_acceptor
  hello_reply on_hello(const hello& from) override;
  void on_accepted(std::shared_ptr<connection> accepted, const hello& from) noexcept override;

 private:
  struct peer {
    worker_record record;
    std::mutex mutex;
    std::shared_ptr<outgoing_link> link;
  };
  struct deadline_check;
  void cancel_deadline_check() noexcept;
  struct connect_attempt;

  std::shared_ptr<outgoing_link> link_to(worker_id to);
  void start_connecting(const std::shared_ptr<outgoing_link>& link, const worker_record& to);
  void agree_on_group();
  void agree_on_names(deadline until);
  [[nodiscard]] std::vector<std::string> get_all(const std::string& prefix, deadline until);
  void listen();
  void read_peers(deadline until);
  void wait_until_quiet(deadline until);
  [[nodiscard]] bool quiet() const noexcept;
  void run_deadline_check(const deadline_check* item) noexcept;
  [[nodiscard]] hello greeting(const worker_info& target) const;
  [[nodiscard]] std::string missing_workers(const std::string& prefix) const;

  std::shared_ptr<store> store_;  // for joining and leaving; none once closed
  const rpc_options options_;
  const std::shared_ptr<ferry::reactor> reactor_;
  worker_info self_;
  const incarnation life_ = incarnation::random();
  const int world_size_;
  const timeout init_timeout_;
  std::string group_;

  struct open_transport {
    std::string name;
    std::shared_ptr<ferry::transport> transport;
  };
  std::vector<open_transport> transports_;
  bool listening_ = false;

  std::vector<std::string> advertised_;

  std::mutex peers_mutex_;  // guards writing the next two; they never change once peers_known_
  std::atomic<bool> peers_known_{false};
  std::vector<std::unique_ptr<peer>> peers_;  // by id
  std::map<std::string, worker_id, std::less<>> ids_;
  std::atomic<request_handler*> handler_{nullptr};

  std::atomic<bool> closing_{false};
  std::atomic<std::uint64_t> active_calls_{0};
  std::atomic<std::uint64_t> sent_{0};     // requests, on links that are open
  std::atomic<std::uint64_t> handled_{0};  // the same
  std::atomic<std::uint64_t> late_replies_{0};

  mutable std::mutex links_mutex_;  // guards what follows
  std::condition_variable links_changed_;
  std::unordered_map<void*, std::shared_ptr<outgoing_link>> outgoing_;
  std::unordered_map<void*, std::shared_ptr<incoming_link>> incoming_;

  std::mutex quiet_mutex_;
  std::condition_variable quiet_changed_;
  std::atomic<int> quiet_waiters_{0};
  std::atomic<bool> leaving_stopped_{false};
  std::uint64_t activity_ = 0;  // guarded by quiet_mutex_

  std::mutex deadlines_mutex_;  // guards what follows
  deadline next_check_;
  timer_id check_timer_ = timer_id::none;
  deadline_check* check_item_ = nullptr;  // owned by the timer
};

}  // namespace ferry::inline v0::detail
