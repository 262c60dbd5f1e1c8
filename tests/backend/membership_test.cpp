// Who is in a dynamic group: the log that its members agree through.

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/store/hash_store.hpp>

#include "../../src/backend/member_log.hpp"
#include "expect_error.hpp"
#include "watchdog.hpp"

using namespace std::chrono_literals;
using ferry::errc;
using ferry::hash_store;
using ferry::incarnation;
using ferry::worker_id;
using ferry::worker_info;
using ferry::detail::member_entry;
using ferry::detail::member_log;
using ferry::detail::membership;
using ferry::detail::membership_change;
using ferry::detail::worker_record;
using kind = membership_change::kind;

namespace {

worker_record record(const std::string& name, int id, std::uint64_t life) {
  return {worker_info(name, id), incarnation{life}, "a/b", {"tcp://127.0.0.1:1"}, {}, 0};
}

std::vector<std::string> names(const membership& group) {
  std::vector<std::string> result;
  for (const auto& [id, each] : group.members()) result.push_back(each.who.name());
  return result;
}

// A reader of a log, and what it was told.
struct reader {
  explicit reader(std::shared_ptr<ferry::store> where)
      : log(std::move(where), [this](const membership_change& change) {
          const char* verb = change.what == kind::joined ? "+" : change.what == kind::left ? "-" : "x";
          told.push_back(verb + change.record.who.name());
        }) {}
  std::vector<std::string> told;
  member_log log;
};

}  // namespace

