#include "backend/links/peers.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using ferry::worker_id;
using ferry::worker_info;
using ferry::detail::peer;
using ferry::detail::peer_table;
using ferry::detail::worker_record;

namespace peer_table_test {

namespace {

peer& admit(peer_table& table, const std::string& name, int id) {
  worker_record record;
  record.who = worker_info(name, id);
  record.incarnation.value = 1;
  return table.admit(std::make_shared<const worker_record>(std::move(record)), nullptr);
}

}  // namespace

TEST_CASE("a table of peers finds members by name, and newcomers in their places at once") {
  peer_table table;
  CHECK(table.find("a") == nullptr);
  const peer* const a = &admit(table, "a", 0);
  CHECK(table.find("a") == a);
  CHECK(table.find("a") == a);
  const peer* const b = &admit(table, "b", 1);
  CHECK(table.find("b") == b);
  CHECK(table.find("a") == a);
  CHECK(table.find("ab") == nullptr);

  admit(table, "c", 0);  // in the place of a, which is found no more
  CHECK(table.find("a") == nullptr);
  CHECK(table.find("c") == a);
  admit(table, "a", 2);
  CHECK(table.find("a") != a);
  CHECK(table.find("a") == table.at(worker_id{2}));
}

TEST_CASE("tables of one process have members of the same name, whatever their addresses") {
  for (int i = 0; i != 8; ++i) {
    const auto first = std::make_unique<peer_table>();  // most likely where the one before was
    const auto second = std::make_unique<peer_table>();
    CHECK(first->find("a") == nullptr);
    const peer* const here = &admit(*first, "a", 0);
    const peer* const there = &admit(*second, "a", 0);
    for (int turn = 0; turn != 3; ++turn) {
      CHECK(first->find("a") == here);
      CHECK(second->find("a") == there);
    }
  }
}

TEST_CASE("names of any length are found again") {
  peer_table table;
  std::vector<std::pair<std::string, const peer*>> all;
  for (const std::size_t length : {1, 2, 15, 16, 39, 40, 41, 100, 127}) {
    const std::string name(length, 'x');
    all.emplace_back(name, &admit(table, name, static_cast<int>(all.size())));
  }
  for (int turn = 0; turn != 2; ++turn) {
    for (const auto& [name, where] : all) {
      CHECK(table.find(name) == where);
      CHECK(table.find(name) == where);
    }
  }
}

TEST_CASE("threads look names up while places change hands") {
  peer_table table;
  admit(table, "fixed", 0);
  const peer* const moving = &admit(table, "round0", 1);
  std::atomic<bool> ended{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> readers;
  for (int i = 0; i != 2; ++i) {
    readers.emplace_back([&] {
      while (!ended.load()) {
        const peer* const fixed = table.find("fixed");
        if (fixed != table.at(worker_id{0})) wrong.fetch_add(1);
        for (const char* const name : {"round0", "round499"}) {
          const peer* const found = table.find(name);
          if (found && found != moving) wrong.fetch_add(1);
        }
      }
    });
  }
  for (int round = 1; round != 500; ++round) admit(table, "round" + std::to_string(round), 1);
  CHECK(table.find("round0") == nullptr);
  CHECK(table.find("round499") == moving);
  ended.store(true);
  for (auto& reader : readers) reader.join();
  CHECK(wrong.load() == 0);
}

}  // namespace peer_table_test
