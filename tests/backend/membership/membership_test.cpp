// The members of a dynamic group: the log that they agree through.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/store/hash_store.hpp>

#include "expect_error.hpp"
#include "forwarding_store.hpp"
#include "patient_log.hpp"
#include "watchdog.hpp"

namespace membership_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry::hash_store;
using ferry::incarnation_id;
using ferry::worker_id;
using ferry::worker_info;
using ferry::detail::device_record;
using ferry::detail::member_entry;
using ferry::detail::member_log;
using ferry::detail::membership;
using ferry::detail::membership_change;
using ferry::detail::worker_record;
using kind = membership_change::kind;

namespace {

worker_record record(const std::string& name, int id, std::uint64_t incarnation) {
  return {worker_info(name, id), incarnation_id{incarnation}, "a/b", {"tcp://127.0.0.1:1"}, {}};
}

std::vector<std::string> names(const membership& group) {
  std::vector<std::string> result;
  for (const auto& [id, each] : group.members()) result.push_back(each.record->who.name());
  return result;
}

const char* verb_of(const membership_change& change) {
  switch (change.what) {
    case kind::none: return "nothing about ";
    case kind::joined: return change.member.leaving ? "leaving already: " : "+";
    case kind::left: return "-";
    case kind::gone: return change.member.leaving ? "0" : "-0";
    case kind::lost: return "x";
    case kind::suspected: return "?";
    case kind::answered: return "!";
  }
  return "";
}

// A reader of a log, and the changes that it reported.
struct reader {
  explicit reader(std::shared_ptr<ferry::store> where)
      : log(std::move(where), [this](const membership_change& change) {
          changes.push_back(verb_of(change) + change.member.record->who.name());
        }) {}
  std::vector<std::string> changes;
  patient_log log;
};

}  // namespace

