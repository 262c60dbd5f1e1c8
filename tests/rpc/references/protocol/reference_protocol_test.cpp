// Reference counting, scenario by scenario. reference_model_test.cpp explores all orders of events.

#include <doctest/doctest.h>

#include "reference_parties.hpp"
#include "rpc/references/protocol/number_set.hpp"

namespace reference_protocol_test {

using namespace ferry::detail;
using namespace ferry_test;
using kind = reference_control::kind;
using knowledge = reference_protocol::knowledge;

TEST_CASE("a set of numbers keeps intervals") {
  number_set set;
  for (const std::uint64_t number : {5U, 3U, 9U, 4U, 1U}) CHECK(set.insert(number));
  CHECK(set.intervals() == 3);  // 1, 3-5, 9
  CHECK_FALSE(set.insert(4));
  CHECK_FALSE(set.insert(3));
  for (const std::uint64_t number : {0U, 2U, 6U, 8U, 10U}) CHECK_FALSE(set.contains(number));
  for (const std::uint64_t number : {1U, 3U, 4U, 5U, 9U}) CHECK(set.contains(number));
  CHECK(set.insert(2));
  CHECK(set.intervals() == 2);
  for (const std::uint64_t number : {8U, 7U, 6U}) CHECK(set.insert(number));
  CHECK(set.intervals() == 1);
  CHECK(set.insert(UINT64_MAX));
  CHECK(set.contains(UINT64_MAX));
  CHECK_FALSE(set.insert(UINT64_MAX));
  CHECK_FALSE(set.contains(UINT64_MAX - 1));
}

TEST_CASE("a set of numbers takes and drops all numbers below one") {
  constexpr std::uint64_t most = 7;
  for (unsigned members = 0; members != 1U << most; ++members) {
    for (std::uint64_t limit = 0; limit <= most + 1; ++limit) {
      number_set filled;
      number_set emptied;
      for (std::uint64_t number = 1; number <= most; ++number) {
        if ((members >> (number - 1U) & 1U) == 0) continue;
        filled.insert(number);
        emptied.insert(number);
      }
      filled.insert_below(limit);
      emptied.erase_below(limit);
      number_set expected_filled;
      number_set expected_emptied;
      for (std::uint64_t number = 1; number <= most; ++number) {
        const bool member = (members >> (number - 1U) & 1U) != 0;
        if (member || number < limit) expected_filled.insert(number);
        if (member && number >= limit) expected_emptied.insert(number);
      }
      REQUIRE(filled == expected_filled);  // the same intervals, too
      REQUIRE(emptied == expected_emptied);
    }
  }
}

TEST_CASE("(a) an object made by a call lives until its creator drops it") {
  parties w;
  const object_id object = w.a.protocol.create(w.b.self());
  const held_fork fork = w.a.protocol.creating_fork(object);
  CHECK(w.b.protocol.look_up(object) == knowledge::awaited);
  CHECK_FALSE(w.a.protocol.confirmed(fork));
  CHECK(w.a.protocol.pending() == 1);
  REQUIRE(w.b.protocol.begin_creation(object, w.b.effects));
  CHECK(w.b.protocol.look_up(object) == knowledge::here);
  CHECK_FALSE(w.b.protocol.begin_creation(object, w.b.effects));  // a duplicate
  w.b.protocol.end_creation(object, w.b.effects);
  w.a.protocol.confirm_creation(object, w.a.effects);
  CHECK(w.a.protocol.confirmed(fork));
  CHECK(w.a.effects.confirmed == std::vector{fork});
  CHECK(w.b.protocol.figures().owners == 1);
  CHECK(w.b.protocol.forks().size() == 1);
  w.a.protocol.drop(fork, w.a.effects);
  w.settle();
  CHECK(w.b.effects.released == std::vector{object});
  CHECK(w.b.protocol.look_up(object) == knowledge::deleted);
  CHECK_FALSE(w.b.protocol.begin_creation(object, w.b.effects));  // a late duplicate
  CHECK(w.no_records_left());
}

TEST_CASE("(a) a creator that drops at once notifies the owner after the answer") {
  parties w;
  const object_id object = w.a.protocol.create(w.b.self());
  w.a.protocol.drop(w.a.protocol.creating_fork(object), w.a.effects);
  CHECK(w.a.effects.controls.empty());
  REQUIRE(w.b.protocol.begin_creation(object, w.b.effects));
  w.b.protocol.end_creation(object, w.b.effects);
  w.a.protocol.confirm_creation(object, w.a.effects);
  CHECK(w.a.effects.controls.size() == 1);
  w.settle();
  CHECK(w.b.effects.released == std::vector{object});
  CHECK(w.no_records_left());
}

TEST_CASE("(b) a reference sent back to its owner is held there, and its parent is released") {
  parties w;
  const object_id object = create(w.a, w.b);
  const held_fork fork = w.a.protocol.creating_fork(object);
  const handed_reference handed = w.a.protocol.transfer(fork, w.b.self());
  w.a.protocol.drop(fork, w.a.effects);
  CHECK(w.a.effects.controls.empty());  // kept for the child
  const auto receipt = w.b.protocol.receive(handed, w.a.self(), w.b.effects);
  CHECK(receipt.own);
  CHECK_FALSE(receipt.refused);
  w.settle();
  CHECK(w.a.has_no_records());
  CHECK(w.b.effects.released.empty());                                         // held by the call
  CHECK_FALSE(w.b.protocol.receive(handed, w.a.self(), w.b.effects).refused);  // again, while it is held
  w.b.protocol.drop_locally(object, w.b.effects);
  CHECK(w.b.effects.released == std::vector{object});
  CHECK(w.b.protocol.receive(handed, w.a.self(), w.b.effects).refused);
  CHECK(w.no_records_left());
}

TEST_CASE("(c) a fork that the owner sends is registered beforehand and needs no control") {
  parties w;
  const object_id object = w.a.protocol.own();
  const handed_reference handed = w.a.protocol.transfer(object, w.b.self());
  w.a.protocol.drop_locally(object, w.a.effects);
  CHECK(w.a.effects.released.empty());
  const auto receipt = w.b.protocol.receive(handed, w.a.self(), w.b.effects);
  CHECK(receipt.confirmed);
  CHECK(w.b.effects.controls.empty());
  CHECK_FALSE(w.a.protocol.settled(w.b.self(), handed.transfer));
  w.a.protocol.arrived(w.b.self(), handed.transfer, w.a.effects);
  CHECK(w.a.protocol.settled(w.b.self(), handed.transfer));
  CHECK(w.b.protocol.receive(handed, w.a.self(), w.b.effects).fork == receipt.fork);
  w.b.protocol.drop(receipt.fork, w.b.effects);
  CHECK(w.b.protocol.receive(handed, w.a.self(), w.b.effects).refused);  // a duplicate, after that
  w.settle();
  CHECK(w.a.effects.released == std::vector{object});
  CHECK(w.no_records_left());
}

TEST_CASE("(c) a fork that has ended settles the transfer that created it") {
  parties w;
  const object_id object = w.a.protocol.own();
  const handed_reference handed = w.a.protocol.transfer(object, w.b.self());
  const auto receipt = w.b.protocol.receive(handed, w.a.self(), w.b.effects);
  w.b.protocol.drop(receipt.fork, w.b.effects);
  w.settle();
  CHECK(w.a.protocol.settled(w.b.self(), handed.transfer));  // as for a reply, which has no answer
  w.a.protocol.query(w.b.self(), handed.transfer, w.a.effects);
  CHECK(w.a.effects.controls.empty());
}

TEST_CASE("(d) a holder keeps a fork that it sends on until the owner has registered the child") {
  parties w;
  const object_id object = create(w.a, w.b);
  const held_fork fork = w.a.protocol.creating_fork(object);
  const handed_reference handed = w.a.protocol.transfer(fork, w.c.self());
  w.a.protocol.drop(fork, w.a.effects);
  const auto receipt = w.c.protocol.receive(handed, w.a.self(), w.c.effects);
  CHECK_FALSE(receipt.confirmed);
  w.a.protocol.arrived(w.c.self(), handed.transfer, w.a.effects);
  CHECK(w.a.effects.controls.empty());  // the arrival of the message is not sufficient
  CHECK(w.a.protocol.pending() == 1);
  const auto request = w.take(w.c);
  CHECK(request.what.what == kind::fork_request);
  CHECK(w.deliver(w.c, request) == reference_answer::done);
  CHECK(w.c.effects.confirmed == std::vector{receipt.fork});
  const auto accept = w.take(w.c);
  CHECK(accept.what.what == kind::child_accept);
  w.deliver(w.c, accept);
  CHECK(w.a.effects.controls.size() == 1);
  CHECK(w.a.effects.controls.front().what.what == kind::user_delete);
  w.settle();
  CHECK(w.b.effects.released.empty());
  w.c.protocol.drop(receipt.fork, w.c.effects);
  const auto deletion = w.take(w.c);
  w.deliver(w.c, deletion);
  CHECK(w.b.effects.released == std::vector{object});
  SUBCASE("a duplicate of the request, after the delete") {
    CHECK(w.deliver(w.c, request) == reference_answer::too_late);
    CHECK(w.b.protocol.figures().forks == 0);
  }
  SUBCASE("a duplicate of the accept and of the delete") {
    w.deliver(w.c, accept);
    w.deliver(w.c, deletion);
  }
  SUBCASE("a duplicate of the message") { CHECK(w.c.protocol.receive(handed, w.a.self(), w.c.effects).refused); }
  w.settle();
  CHECK(w.no_records_left());
}

TEST_CASE("(d) a child that drops before it is confirmed still releases parent and owner") {
  parties w;
  const object_id object = create(w.a, w.b);
  const held_fork fork = w.a.protocol.creating_fork(object);
  const auto receipt = w.c.protocol.receive(w.a.protocol.transfer(fork, w.c.self()), w.a.self(), w.c.effects);
  w.a.protocol.drop(fork, w.a.effects);
  w.c.protocol.drop(receipt.fork, w.c.effects);
  CHECK(w.c.effects.controls.size() == 1);  // the request alone
  w.settle();
  CHECK(w.b.effects.released == std::vector{object});
  CHECK(w.c.effects.failed.empty());
  CHECK(w.no_records_left());
}

TEST_CASE("(e) a reference that the owner sends to itself leaves no record") {
  parties w;
  const object_id object = w.a.protocol.own();
  const handed_reference handed = w.a.protocol.transfer(object, w.a.self());
  w.a.protocol.drop_locally(object, w.a.effects);
  CHECK(w.a.effects.released.empty());  // kept by the message
  SUBCASE("it arrives") {
    CHECK(w.a.protocol.receive(handed, w.a.self(), w.a.effects).own);
    CHECK(w.a.protocol.figures().forks == 0);
    w.a.protocol.arrived(w.a.self(), handed.transfer, w.a.effects);
    CHECK(w.a.effects.released.empty());
    w.a.protocol.drop_locally(object, w.a.effects);
  }
  SUBCASE("it is not sent") { w.a.protocol.not_sent(w.a.self(), handed.transfer, w.a.effects); }
  SUBCASE("it is lost") {
    w.a.protocol.query(w.a.self(), handed.transfer, w.a.effects);
    w.settle();
    CHECK(w.a.protocol.receive(handed, w.a.self(), w.a.effects).refused);
  }
  CHECK(w.a.effects.released == std::vector{object});
  CHECK(w.no_records_left());
}

TEST_CASE("a reference that a holder sends to itself is a separate fork") {
  parties w;
  const object_id object = create(w.a, w.b);
  const held_fork fork = w.a.protocol.creating_fork(object);
  const handed_reference handed = w.a.protocol.transfer(fork, w.a.self());
  w.a.protocol.drop(fork, w.a.effects);
  const auto receipt = w.a.protocol.receive(handed, w.a.self(), w.a.effects);
  CHECK(receipt.fork != fork);
  w.settle();
  CHECK(w.a.protocol.confirmed(receipt.fork));
  CHECK(w.b.effects.released.empty());
  CHECK(w.a.protocol.figures().users == 1);
  w.a.protocol.drop(receipt.fork, w.a.effects);
  w.settle();
  CHECK(w.b.effects.released == std::vector{object});
  CHECK(w.no_records_left());
}

TEST_CASE("a worker that makes an object at itself") {
  parties w;
  const object_id object = w.a.protocol.create(w.a.self());
  CHECK(w.a.protocol.look_up(object) == knowledge::awaited);
  SUBCASE("drops it before the call has ended") {
    w.a.protocol.drop_locally(object, w.a.effects);
    REQUIRE(w.a.protocol.begin_creation(object, w.a.effects));
    w.a.protocol.confirm_creation(object, w.a.effects);
    CHECK(w.a.effects.released.empty());
    w.a.protocol.end_creation(object, w.a.effects);
  }
  SUBCASE("drops it later") {
    REQUIRE(w.a.protocol.begin_creation(object, w.a.effects));
    w.a.protocol.end_creation(object, w.a.effects);
    w.a.protocol.confirm_creation(object, w.a.effects);
    CHECK(w.a.protocol.look_up(object) == knowledge::here);
    CHECK(w.a.effects.released.empty());
    w.a.protocol.drop_locally(object, w.a.effects);
  }
  SUBCASE("could not send the call") {
    w.a.protocol.await(object);
    w.a.protocol.not_created(object, w.a.effects);
    CHECK(w.a.effects.never_made == std::vector{object});
    CHECK(w.a.protocol.look_up(object) == knowledge::deleted);
    CHECK_FALSE(w.a.protocol.begin_creation(object, w.a.effects));
    w.a.protocol.drop_locally(object, w.a.effects);
  }
  SUBCASE("has lost the call") {
    w.a.protocol.query_creation(object, w.a.effects);
    w.a.protocol.query_creation(object, w.a.effects);
    CHECK(w.a.effects.controls.size() == 1);
    w.settle();
    CHECK(w.a.effects.never_made == std::vector{object});
    CHECK_FALSE(w.a.protocol.begin_creation(object, w.a.effects));
    w.a.protocol.drop_locally(object, w.a.effects);
  }
  SUBCASE("has lost the answer alone") {
    REQUIRE(w.a.protocol.begin_creation(object, w.a.effects));
    w.a.protocol.query_creation(object, w.a.effects);
    w.settle();
    w.a.protocol.end_creation(object, w.a.effects);
    CHECK(w.a.effects.released.empty());
    w.a.protocol.drop_locally(object, w.a.effects);
  }
  CHECK(w.a.effects.released == std::vector{object});
  CHECK(w.a.protocol.look_up(object) == knowledge::deleted);
  CHECK(w.no_records_left());
}

TEST_CASE("an object that is awaited and never made is forgotten with the last call that waits for it") {
  parties w;
  const object_id object = w.a.protocol.create(w.b.self());
  CHECK(w.b.protocol.await(object));
  CHECK(w.b.protocol.await(object));
  w.b.protocol.stop_awaiting(object, w.b.effects);
  CHECK(w.b.effects.released.empty());
  SUBCASE("and may still be made") {
    w.b.protocol.stop_awaiting(object, w.b.effects);
    CHECK(w.b.effects.released == std::vector{object});
    CHECK(w.b.protocol.look_up(object) == knowledge::awaited);
    w.b.effects.released.clear();
    REQUIRE(w.b.protocol.begin_creation(object, w.b.effects));
    CHECK_FALSE(w.b.protocol.await(object));
    w.b.protocol.end_creation(object, w.b.effects);
  }
  SUBCASE("unless it was made meanwhile") {
    REQUIRE(w.b.protocol.begin_creation(object, w.b.effects));
    w.b.protocol.stop_awaiting(object, w.b.effects);
    w.b.protocol.end_creation(object, w.b.effects);
    w.b.protocol.stop_awaiting(object, w.b.effects);  // no such call is left
    CHECK(w.b.effects.released.empty());
  }
  SUBCASE("or has a reference") {
    w.b.protocol.receive(w.a.protocol.transfer(w.a.protocol.creating_fork(object), w.b.self()), w.a.self(),
                         w.b.effects);
    w.b.protocol.stop_awaiting(object, w.b.effects);
    CHECK(w.b.effects.released.empty());
    w.b.protocol.drop_locally(object, w.b.effects);
    CHECK(w.b.effects.released == std::vector{object});
    w.b.effects.released.clear();
    w.settle();
    REQUIRE(w.b.protocol.begin_creation(object, w.b.effects));
    w.b.protocol.end_creation(object, w.b.effects);
  }
  w.a.protocol.confirm_creation(object, w.a.effects);
  w.a.protocol.drop(w.a.protocol.creating_fork(object), w.a.effects);
  w.settle();
  CHECK(w.b.effects.released == std::vector{object});
  CHECK(w.no_records_left());
}

TEST_CASE("a reference may arrive before the call that makes its object") {
  parties w;
  const object_id object = w.a.protocol.create(w.b.self());
  const held_fork fork = w.a.protocol.creating_fork(object);
  const auto receipt = w.c.protocol.receive(w.a.protocol.transfer(fork, w.c.self()), w.a.self(), w.c.effects);
  const auto request = w.take(w.c);
  CHECK(w.deliver(w.c, request) == reference_answer::done);
  CHECK(w.b.protocol.look_up(object) == knowledge::awaited);
  w.b.protocol.await(object);  // a call of c
  SUBCASE("which arrives") {
    REQUIRE(w.b.protocol.begin_creation(object, w.b.effects));
    w.b.protocol.end_creation(object, w.b.effects);
    w.a.protocol.confirm_creation(object, w.a.effects);
    w.a.protocol.drop(fork, w.a.effects);
    w.settle();
    CHECK(w.b.effects.released.empty());
    CHECK(w.b.effects.never_made.empty());
  }
  SUBCASE("which is lost") {
    w.a.protocol.query_creation(object, w.a.effects);
    w.settle();
    CHECK(w.a.effects.failed.size() == 1);
    CHECK(w.b.effects.never_made == std::vector{object});
    CHECK_FALSE(w.b.protocol.begin_creation(object, w.b.effects));
    CHECK(w.b.protocol.look_up(object) == knowledge::deleted);
  }
  SUBCASE("which is never sent") {
    w.a.protocol.not_created(object, w.a.effects);
    w.settle();
    CHECK(w.b.effects.never_made == std::vector{object});
  }
  SUBCASE("which is lost, after the call of c was given up") {
    w.b.protocol.stop_awaiting(object, w.b.effects);
    CHECK(w.b.effects.released.empty());  // the fork of c keeps it
    w.a.protocol.query_creation(object, w.a.effects);
    w.settle();
    CHECK(w.b.effects.never_made == std::vector{object});
  }
  SUBCASE("whose creator dies") {
    w.b.protocol.gone(w.a.self(), w.b.effects);
    w.c.protocol.gone(w.a.self(), w.c.effects);
    CHECK(w.b.effects.never_made == std::vector{object});
    CHECK_FALSE(w.b.protocol.begin_creation(object, w.b.effects));
    w.a = party{0};
    w.c.effects.controls.clear();  // those for the dead worker
  }
  CHECK(w.c.protocol.confirmed(receipt.fork));
  CHECK(w.deliver(w.c, request) == reference_answer::done);  // a late duplicate: a confirmed fork stays confirmed
  CHECK(w.b.effects.released.empty());
  w.c.protocol.drop(receipt.fork, w.c.effects);
  w.settle();
  CHECK(w.b.effects.released == std::vector{object});
  CHECK(w.no_records_left());
}

}  // namespace reference_protocol_test
