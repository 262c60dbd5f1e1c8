#include "forged_group.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "backend/membership/member_log.hpp"
#include "backend/membership/static_keys.hpp"
#include "members_in_process.hpp"
#include "process.hpp"
#include "store/bounded_store.hpp"

namespace ferry_bench {
namespace {

using namespace std::chrono_literals;
using clock_type = std::chrono::steady_clock;
namespace detail = ferry::detail;

double since(clock_type::time_point begin) {
  return std::chrono::duration<double, std::milli>(clock_type::now() - begin).count();
}

// As a worker of a machine with the usual transports has it.
detail::worker_record forged_record(int rank) {
  detail::worker_record made;
  made.who = ferry::worker_info(fmt::format("forged{}", rank), ferry::worker_id{rank});
  made.incarnation = ferry::incarnation_id::random();
  made.host = "forged 4026531840";
  const auto number = made.incarnation.value;
  made.addresses = {fmt::format("shm:@ferry-{}-{:032x}", 1000 + rank, number),
                    fmt::format("unix:@ferry-{}-{:032x}", 1000 + rank, number),
                    fmt::format("tcp://10.1.{}.{}:{}", rank / 250, rank % 250 + 1, 30'000 + rank)};
  return made;
}

// A worker that runs. Nothing is sent to members that do not exist: there are no heartbeats.
class real_member {
 public:
  real_member(const std::shared_ptr<ferry::hash_store>& content, int rank, int world_size) {
    ferry::worker_config config{.name = fmt::format("real{}", rank), .rank = rank, .world_size = world_size};
    config.init_timeout = 300s;
    config.transports = {"inproc"};
    config.heartbeat_interval = ferry::no_timeout;
    agent_ = ferry::backend_list<ferry::native>::factories().front().init(
        std::make_shared<counting_store>(content->share(), traffic_), config, config.options());
  }
  ~real_member() { agent_->close(); }
  real_member(const real_member&) = delete;
  real_member& operator=(const real_member&) = delete;

  // Milliseconds.
  double join() {
    const auto begin = clock_type::now();
    agent_->join(events);
    return since(begin);
  }
  [[nodiscard]] double requests() const { return static_cast<double>(traffic_.requests.load()); }
  [[nodiscard]] double kib_read() const { return static_cast<double>(traffic_.bytes_read.load()) / 1024; }

  member_listener events;

 private:
  store_traffic traffic_;
  std::unique_ptr<ferry::agent> agent_;
};

void add_member(report& out, const std::string& name, double join, double memory, const real_member& of) {
  out.add({.name = name + "/join", .value = join, .unit = "ms", .n = 1});
  out.add({.name = name + "/memory", .value = memory, .unit = "KiB", .n = 1});
  out.add({.name = name + "/store-requests", .value = of.requests(), .unit = "", .n = 1});
  out.add({.name = name + "/read-of-store", .value = of.kib_read(), .unit = "KiB", .n = 1});
}

}  // namespace

void measure_forged_static(report& out, const options& chosen, int size) {
  const std::string name = "forged/static/" + std::to_string(size);
  if (!chosen.wants(name)) return;
  out.section(name);
  const auto content = std::make_shared<ferry::hash_store>();
  for (int rank = 1; rank != size - 1; ++rank) {
    const detail::worker_record record = forged_record(rank);
    content->set(detail::rank_key("attempt/0/name/", rank),
                 fmt::format("{}\n{:016x}", record.who.name(), record.incarnation.value));
    content->set(detail::rank_key("attempt/0/worker/", rank), record.encode());
  }
  (void)content->add("attempt/0/ready", size - 2);
  // The first one combines what all have written, the last one reads that.
  real_member first(content, 0, size);
  real_member last(content, size - 1, size);
  std::array<double, 2> joined{};
  const double before = allocated_kib();
  std::thread other([&] { joined[0] = first.join(); });
  joined[1] = last.join();
  other.join();
  const double memory = (allocated_kib() - before) / 2;
  add_member(out, name + "/first", joined[0], memory, first);
  add_member(out, name + "/last", joined[1], memory, last);
}

void measure_forged_dynamic(report& out, const options& chosen, int size) {
  const std::string name = "forged/dynamic/" + std::to_string(size);
  if (!chosen.wants(name)) return;
  out.section(name);
  const auto content = std::make_shared<ferry::hash_store>();
  real_member first(content, 0, 0);
  const double alone = first.join();
  const double requests_alone = first.requests();
  // All others come one after the other, as fast as the store takes their entries; the first one reads them meanwhile.
  std::vector<ferry::incarnation_id> forged;
  const auto begin = clock_type::now();
  const auto bounded = std::make_shared<detail::bounded_store>(content->share());
  detail::member_log log(bounded, [](const detail::membership_change&) {});
  log.load(ferry::deadline::after(60s));
  for (int rank = 1; rank != size - 1; ++rank) {
    const detail::worker_record record = forged_record(rank);
    forged.push_back(record.incarnation);
    (void)log.append(detail::member_entry::join(record), ferry::deadline::after(60s));
  }
  first.events.wait_for(size - 1);
  const double followed = since(begin);
  const double watching = first.requests() - requests_alone;
  const double watched_kib = first.kib_read();
  const double before = allocated_kib();
  real_member last(content, size - 1, 0);
  const double join = last.join();
  const double memory = allocated_kib() - before;
  add_member(out, name + "/last", join, memory, last);
  out.add({.name = name + "/first/join", .value = alone, .unit = "ms", .n = 1});
  out.add({.name = name + "/first/reads-all-joins",
           .value = followed,
           .unit = "ms",
           .n = 1,
           .note = "from the first one to its having read the last"});
  out.add({.name = name + "/first/store-requests", .value = watching, .unit = "", .n = 1});
  out.add({.name = name + "/first/read-of-store", .value = watched_kib, .unit = "KiB", .n = 1});
  // A death that another one has written down.
  std::vector<double> heard;
  const auto died = clock_type::now();
  (void)log.append(detail::member_entry::lost({}, forged.at(forged.size() / 2), "forged"), ferry::deadline::after(60s));
  first.events.wait_for_loss();
  heard.push_back(since(died));
  last.events.wait_for_loss();
  heard.push_back(since(died));
  out.add({.name = name + "/hears-of-a-death", .value = heard.back(), .unit = "ms", .n = 2});
}

}  // namespace ferry_bench