TEST_CASE("entries survive the round trip") {
  auto with_metadata = record("a-b_c:d", 32767, 0x0123456789abcdef);
  with_metadata.devices = std::make_shared<const device_record>(
      device_record{{{ferry::device_kind::cuda, 2}}, {{ferry::device_kind::cuda, 1}}, {{"b", {{"cuda:1", "cpu"}}}}});
  with_metadata.limits = std::make_shared<const ferry::wire_limits>(ferry::wire_limits{.max_message_bytes = 1'000'000,
                                                                                       .max_tensors = 3,
                                                                                       .max_rank = 2,
                                                                                       .max_extension_bytes = 512,
                                                                                       .max_extensions = 0});
  with_metadata.serves_store = true;
  with_metadata.metadata = std::string("\n\n\0\xff", 4);
  for (const auto& entry : {member_entry::join(with_metadata), member_entry::leave(incarnation_id{7}),
                            member_entry::gone(incarnation_id{8}), member_entry::alive(incarnation_id{9}),
                            member_entry::suspect(incarnation_id{3}, incarnation_id{4}),
                            member_entry::lost(incarnation_id{1}, incarnation_id{2}, "two\nlines"),
                            member_entry::lost(incarnation_id{1}, incarnation_id{2}, "", 77)}) {
    const auto got = member_entry::decode(entry.encode());
    CHECK(got.what == entry.what);
    CHECK(got.record.who == entry.record.who);
    CHECK(got.record.incarnation == entry.record.incarnation);
    CHECK(got.record.host == entry.record.host);
    CHECK(got.record.addresses == entry.record.addresses);
    CHECK(got.record.serves_store == entry.record.serves_store);
    CHECK(got.record.metadata == entry.record.metadata);
    CHECK(!got.record.devices == !entry.record.devices);
    if (got.record.devices) CHECK(*got.record.devices == *entry.record.devices);
    CHECK(!got.record.limits == !entry.record.limits);
    if (got.record.limits) CHECK(*got.record.limits == *entry.record.limits);
    CHECK(got.witness == entry.witness);
    CHECK(got.whom == entry.whom);
    CHECK(got.unanswered == entry.unanswered);
    CHECK(got.reason == entry.reason);
  }
  for (const char* text : {"",
                           "join",
                           "join 1",
                           "join x\na\n1\n@\nb\n\n",
                           "join 99999\na\n1\n@\nb\n\n",
                           "join 1\na\nzz\n@\nb\n\n",
                           "join 1\na\n1\nb\nc\n\n",
                           "join 1\na\n1\n@\nb",
                           "join 1\n bad name\n1\n@\nb\n\n",
                           "join 1\na\n1\n@\n#- -\n\n",
                           "join 1\na\n1\n@\n#-\nb\n\n",
                           "join 1\na\n1\n@\n!store\n\n",
                           "join 1\na\n1\n@\n!limits 1 2 3 4 5\n\n",
                           "join 1\na\n1\n@\n!limits 1 2 3 4\nb\n\n",
                           "join 1\na\n1\n@\n!limits 1 2 3 4 x\nb\n\n",
                           "join 1\na\n1\n@\n!limits 1 2 99999999999 4 5\nb\n\n",
                           "join 1\na\n1\n@\nb\n#- -\n",
                           "leave",
                           "leave xyz\n",
                           "lost 1\nwhy",
                           "lost 1 2\nwhy",
                           "lost 1 2 x\nwhy",
                           "gone\n",
                           "suspect 1\n",
                           "alive x\n",
                           "born 1\n"}) {
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
  CHECK(apply(member_entry::leave(incarnation_id{99})) == kind::none);
  CHECK(apply(member_entry::lost(incarnation_id{99}, incarnation_id{11}, "")) == kind::none);  // an unknown witness
                                                                                               // reports it
  CHECK(group.find("b")->joined == 4);
  CHECK(group.lowest_free_id() == 2);
  // Each declares the other dead: the first entry wins.
  CHECK(apply(member_entry::lost(incarnation_id{10}, incarnation_id{11}, "silent")) == kind::lost);
  CHECK(apply(member_entry::lost(incarnation_id{11}, incarnation_id{10}, "silent")) == kind::none);
  CHECK(apply(member_entry::lost(incarnation_id{10}, incarnation_id{11}, "again")) == kind::none);
  CHECK(names(group) == std::vector<std::string>{"a"});
  // Its name and id are free.
  CHECK(apply(member_entry::join(record("b", 1, 12))) == kind::joined);
  CHECK(apply(member_entry::lost({}, incarnation_id{12}, "found dead by a joining worker")) == kind::lost);
  CHECK(apply(member_entry::leave(incarnation_id{10})) == kind::left);
  CHECK(apply(member_entry::gone(incarnation_id{10})) == kind::gone);
  CHECK(group.members().empty());
  CHECK(group.lowest_free_id() == 0);
}

TEST_CASE("a leaving worker keeps its name and its id until it is gone") {
  membership group;
  std::uint64_t index = 0;
  const auto apply = [&](const member_entry& entry) { return group.apply(++index, entry); };
  apply(member_entry::join(record("a", 0, 10)));
  apply(member_entry::join(record("b", 1, 11)));
  CHECK(apply(member_entry::leave(incarnation_id{11})).what == kind::left);
  CHECK(apply(member_entry::leave(incarnation_id{11})).what == kind::none);
  CHECK(group.find("b")->leaving);
  CHECK(apply(member_entry::join(record("b", 2, 12))).what == kind::none);
  CHECK(apply(member_entry::join(record("c", 1, 12))).what == kind::none);
  CHECK(group.lowest_free_id() == 2);
  const auto got = membership::decode(group.encode());
  CHECK(got.find("b")->leaving);
  CHECK_FALSE(got.find("a")->leaving);
  SUBCASE("by its own entry") { CHECK(apply(member_entry::gone(incarnation_id{11})).what == kind::gone); }
  SUBCASE("by that of a member that found it dead: it had left, and was not lost") {
    const auto change = apply(member_entry::lost(incarnation_id{10}, incarnation_id{11}, "silent"));
    CHECK(change.what == kind::gone);
    CHECK(change.member.leaving);
  }
  SUBCASE("while it leaves it may report that another one is dead") {
    CHECK(apply(member_entry::lost(incarnation_id{11}, incarnation_id{10}, "silent")).what == kind::lost);
    CHECK(apply(member_entry::gone(incarnation_id{11})).what == kind::gone);
  }
  CHECK(apply(member_entry::gone(incarnation_id{11})).what == kind::none);
  CHECK(apply(member_entry::join(record("b", 1, 12))).what == kind::joined);
  // Without having announced its leave.
  const auto change = apply(member_entry::gone(incarnation_id{12}));
  CHECK(change.what == kind::gone);
  CHECK_FALSE(change.member.leaving);
}

TEST_CASE("a member that is queried whether it lives, and answers in time, is not lost") {
  membership group;
  std::uint64_t index = 0;
  const auto apply = [&](const member_entry& entry) { return group.apply(++index, entry).what; };
  apply(member_entry::join(record("a", 0, 10)));
  apply(member_entry::join(record("b", 1, 11)));
  CHECK(apply(member_entry::suspect(incarnation_id{99}, incarnation_id{11})) == kind::none);  // an unknown member asks
  CHECK(apply(member_entry::alive(incarnation_id{11})) == kind::none);                        // there was no query
  CHECK(apply(member_entry::suspect(incarnation_id{10}, incarnation_id{11})) == kind::suspected);
  const std::uint64_t asked = index;
  CHECK(group.find("b")->suspected == asked);
  CHECK(membership::decode(group.encode()).find("b")->suspected == asked);
  CHECK(apply(member_entry::suspect(incarnation_id{10}, incarnation_id{11})) == kind::none);
  SUBCASE("it answers first") {
    CHECK(apply(member_entry::alive(incarnation_id{11})) == kind::answered);
    CHECK(apply(member_entry::lost(incarnation_id{10}, incarnation_id{11}, "", asked)) == kind::none);
    // Of an earlier query that it answered.
    CHECK(apply(member_entry::suspect(incarnation_id{10}, incarnation_id{11})) == kind::suspected);
    CHECK(apply(member_entry::lost(incarnation_id{10}, incarnation_id{11}, "", asked)) == kind::none);
  }
  SUBCASE("it leaves, which is an answer") {
    CHECK(apply(member_entry::leave(incarnation_id{11})) == kind::left);
    CHECK(apply(member_entry::lost(incarnation_id{10}, incarnation_id{11}, "", asked)) == kind::none);
  }
  SUBCASE("it does not answer") {
    CHECK(apply(member_entry::lost(incarnation_id{10}, incarnation_id{11}, "", asked)) == kind::lost);
    CHECK(apply(member_entry::alive(incarnation_id{11})) == kind::none);
  }
}

namespace {

std::shared_ptr<const device_record> devices(int count, ferry::device_map_table maps = {}) {
  return std::make_shared<const device_record>(device_record{{{ferry::device_kind::cuda, count}}, {}, std::move(maps)});
}

worker_record record(const std::string& name, int id, std::uint64_t incarnation,
                     std::shared_ptr<const device_record> has) {
  worker_record result = record(name, id, incarnation);
  result.devices = std::move(has);
  return result;
}

}  // namespace

TEST_CASE("a worker whose device maps conflict with those of the members does not join, for any reader") {
  membership group;
  std::uint64_t index = 0;
  const auto apply = [&](const member_entry& entry) { return group.apply(++index, entry).what; };
  CHECK(apply(member_entry::join(record("a", 0, 10, devices(2, {{"c", {{1, 1}}}})))) == kind::joined);
  CHECK(apply(member_entry::join(record("b", 1, 11))) == kind::joined);  // publishes no devices
  CHECK(apply(member_entry::join(record("d", 3, 13, devices(1, {{"d", {{0, 1}}}})))) == kind::none);
  CHECK(apply(member_entry::join(record("d", 3, 13, devices(1, {{"b", {{0, 99}}}})))) == kind::joined);
  // One for which a member has a map to a missing device.
  const worker_record poor = record("c", 2, 12, devices(1));
  CHECK(group.device_conflict(poor).find("worker a has target devices with invalid indices in its device map for c") ==
        0);
  CHECK(apply(member_entry::join(poor)) == kind::none);
  CHECK(names(group) == std::vector<std::string>{"a", "b", "d"});
  // The fault of the lowest id is reported first, whatever the order of the joins.
  worker_record bad = record("c", 2, 12, devices(1, {{"d", {{0, 5}}}}));
  CHECK(group.device_conflict(bad).find("worker a has") == 0);
  SUBCASE("it has gone, and so have its maps") { CHECK(apply(member_entry::gone(incarnation_id{10})) == kind::gone); }
  SUBCASE("it leaves, and makes no more calls") { CHECK(apply(member_entry::leave(incarnation_id{10})) == kind::left); }
  CHECK(group.device_conflict(bad).find("worker c has target devices") == 0);
  CHECK(apply(member_entry::join(poor)) == kind::joined);
  const auto got = membership::decode(group.encode());
  CHECK(*got.find("d")->record->devices == *group.find("d")->record->devices);
  CHECK_FALSE(got.find("b")->record->devices);
  CHECK(got.encode() == group.encode());
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

TEST_CASE("a list of members of whom two share a name, an id or an incarnation is malformed") {
  const auto listed = [](const std::string& name, int id, std::uint64_t incarnation) {
    membership one;
    one.apply(1, member_entry::join(record(name, id, incarnation)));
    const std::string text = one.encode();
    return text.substr(text.find('\n') + 1);
  };
  const std::string first = "1 2\n" + listed("a", 1, 11);
  CHECK(membership::decode(first + listed("b", 2, 12)).members().size() == 2);
  for (const std::string& second : {listed("a", 2, 12), listed("b", 1, 12), listed("b", 2, 11)})
    CHECK_THROWS_AS(membership::decode(first + second), ferry::error);
}

TEST_CASE("a member that is gone is found by nothing") {
  membership group;
  const auto found = [&](const std::string& name, int id, std::uint64_t incarnation) {
    return (group.find(name) ? 1 : 0) + (group.find(worker_id{id}) ? 1 : 0) +
           (group.find(incarnation_id{incarnation}) ? 1 : 0);
  };
  group.apply(1, member_entry::join(record("a", 1, 11)));
  group.apply(2, member_entry::join(record("b", 2, 12)));
  CHECK(found("a", 1, 11) == 3);
  group.apply(3, member_entry::gone(incarnation_id{11}));
  CHECK(found("a", 1, 11) == 0);
  CHECK(found("b", 2, 12) == 3);
  group.apply(4, member_entry::join(record("a", 3, 13)));
  CHECK(found("a", 3, 13) == 3);
  CHECK(group.find("a")->record->who.id().value == 3);
}

TEST_CASE("all readers of a log come to the same result") {
  const auto where = std::make_shared<hash_store>();
  reader one(where);
  reader two(where);
  one.log.load();
  two.log.load();
  CHECK(one.log.append(member_entry::join(record("a", 0, 1))) == kind::joined);
  CHECK(two.log.append(member_entry::join(record("a", 0, 2))) == kind::none);
  CHECK(two.log.append(member_entry::join(record("b", 1, 2))) == kind::joined);
  CHECK(one.log.append(member_entry::leave(incarnation_id{2})) == kind::left);
  CHECK(two.log.append(member_entry::gone(incarnation_id{2})) == kind::gone);
  one.log.catch_up();
  CHECK(one.changes == std::vector<std::string>{"+a", "+b", "-b", "0b"});
  two.log.catch_up();
  CHECK(two.changes == one.changes);
  CHECK(two.log.seen() == 5);
  SUBCASE("all readers skip invalid entries") {
    where->set("log/6", "rubbish");
    CHECK(one.log.append(member_entry::join(record("c", 2, 3))) == kind::joined);
    CHECK(one.log.seen() == 7);
    two.log.catch_up();
    CHECK(two.changes.back() == "+c");
  }
  SUBCASE("a waiting reader is woken") {
    ferry_test::watchdog dog("a log of members");
    CHECK(one.log.wait());  // for the present content
    CHECK_FALSE(one.log.wait(ferry::deadline::after(5ms)));
    std::thread waiting([&] { CHECK(one.log.wait()); });
    two.log.append(member_entry::join(record("c", 2, 3)));
    waiting.join();
    one.log.catch_up();
    CHECK(one.changes.back() == "+c");
    std::thread closed([&] { expect_error(errc::store_failed, "closed", [&] { (void)one.log.wait(); }); });
    where->close();
    closed.join();
  }
}

TEST_CASE("a long log is trimmed; a reader that joins late or was suspended for long gets the same result") {
  const auto where = std::make_shared<hash_store>();
  reader writer(where);
  reader away(where);
  writer.log.load();
  away.log.load();
  writer.log.append(member_entry::join(record("stays", 0, 1)));
  writer.log.append(member_entry::join(record("goes", 1, 2)));
  away.log.catch_up();
  writer.log.append(member_entry::leave(incarnation_id{2}));
  writer.log.append(member_entry::gone(incarnation_id{2}));
  const std::uint64_t churn = 2 * member_log::kept_entries;
  for (std::uint64_t i = 0; i != churn; ++i) {
    writer.log.append(member_entry::join(record("w", 5, 100 + i)));
    writer.log.append(member_entry::gone(incarnation_id{100 + i}));
  }
  writer.log.append(member_entry::join(record("last", 7, 3)));
  const std::size_t kept = where->count("log/");
  CHECK(kept <= member_log::kept_entries + member_log::snapshot_interval);
  CHECK(kept >= member_log::kept_entries);

  reader late(where);
  late.log.load();
  CHECK(names(late.log.members()) == std::vector<std::string>{"stays", "last"});
  CHECK(late.log.seen() == writer.log.seen());

  SUBCASE("it is woken, and reads") {
    CHECK(away.log.wait());
    away.log.catch_up();
  }
  SUBCASE("it reads without having been woken") { away.log.catch_up(); }
  SUBCASE("it writes, at an index that is long gone") { away.log.append(member_entry::leave(incarnation_id{99})); }
  CHECK(names(away.log.members()) == std::vector<std::string>{"stays", "last"});
  CHECK(away.changes.front() == "+stays");
  CHECK(away.changes[1] == "+goes");
  CHECK(away.changes[2] == "-0goes");  // whichever it read first
  CHECK(away.changes.back() == "+last");
  CHECK(where->count("log/") <= kept + 1);
}

TEST_CASE("a log with removed entries is an error, not an endless wait") {
  const auto where = std::make_shared<hash_store>();
  reader writer(where);
  writer.log.load();
  writer.log.append(member_entry::join(record("a", 0, 1)));
  where->set("trimmed", "5");
  expect_error(errc::malformed, "gap", [&] { (void)writer.log.append(member_entry::join(record("b", 1, 2))); });
}

// A store some of whose functions fail, or are preceded by a hook.
class troubled_store final : public ferry_test::forwarding_store {
 public:
  using forwarding_store::forwarding_store;
  std::string refused;                                        ///< writes of this key fail
  std::function<void(std::string_view key)> before_get = {};  ///< of one key

 protected:
  void do_set(std::string_view key, std::string_view value, ferry::deadline until) override {
    check(key);
    forwarding_store::do_set(key, value, until);
  }
  std::optional<std::string> do_try_get(std::string_view key, ferry::deadline until) override {
    if (before_get) before_get(key);
    return forwarding_store::do_try_get(key, until);
  }
  std::string do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                             ferry::deadline until) override {
    check(key);
    return forwarding_store::do_compare_set(key, expected, desired, until);
  }

 private:
  void check(std::string_view key) const {
    if (key == refused) throw ferry::error(errc::limit_exceeded, "the value is too long");
  }
};

TEST_CASE("a log whose list of members cannot be written continues untrimmed, and is trimmed once it can be") {
  const auto inner = std::make_shared<hash_store>();
  const auto where = std::make_shared<troubled_store>(inner);
  reader writer(where);
  writer.log.load();
  writer.log.append(member_entry::join(record("stays", 0, 1)));
  std::uint64_t incarnation = 100;
  const auto append_up_to = [&](std::uint64_t index) {
    while (writer.log.seen() < index) {
      const bool join = writer.log.members().find("w") == nullptr;
      if (join) ++incarnation;
      const auto change = writer.log.append(join ? member_entry::join(record("w", 5, incarnation))
                                                 : member_entry::gone(incarnation_id{incarnation}));
      CHECK(change == (join ? kind::joined : kind::gone));
    }
  };
  where->refused = "members";
  append_up_to(2 * member_log::snapshot_interval + 1);  // past the entries 128 and 256
  CHECK_FALSE(inner->try_get("members"));
  CHECK(inner->count("log/") == 2 * member_log::snapshot_interval + 1);
  reader late(where);
  late.log.load();
  CHECK(names(late.log.members()) == names(writer.log.members()));
  SUBCASE("the list can be written, the index of the removed entries cannot") {
    where->refused = "trimmed";
    append_up_to(4 * member_log::snapshot_interval);
    CHECK(inner->try_get("members"));
    CHECK(inner->count("log/") == 4 * member_log::snapshot_interval);
  }
  SUBCASE("at once") {}
  where->refused.clear();
  append_up_to(5 * member_log::snapshot_interval + 1);
  CHECK(inner->count("log/") == member_log::kept_entries + 1);
  late.log.catch_up();
  CHECK(names(late.log.members()) == names(writer.log.members()));
  reader later(where);
  later.log.load();
  CHECK(names(later.log.members()) == names(writer.log.members()));
}

TEST_CASE("an entry that a suspended writer puts in place of removed entries is ignored by all readers") {
  const auto inner = std::make_shared<hash_store>();
  const auto where = std::make_shared<troubled_store>(inner);
  reader writer(inner);
  reader away(where);
  writer.log.load();
  away.log.load();
  writer.log.append(member_entry::join(record("a", 0, 1)));
  away.log.catch_up();
  const std::uint64_t next = away.log.seen() + 1;
  for (std::uint64_t i = 0; i != member_log::kept_entries; ++i) {
    writer.log.append(member_entry::join(record("w", 5, 100 + i)));
    writer.log.append(member_entry::gone(incarnation_id{100 + i}));
  }
  REQUIRE_FALSE(inner->try_get("log/" + std::to_string(next)));
  // Another writer, as far behind, has just written here.
  const std::string bogus = member_entry::join(record("bogus", 9, 9)).encode();
  inner->set("log/" + std::to_string(next), bogus);
  away.log.catch_up();
  CHECK(names(away.log.members()) == std::vector<std::string>{"a"});
  CHECK(away.log.seen() == writer.log.seen());
  inner->set("log/" + std::to_string(next), bogus);
  reader late(where);
  late.log.load();
  CHECK(names(late.log.members()) == std::vector<std::string>{"a"});
  // Also if all is removed while it reads: its list of members is older than that.
  membership early;
  early.apply(1, member_entry::join(record("a", 0, 1)));
  const std::string list = inner->get("members");
  inner->set("members", early.encode());
  where->before_get = [&](std::string_view key) {
    if (key == "trimmed") inner->set("members", list);
  };
  reader slow(where);
  slow.log.load();
  CHECK(names(slow.log.members()) == std::vector<std::string>{"a"});
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
        const auto incarnation = static_cast<std::uint64_t>(id) + 1;
        CHECK(own.log.append(member_entry::join(record("w" + std::to_string(id), id, incarnation))) == kind::joined);
        if (i % 2 == 0) CHECK(own.log.append(member_entry::gone(incarnation_id{incarnation})) == kind::gone);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  reader late(where);
  late.log.load();
  CHECK(late.log.members().members().size() == writers * each / 2);
  CHECK(late.log.seen() == writers * each * 3 / 2);
}

}  // namespace membership_test
