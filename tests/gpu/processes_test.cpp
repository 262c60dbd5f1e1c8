// Several processes on one GPU.

#include <csignal>
#include <memory>
#include <utility>

#include "captured_log.hpp"
#include "expect_error.hpp"
#include "gpu_group.hpp"

using namespace gpu_test;
using ferry::dtype;
using ferry::tensor;

namespace gpu_processes_test {

tensor plus_rank(const tensor& t, int rank) { return t + ferry::full(t.shape(), rank, dtype::i32, t.device()); }
// Goes once round the ring of workers, each of which adds one.
tensor relay(const tensor& t, int next, int size) {
  const tensor mine = t + ferry::full(t.shape(), 1, dtype::i32, t.device());
  if (next == 0) return mine;
  return ferry::rpc_sync<&relay>(ferry_test::worker_name(next), mine, (next + 1) % size, size);
}
std::int64_t take(const tensor& t) { return t.numel(); }
tensor give(std::int64_t n) { return filled(n, 4); }

}  // namespace gpu_processes_test

using namespace gpu_processes_test;

namespace {

// Arguments: init method, rank, size, transport.
const ferry_test::role serving("gpu worker", [](const std::vector<std::string>& arguments) {
  ferry::worker self = joined(arguments.at(0), std::stoi(arguments.at(1)), std::stoi(arguments.at(2)), arguments.at(3));
  self.shutdown();
  return 0;
});

class process_ring {
 public:
  process_ring(int size, const std::string& transport) {
    for (int rank = 1; rank != size; ++rank) {
      children.push_back(std::make_unique<ferry_test::child_process>(ferry_test::child_options{
          .role = "gpu worker", .arguments = {meeting(), std::to_string(rank), std::to_string(size), transport}}));
    }
    self = joined(meeting(), 0, size, transport);
  }
  void leave() {
    self.shutdown();
    for (const auto& each : children) CHECK(each->wait() == 0);
  }

 private:
  std::string meeting() { return "file://" + directory_.file("store"); }
  ferry_test::temporary_directory directory_;
  ferry_test::watchdog limit_{"processes on one GPU"};

 public:
  std::vector<std::unique_ptr<ferry_test::child_process>> children;
  ferry::worker self;
};

}  // namespace

TEST_CASE("processes on one GPU call each other with tensors on it") {
  for (const int size : {2, 4}) {
    for (const char* transport : {"shm", "unix", "tcp"}) {
      CAPTURE(size);
      CAPTURE(transport);
      process_ring ring(size, transport);
      for (const std::int64_t n : {std::int64_t{1}, std::int64_t{1000}, std::int64_t{3} << 19}) {
        for (int rank = 1; rank != size; ++rank) {
          const tensor back = ring.self.rpc_sync<&plus_rank>(ferry_test::worker_name(rank), filled(n, 10), rank);
          CHECK(back.device() == gpu);
          CHECK(is_filled(back, 10 + rank));
        }
        const tensor round = ring.self.rpc_sync<&relay>("worker1", filled(n, 0), 2 % size, size);
        CHECK(is_filled(round, size - 1));
      }
      ring.leave();
    }
  }
}

TEST_CASE("a peer dies during a copy, in either direction: its calls end, and the device serves the next ones") {
  const ferry_test::captured_log quiet;
  constexpr std::int64_t large = std::int64_t{2} << 20;  // elements: 8 MiB
  for (const auto& [sends, transport] : {std::pair(true, "shm"), {false, "shm"}, {true, "unix"}, {false, "unix"}}) {
    CAPTURE(sends);
    CAPTURE(transport);
    process_ring ring(2, transport);
    const tensor t = filled(large, 1);
    CHECK(ring.self.rpc_sync<&take>("worker1", t) == large);
    // What fits into no socket's memory is under way until the peer has read it, or has written it.
    ring.children[0]->stop();
    std::vector<ferry::future<std::int64_t>> sending;
    std::vector<ferry::future<tensor>> receiving;
    for (int i = 0; i != 4; ++i) {
      if (sends) sending.push_back(ring.self.rpc_async<&take>("worker1", t));
      if (!sends) receiving.push_back(ring.self.rpc_async<&give>("worker1", large));
    }
    if (!sends) {
      // Bytes have arrived of the first answer, and those of the others are missing.
      ring.children[0]->kill(SIGCONT);
      (void)receiving.front().get();
    }
    ring.children[0]->kill(SIGKILL);
    for (auto& each : sending) expect_error(ferry::errc::peer_lost, "", [&] { each.get(); });
    for (auto& each : receiving) {
      tensor all;
      try {
        all = each.get();
      } catch (const ferry::error& problem) {
        CHECK(problem.kind() == ferry::errc::peer_lost);
        continue;
      }
      CHECK(is_filled(all, 4));  // it had all arrived
    }
    sending.clear();
    receiving.clear();
    ring.self.shutdown(false);
    CHECK(is_filled(t, 1));
    const tensor next = filled(large, 2);
    CHECK(is_filled(next + next, 4));
  }
  const ferry_test::watchdog limit("staging memory that does not come back", std::chrono::seconds(60));
  while (ferry::get_staging_memory_stats(ferry::device_kind::cuda).blocks_in_use != 0) std::this_thread::yield();
}
