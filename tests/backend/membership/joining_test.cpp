// Races between the start of a worker and its place in a dynamic group: it listens before its entry is in the group's
// log, and its entry is in the log before it knows that itself.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/backend/backend.hpp>
#include <ferry/base/error.hpp>
#include <ferry/store/hash_store.hpp>
#include <ferry/transport/transport.hpp>

#include "expect_error.hpp"
#include "forwarding_store.hpp"
#include "forwarding_transport.hpp"
#include "gate.hpp"
#include "patient_log.hpp"

namespace joining_test {

namespace {

using namespace ferry;
using namespace std::chrono_literals;

constexpr auto lease = 3s;
constexpr auto heartbeat_interval = 100ms;

// Applied to the next worker that listens, before it listens.
std::function<void(connection_acceptor&)> visit;

// Called before a worker sends a hello to another one.
std::mutex greeting_mutex;
std::function<void(const hello&)> on_greeting;  // guarded by greeting_mutex
void call_on_greeting(std::function<void(const hello&)> what) {
  const std::lock_guard lock(greeting_mutex);
  on_greeting = std::move(what);
}
// All others support no address, so that the visited one makes all connections.
std::atomic<bool> only_visited_connects = false;

class visited final : public ferry_test::forwarding_transport {
 public:
  explicit visited(reactor& loop) : forwarding_transport(transport_traits<unix_domain>::open(loop)) {}
  std::vector<std::string> listen(const std::string& group, const std::string& target, const std::string& host,
                                  const transport_options& options,
                                  std::shared_ptr<connection_acceptor> acceptor) override {
    if (visit) {
      visited_ = true;
      std::exchange(visit, nullptr)(*acceptor);
    }
    return forwarding_transport::listen(group, target, host, options, std::move(acceptor));
  }
  void connect(const std::string& address, const hello& self, const transport_options& options, deadline until,
               connect_callback callback) override {
    {
      const std::lock_guard lock(greeting_mutex);
      if (on_greeting) on_greeting(self);
    }
    forwarding_transport::connect(address, self, options, until, std::move(callback));
  }
  [[nodiscard]] bool understands(std::string_view address) const noexcept override {
    return (visited_ || !only_visited_connects) && forwarding_transport::understands(address);
  }

 private:
  std::atomic<bool> visited_ = false;
};

struct visited_transport {};

// Messages sent over it are discarded.
struct short_visit final : connection {
  std::weak_ptr<connection_receiver> receiver;
  void start(std::shared_ptr<connection_receiver> to) override { receiver = to; }
  void send(outgoing_message&&) noexcept override {}
  void close(std::exception_ptr) noexcept override {}
  [[nodiscard]] std::string_view transport_name() const noexcept override { return "short visit"; }
  [[nodiscard]] std::string description() const override { return "short visit"; }
};

class listener final : public request_handler {
 public:
  void on_request(const std::shared_ptr<reply_channel>&, const worker_info&, inbound_message&&) noexcept override {}
  void on_member_event(const member_event& event) noexcept override {
    if (event.what == member_event::kind::fenced) fenced = true;
    if (event.what == member_event::kind::lost) ++lost;
  }
  [[nodiscard]] bool busy() const noexcept override { return false; }
  std::atomic<bool> fenced = false;
  std::atomic<int> lost = 0;
};

// Writes an entry of the log, and then fails.
class confirms_nothing final : public ferry_test::forwarding_store {
 public:
  using forwarding_store::forwarding_store;

 protected:
  std::string do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                             deadline until) override {
    auto there = forwarding_store::do_compare_set(key, expected, desired, until);
    if (key.starts_with("log/") && !std::exchange(written_, true))
      throw error(errc::store_failed, "the connection broke");
    return there;
  }

 private:
  bool written_ = false;
};

// Delays after an entry is written, before the writer can know that it stands.
class slow_to_confirm final : public ferry_test::forwarding_store {
 public:
  slow_to_confirm(std::shared_ptr<store> inner, std::function<void()> between)
      : forwarding_store(std::move(inner)), between_(std::move(between)) {}

 protected:
  std::string do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                             deadline until) override {
    written_ = written_ || key.starts_with("log/");
    return forwarding_store::do_compare_set(key, expected, desired, until);
  }
  std::optional<std::string> do_try_get(std::string_view key, deadline until) override {
    if (written_ && between_) std::exchange(between_, nullptr)();
    return forwarding_store::do_try_get(key, until);
  }

 private:
  bool written_ = false;
  std::function<void()> between_;
};

}  // namespace

}  // namespace joining_test

template <>
struct ferry::transport_traits<joining_test::visited_transport> {
  static constexpr std::string_view name = "visited";
  static constexpr int priority = 0;
  static std::string unusable() { return transport_traits<unix_domain>::unusable(); }
  static std::shared_ptr<transport> open(reactor& loop) { return std::make_shared<joining_test::visited>(loop); }
};

namespace joining_test {

namespace {

struct group_of {
  using backend = native_over<transport_list<visited_transport>>;
  struct member {
    listener handler;
    std::unique_ptr<ferry::agent> agent;
  };
  std::shared_ptr<hash_store> store = std::make_shared<hash_store>();
  std::vector<std::unique_ptr<member>> members;

  explicit group_of(const std::vector<std::string>& names) {
    for (const auto& each : names) join(each, store->share());
  }
  ~group_of() {
    for (const auto& each : members) each->agent->close();
    call_on_greeting(nullptr);
    only_visited_connects = false;
  }
  group_of(const group_of&) = delete;
  group_of& operator=(const group_of&) = delete;

