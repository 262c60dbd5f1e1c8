// More workers than a process has file descriptors for.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <ferry/backend/backend.hpp>
#include <ferry/base/error.hpp>
#include <ferry/store/hash_store.hpp>
#include <ferry/transport/transport.hpp>

#include "cluster.hpp"
#include "gate.hpp"
#include "processes.hpp"
#include "sanitizers.hpp"

namespace descriptor_shortage_test {

namespace {

using namespace ferry;
using namespace std::chrono_literals;

constexpr int workers = 24;
// Of 24 workers of one process, on processors that other tests use too.
constexpr auto lease = ferry_test::sanitized ? 8s : 2s;

class echo final : public request_handler {
 public:
  void on_request(const std::shared_ptr<reply_channel>& channel, const worker_info&,
                  inbound_message&& request) noexcept override {
    outgoing_message answer;
    answer.header.kind = frame_kind::reply;
    channel->reply(request.header.call_id, std::move(answer));
    channel->handled(request.header.held_bytes());
  }
  void on_member_event(const member_event& event) noexcept override {
    if (event.what == member_event::kind::lost || event.what == member_event::kind::fenced) lost.fetch_add(1);
  }
  [[nodiscard]] bool busy() const noexcept override { return false; }
  std::atomic<int> lost{0};
};

struct asked final : pending_call {
  ferry_test::gate* ended = nullptr;
  errc code{};
  std::string text;
  void on_reply(inbound_message&&) noexcept override { ended->arrive(); }
  void on_failure(errc why, call_phase, const std::string& detail) noexcept override {
    code = why;
    text = detail;
    ended->arrive();
  }
};

// Every worker calls every other one, again and again for two leases.
int be_many(const std::vector<std::string>&) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = 400;  // all connections take 4 * 24 * 23 / 2 descriptors at each end, and those for control as many
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) throw std::runtime_error("setrlimit failed");
  using backend = native_over<transport_list<unix_domain>>;
  std::vector<echo> handlers(workers);
  std::vector<std::unique_ptr<agent>> agents(workers);
  const auto store = std::make_shared<hash_store>();
  std::vector<std::function<void()>> joins;
  for (int rank = 0; rank != workers; ++rank) {
    joins.push_back([&, rank] {
      worker_config config{.name = "w" + std::to_string(rank), .rank = rank, .world_size = workers};
      config.heartbeat_interval = 100ms;
      config.lease = lease;
      agents[rank] = backend_list<backend>::factories().front().init(store->share(), config, config.options());
      agents[rank]->join(handlers[rank]);
    });
  }
  ferry_test::run_together(joins);
  int answered = 0;
  int short_of = 0;
  std::string other;
  for (const auto until = clock::now() + 2 * lease; clock::now() < until;) {
    ferry_test::gate ended;
    std::vector<asked> calls(static_cast<std::size_t>(workers) * workers);
    std::size_t made = 0;
    for (int from = 0; from != workers; ++from) {
      for (int to = 0; to != workers; ++to) {
        if (from == to) continue;
        outgoing_message request;
        request.header.kind = frame_kind::request;
        request.header.flags = frame_no_deadline;
        calls[made].ended = &ended;
        (void)agents[from]->call(worker_id{to}, std::move(request), calls[made++], {}, ferry::reply_wait::none);
      }
    }
    ended.await_arrivals(static_cast<int>(made));
    for (std::size_t i = 0; i != made; ++i) {
      if (calls[i].code == errc{}) {
        ++answered;
      } else if (calls[i].code == errc::resource_exhausted &&
                 calls[i].text.find("RLIMIT_NOFILE") != std::string::npos) {
        ++short_of;
      } else {
        other = calls[i].text;
      }
    }
  }
  int lost = 0;
  for (const echo& each : handlers) lost += each.lost.load();
  for (auto& each : agents) each->close();
  if (lost != 0) throw std::runtime_error(std::to_string(lost) + " workers were lost");
  if (answered == 0 || short_of == 0)
    throw std::runtime_error("no call was answered, or none was short of descriptors");
  if (!other.empty()) throw std::runtime_error("a call failed otherwise: " + other);
  return 0;
}

const ferry_test::role many_role("many workers", &be_many);

}  // namespace

TEST_CASE("workers for whose connections there are too few descriptors fail calls, and are not declared dead") {
  ferry_test::child_process child({.role = "many workers"});
  CHECK(child.wait() == 0);
}

}  // namespace descriptor_shortage_test
