// When a thread spins, when it has given up, and when it tries again.

#include "transport/reactor/adaptive_spin.hpp"

#include <chrono>

#include <doctest/doctest.h>

namespace adaptive_spin_test {

namespace {

using ferry::detail::adaptive_spin;
constexpr std::chrono::microseconds longest{50};

// How often it does not spin before it does.
int pauses_of(adaptive_spin& spin) {
  int pauses = 0;
  for (; spin.budget().count() == 0; ++pauses) REQUIRE(pauses < 10'000);
  return pauses;
}

}  // namespace

TEST_CASE("spinning that fails is tried less and less often, and given up until it succeeds") {
  adaptive_spin spin(longest);
  CHECK_FALSE(spin.has_given_up());  // nothing is known yet
  int before = 0;
  for (int failures = 0; failures != 10; ++failures) {
    const int pauses = pauses_of(spin);
    CHECK(pauses >= before);
    before = pauses;
    spin.failed();
    CHECK(spin.has_given_up());
  }
  CHECK(before > 1000);
  spin.probe_now();
  CHECK(spin.budget() == longest);
  spin.failed();
  CHECK(spin.budget().count() == 0);
  CHECK(spin.has_given_up());
  spin.probe_now();
  CHECK(spin.budget() == longest);
  spin.succeeded();
  CHECK_FALSE(spin.has_given_up());
  CHECK(spin.budget() == longest);
}

TEST_CASE("spinning that is switched off is given up") {
  adaptive_spin spin(std::chrono::nanoseconds(0));
  CHECK(spin.has_given_up());
  spin.probe_now();
  CHECK(spin.budget().count() == 0);
  CHECK(spin.has_given_up());
}

TEST_CASE("busy polling spins every time, whatever comes of it") {
  adaptive_spin spin(longest, true);
  for (int i = 0; i != 1000; ++i) {
    CHECK(spin.budget() == longest);
    spin.failed();
  }
  CHECK_FALSE(spin.has_given_up());
}

}  // namespace adaptive_spin_test
