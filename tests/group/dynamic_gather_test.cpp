// Gathers in a group whose members join and leave.

#include <chrono>
#include <condition_variable>
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

#include "cluster.hpp"
#include "expect_error.hpp"
#include "forwarding_store.hpp"
#include "group/gather_rounds.hpp"
#include "rpc/worker/worker_core.hpp"

namespace dynamic_gather_test {

using namespace std::chrono_literals;
using ferry::errc;

// Lets the reads of a store pass while it is open.
class read_gate {
 public:
  void set_open(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
};
read_gate reads;

class gated_store final : public ferry_test::forwarding_store {
 public:
  using forwarding_store::forwarding_store;

 protected:
  std::optional<std::string> do_try_get(std::string_view key, ferry::deadline until) override {
    reads.pass();
    return forwarding_store::do_try_get(key, until);
  }
};

// Its workers learn of others only while the gate is open.
struct lagging {};
struct lagging_options : ferry::backend_traits<ferry::native>::options_type {
  using backend = lagging;
};

}  // namespace dynamic_gather_test

template <>
struct ferry::backend_traits<dynamic_gather_test::lagging> {
  static constexpr std::string_view name = "lagging";
  using options_type = dynamic_gather_test::lagging_options;
  static options_type construct_options(rpc_options base) {
    return {backend_traits<native>::construct_options(std::move(base))};
  }
  static std::unique_ptr<agent> init(std::shared_ptr<store> group_store, const worker_config& config,
                                     const options_type& options) {
    return backend_traits<native>::init(std::make_shared<dynamic_gather_test::gated_store>(std::move(group_store)),
                                        config, options);
  }
};

namespace dynamic_gather_test {

namespace {

struct meeting {
  ferry_test::watchdog dog{"a gather in a dynamic group"};
  ferry_test::temporary_directory directory;

  [[nodiscard]] ferry::worker_config config_of(const std::string& name) const {
    return {
        .name = name, .rank = ferry::any_rank, .init_method = "file://" + directory.file("store"), .rpc_timeout = 100s};
  }
  [[nodiscard]] ferry::worker join(const std::string& name) const { return ferry::init_rpc(config_of(name)); }
  [[nodiscard]] ferry::worker join_lagging(const std::string& name) const {
    return ferry::init_rpc<lagging>(config_of(name), ferry::construct_rpc_backend_options<lagging>());
  }
};

void await_members(const ferry::worker& worker, std::size_t count) {
  while (worker.workers().size() != count) std::this_thread::yield();
}

}  // namespace

TEST_CASE("a member that left before the first gather is not waited for") {
  const meeting at;
  ferry::worker collecting = at.join("a");
  ferry::worker other = at.join("b");
  ferry::worker leaver = at.join("c");
  await_members(collecting, 3);
  await_members(other, 3);
  leaver.leave();
  await_members(collecting, 2);
  await_members(other, 2);
  expect_error(errc::peer_lost, "c, which had not called it, has left the group", [&] {
    other.barrier({"a", "b", "c"}, ferry::no_timeout);
  });
  // Another worker may join under that name; gathers wait for it again.
  ferry::worker again = at.join("c");
  await_members(collecting, 3);
  await_members(other, 3);
  std::vector<std::function<void()>> all;
  for (ferry::worker* each : {&collecting, &other, &again}) {
    all.emplace_back([each] { each->barrier({"a", "b", "c"}, 50s); });
  }
  ferry_test::run_together(all);
}

TEST_CASE("of the members that left, only the last one of each id is recorded") {
  const meeting at;
  ferry::worker collecting = at.join("a");
  const auto rounds = ferry::detail::gather_rounds::of(*collecting.core());
  for (int i = 0; i != 20; ++i) {
    const std::string name = "guest" + std::to_string(i);
    ferry::worker guest = at.join(name);
    CHECK(guest.id() == 1);
    await_members(collecting, 2);
    guest.leave();
    while (rounds->gone_names() != std::vector<std::string>{name}) std::this_thread::yield();
  }
}

TEST_CASE(
    "a barrier waits for a successor of a member that left, although the collecting worker has yet to learn of it") {
  const meeting at;
  ferry::worker collecting = at.join_lagging("a");
  ferry::worker other = at.join("b");
  ferry::worker leaver = at.join("c");
  await_members(collecting, 3);
  await_members(other, 3);
  const auto rounds = ferry::detail::gather_rounds::of(*collecting.core());
  bool leave_known = false;
  SUBCASE("whose leave it knows") { leave_known = true; }
  SUBCASE("whose leave it learns of meanwhile") {}
  if (!leave_known) reads.set_open(false);
  leaver.leave();
  if (leave_known) {
    while (rounds->gone_names() != std::vector<std::string>{"c"}) std::this_thread::yield();
    reads.set_open(false);
  }
  while (other.workers().size() != 2) std::this_thread::yield();
  ferry::worker again = at.join("c");
  await_members(other, 3);
  auto first = std::async(std::launch::async, [&] { other.barrier({"a", "b", "c"}, 50s); });
  // Either it waits for the log, or for the others, of which "c" cannot have called it.
  CHECK(first.wait_for(100ms) == std::future_status::timeout);
  reads.set_open(true);
  await_members(collecting, 3);
  auto second = std::async(std::launch::async, [&] { again.barrier({"a", "b", "c"}, 50s); });
  collecting.barrier({"a", "b", "c"}, 50s);
  second.get();
  first.get();
}

}  // namespace dynamic_gather_test
