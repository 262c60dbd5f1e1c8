// References where a slow store leaves a worker's member list out of date: an unlisted worker may be new, or may have
// left.

#include <chrono>
#include <condition_variable>
#include <csignal>
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

#include "captured_log.hpp"
#include "forwarding_store.hpp"
#include "processes.hpp"
#include "references.hpp"

namespace reference_lagging_test {

using namespace std::chrono_literals;
using namespace references_test;
using ferry::rref;
using ferry_test::child_process;

// Blocks reads while it is closed.
class read_gate {
 public:
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    closed_ = false;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !closed_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
};
read_gate reads;

// A store that can be read only while the gate is open.
class gated_store final : public ferry_test::forwarding_store {
 public:
  using forwarding_store::forwarding_store;

 protected:
  std::optional<std::string> do_try_get(std::string_view key, ferry::deadline until) override {
    reads.pass();
    return forwarding_store::do_try_get(key, until);
  }
};

struct behind {};
struct behind_options : ferry::backend_traits<ferry::native>::options_type {
  using backend = behind;
};

std::mutex held_mutex;
rref<tracked> held;  // guarded by held_mutex
rref<tracked> give() {
  const std::lock_guard lock(held_mutex);
  return held;
}
int alive() { return tracked::alive(); }

std::string use(const rref<tracked>& ref) {
  try {
    return std::to_string(ref.rpc_sync<&tracked::value>());
  } catch (const ferry::error& e) {
    return std::string(ferry::errc_name(e.kind()));
  }
}

ferry::worker_config config_of(const std::string& meeting, const std::string& name) {
  return {.name = name,
          .rank = ferry::any_rank,
          .world_size = ferry::dynamic_world,
          .init_method = meeting,
          .rpc_timeout = 100s};
}

// Arguments: init method, name. Leaves on request of the parent.
const ferry_test::role member("member of a group that lags", [](const std::vector<std::string>& arguments) {
  ferry::worker self = ferry::init_rpc(config_of(arguments.at(0), arguments.at(1)));
  ferry_test::tell_parent("joined");
  (void)ferry_test::ask_parent();
  self.leave();
  return 0;
});

}  // namespace reference_lagging_test

template <>
struct ferry::backend_traits<reference_lagging_test::behind> {
  static constexpr std::string_view name = "behind";
  using options_type = reference_lagging_test::behind_options;
  static options_type construct_options(rpc_options base) {
    return {backend_traits<native>::construct_options(std::move(base))};
  }
  static std::unique_ptr<agent> init(std::shared_ptr<store> group_store, const worker_config& config,
                                     const options_type& options) {
    return backend_traits<native>::init(std::make_shared<reference_lagging_test::gated_store>(std::move(group_store)),
                                        config, options);
  }
};

namespace reference_lagging_test {

TEST_CASE("a reference to a worker that took the id of a dead one works where the member list is out of date") {
  const ferry_test::captured_log quiet;
  const ferry_test::watchdog dog("a member list that is out of date");
  const ferry_test::temporary_directory directory;
  const std::string meeting = "file://" + directory.file("store");
  const auto start = [&] {
    auto child = std::make_unique<child_process>(
        ferry_test::child_options{.role = "member of a group that lags", .arguments = {meeting, "other"}});
    REQUIRE(child->read_line() == "joined");
    return child;
  };
  ferry::worker self =
      ferry::init_rpc<behind>(config_of(meeting, "first"), ferry::construct_rpc_backend_options<behind>());
  ferry::worker second = ferry::init_rpc(config_of(meeting, "second"));
  auto child = start();
  const int id = self.wait_for_worker("other", 100s).id().value;
  CHECK(self.rpc_sync<alive>("other") == 0);

  reads.close();
  child->kill(SIGKILL);
  CHECK(child->wait() == 128 + SIGKILL);
  child = start();
  const auto by_second = [&](const auto& act) {  // it may learn of the new worker a little later
    for (;;) {
      try {
        return act();
      } catch (const ferry::error& e) {
        REQUIRE(e.kind() != ferry::errc::invalid_argument);
        std::this_thread::yield();
      }
    }
  };
  held = by_second([&] {
    auto made = second.remote<ferry::make<tracked>>("other", 7);
    (void)made.rpc_sync<&tracked::value>();
    return made;
  });
  CHECK(held.owner().id().value == id);
  rref<tracked> got = self.rpc_sync<give>("second");
  SUBCASE("for a moment") {}
  SUBCASE("for so long that its owner has been queried many times") { std::this_thread::sleep_for(2500ms); }
  auto used = std::async(std::launch::async, [&] { return use(got); });
  CHECK(used.wait_for(100ms) == std::future_status::timeout);  // it asks the store first
  reads.open();
  CHECK(used.get() == "7");
  CHECK(use(got) == "7");
  got = {};
  held = {};
  while (self.rpc_sync<alive>("other") != 0) std::this_thread::yield();
  child->write_line("leave");
  CHECK(child->wait() == 0);
  second.leave();
  self.leave();
}

}  // namespace reference_lagging_test
