// Entries of a group's log that are applied when memory is exhausted.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <doctest/doctest.h>
#include <ferry/backend/backend.hpp>
#include <ferry/store/hash_store.hpp>

#include "allocation_count.hpp"
#include "backend/membership/membership.hpp"
#include "forwarding_store.hpp"
#include "watchdog.hpp"

namespace membership_memory_test {

using ferry::incarnation_id;
using ferry::detail::member_entry;
using ferry::detail::membership;
using ferry::detail::membership_change;
using ferry::detail::worker_record;

TEST_CASE("an entry for which there is no memory changes nothing, and takes effect when it is read again" *
          doctest::skip(!ferry_test::counts_allocations)) {
  using kind = membership_change::kind;
  const incarnation_id whom{7};
  worker_record record;
  record.who = ferry::worker_info("a-worker-whose-name-is-long-enough-for-the-heap", ferry::worker_id{0});
  record.incarnation = whom;
  member_entry join;
  join.what = member_entry::kind::join;
  join.record = record;
  member_entry leave;
  leave.what = member_entry::kind::leave;
  leave.whom = whom;
  const member_entry entries[]{join, leave, member_entry::lost({}, whom, "a reason that is long enough for the heap")};
  const kind changes[]{kind::joined, kind::left, kind::gone};
  int refused = 0;
  for (std::size_t failing = 1;; ++failing) {
    CAPTURE(failing);
    REQUIRE(failing < 1000);
    membership group;
    bool failed = false;
    for (std::size_t i = 0; i != 3; ++i) {
      CAPTURE(i);
      membership_change change;
      ferry_test::fail_allocation(failing);
      try {
        change = group.apply(i + 1, entries[i]);
      } catch (const std::bad_alloc&) {
        ++refused;
      }
      if (ferry_test::allocation_failed()) {
        failed = true;
        if (change.what == kind::none) {
          CHECK(group.index() == i);
          change = group.apply(i + 1, entries[i]);
        }
      }
      CHECK(change.what == changes[i]);
      CHECK(group.index() == i + 1);
    }
    CHECK(group.members().empty());
    if (!failed) break;
  }
  CHECK(refused >= 3);
}

namespace {

// Has one allocation fail whenever an entry of the log has been read and is about to be applied.
class store_without_memory final : public ferry_test::forwarding_store {
 public:
  using forwarding_store::forwarding_store;
  std::atomic<std::size_t> failing{0};  // which allocation; 0: none
  std::atomic<int> failures{0};

 protected:
  std::optional<std::string> do_try_get(std::string_view key, ferry::deadline until) override {
    thread_local bool armed = false;
    thread_local std::uint64_t found = 0;
    if (std::exchange(armed, false) && ferry_test::allocation_failed()) failures.fetch_add(1);
    auto value = forwarding_store::do_try_get(key, until);
    if (value && key.starts_with("log/")) found = std::stoull(std::string(key.substr(4)));
    // The same entry succeeds when it is read again.
    if (key == "trimmed" && failing.load() != 0 && found > armed_for_.exchange(std::max(armed_for_.load(), found))) {
      armed = true;
      ferry_test::fail_allocation(failing.load());
    }
    return value;
  }

 private:
  std::atomic<std::uint64_t> armed_for_{0};  // only one thread at a time reads entries
};

class counting_listener final : public ferry::request_handler {
 public:
  std::atomic<int> joined{0}, left{0}, ended{0};
  void on_request(const std::shared_ptr<ferry::reply_channel>&, const ferry::worker_info&,
                  ferry::inbound_message&&) noexcept override {}
  void on_member_event(const ferry::member_event& event) noexcept override {
    if (event.what == ferry::member_event::kind::joined) joined.fetch_add(1);
    if (event.what == ferry::member_event::kind::left) left.fetch_add(1);
  }
  void on_member_end(ferry::worker_id, ferry::incarnation_id) noexcept override { ended.fetch_add(1); }
  [[nodiscard]] bool busy() const noexcept override { return false; }
};

}  // namespace

TEST_CASE("a member that is out of memory when it reads of a join or a leave reports it later, once" *
          doctest::skip(!ferry_test::counts_allocations)) {
  const ferry_test::watchdog limit("a member out of memory");
  const auto shared = std::make_shared<ferry::hash_store>();
  const auto read = std::make_shared<store_without_memory>(shared->share());
  const auto start = [](const std::string& name, std::shared_ptr<ferry::store> over, counting_listener& handler) {
    ferry::worker_config config{.name = name, .rank = ferry::any_rank, .world_size = 0};
    config.heartbeat_interval = ferry::no_timeout;
    config.lease = ferry::no_timeout;
    using backend = ferry::native_over<ferry::transport_list<ferry::inproc>>;
    auto agent = ferry::backend_list<backend>::factories().front().init(std::move(over), config, config.options());
    agent->join(handler);
    return agent;
  };
  counting_listener seen;
  const auto first = start("first", read, seen);
  int failures = 0;
  int others = 0;
  for (std::size_t failing = 1;; ++failing) {
    CAPTURE(failing);
    REQUIRE(failing < 1000);
    read->failures.store(0);
    read->failing.store(failing);
    counting_listener handler;
    const auto other = start("a-newcomer-whose-name-is-long-enough-for-the-heap", shared->share(), handler);
    ++others;
    while (seen.joined.load() != others + 1) std::this_thread::yield();
    other->leave(ferry::deadline::after(std::chrono::minutes(1)));
    other->close();
    while (seen.left.load() != others || seen.ended.load() != others) std::this_thread::yield();
    read->failing.store(0);
    (void)first->members().update(ferry::deadline::after(std::chrono::minutes(1)));
    CHECK(seen.joined.load() == others + 1);
    CHECK(seen.left.load() == others);
    CHECK(seen.ended.load() == others);
    CHECK(first->members().workers().size() == 1);
    failures += read->failures.load();
    if (read->failures.load() == 0) break;
  }
  CHECK(failures > 10);
  first->close();
}

}  // namespace membership_memory_test
