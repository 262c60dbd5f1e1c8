// The connections that one member of a group may have open to another one.

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/backend/backend.hpp>
#include <ferry/base/error.hpp>
#include <ferry/store/hash_store.hpp>
#include <ferry/transport/transport.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "forwarding_transport.hpp"
#include "gate.hpp"

namespace connection_limit_test {

namespace {

using namespace ferry;
using namespace std::chrono_literals;

// The last hello for calls, and where it was sent.
struct overheard {
  std::mutex mutex;
  std::optional<hello> last;
  std::string address;
};
overheard& heard() {
  static auto* instance = new overheard;
  return *instance;
}

// Unix sockets on which the test can open more connections in the name of a worker.
class listening_in final : public ferry_test::forwarding_transport {
 public:
  explicit listening_in(reactor& loop) : forwarding_transport(transport_traits<unix_domain>::open(loop)) {}
  void connect(const std::string& address, const hello& self, const transport_options& options, deadline until,
               connect_callback callback) override {
    {
      const std::lock_guard lock(heard().mutex);
      if ((self.features & feature_control) == 0) {
        heard().last = self;
        heard().address = address;
      }
    }
    forwarding_transport::connect(address, self, options, until, std::move(callback));
  }
};

struct overheard_unix {};

}  // namespace

}  // namespace connection_limit_test

template <>
struct ferry::transport_traits<connection_limit_test::overheard_unix> {
  static constexpr std::string_view name = "overheard";
  static constexpr int priority = 0;
  static std::string unusable() { return transport_traits<unix_domain>::unusable(); }
  static std::shared_ptr<transport> open(reactor& loop) {
    return std::make_shared<connection_limit_test::listening_in>(loop);
  }
};

namespace connection_limit_test {

namespace {

class quiet final : public request_handler {
 public:
  void on_request(const std::shared_ptr<reply_channel>& channel, const worker_info&,
                  inbound_message&& request) noexcept override {
    outgoing_message answer;
    answer.header.kind = frame_kind::reply;
    channel->reply(request.header.call_id, std::move(answer));
    channel->handled(request.header.held_bytes());
  }
  void on_member_event(const member_event&) noexcept override {}
  [[nodiscard]] bool busy() const noexcept override { return false; }
};

struct asked final : pending_call {
  ferry_test::gate ended;
  bool failed = false;
  void on_reply(inbound_message&&) noexcept override { ended.arrive(); }
  void on_failure(errc, call_phase, const std::string&) noexcept override {
    failed = true;
    ended.arrive();
  }
};

struct silent_end final : connection_receiver {
  std::promise<void> closed;
  void on_message(connection&, inbound_message&&) noexcept override {}
  void on_closed(connection&, std::exception_ptr) noexcept override { closed.set_value(); }
  [[nodiscard]] std::size_t expected_messages() const noexcept override { return 1; }
};

struct impostor {
  std::shared_ptr<connection> opened;
  std::shared_ptr<silent_end> end = std::make_shared<silent_end>();
};

connect_result connect_again(transport& over, std::uint64_t features) {
  hello self;
  std::string address;
  {
    const std::lock_guard lock(heard().mutex);
    self = heard().last.value();
    address = heard().address;
  }
  self.features |= features;
  std::promise<connect_result> result;
  over.connect(address, self, {}, deadline::after(30s), [&](connect_result got) { result.set_value(std::move(got)); });
  return result.get_future().get();
}

void call(agent& from, int to) {
  asked pending;
  outgoing_message request;
  request.header.kind = frame_kind::request;
  request.header.flags = frame_no_deadline;
  (void)from.call(worker_id{to}, std::move(request), pending, {}, ferry::reply_wait::none);
  pending.ended.await_arrivals(1);
  CHECK_FALSE(pending.failed);
}

}  // namespace

TEST_CASE("a member may have eight connections of a kind open to a worker, and is told so beyond that") {
  using backend = native_over<transport_list<overheard_unix>>;
  quiet handlers[2];
  std::unique_ptr<agent> agents[2];
  const auto store = std::make_shared<hash_store>();
  const auto join = [&](int rank) {
    worker_config config{.name = "w" + std::to_string(rank), .rank = rank, .world_size = 2};
    config.heartbeat_interval = no_timeout;  // w0 opens no control connections of its own
    agents[rank] = backend_list<backend>::factories().front().init(store->share(), config, config.options());
    agents[rank]->join(handlers[rank]);
  };
  ferry_test::run_together({[&] { join(0); }, [&] { join(1); }});
  call(*agents[0], 1);
  const auto loop = shared_reactor();
  const auto over = transport_traits<unix_domain>::open(*loop);
  for (const bool control : {true, false}) {
    CAPTURE(control);
    const std::uint64_t features = control ? feature_control : feature_urgent;
    std::vector<impostor> open;
    std::exception_ptr refused;
    for (int i = 0; i != 20 && !refused; ++i) {
      connect_result result = connect_again(*over, features);
      refused = result.error;
      if (!result.opened) continue;
      auto& fresh = open.emplace_back();
      fresh.opened = std::move(result.opened);
      fresh.opened->start(fresh.end);
    }
    CHECK(open.size() == (control ? 8 : 7));  // besides the worker's own
    REQUIRE(refused);
    expect_error(errc::resource_exhausted,
                 std::string("'w0' has 8 open connections for ") + (control ? "control" : "calls") + " to 'w1'",
                 [&] { std::rethrow_exception(refused); });
    call(*agents[0], 1);  // goes on

    open.back().opened->close(make_error(errc::shutting_down, "one less"));
    open.back().end->closed.get_future().get();
    open.pop_back();
    connect_result again;
    for (const auto until = clock::now() + 60s; !again.opened && clock::now() < until;) {
      again = connect_again(*over, features);  // once the worker has noticed
    }
    REQUIRE(again.opened);
    again.opened->close(make_error(errc::shutting_down, "end"));
    for (auto& each : open) {
      each.opened->close(make_error(errc::shutting_down, "end"));
      each.end->closed.get_future().get();
    }
  }
  for (auto& each : agents) each->close();
}

}  // namespace connection_limit_test