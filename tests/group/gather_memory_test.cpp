// Gathers when memory is exhausted: each allocation in turn fails while a member arrives, or a round ends.

#include <cstddef>
#include <functional>
#include <new>
#include <stop_token>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "allocation_count.hpp"
#include "captured_log.hpp"
#include "cluster.hpp"
#include "group/gather_rounds.hpp"
#include "rpc/worker/worker_core.hpp"

namespace gather_memory_test {

using ferry::errc;
using ferry::detail::gather_answer;
using ferry::detail::gather_arrival;
using ferry::detail::gather_rounds;
using ferry_test::cluster;

namespace {

// A gather of two workers, the first of which collects.
struct lone_gather {
  cluster group{2};
  std::shared_ptr<gather_rounds> rounds = gather_rounds::of(*group[0].core());

  static gather_arrival arrival(int value) {
    gather_arrival made;
    made.members = {"worker0", "worker1"};
    made.type = 1;
    made.limit_us = made.left_us = 100'000'000;
    made.value = ferry::serialize(value);
    return made;
  }
  ferry::future<gather_answer> arrive(const gather_arrival& what, const std::string& from,
                                      const std::stop_token& gone = {}) {
    return rounds->arrive(what, from, group[0].core()->agent(), gone);
  }
};

void check_complete(const ferry::future<gather_answer>& answer) {
  REQUIRE(answer.ready());
  const auto result = answer.get().result;
  CHECK(result->error == 0);
  REQUIRE(result->values.size() == 2);
  CHECK(ferry::deserialize<int>(result->values[0]) == 10);
  CHECK(ferry::deserialize<int>(result->values[1]) == 11);
}

}  // namespace

TEST_CASE("a member that arrives when memory is exhausted gets an error, and takes part when it comes again" *
          doctest::skip(!ferry_test::counts_allocations)) {
  for (const bool last : {false, true}) {
    CAPTURE(last);
    lone_gather gather;
    int refused = 0;
    for (std::size_t failing = 1;; ++failing) {
      CAPTURE(failing);
      REQUIRE(failing < 1000);
      const std::stop_source source;
      const gather_arrival arrivals[]{lone_gather::arrival(10), lone_gather::arrival(11)};
      ferry::future<gather_answer> answers[2];
      const int tried = last ? 1 : 0;
      const auto arrive = [&](int which) {
        answers[which] = gather.arrive(arrivals[which], which == 0 ? "worker0" : "worker1", source.get_token());
      };
      if (last) arrive(0);
      ferry_test::fail_allocation(failing);
      bool threw = false;
      try {
        arrive(tried);
      } catch (const std::bad_alloc&) {
        threw = true;
      }
      const bool failed = ferry_test::allocation_failed();
      if (threw) {
        ++refused;
        CHECK(gather.rounds->waiting_members() == (last ? 1 : 0));
        if (last) CHECK_FALSE(answers[0].ready());
        arrive(tried);
      }
      if (!last) arrive(1);
      CHECK(gather.rounds->waiting_members() == 0);
      arrivals[1].answered.reset();  // then the collecting worker is answered
      check_complete(answers[0]);
      check_complete(answers[1]);
      if (!failed) break;
    }
    CHECK(refused > 3);
  }
}

TEST_CASE("a round ends although memory is exhausted" * doctest::skip(!ferry_test::counts_allocations)) {
  for (const bool lost : {false, true}) {
    CAPTURE(lost);
    lone_gather gather;
    const ferry_test::captured_log log;
    const ferry::worker_info other("worker1", gather.group[1].id());
    bool failed = true;
    for (std::size_t failing = 1; failed; ++failing) {
      CAPTURE(failing);
      REQUIRE(failing < 1000);
      std::stop_source source;
      const gather_arrival arrival = lone_gather::arrival(10);
      const auto answer = gather.arrive(arrival, "worker0", source.get_token());
      REQUIRE_FALSE(answer.ready());
      ferry_test::fail_allocation(failing);
      if (lost) {
        gather.rounds->on_gone(other, "is dead");
      } else {
        source.request_stop();
      }
      failed = ferry_test::allocation_failed();
      REQUIRE(answer.ready());
      CHECK(answer.get().result->error == static_cast<std::uint32_t>(errc::peer_lost));
      CHECK(gather.rounds->waiting_members() == 0);
      if (!failed) CHECK(answer.get().result->text.find("worker1") != std::string::npos);
      if (lost) gather.rounds->on_joined(other);
    }
  }
}

}  // namespace gather_memory_test
