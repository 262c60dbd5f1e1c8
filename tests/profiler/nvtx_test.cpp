// The ranges that a tool of NVIDIA's sees: nvtx_tool.cpp takes the place of one, in processes of their own.

#include <algorithm>
#include <exception>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ferry.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/profiler.hpp>
#include <ferry/tensor/factories.hpp>

#include "cluster.hpp"
#include "processes.hpp"
#include "temporary_directory.hpp"

namespace nvtx_test {

namespace profiler = ferry::profiler;
using ferry::tensor;

tensor doubled(const tensor& a) { return a + a; }
ferry::task<int> later(std::string next, const tensor a) {
  const profiler::range part("in a coroutine");
  (void)co_await ferry::rpc_async<doubled>(next, a);
  co_return 1;
}
void fail() { throw std::runtime_error("no"); }

void work(ferry_test::cluster& group) {
  const tensor a = ferry::ones({2, 2}, ferry::dtype::f64);
  {
    const profiler::range step("my step");
    (void)ferry::matmul(a, a);
    (void)group[0].rpc_sync<doubled>("worker1", a);
  }
  std::thread other([&] { (void)(a * a); });
  other.join();
  (void)group[0].rpc_async<doubled>("worker1", a).get();
  (void)group[0].rpc_sync<later>("worker1", "worker0", a);
  try {
    group[0].rpc_sync<fail>("worker1");
  } catch (const std::exception&) {
    profiler::session recorded(group[0]);
    (void)(a - a);
    if (recorded.finish().count("sub") != 1) throw std::runtime_error("the session has not recorded it");
  }
}

// Says whether ranges are watched before and behind its work.
const ferry_test::role worker("shown", [](const std::vector<std::string>&) {
  const bool before = ferry::detail::ranges_watched();
  {
    ferry_test::cluster group(2);
    work(group);
  }
  ferry_test::tell_parent(std::string(before ? "watched" : "unwatched") + ", " +
                          (ferry::detail::ranges_watched() ? "watched" : "unwatched"));
  return 0;
});

struct shown_line {
  std::string what;
  std::string id;
  std::string name;
};
std::vector<shown_line> read_lines(const std::string& path) {
  std::vector<shown_line> all;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    shown_line& next = all.emplace_back();
    words >> next.what >> next.id;
    words.get();
    std::getline(words, next.name);
  }
  return all;
}

TEST_CASE("a tool that NVTX loads sees ranges, operations and calls within each other on their threads, and handlers") {
  const ferry_test::temporary_directory directory;
  const std::string path = directory.file("ranges");
  ferry_test::child_process child(
      {.role = "shown",
       .environment = {{"NVTX_INJECTION64_PATH", FERRY_TEST_NVTX_TOOL}, {"FERRY_TEST_NVTX_FILE", path}}});
  CHECK(child.read_line() == "watched, watched");
  CHECK(child.wait() == 0);
  std::map<std::string, std::vector<std::string>> open;  // by thread
  std::map<std::string, std::string> started;            // by number
  std::vector<std::string> pushed;                       // each with those around it
  std::vector<std::string> handlers;
  for (const shown_line& each : read_lines(path)) {
    if (each.what == "push") {
      std::string whole;
      for (const std::string& around : open[each.id]) whole += around + " > ";
      pushed.push_back(whole + each.name);
      open[each.id].push_back(each.name);
    } else if (each.what == "pop") {
      REQUIRE_FALSE(open[each.id].empty());
      open[each.id].pop_back();
    } else if (each.what == "start") {
      CHECK(started.emplace(each.id, each.name).second);
      handlers.push_back(each.name);
    } else {
      CHECK(started.erase(each.id) == 1);
    }
  }
  for (const auto& [thread, ranges] : open) CHECK(ranges.empty());
  CHECK(started.empty());
  const auto has = [](const std::vector<std::string>& all, const std::string& which) {
    std::string text;
    for (const std::string& each : all) text += each + "\n";
    CHECK_MESSAGE(std::find(all.begin(), all.end(), which) != all.end(), which, " is not among\n", text);
  };
  has(pushed, "my step");
  has(pushed, "my step > matmul");
  has(pushed, "my step > rpc_sync#nvtx_test::doubled(worker0 -> worker1)");
  has(pushed, "mul");
  has(pushed, "add");
  has(pushed, "sub");
  has(pushed, "rpc_sync#nvtx_test::fail(worker0 -> worker1)");
  has(handlers, "nvtx_test::doubled");
  has(handlers, "nvtx_test::later");
  has(handlers, "nvtx_test::fail");
  has(handlers, "in a coroutine");
}

TEST_CASE("without a tool, and with one that cannot be loaded, nothing is watched") {
  ferry_test::child_process without({.role = "shown", .environment = {{"NVTX_INJECTION64_PATH", ""}}});
  CHECK(without.read_line() == "unwatched, unwatched");
  CHECK(without.wait() == 0);
  ferry_test::child_process missing(
      {.role = "shown", .environment = {{"NVTX_INJECTION64_PATH", "/nowhere/libtool.so"}}});
  CHECK(missing.read_line() == "watched, unwatched");
  CHECK(missing.wait() == 0);
}

}  // namespace nvtx_test
