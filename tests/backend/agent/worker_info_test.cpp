#include <ferry/backend/worker_info.hpp>

#include <string>
#include <unordered_set>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "expect_error.hpp"

namespace worker_info_test {

using ferry_test::cluster;

TEST_CASE("[row 4] an invalid worker name is refused, and the text names the rule") {
  expect_error(ferry::errc::invalid_argument, "pattern", [] { ferry::worker_info("abc*", 0); });
  expect_error(ferry::errc::invalid_argument, "pattern", [] { ferry::worker_info(" ", 0); });
  expect_error(ferry::errc::invalid_argument, "pattern", [] { ferry::worker_info("a\nb", 0); });
  expect_error(ferry::errc::invalid_argument, "pattern", [] { ferry::worker_info("na\xc3\xafve", 0); });
  expect_error(ferry::errc::invalid_argument, "non-empty", [] { ferry::worker_info("", 0); });
  expect_error(ferry::errc::invalid_argument, "shorter than 128", [] { ferry::worker_info(std::string(500, 'a'), 0); });
  expect_error(ferry::errc::invalid_argument, "shorter than 128", [] { ferry::worker_info(std::string(128, 'a'), 0); });
  CHECK(ferry::worker_info(std::string(127, 'a'), 0).name().size() == 127);
  CHECK(ferry::worker_info("A-z_0:9", 7).name() == "A-z_0:9");
}

TEST_CASE("[row 4] a worker with an invalid name does not start") {
  ferry_test::temporary_directory directory;
  ferry::worker_config config{
      .name = "abc*", .rank = 0, .world_size = 1, .init_method = "file://" + directory.file("s")};
  expect_error(ferry::errc::invalid_argument, "pattern", [&] { (void)ferry::init_rpc(config); });
  config.name = std::string(128, 'x');
  expect_error(ferry::errc::invalid_argument, "128", [&] { (void)ferry::init_rpc(config); });
}

TEST_CASE("a worker's id is bounded") {
  CHECK(ferry::worker_info("a", 32767).id().value == 32767);
  expect_error(ferry::errc::invalid_argument, "32767", [] { ferry::worker_info("a", 32768); });
  expect_error(ferry::errc::invalid_argument, "-1", [] { ferry::worker_info("a", -1); });
}

TEST_CASE("worker_info is a value: equality, hash, text") {
  const ferry::worker_info a("a", 1);
  CHECK(a == ferry::worker_info("a", 1));
  CHECK(a != ferry::worker_info("a", 2));
  CHECK(a != ferry::worker_info("b", 1));
  CHECK(to_string(a) == "worker_info(id=1, name=a)");
  CHECK(ferry::worker_info() == ferry::worker_info());
  const std::unordered_set<ferry::worker_info> set{a, ferry::worker_info("a", 1), ferry::worker_info("b", 2)};
  CHECK(set.size() == 2);
}

TEST_CASE("[row 1] a worker has its own info and looks up the others; an unknown destination is an error") {
  cluster group(3);
  group.each([](ferry::worker& self) {
    const int rank = self.id().value;
    if (self.info() != ferry::worker_info(ferry_test::worker_name(rank), rank)) throw std::runtime_error("own info");
    const int peer = (rank + 1) % 3;
    const ferry::worker_info found = self.get_worker_info(ferry_test::worker_name(peer));
    if (found != ferry::worker_info(ferry_test::worker_name(peer), peer)) throw std::runtime_error("peer info");
    if (self.get_worker_info(ferry::worker_id{peer}) != found) throw std::runtime_error("peer info by id");
  });
  expect_error(ferry::errc::unknown_worker, "could not find destination",
               [&] { (void)group[1].get_worker_info("unknown"); });
  expect_error(ferry::errc::unknown_worker, "worker_info(id=1, name=worker1)",
               [&] { (void)group[1].get_worker_info("unknown"); });
  expect_error(ferry::errc::unknown_worker, "unknown", [&] { (void)group[1].get_worker_info("unknown"); });
  expect_error(ferry::errc::unknown_worker, "3", [&] { (void)group[1].get_worker_info(ferry::worker_id{3}); });
  expect_error(ferry::errc::unknown_worker, "-1", [&] { (void)group[1].get_worker_info(ferry::worker_id{-1}); });
  // The free functions use one of the workers of this process.
  CHECK(ferry::get_worker_info() == ferry::get_worker_info(ferry::get_worker_info().name()));
  CHECK(ferry::get_worker_info(ferry::worker_id{2}).name() == "worker2");
}

TEST_CASE("[row 2] every worker lists the names and ids of the whole group") {
  cluster group(4);
  for (int rank = 0; rank != group.size(); ++rank) {
    const std::vector<ferry::worker_info> all = group[rank].workers();
    REQUIRE(all.size() == 4);
    for (int id = 0; id != 4; ++id) {
      CHECK(all[static_cast<std::size_t>(id)] == ferry::worker_info(ferry_test::worker_name(id), id));
    }
  }
  CHECK(ferry::get_worker_infos().size() == 4);
}

}  // namespace worker_info_test
