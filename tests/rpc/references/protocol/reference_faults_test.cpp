// Reference counting when calls are given up, messages are lost and workers die.

#include <algorithm>
#include <vector>

#include <doctest/doctest.h>

#include "reference_parties.hpp"

namespace reference_faults_test {

using namespace ferry::detail;
using namespace ferry_test;
using kind = reference_control::kind;
using knowledge = reference_protocol::knowledge;

namespace {

bool contains(const std::vector<object_id>& list, const object_id& object) {
  return std::find(list.begin(), list.end(), object) != list.end();
}

}  // namespace

TEST_CASE("a creation that was given up is not carried out later") {
  parties w;
  const object_id object = w.a.protocol.create(w.b.self());
  const held_fork fork = w.a.protocol.creating_fork(object);
  w.a.protocol.query_creation(object, w.a.effects);
  w.a.protocol.query_creation(object, w.a.effects);
  REQUIRE(w.a.effects.controls.size() == 1);
  const auto query = w.take(w.a);
  SUBCASE("the call is late") {
    CHECK(w.deliver(w.a, query) == reference_answer::too_late);
    CHECK(w.a.effects.failed == std::vector{reference_effects::failure{fork, ferry::errc::reference_deleted}});
    CHECK_FALSE(w.b.protocol.begin_creation(object, w.b.effects));
    CHECK(w.deliver(w.a, query) == reference_answer::too_late);  // and once more
    CHECK(w.b.effects.never_made.empty());                       // no query or call had asked for it
  }
  SUBCASE("the call has arrived") {
    REQUIRE(w.b.protocol.begin_creation(object, w.b.effects));
    CHECK(w.deliver(w.a, query) == reference_answer::done);
    CHECK(w.a.protocol.confirmed(fork));
    w.b.protocol.end_creation(object, w.b.effects);
    CHECK(w.b.effects.released.empty());
    w.a.protocol.drop(fork, w.a.effects);
    w.settle();
    CHECK(w.b.effects.released == std::vector{object});
    w.deliver(w.a, query);
  }
  SUBCASE("the call's answer arrives before the owner's answer to the query") {
    REQUIRE(w.b.protocol.begin_creation(object, w.b.effects));
    w.b.protocol.end_creation(object, w.b.effects);
    w.a.protocol.confirm_creation(object, w.a.effects);
    w.a.protocol.drop(fork, w.a.effects);
    w.settle();
    w.deliver(w.a, query);
  }
  CHECK(w.no_records_left());
}

TEST_CASE("a withdrawn transfer is refused when it arrives late") {
  parties w;
  const object_id object = create(w.a, w.b);
  const held_fork fork = w.a.protocol.creating_fork(object);
  handed_reference handed;
  party* parent = nullptr;
  SUBCASE("from a holder") {
    parent = &w.a;
    handed = w.a.protocol.transfer(fork, w.c.self());
    w.a.protocol.drop(fork, w.a.effects);
  }
  SUBCASE("from the owner") {
    parent = &w.b;
    handed = w.b.protocol.transfer(object, w.c.self());
    w.a.protocol.drop(fork, w.a.effects);
    w.settle();
  }
  if (parent == nullptr) return;
  CHECK(w.b.effects.released.empty());
  parent->protocol.query(w.c.self(), handed.transfer, parent->effects);
  parent->protocol.query(w.c.self(), handed.transfer, parent->effects);
  REQUIRE(parent->effects.controls.size() == 1);
  const auto query = w.take(*parent);
  CHECK(w.deliver(*parent, query) == reference_answer::too_late);
  CHECK(w.deliver(*parent, query) == reference_answer::too_late);  // repeated, as the first answer was lost
  CHECK(parent->protocol.settled(w.c.self(), handed.transfer));
  CHECK(w.c.protocol.receive(handed, parent->self(), w.c.effects).refused);
  w.settle();
  CHECK(w.b.effects.released == std::vector{object});
  CHECK(w.no_records_left());
}

TEST_CASE("a transfer that is queried but has arrived stays valid") {
  parties w;
  const object_id object = create(w.a, w.b);
  const held_fork fork = w.a.protocol.creating_fork(object);
  const handed_reference handed = w.a.protocol.transfer(fork, w.c.self());
  w.a.protocol.drop(fork, w.a.effects);
  const auto receipt = w.c.protocol.receive(handed, w.a.self(), w.c.effects);
  w.a.protocol.query(w.c.self(), handed.transfer, w.a.effects);
  CHECK(w.deliver(w.a, w.take(w.a)) == reference_answer::done);
  CHECK(w.a.effects.controls.empty());
  CHECK_FALSE(w.a.protocol.settled(w.c.self(), handed.transfer));
  w.settle();
  CHECK(w.a.protocol.settled(w.c.self(), handed.transfer));
  CHECK(w.b.effects.released.empty());
  CHECK(w.c.protocol.confirmed(receipt.fork));
  const handed_reference given = w.b.protocol.transfer(object, w.c.self());
  const auto second = w.c.protocol.receive(given, w.b.self(), w.c.effects);
  w.b.protocol.query(w.c.self(), given.transfer, w.b.effects);
  w.settle();
  CHECK(w.b.protocol.settled(w.c.self(), given.transfer));
  CHECK(w.b.protocol.figures().forks == 2);
  w.c.protocol.drop(receipt.fork, w.c.effects);
  w.c.protocol.drop(second.fork, w.c.effects);
  w.settle();
  CHECK(w.b.effects.released == std::vector{object});
  CHECK(w.no_records_left());
}

TEST_CASE("a message that could not be sent is undone") {
  parties w;
  const object_id object = create(w.a, w.b);
  const held_fork fork = w.a.protocol.creating_fork(object);
  const handed_reference first = w.a.protocol.transfer(fork, w.c.self());
  const handed_reference second = w.a.protocol.transfer(fork, w.c.self());
  w.a.protocol.drop(fork, w.a.effects);
  w.a.protocol.not_sent(w.c.self(), first.transfer, w.a.effects);
  CHECK(w.a.effects.controls.empty());
  w.a.protocol.not_sent(w.c.self(), second.transfer, w.a.effects);
  CHECK(w.a.effects.controls.size() == 1);
  const handed_reference given = w.b.protocol.transfer(object, w.c.self());
  w.settle();
  CHECK(w.b.effects.released.empty());
  w.b.protocol.not_sent(w.c.self(), given.transfer, w.b.effects);
  CHECK(w.b.effects.released == std::vector{object});
  CHECK(w.no_records_left());
}

TEST_CASE("the forks of a holder that dies are released, and its late messages change nothing") {
  parties w;
  const object_id object = create(w.a, w.b);
  const object_id late = w.a.protocol.create(w.b.self());
  w.b.protocol.gone(w.a.self(), w.b.effects);
  w.b.protocol.gone(w.a.self(), w.b.effects);
  CHECK(w.b.effects.released == std::vector{object});
  CHECK_FALSE(w.b.protocol.begin_creation(late, w.b.effects));
  CHECK(w.b.protocol.look_up(late) == knowledge::deleted);
  const reference_protocol before = w.b.protocol;
  for (const kind what :
       {kind::fork_request, kind::child_accept, kind::user_delete, kind::transfer_query, kind::creation_query}) {
    reference_control control;
    control.what = what;
    control.object = late;
    control.number = 7;
    CHECK(w.b.protocol.on_control(w.a.self(), control, w.b.effects) == reference_answer::too_late);
  }
  CHECK(w.b.protocol.receive({object, 1}, w.a.self(), w.b.effects).refused);
  CHECK(w.b.protocol == before);
  CHECK(w.b.protocol.transfer(object, w.a.self()).transfer != 0);
  CHECK(w.b.has_no_records());
}

TEST_CASE("messages for an earlier incarnation of a worker change nothing") {
  parties w;
  const object_id object = create(w.a, w.b);
  const reference_protocol before = w.b.protocol;
  object_id earlier = object;
  earlier.owner.incarnation = {7};
  reference_control control;
  control.object = earlier;
  control.number = 2;
  control.key = w.a.protocol.creating_fork(object).key;
  for (const kind what : {kind::fork_request, kind::user_delete, kind::creation_query}) {
    control.what = what;
    CHECK((w.b.protocol.on_control(w.a.self(), control, w.b.effects) == reference_answer::done) ==
          (what == kind::user_delete));
  }
  CHECK_FALSE(w.b.protocol.begin_creation(earlier, w.b.effects));
  CHECK(w.b.protocol.look_up(earlier) == knowledge::deleted);
  CHECK(w.b.protocol == before);
}

TEST_CASE("a creator that dies while its object is being made") {
  parties w;
  const object_id object = w.a.protocol.create(w.b.self());
  REQUIRE(w.b.protocol.begin_creation(object, w.b.effects));
  w.b.protocol.gone(w.a.self(), w.b.effects);
  CHECK(w.b.effects.released.empty());
  w.b.protocol.end_creation(object, w.b.effects);
  CHECK(w.b.effects.released == std::vector{object});
  CHECK(w.b.has_no_records());
}

TEST_CASE("an owner that dies makes its references fail") {
  parties w;
  const object_id object = create(w.a, w.b);
  const held_fork fork = w.a.protocol.creating_fork(object);
  const handed_reference handed = w.a.protocol.transfer(fork, w.c.self());
  const object_id unfinished = w.a.protocol.create(w.b.self());
  w.a.protocol.gone(w.b.self(), w.a.effects);
  CHECK(w.a.effects.failed.size() == 2);
  CHECK(w.a.effects.failed.front() == reference_effects::failure{fork, ferry::errc::peer_lost});
  CHECK(w.a.protocol.settled(w.c.self(), handed.transfer));
  CHECK(w.a.has_no_records());
  w.a.protocol.confirm_creation(unfinished, w.a.effects);
  w.a.protocol.drop(fork, w.a.effects);
  CHECK(w.a.protocol.transfer(fork, w.c.self()).transfer == 0);
  CHECK(w.c.protocol.receive({}, w.a.self(), w.c.effects).refused);
  SUBCASE("while a child's request is in flight") {
    const auto receipt = w.c.protocol.receive(handed, w.a.self(), w.c.effects);
    w.take(w.c);
    w.c.protocol.gone(w.b.self(), w.c.effects);
    CHECK(w.c.effects.failed == std::vector{reference_effects::failure{receipt.fork, ferry::errc::peer_lost}});
  }
  SUBCASE("before a child receives it") {
    w.c.protocol.gone(w.b.self(), w.c.effects);
    const auto receipt = w.c.protocol.receive(handed, w.a.self(), w.c.effects);
    CHECK_FALSE(receipt.refused);
    CHECK(w.c.effects.failed == std::vector{reference_effects::failure{receipt.fork, ferry::errc::peer_lost}});
  }
  REQUIRE(w.c.effects.controls.size() == 1);  // the parent is notified either way
  w.settle();
  CHECK(w.a.has_no_records());
  CHECK(w.c.has_no_records());
  const object_id next = w.c.protocol.create(w.b.self());  // leaves no record
  w.c.protocol.not_created(next, w.c.effects);
  CHECK(w.c.has_no_records());
}

TEST_CASE("a child that dies frees its parent") {
  parties w;
  const object_id object = create(w.a, w.b);
  const held_fork fork = w.a.protocol.creating_fork(object);
  const handed_reference handed = w.a.protocol.transfer(fork, w.c.self());
  w.c.protocol.receive(handed, w.a.self(), w.c.effects);
  w.b.protocol.transfer(object, w.c.self());
  w.deliver(w.c, w.take(w.c));
  CHECK(w.b.protocol.figures().forks == 3);
  w.a.protocol.drop(fork, w.a.effects);
  CHECK(w.a.effects.controls.empty());
  w.c = party{2};
  w.a.protocol.gone(w.c.self(), w.a.effects);
  w.b.protocol.gone(w.c.self(), w.b.effects);
  w.settle();
  CHECK(w.b.effects.released == std::vector{object});
  CHECK(w.no_records_left());
}

TEST_CASE("a child can hold an object that the owner still has although its parent died") {
  parties w;
  const object_id object = create(w.a, w.b);
  const held_fork fork = w.a.protocol.creating_fork(object);
  const auto receipt = w.c.protocol.receive(w.a.protocol.transfer(fork, w.c.self()), w.a.self(), w.c.effects);
  w.c.protocol.gone(w.a.self(), w.c.effects);
  SUBCASE("the child's request arrives first") {
    w.deliver(w.c, w.take(w.c));
    w.b.protocol.gone(w.a.self(), w.b.effects);
    CHECK(w.b.effects.released.empty());
    CHECK(w.c.protocol.confirmed(receipt.fork));
    w.c.protocol.drop(receipt.fork, w.c.effects);
  }
  SUBCASE("the owner learns of the death first") {
    w.b.protocol.gone(w.a.self(), w.b.effects);
    CHECK(w.b.effects.released == std::vector{object});
    CHECK(w.deliver(w.c, w.take(w.c)) == reference_answer::too_late);
    CHECK(w.c.effects.failed == std::vector{reference_effects::failure{receipt.fork, ferry::errc::reference_deleted}});
  }
  w.a = party{0};
  w.settle();
  CHECK(w.b.effects.released == std::vector{object});
  CHECK(w.no_records_left());
}

TEST_CASE("references of an object that was never made end like others") {
  parties w;
  const object_id object = w.a.protocol.create(w.b.self());
  const held_fork fork = w.a.protocol.creating_fork(object);
  const handed_reference to_child = w.a.protocol.transfer(fork, w.c.self());
  const handed_reference to_owner = w.a.protocol.transfer(fork, w.b.self());
  w.a.protocol.query_creation(object, w.a.effects);
  w.settle();
  CHECK(w.a.protocol.settled(w.c.self(), to_child.transfer));
  const auto child = w.c.protocol.receive(to_child, w.a.self(), w.c.effects);
  const auto own = w.b.protocol.receive(to_owner, w.a.self(), w.b.effects);
  CHECK(own.own);
  CHECK(contains(w.b.effects.never_made, object));
  CHECK(w.b.protocol.look_up(object) == knowledge::deleted);
  w.settle();
  CHECK(w.c.effects.failed == std::vector{reference_effects::failure{child.fork, ferry::errc::reference_deleted}});
  w.b.protocol.drop_locally(object, w.b.effects);
  CHECK(w.no_records_left());
}

TEST_CASE("drop_all ends all forks, pending and pinned ones as soon as they can end") {
  parties w;
  const object_id object = create(w.a, w.b);
  const object_id pending = w.a.protocol.create(w.b.self());
  const object_id given = create(w.a, w.b);
  const handed_reference handed = w.a.protocol.transfer(w.a.protocol.creating_fork(given), w.c.self());
  w.a.protocol.drop_all(w.a.effects);
  CHECK(w.a.protocol.pending() == 2);
  w.settle();
  CHECK(w.b.effects.released == std::vector{object});
  REQUIRE(w.b.protocol.begin_creation(pending, w.b.effects));
  w.b.protocol.end_creation(pending, w.b.effects);
  w.a.protocol.confirm_creation(pending, w.a.effects);
  w.c.protocol.receive(handed, w.a.self(), w.c.effects);
  w.c.protocol.drop_all(w.c.effects);
  w.settle();
  CHECK(w.b.effects.released.size() == 3);
  CHECK(w.no_records_left());
}

TEST_CASE("the records of unsent and withdrawn transfers are discarded eventually") {
  using ferry::detail::reference_protocol;
  parties w;
  const object_id object = create(w.a, w.b);
  const held_fork fork = w.a.protocol.creating_fork(object);
  const auto& memory = [&]() -> auto& { return reference_probe::peer(w.c.protocol, w.a.self()); };
  const handed_reference open = w.a.protocol.transfer(fork, w.c.self());  // in flight all the time
  handed_reference last_withdrawn;
  for (int round = 0; round != 1000; ++round) {
    // One that arrives, between one that is not sent and one that is withdrawn.
    w.a.protocol.not_sent(w.c.self(), w.a.protocol.transfer(fork, w.c.self()).transfer, w.a.effects);
    const handed_reference handed = w.a.protocol.transfer(fork, w.c.self());
    w.c.protocol.drop(w.c.protocol.receive(handed, w.a.self(), w.c.effects).fork, w.c.effects);
    last_withdrawn = w.a.protocol.transfer(fork, w.c.self());
    w.a.protocol.query(w.c.self(), last_withdrawn.transfer, w.a.effects);
    w.settle();
    if (round == 500) {
      // From then on nothing holds the watermark back.
      CHECK(memory().seen.intervals() > 400);
      CHECK(w.c.protocol.receive(open, w.a.self(), w.c.effects).refused == false);
      w.c.protocol.drop(w.c.protocol.receive(open, w.a.self(), w.c.effects).fork, w.c.effects);
      w.settle();
    }
  }
  CHECK(memory().seen.intervals() <= reference_protocol::most_left_out + 1);
  CHECK(memory().withdrawn.intervals() <= reference_protocol::most_left_out);
  // Late ones are refused nevertheless.
  CHECK(w.c.protocol.receive(last_withdrawn, w.a.self(), w.c.effects).refused);
  CHECK(w.c.protocol.receive({object, open.transfer + 1}, w.a.self(), w.c.effects).refused);
  w.a.protocol.drop(fork, w.a.effects);
  w.settle();
  CHECK(w.no_records_left());
}

TEST_CASE("little is recorded of terminated workers, and only of the most recent ones") {
  using ferry::detail::reference_protocol;
  party own(0);
  const peer_incarnation other{{7}, {1}};
  for (std::uint64_t incarnation = 1; incarnation <= 2 * reference_protocol::most_gone; ++incarnation) {
    const peer_incarnation peer{{1}, {incarnation}};
    const object_id object = own.protocol.create(peer);
    own.protocol.confirm_creation(object, own.effects);
    const handed_reference handed = own.protocol.transfer(own.protocol.creating_fork(object), other);
    (void)own.protocol.receive({{own.self(), peer, incarnation}, 1}, peer, own.effects);
    own.protocol.gone(peer, own.effects);
    own.protocol.not_sent(other, handed.transfer, own.effects);
    // No transfer or creation with a dead peer is registered; their numbers come from a separate range.
    CHECK(own.protocol.receive({{own.self(), peer, incarnation}, 2}, peer, own.effects).refused);
    const object_id unused = own.protocol.create(peer);
    CHECK(unused.number > object.number);
    CHECK(own.protocol.settled(peer, 1));
    own.effects = {};
  }
  CHECK(reference_probe::peers(own.protocol).size() <= 2);
  CHECK(reference_probe::gone(own.protocol).size() == reference_protocol::most_gone);
  CHECK(own.protocol.is_gone({{1}, {2 * reference_protocol::most_gone}}));
  CHECK_FALSE(own.protocol.is_gone({{1}, {1}}));
  CHECK(own.protocol.figures().users == 0);
}

TEST_CASE("the records of ended forks and transfers stay small") {
  parties w;
  const object_id object = create(w.a, w.b);
  const held_fork fork = w.a.protocol.creating_fork(object);
  for (int round = 0; round < 100; ++round) {
    const handed_reference handed = w.a.protocol.transfer(fork, w.c.self());
    const auto receipt = w.c.protocol.receive(handed, w.a.self(), w.c.effects);
    w.c.protocol.drop(receipt.fork, w.c.effects);
    w.settle();
    w.a.protocol.drop(w.a.protocol.creating_fork(create(w.a, w.b)), w.a.effects);
    w.settle();
  }
  CHECK(reference_probe::peer(w.b.protocol, w.c.self()).ended_claims.intervals() == 1);
  CHECK(reference_probe::peer(w.b.protocol, w.a.self()).ended_claims.intervals() == 1);
  CHECK(reference_probe::peer(w.c.protocol, w.a.self()).seen.intervals() == 1);
  CHECK(w.b.protocol.figures().forks == 1);
}

}  // namespace reference_faults_test