TEST_CASE("entries survive the round trip") {
  auto with_metadata = record("a-b_c:d", 32767, 0x0123456789abcdef);
  with_metadata.metadata = std::string("\n\n\0\xff", 4);
  for (const auto& entry : {member_entry::join(with_metadata), member_entry::leave(incarnation{7}),
                            member_entry::lost(incarnation{1}, incarnation{2}, "two\nlines")}) {
    const auto got = member_entry::decode(entry.encode());
    CHECK(got.what == entry.what);
    CHECK(got.record.who == entry.record.who);
    CHECK(got.record.life == entry.record.life);
    CHECK(got.record.host == entry.record.host);
    CHECK(got.record.addresses == entry.record.addresses);
    CHECK(got.record.metadata == entry.record.metadata);
    CHECK(got.witness == entry.witness);
    CHECK(got.whom == entry.whom);
    CHECK(got.reason == entry.reason);
  }
  for (const char* text : {"", "join", "join 1", "join x\na\n1\n@\nb\n\n", "join 99999\na\n1\n@\nb\n\n",
                           "join 1\na\nzz\n@\nb\n\n", "join 1\na\n1\nb\nc\n\n", "join 1\na\n1\n@\nb",
                           "join 1\n bad name\n1\n@\nb\n\n", "leave", "leave xyz\n", "lost 1\nwhy", "born 1\n"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(member_entry::decode(text), ferry::error);
  }
}

TEST_CASE("an entry that does not fit changes nothing") {
  membership group;
  std::uint64_t index = 0;
  const auto apply = [&](const member_entry& entry) { return group.apply(++index, entry).what; };
  CHECK(apply(member_entry::join(record("a", 0, 10))) == kind::joined);
  CHECK(apply(member_entry::join(record("a", 1, 11))) == kind::none);
  CHECK(apply(member_entry::join(record("b", 0, 11))) == kind::none);
  CHECK(apply(member_entry::join(record("b", 1, 11))) == kind::joined);
  CHECK(apply(member_entry::leave(incarnation{99})) == kind::none);
  CHECK(apply(member_entry::lost(incarnation{99}, incarnation{11}, "")) == kind::none);  // a stranger says so
  CHECK(group.find("b")->joined == 4);
  CHECK(group.lowest_free_id() == 2);
  // Each takes the other for dead: the first one is believed.
  CHECK(apply(member_entry::lost(incarnation{10}, incarnation{11}, "silent")) == kind::lost);
  CHECK(apply(member_entry::lost(incarnation{11}, incarnation{10}, "silent")) == kind::none);
  CHECK(apply(member_entry::lost(incarnation{10}, incarnation{11}, "again")) == kind::none);
  CHECK(names(group) == std::vector<std::string>{"a"});
  // Its place is free.
  CHECK(apply(member_entry::join(record("b", 1, 12))) == kind::joined);
  CHECK(apply(member_entry::lost({}, incarnation{12}, "found gone by one that joins")) == kind::lost);
  CHECK(apply(member_entry::leave(incarnation{10})) == kind::left);
  CHECK(group.members().empty());
  CHECK(group.lowest_free_id() == 0);
}

TEST_CASE("a list of the members survives the round trip") {
  membership group;
  for (int i = 0; i != 20; ++i) {
    auto each = record("w" + std::to_string(i), 3 * i, static_cast<std::uint64_t>(i) + 1);
    each.metadata = std::string(static_cast<std::size_t>(i), '\n');
    group.apply(static_cast<std::uint64_t>(i) + 1, member_entry::join(each));
  }
  const std::string text = group.encode();
  const auto got = membership::decode(text);
  CHECK(got.index() == 20);
  CHECK(names(got) == names(group));
  CHECK(got.encode() == text);
  CHECK(got.find(worker_id{57})->joined == 20);
  for (const std::size_t size : {std::size_t{0}, std::size_t{3}, text.size() / 2, text.size() - 1}) {
    CHECK_THROWS_AS(membership::decode(text.substr(0, size)), ferry::error);
  }
}

TEST_CASE("everybody who reads a log comes to the same result") {
  const auto where = std::make_shared<hash_store>();
  reader one(where);
  reader two(where);
  one.log.load();
  two.log.load();
  CHECK(one.log.append(member_entry::join(record("a", 0, 1))).what == kind::joined);
  CHECK(two.log.append(member_entry::join(record("a", 0, 2))).what == kind::none);
  CHECK(two.log.append(member_entry::join(record("b", 1, 2))).what == kind::joined);
  CHECK(one.log.append(member_entry::leave(incarnation{2})).what == kind::left);
  CHECK(one.told == std::vector<std::string>{"+a", "+b", "-b"});
  two.log.catch_up();
  CHECK(two.told == one.told);
  CHECK(two.log.seen() == 4);
  SUBCASE("what cannot be read is skipped by all") {
    where->set("log/5", "rubbish");
    CHECK(one.log.append(member_entry::join(record("c", 2, 3))).what == kind::joined);
    CHECK(one.log.seen() == 6);
    two.log.catch_up();
    CHECK(two.told.back() == "+c");
  }
  SUBCASE("who waits is woken") {
    ferry_test::watchdog dog("a log of members");
    CHECK(one.log.wait());  // what there is now
    CHECK_FALSE(one.log.wait(ferry::deadline::after(5ms)));
    std::thread waiting([&] { CHECK(one.log.wait()); });
    two.log.append(member_entry::join(record("c", 2, 3)));
    waiting.join();
    one.log.catch_up();
    CHECK(one.told.back() == "+c");
    std::thread closed([&] { expect_error(errc::store_failed, "closed", [&] { (void)one.log.wait(); }); });
    where->close();
    closed.join();
  }
}

TEST_CASE("a long log is trimmed; who joins late or was away for long misses nothing that counts") {
  const auto where = std::make_shared<hash_store>();
  reader writer(where);
  reader away(where);
  writer.log.load();
  away.log.load();
  writer.log.append(member_entry::join(record("stays", 0, 1)));
  writer.log.append(member_entry::join(record("goes", 1, 2)));
  away.log.catch_up();
  writer.log.append(member_entry::leave(incarnation{2}));
  const std::uint64_t churn = 2 * member_log::kept_entries;
  for (std::uint64_t i = 0; i != churn; ++i) {
    writer.log.append(member_entry::join(record("w", 5, 100 + i)));
    writer.log.append(member_entry::leave(incarnation{100 + i}));
  }
  writer.log.append(member_entry::join(record("last", 7, 3)));
  const std::size_t kept = where->count("log/");
  CHECK(kept <= member_log::kept_entries + member_log::snapshot_interval);
  CHECK(kept >= member_log::kept_entries);

  reader late(where);
  late.log.load();
  CHECK(names(late.log.members()) == std::vector<std::string>{"stays", "last"});
  CHECK(late.log.seen() == writer.log.seen());

  SUBCASE("it reads") {
    CHECK(away.log.wait());  // learns where the end is
    away.log.catch_up();
  }
  SUBCASE("it writes, at an index that is long gone") { away.log.append(member_entry::leave(incarnation{99})); }
  CHECK(names(away.log.members()) == std::vector<std::string>{"stays", "last"});
  CHECK(away.told.front() == "+stays");
  CHECK(away.told[1] == "+goes");
  CHECK(away.told[2] == "-goes");
  CHECK(away.told.back() == "+last");
  CHECK(where->count("log/") <= kept + 1);
}

TEST_CASE("a log that somebody has cut is an error, not an endless wait") {
  const auto where = std::make_shared<hash_store>();
  reader writer(where);
  writer.log.load();
  writer.log.append(member_entry::join(record("a", 0, 1)));
  where->set("trimmed", "5");
  expect_error(errc::malformed, "gap", [&] { (void)writer.log.append(member_entry::join(record("b", 1, 2))); });
}

TEST_CASE("many writers at once") {
  const auto where = std::make_shared<hash_store>();
  constexpr int writers = 4;
  constexpr int each = 60;
  std::vector<std::thread> threads;
  for (int t = 0; t != writers; ++t) {
    threads.emplace_back([&, t] {
      reader own(where);
      own.log.load();
      for (int i = 0; i != each; ++i) {
        const int id = t * each + i;
        const auto life = static_cast<std::uint64_t>(id) + 1;
        CHECK(own.log.append(member_entry::join(record("w" + std::to_string(id), id, life))).what == kind::joined);
        if (i % 2 == 0) CHECK(own.log.append(member_entry::leave(incarnation{life})).what == kind::left);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  reader late(where);
  late.log.load();
  CHECK(late.log.members().members().size() == writers * each / 2);
  CHECK(late.log.seen() == writers * each * 3 / 2);
}