  member& join(const std::string& name, std::shared_ptr<ferry::store> over) {
    worker_config config{.name = name, .rank = any_rank, .world_size = 0};
    config.heartbeat_interval = heartbeat_interval;
    config.lease = lease;
    auto& fresh = *members.emplace_back(std::make_unique<member>());
    fresh.agent = backend_list<backend>::factories().front().init(std::move(over), config, config.options());
    fresh.agent->join(fresh.handler);
    return fresh;
  }

  /// One of the members looks for another incarnation of the newcomer, finds this one, and disconnects. Returns whether
  /// it was accepted.
  bool visit_by(int index, connection_acceptor& newcomer) const {
    const auto record = detail::member_entry::decode(store->get("log/" + std::to_string(index + 1))).record;
    const hello greeting{.group = {},
                         .name = record.who.name(),
                         .id = record.who.id(),
                         .incarnation = record.incarnation,
                         .target = "newcomer",
                         .features = feature_control,
                         .joined = static_cast<std::uint64_t>(index) + 1};
    try {
      (void)newcomer.on_hello(greeting);
    } catch (const error&) {
      return false;
    }
    const auto opened = std::make_shared<short_visit>();
    newcomer.on_accepted(opened, greeting);
    const auto receiver = opened->receiver.lock();
    if (receiver) receiver->on_closed(*opened, make_error(errc::connection_lost, "the visitor has left"));
    return receiver != nullptr;
  }
  /// Waits until the first member has had more heartbeats from `whom` than fit in a lease, or a worker is declared
  /// dead.
  void outlast_a_lease(worker_id whom) const {
    auto before = std::chrono::nanoseconds::max();
    for (int beats = 0; beats <= lease / heartbeat_interval + 10 && well(); std::this_thread::yield()) {
      const auto silence = members.front()->agent->inspection().silence(whom);
      if (!silence) continue;
      if (*silence < before) ++beats;
      before = *silence;
    }
  }
  [[nodiscard]] bool well() const {
    return std::none_of(members.begin(), members.end(),
                        [](const auto& each) { return each->handler.fenced || each->handler.lost != 0; });
  }
};

}  // namespace

TEST_CASE(
    "a joining worker that is mistaken for its predecessor does not open a control connection before it is a member") {
  only_visited_connects = true;
  std::promise<std::uint64_t> first_joined;
  bool greeted = false;
  call_on_greeting([&](const hello& said) {
    if (!std::exchange(greeted, true)) first_joined.set_value(said.joined);
  });
  group_of group({"member"});
  bool let_in = false;
  visit = [&](connection_acceptor& newcomer) { let_in = group.visit_by(0, newcomer); };
  group.join("newcomer", group.store->share());
  CHECK(let_in);
  // It watches the other one. A member that has not read of the newcomer yet treats a zero as an incarnation that has
  // ended.
  CHECK(first_joined.get_future().get() != 0);
  CHECK(group.well());
}

TEST_CASE("a worker that takes longer than a lease to join does not count silence during that time") {
  ferry_test::gate greeted;
  call_on_greeting([&](const hello& said) {
    if (said.name == "newcomer" && said.target == "visitor") greeted.arrive();
  });
  group_of group({"after-the-newcomer", "visitor", "before-the-newcomer"});
  bool let_in = false;
  visit = [&](connection_acceptor& newcomer) {
    let_in = group.visit_by(1, newcomer);
    group.outlast_a_lease(worker_id{1});
  };
  group.join("newcomer", group.store->share());
  CHECK(let_in);
  greeted.await_arrivals(1);  // the newcomer queries it first
  CHECK(group.well());
}

TEST_CASE("the messages of a worker count even if its store is slow to confirm its join") {
  group_of group({"member"});
  const auto is_heard = [&] { group.outlast_a_lease(worker_id{1}); };
  group.join("newcomer", std::make_shared<slow_to_confirm>(group.store->share(), is_heard));
  CHECK(group.members[0]->agent->members().workers().size() == 2);
  CHECK(group.well());
}

TEST_CASE("a worker whose entry was read and removed before it knew of it has joined") {
  bool asked = false;
  group_of group({"member"});
  SUBCASE("") {}
  SUBCASE("with a query") { asked = true; }
  patient_log others(group.store->share(), [](const detail::membership_change&) {});
  others.load();
  const auto much_else = [&] {
    if (asked) {
      others.catch_up();
      const auto there = others.members();
      (void)others.append(detail::member_entry::suspect(there.find("member")->record->incarnation,
                                                        there.find("newcomer")->record->incarnation));
      CHECK(others.members().find("newcomer")->suspected != 0);
    }
    for (std::uint64_t i = 0; i != 2 * detail::member_log::kept_entries; ++i) {
      (void)others.append(detail::member_entry::gone(incarnation_id{1}));  // of no member
    }
  };
  const auto& newcomer = group.join("newcomer", std::make_shared<slow_to_confirm>(group.store->share(), much_else));
  CHECK(group.store->try_get("trimmed").has_value());
  CHECK(newcomer.agent->members().workers().size() == 2);
  CHECK(group.members[0]->agent->members().find("newcomer").id() == newcomer.agent->self().id());
  const auto is_asked = [&] {
    others.catch_up();
    return others.members().find("newcomer")->suspected != 0;
  };
  while (is_asked()) std::this_thread::yield();
  CHECK(group.well());
}

TEST_CASE("a worker whose entry was written without a confirmation is not a member once it has given up") {
  group_of group({"member"});
  expect_error(errc::store_failed, "the connection broke",
               [&] { group.join("newcomer", std::make_shared<confirms_nothing>(group.store->share())); });
  group.members.pop_back();
  patient_log others(group.store->share(), [](const detail::membership_change&) {});
  others.load();
  CHECK(others.members().members().size() == 1);
  CHECK(others.seen() >= 3);  // it joined, and left
  CHECK(group.well());
}

}  // namespace joining_test