// A caller whose connection is not read, and to which no control connection can be opened.

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/backend/backend.hpp>
#include <ferry/base/error.hpp>
#include <ferry/store/hash_store.hpp>
#include <ferry/transport/transport.hpp>

#include "cluster.hpp"
#include "forwarding_transport.hpp"
#include "gate.hpp"

namespace paused_caller_test {

namespace {

using namespace ferry;
using namespace std::chrono_literals;

// Unix sockets between workers that treat each other as ones of other processes, without control connections.
class without_control final : public ferry_test::forwarding_transport {
 public:
  explicit without_control(reactor& loop)
      : forwarding_transport(transport_traits<unix_domain>::open(loop)), loop_(loop) {}
  void connect(const std::string& address, const hello& self, const transport_options& options, deadline until,
               connect_callback callback) override {
    if ((self.features & feature_control) == 0) {
      return forwarding_transport::connect(address, self, options, until, std::move(callback));
    }
    struct refusal : work {
      connect_callback callback;
    };
    auto* item = new refusal;
    item->callback = std::move(callback);
    item->run = [](work* self) noexcept {
      const std::unique_ptr<refusal> owned(static_cast<refusal*>(self));
      connect_result refused;
      refused.error = make_error(errc::connect_failed, "no connections for control");
      owned->callback(std::move(refused));
    };
    loop_.post(item);
  }

 private:
  reactor& loop_;
};

struct no_control {};

}  // namespace

}  // namespace paused_caller_test

template <>
struct ferry::transport_traits<paused_caller_test::no_control> {
  static constexpr std::string_view name = "no_control";
  static constexpr int priority = 0;
  static std::string unusable() { return transport_traits<unix_domain>::unusable(); }
  static std::shared_ptr<transport> open(reactor& loop) {
    return std::make_shared<paused_caller_test::without_control>(loop);
  }
};

namespace paused_caller_test {

namespace {

// Keeps the requests, and answers none until the test says so.
class request_keeper final : public request_handler {
 public:
  void on_request(const std::shared_ptr<reply_channel>& channel, const worker_info&,
                  inbound_message&& request) noexcept override {
    const std::lock_guard lock(mutex_);
    kept_.emplace_back(channel, std::move(request));
    arrived.arrive();
  }
  void on_member_event(const member_event& event) noexcept override {
    const std::lock_guard lock(mutex_);
    if (event.what == member_event::kind::lost) ++lost_;
  }
  [[nodiscard]] bool busy() const noexcept override { return false; }
  void answer_all() {
    std::vector<std::pair<std::shared_ptr<reply_channel>, inbound_message>> all;
    {
      const std::lock_guard lock(mutex_);
      all.swap(kept_);
    }
    for (auto& [channel, request] : all) {
      outgoing_message answer;
      answer.header.kind = frame_kind::reply;
      channel->reply(request.header.call_id, std::move(answer));
      channel->handled(request.header.held_bytes());
    }
  }
  [[nodiscard]] int lost() const {
    const std::lock_guard lock(mutex_);
    return lost_;
  }
  ferry_test::gate arrived;

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<std::shared_ptr<reply_channel>, inbound_message>> kept_;
  int lost_ = 0;
};

struct asked final : pending_call {
  ferry_test::gate answered;
  bool failed = false;
  void on_reply(inbound_message&&) noexcept override { answered.arrive(); }
  void on_failure(errc, call_phase, const std::string&) noexcept override {
    failed = true;
    answered.arrive();
  }
};

}  // namespace

TEST_CASE("a caller whose connection is not read for longer than a lease is not declared dead") {
  using backend = native_over<transport_list<no_control>>;
  constexpr auto lease = 3s;
  request_keeper handlers[2];
  std::unique_ptr<agent> agents[2];
  const auto store = std::make_shared<hash_store>();
  const auto join = [&](int rank) {
    worker_config config{.name = "w" + std::to_string(rank), .rank = rank, .world_size = 2};
    config.heartbeat_interval = 100ms;
    config.lease = lease;
    config.flow.served_calls_per_peer = 1;
    agents[rank] = backend_list<backend>::factories().front().init(store->share(), config, config.options());
    agents[rank]->join(handlers[rank]);
  };
  ferry_test::run_together({[&] { join(0); }, [&] { join(1); }});
  asked calls[2];
  for (int i = 0; i != 2; ++i) {
    outgoing_message request;
    request.header.kind = frame_kind::request;
    request.header.flags = frame_no_deadline;
    (void)agents[0]->call(worker_id{1}, std::move(request), calls[i], {}, ferry::reply_wait::none);
  }
  handlers[1].arrived.await_arrivals(1);
  while (agents[1]->inspection().counters().paused_connections == 0) std::this_thread::yield();
  for (const auto until = clock::now() + 2 * lease; clock::now() < until && handlers[1].lost() == 0;)
    std::this_thread::sleep_for(1ms);
  CHECK(handlers[1].arrived.arrived() == 1);
  CHECK(handlers[1].lost() == 0);
  handlers[1].answer_all();
  calls[0].answered.await_arrivals(1);
  handlers[1].arrived.await_arrivals(2);
  handlers[1].answer_all();
  calls[1].answered.await_arrivals(1);
  CHECK_FALSE(calls[0].failed);
  CHECK_FALSE(calls[1].failed);
  for (auto& each : agents) each->close();
  CHECK(handlers[0].lost() + handlers[1].lost() == 0);
}

}  // namespace paused_caller_test