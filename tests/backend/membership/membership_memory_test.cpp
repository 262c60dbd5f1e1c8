// Entries of a group's log that are applied when memory is exhausted.

#include <cstddef>
#include <new>
#include <string>

#include <doctest/doctest.h>

#include "allocation_count.hpp"
#include "backend/membership/membership.hpp"

using ferry::incarnation_id;
using ferry::detail::member_entry;
using ferry::detail::membership;
using ferry::detail::membership_change;
using ferry::detail::worker_record;

TEST_CASE("an entry for which there is no memory changes nothing, and takes effect when it is read again" *
          doctest::skip(!ferry_test::counts_allocations)) {
  using kind = membership_change::kind;
  const incarnation_id whom{7};
  worker_record record;
  record.who = ferry::worker_info("a-worker-whose-name-is-long-enough-for-the-heap", ferry::worker_id{0});
  record.incarnation = whom;
  member_entry join;
  join.what = member_entry::kind::join;
  join.record = record;
  member_entry leave;
  leave.what = member_entry::kind::leave;
  leave.whom = whom;
  const member_entry entries[]{join, leave, member_entry::lost({}, whom, "a reason that is long enough for the heap")};
  const kind changes[]{kind::joined, kind::left, kind::gone};
  int refused = 0;
  for (std::size_t failing = 1;; ++failing) {
    CAPTURE(failing);
    REQUIRE(failing < 1000);
    membership group;
    bool failed = false;
    for (std::size_t i = 0; i != 3; ++i) {
      CAPTURE(i);
      membership_change change;
      ferry_test::fail_allocation(failing);
      try {
        change = group.apply(i + 1, entries[i]);
      } catch (const std::bad_alloc&) {
        ++refused;
      }
      if (ferry_test::allocation_failed()) {
        failed = true;
        if (change.what == kind::none) {
          CHECK(group.index() == i);
          change = group.apply(i + 1, entries[i]);
        }
      }
      CHECK(change.what == changes[i]);
      CHECK(group.index() == i + 1);
    }
    CHECK(group.members().empty());
    if (!failed) break;
  }
  CHECK(refused >= 3);
}
