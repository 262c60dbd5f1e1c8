// The set of peers that a tick looks at: none is lost that changes while a tick looks.

#include "backend/failure/ticking_peers.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

namespace ticking_peers_test {

using ferry::detail::peer;
using ferry::detail::peer_table;
using ferry::detail::ticking_peers;

namespace {

std::multiset<int> looked_at(ticking_peers& all, bool keep) {
  std::multiset<int> result;
  all.for_each([&](peer& each) noexcept {
    result.insert(each.id.value);
    return keep;
  });
  return result;
}

}  // namespace

TEST_CASE("a tick looks at each peer that was added once, until it does not keep it") {
  peer_table table;
  ticking_peers ticking;
  CHECK(looked_at(ticking, true).empty());
  for (const int id : {3, 0, 3, 7, 0}) ticking.add(table.place(ferry::worker_id{id}));
  CHECK((looked_at(ticking, true) == std::multiset<int>{0, 3, 7}));
  CHECK((looked_at(ticking, false) == std::multiset<int>{0, 3, 7}));
  CHECK(looked_at(ticking, true).empty());
  ticking.add(table.place(ferry::worker_id{7}));
  CHECK((looked_at(ticking, true) == std::multiset<int>{7}));
}

TEST_CASE("what is added while a tick looks at it is looked at again") {
  peer_table table;
  ticking_peers ticking;
  peer& one = table.place(ferry::worker_id{1});
  ticking.add(one);
  ticking.for_each([&](peer& each) noexcept {
    ticking.add(each);
    return false;
  });
  CHECK((looked_at(ticking, false) == std::multiset<int>{1}));
}

TEST_CASE("no peer is lost that threads change while another one ticks") {
  constexpr int peers = 8;
  constexpr std::uint64_t changes = 20'000;
  peer_table table;
  ticking_peers ticking;
  // The changes of each peer, and how many of them a tick has seen: both under the mutex of the peer.
  std::array<std::uint64_t, peers> made{};
  std::array<std::uint64_t, peers> seen{};
  for (int id = 0; id != peers; ++id) (void)table.place(ferry::worker_id{id});
  std::vector<std::thread> threads;
  std::atomic<int> at_work{2};
  for (int t = 0; t != 2; ++t) {
    threads.emplace_back([&] {
      for (std::uint64_t i = 0; i != changes; ++i) {
        const int id = static_cast<int>(i % peers);
        peer& whom = table.place(ferry::worker_id{id});
        {
          const std::lock_guard lock(whom.mutex);
          ++made[static_cast<std::size_t>(id)];
        }
        ticking.add(whom);
      }
      at_work.fetch_sub(1);
    });
  }
  const auto look = [&] {
    ticking.for_each([&](peer& each) noexcept {
      const std::lock_guard lock(each.mutex);
      const auto at = static_cast<std::size_t>(each.id.value);
      seen[at] = made[at];
      return false;
    });
  };
  while (at_work.load() != 0) look();
  for (auto& each : threads) each.join();
  look();
  CHECK(seen == made);
}

}  // namespace ticking_peers_test
