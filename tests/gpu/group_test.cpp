// Collectives on tensors of one GPU.

#include <memory>
#include <string>
#include <vector>

#include <ferry/group/process_group.hpp>

#include "gpu_group.hpp"
#include "held_stream.hpp"

using namespace gpu_test;
using ferry::dtype;
using ferry::process_group;
using ferry::tensor;

namespace gpu_group_test {

// Of one member; true if all is right.
bool reduces_and_gathers(const process_group& group, std::int64_t n) {
  const tensor t = filled(n, group.rank() + 1);
  const tensor before = t.clone();
  group.all_reduce(t).get();
  const int sum = group.size() * (group.size() + 1) / 2;
  const tensor all = group.all_gather(t + t).get();
  bool right = is_filled(before, group.rank() + 1) && is_filled(t, sum);
  right = all.device() == gpu && all.size(0) == group.size() && is_filled(all, 2 * sum) && right;
  const tensor given = filled(n, group.rank());
  group.broadcast(given, group.size() - 1).get();
  return is_filled(given, group.size() - 1) && right;
}
constexpr std::int64_t sizes[] = {1, 1000, std::int64_t{3} << 19};  // elements: up to 6 MiB

}  // namespace gpu_group_test

using namespace gpu_group_test;

namespace {

// Arguments: init method, rank, size, transport.
const ferry_test::role member("gpu group member", [](const std::vector<std::string>& arguments) {
  ferry::worker self = joined(arguments.at(0), std::stoi(arguments.at(1)), std::stoi(arguments.at(2)), arguments.at(3));
  bool right = true;
  {
    const process_group group(self);
    for (const std::int64_t n : sizes) right = reduces_and_gathers(group, n) && right;
  }
  self.shutdown();
  return right ? 0 : 1;
});

}  // namespace

TEST_CASE("processes with one GPU make collectives on tensors there") {
  for (const char* transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    const ferry_test::watchdog limit("a group of processes on one GPU");
    const ferry_test::temporary_directory directory;
    const std::string meeting = "file://" + directory.file("store");
    std::vector<std::unique_ptr<ferry_test::child_process>> children;
    for (int rank = 1; rank != 3; ++rank) {
      children.push_back(std::make_unique<ferry_test::child_process>(ferry_test::child_options{
          .role = "gpu group member", .arguments = {meeting, std::to_string(rank), "3", transport}}));
    }
    ferry::worker self = joined(meeting, 0, 3, transport);
    {
      const process_group group(self);
      for (const std::int64_t n : sizes) {
        CAPTURE(n);
        CHECK(reduces_and_gathers(group, n));
      }
    }
    self.shutdown();
    for (const auto& each : children) CHECK(each->wait() == 0);
  }
}

TEST_CASE("[held] collectives return while the device is held, and are right when it goes on") {
  worker_pair pair("inproc");
  std::vector<process_group> groups(2);
  const auto make = [&](std::size_t i) { groups[i] = process_group(pair[i], ferry::all_workers, {}); };
  ferry_test::run_together({[&] { make(0); }, [&] { make(1); }});
  constexpr std::int64_t n = std::int64_t{1} << 20;
  const ferry::stream on = ferry::pool_stream(gpu);
  const ferry::stream_guard current(on);
  const tensor first = filled(n, 1);
  const tensor second = filled(n, 2);
  const auto begin = [&] {
    std::vector<ferry::future<void>> pending;
    pending.push_back(groups[0].all_reduce(first));
    pending.push_back(groups[1].all_reduce(second));
    return pending;
  };
  for (const auto& each : begin()) each.get();  // page-locked memory is there from now on
  on.synchronize();
  std::vector<ferry::future<void>> pending;
  {
    const held_stream held(on);
    without_waiting("all_reduce", [&] { pending = begin(); });
    CHECK_FALSE(pending[0].ready());
    CHECK_FALSE(held.released());
  }
  for (const auto& each : pending) each.get();
  CHECK(is_filled(first + second, 12));
}
