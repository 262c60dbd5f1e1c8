// Backends that are not the library's: the smallest one, which has only the functions without defaults, and one whose
// transports and handlers have reactors of their own.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ferry.hpp>
#include <ferry/test_kit/backend_conformance.hpp>
#include <ferry/test_kit/poll_reactor.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "forwarding_agent.hpp"
#include "forwarding_transport.hpp"
#include "temporary_directory.hpp"
#include "watchdog.hpp"

namespace own_backend_test {

using ferry::errc;
using namespace std::chrono_literals;

// ---------------------------------------------------------------- the smallest backend

namespace {

class letter_agent;

// Where the workers of this process leave messages for each other.
struct letter_office {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, letter_agent*> workers;  // by id
  int leaving = 0;
};
letter_office& office() {
  static letter_office only;
  return only;
}

ferry::inbound_message as_inbound(ferry::outgoing_message&& message) {
  ferry::inbound_message result;
  result.header = message.header;
  for (const ferry::tensor& each : message.tensors) result.tensors.push_back(each.clone());
  result.storage = ferry::shared_block::adopt(std::move(message.bytes));
  const std::byte* const at = result.storage.data() + ferry::frame_header::encoded_size;
  result.payload = {at, result.header.payload_bytes};
  result.extensions = {at + result.header.payload_bytes, result.header.extension_bytes};
  return result;
}

template <class Action>
void post(ferry::reactor& threads, Action action) {
  struct item : ferry::work {
    explicit item(Action what) : action(std::move(what)) {}
    Action action;
  };
  auto* const made = new item(std::move(action));
  made->run = [](ferry::work* self) noexcept {
    const std::unique_ptr<item> own(static_cast<item*>(self));
    own->action();
  };
  threads.post(made);
}

class letter_agent final : public ferry::agent, private ferry::group_view {
 public:
  letter_agent(const ferry::worker_config& config, const ferry::rpc_options& options)
      : self_(config.name, config.rank), size_(config.world_size), options_(options) {}
  ~letter_agent() override { close(); }
  letter_agent(const letter_agent&) = delete;
  letter_agent& operator=(const letter_agent&) = delete;

  [[nodiscard]] const ferry::worker_info& self() const noexcept override { return self_; }
  [[nodiscard]] const ferry::rpc_options& options() const noexcept override { return options_; }
  [[nodiscard]] std::shared_ptr<ferry::reactor> reactor() const override { return threads_; }
  [[nodiscard]] const ferry::group_view& members() const noexcept override { return *this; }

  void join(ferry::request_handler& handler) override {
    std::unique_lock lock(office().mutex);
    handler_ = &handler;
    office().workers[self_.id().value] = this;
    office().changed.notify_all();
    office().changed.wait(lock, [&] { return office().workers.size() == static_cast<std::size_t>(size_); });
    for (const auto& [id, each] : office().workers) group_.push_back(each->self_);
  }

  ferry::call_ticket call(const ferry::call_target& to, ferry::outgoing_message&& request, ferry::pending_call& call,
                          ferry::deadline until, ferry::reply_wait how) override {
    request.finish();
    const std::lock_guard lock(office().mutex);
    const std::uint64_t id = ++last_call_;
    call.call_id = request.header.call_id = id;
    call.method = request.header.method;
    call.bytes = request.header.message_bytes();
    entry& made = pending_[id];
    made.call = &call;
    ++active_;
    if (how != ferry::reply_wait::at_once && !until.is_never()) {
      made.expires = new expiry;
      made.expires->agent = this;
      made.expires->id = id;
      made.expires->run = [](ferry::work* self) noexcept {
        const std::unique_ptr<expiry> own(static_cast<expiry*>(self));
        if (ferry::pending_call* const late = own->agent->take(own->id))
          late->on_failure(errc::rpc_timeout, ferry::call_phase::waiting_for_reply, "");
      };
      made.timer = threads_->start_timer(until, made.expires);
    }
    deliver(to, std::move(request));
    return {nullptr, id};
  }
  void notify(const ferry::call_target& to, ferry::outgoing_message&& request) override {
    request.finish();
    const std::lock_guard lock(office().mutex);
    deliver(to, std::move(request));
  }
  bool abandon(const ferry::call_ticket& ticket, ferry::call_phase& phase) noexcept override {
    phase = ferry::call_phase::waiting_for_reply;
    return take(ticket.id) != nullptr;
  }
  void finished_calls(std::uint64_t count) noexcept override {
    const std::lock_guard lock(office().mutex);
    active_ -= count;
    office().changed.notify_all();
  }
  void activity_changed() noexcept override { office().changed.notify_all(); }
  void leave_together(ferry::deadline until) override {
    std::unique_lock lock(office().mutex);
    const auto wait = [&](auto done) {
      while (!done()) {  // asked again in intervals: busy() cannot be asked with the lock held
        if (until.expired()) ferry::throw_error(errc::shutdown_timeout, "the others do not leave");
        office().changed.wait_for(lock, 1ms);
      }
    };
    wait([&] {
      lock.unlock();
      const bool busy = handler_->busy();
      lock.lock();
      return !busy && active_ == 0;
    });
    lock.unlock();
    handler_->on_group_quiet(until, false);
    lock.lock();
    ++office().leaving;
    office().changed.notify_all();
    wait([&] { return office().leaving == size_; });
  }
  void close() noexcept override {
    std::vector<std::uint64_t> open;
    {
      const std::lock_guard lock(office().mutex);
      office().workers.erase(self_.id().value);
      for (const auto& [id, each] : pending_) open.push_back(id);
    }
    for (const std::uint64_t id : open) {
      if (ferry::pending_call* const call = take(id))
        call->on_failure(errc::shutting_down, ferry::call_phase::waiting_for_reply, "the worker was shut down");
    }
  }

