// What a change of a dynamic group of many workers costs its members.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/backend/backend.hpp>
#include <ferry/base/time.hpp>
#include <ferry/store/hash_store.hpp>

#include "forwarding_store.hpp"
#include "watchdog.hpp"

namespace large_group_test {

namespace {

using namespace ferry;
using namespace std::chrono_literals;

// Counts how often its worker reads the log of the group.
class counts_reads final : public ferry_test::forwarding_store {
 public:
  counts_reads(std::shared_ptr<store> inner, std::atomic<int>& reads)
      : forwarding_store(std::move(inner)), reads_(reads) {}

 protected:
  // Asked once after the entries of each read.
  std::optional<std::string> do_try_get(std::string_view key, deadline until) override {
    if (key == "trimmed") ++reads_;
    return forwarding_store::do_try_get(key, until);
  }

 private:
  std::atomic<int>& reads_;
};

class member final : public request_handler {
 public:
  void on_request(const std::shared_ptr<reply_channel>&, const worker_info&, inbound_message&&) noexcept override {}
  void on_member_event(const member_event& event) noexcept override {
    if (event.what != member_event::kind::joined) return;
    const std::lock_guard lock(mutex_);
    ++joined_;
    changed_.notify_all();
  }
  [[nodiscard]] bool busy() const noexcept override { return false; }
  void join(std::shared_ptr<store> where, int rank) {
    worker_config config{.name = "w" + std::to_string(rank), .rank = rank, .world_size = 0};
    config.transports = {"inproc"};
    agent_ = backend_list<native>::factories().front().init(std::move(where), config, config.options());
    agent_->join(*this);
  }
  void wait_for(int members) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return joined_ >= members; });
  }
  void close() { agent_->close(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int joined_ = 0;  // itself included
  std::unique_ptr<agent> agent_;
};

}  // namespace

TEST_CASE("the members of a large group read changes that follow each other closely together") {
  const ferry_test::watchdog limit("a large group");
  constexpr int many = 100;
  const auto content = std::make_shared<hash_store>();
  std::atomic<int> reads{0};
  std::vector<std::unique_ptr<member>> group;
  const auto join_another = [&] {
    const int rank = static_cast<int>(group.size());
    std::shared_ptr<store> where = content->share();
    if (rank == 0) where = std::make_shared<counts_reads>(std::move(where), reads);
    group.push_back(std::make_unique<member>());
    group.back()->join(std::move(where), rank);
  };
  while (group.size() != many) join_another();
  group.front()->wait_for(many);
  const int before = reads;
  const auto since = clock::now();
  while (group.size() != 2 * many) join_another();
  group.front()->wait_for(2 * many);
  const auto took = clock::now() - since;
  // A pause of at least 10 ms with so many members; a read of 64 entries is followed by another one.
  CHECK(reads > before);
  CHECK(reads - before <= took / 10ms + 4);
  for (const auto& each : group) each->wait_for(2 * many);
  for (const auto& each : group) each->close();
}

}  // namespace large_group_test
