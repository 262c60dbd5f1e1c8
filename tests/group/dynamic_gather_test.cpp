// Gathers in a group whose members join and leave.

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "group/gather_rounds.hpp"

using namespace std::chrono_literals;
using ferry::errc;

namespace {

struct meeting {
  ferry_test::watchdog dog{"a gather in a dynamic group"};
  ferry_test::temporary_directory directory;

  [[nodiscard]] ferry::worker join(const std::string& name) const {
    return ferry::init_rpc({.name = name,
                            .rank = ferry::any_rank,
                            .init_method = "file://" + directory.file("store"),
                            .rpc_timeout = 100s});
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