 private:
  struct expiry : ferry::work {
    letter_agent* agent = nullptr;
    std::uint64_t id = 0;
  };
  struct entry {
    ferry::pending_call* call = nullptr;
    expiry* expires = nullptr;
    ferry::timer_id timer = ferry::timer_id::none;
  };

  [[nodiscard]] std::vector<ferry::worker_info> workers() const override { return group_; }

  class channel final : public ferry::reply_channel {
   public:
    explicit channel(ferry::worker_info sender) : sender_(std::move(sender)) {}
    [[nodiscard]] const ferry::worker_info* sender() const noexcept override { return &sender_; }
    void reply(std::uint64_t call_id, ferry::outgoing_message&& answer) override {
      answer.header.call_id = call_id;
      answer.finish();
      const std::lock_guard lock(office().mutex);
      const auto found = office().workers.find(sender_.id().value);
      if (found == office().workers.end()) return;
      letter_agent& caller = *found->second;
      const auto message = std::make_shared<ferry::inbound_message>(as_inbound(std::move(answer)));
      post(*caller.threads_, [&caller, call_id, message] {
        if (ferry::pending_call* const call = caller.take(call_id)) call->on_reply(std::move(*message));
      });
    }
    void begin_call(std::uint64_t, ferry::stoppable&) override {}
    void end_call(std::uint64_t, const ferry::stoppable&) noexcept override {}
    void handled(std::uint64_t) noexcept override {}

   private:
    const ferry::worker_info sender_;
  };

  ferry::pending_call* take(std::uint64_t id) noexcept {
    const std::lock_guard lock(office().mutex);
    const auto found = pending_.find(id);
    if (found == pending_.end()) return nullptr;
    const entry taken = found->second;
    pending_.erase(found);
    if (taken.expires && threads_->cancel_timer(taken.timer)) delete taken.expires;
    return taken.call;
  }
  void deliver(const ferry::call_target& to, ferry::outgoing_message&& request) {
    const auto found = office().workers.find(to.id.value);
    if (found == office().workers.end()) return;  // its call ends with its limit
    letter_agent& callee = *found->second;
    const auto message = std::make_shared<ferry::inbound_message>(as_inbound(std::move(request)));
    post(*callee.threads_, [&callee, message, from = self_] {
      callee.handler_->on_request(std::make_shared<channel>(from), from, std::move(*message));
    });
  }

  const ferry::worker_info self_;
  const int size_;
  const ferry::rpc_options options_;
  ferry::request_handler* handler_ = nullptr;
  std::vector<ferry::worker_info> group_;
  // Guarded by the office's mutex.
  std::map<std::uint64_t, entry> pending_;
  std::uint64_t last_call_ = 0;
  std::uint64_t active_ = 0;
  const std::shared_ptr<ferry::reactor> threads_ = ferry::test_kit::poll_reactor::start();  // ends first
};

struct letters {};
struct letter_options : ferry::rpc_options {};

int add(int a, int b) { return a + b; }
ferry::tensor negated(const ferry::tensor& values) { return ferry::mul(values, -1); }
int ask_back(const std::string& whom, int a, int b) { return ferry::rpc_sync<add>(whom, a, b); }
void refuse() { throw std::out_of_range("refused"); }

}  // namespace

}  // namespace own_backend_test

template <>
struct ferry::backend_traits<own_backend_test::letters> {
  static constexpr std::string_view name = "letters";
  using options_type = own_backend_test::letter_options;
  static options_type construct_options(ferry::rpc_options base) { return {std::move(base)}; }
  static std::unique_ptr<ferry::agent> init(const std::shared_ptr<ferry::store>&, const ferry::worker_config& config,
                                            const options_type& options) {
    return std::make_unique<own_backend_test::letter_agent>(config, options);
  }
};

namespace own_backend_test {

TEST_CASE("a backend needs a dozen functions") {
  const ferry_test::watchdog limit("calls over the smallest backend");
  const ferry_test::temporary_directory directory;
  std::vector<ferry::worker> group(2);
  const auto each = [&](const auto& body) { ferry_test::run_together({[&] { body(0); }, [&] { body(1); }}); };
  each([&](int rank) {
    ferry::worker_config config{.name = ferry_test::worker_name(rank), .rank = rank, .world_size = 2};
    config.init_method = "file://" + directory.file("store");
    group[static_cast<std::size_t>(rank)] = ferry::init_rpc<letters>(config, letter_options());
  });
  CHECK(group[0].workers().size() == 2);
  CHECK(group[0].get_worker_info("worker1").id() == 1);
  expect_error(errc::unknown_worker, "'missing'", [&] { (void)group[0].rpc_sync<add>("missing", 1, 2); });
  CHECK(group[0].rpc_sync<add>("worker1", 1, 2) == 3);
  CHECK(group[1].rpc_async<add>("worker0", 3, 4).get() == 7);
  CHECK(group[0].rpc_sync<add>("worker0", 5, 6) == 11);
  CHECK(group[0].rpc_sync<ask_back>("worker1", "worker0", 7, 8) == 15);
  CHECK(group[0].rpc_sync<negated>("worker1", ferry::ones({1})).item<float>() == -1);
  CHECK_THROWS_AS(group[0].rpc_sync<refuse>("worker1"), std::out_of_range);
  CHECK(group[0].remote<add>("worker1", 1, 2).to_here() == 3);
  CHECK(group[0].pending_calls().empty());
  CHECK(group[0].traffic().empty());
  each([&](int rank) { group[static_cast<std::size_t>(rank)].shutdown(); });
}

// ---------------------------------------------------------------- reactors of their own

namespace {

struct tcp_on_own_threads {};
class on_own_threads final : public ferry_test::forwarding_transport {
 public:
  explicit on_own_threads(const std::shared_ptr<ferry::reactor>& threads)
      : forwarding_transport(ferry::transport_traits<ferry::tcp>::open(*threads)), threads_(threads) {}

 private:
  const std::shared_ptr<ferry::reactor> threads_;
};

struct own_threads {};
struct own_threads_options : ferry::rpc_options {};
class own_threads_agent final : public ferry_test::forwarding_agent {
 public:
  using forwarding_agent::forwarding_agent;
  [[nodiscard]] std::shared_ptr<ferry::reactor> reactor() const override { return threads_; }

 private:
  const std::shared_ptr<ferry::reactor> threads_ = ferry::test_kit::poll_reactor::start();
};

}  // namespace

}  // namespace own_backend_test

template <>
struct ferry::transport_traits<own_backend_test::tcp_on_own_threads> {
  static constexpr std::string_view name = "tcp";
  static constexpr int priority = 0;
  static std::string unusable() { return {}; }
  static std::shared_ptr<ferry::transport> open(ferry::reactor&) {
    return std::make_shared<own_backend_test::on_own_threads>(ferry::test_kit::poll_reactor::start());
  }
};

template <>
struct ferry::backend_traits<own_backend_test::own_threads> {
  static constexpr std::string_view name = "own_threads";
  using options_type = own_backend_test::own_threads_options;
  static options_type construct_options(ferry::rpc_options base) { return {std::move(base)}; }
  static std::unique_ptr<ferry::agent> init(std::shared_ptr<ferry::store> store, const ferry::worker_config& config,
                                            const options_type& options) {
    using below = ferry::native_over<ferry::transport_list<own_backend_test::tcp_on_own_threads>>;
    const ferry::rpc_options& base = options;
    return std::make_unique<own_backend_test::own_threads_agent>(
        ferry::backend_traits<below>::init(std::move(store), config, {base}));
  }
};

namespace own_backend_test {

namespace {

struct own_threads_under_test {
  using tag = own_threads;
  static std::string missing() { return {}; }
  static auto options() { return ferry::construct_rpc_backend_options<own_threads>(); }
};

}  // namespace

TEST_CASE("a backend whose transports and handlers have reactors of their own conforms") {
  const ferry_test::watchdog limit("the conformance of a backend with its own reactors");
  ferry::test_kit::backend_conformance<own_threads_under_test>();
}

}  // namespace own_backend_test