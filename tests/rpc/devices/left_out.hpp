#pragma once

// Tests that detect an event that is not recorded or not waited for, by omitting one after the other.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "device_group.hpp"
#include "sanitizers.hpp"
#include "tests/rpc/references/table/references.hpp"

namespace device_calls {

// Keeps tensors alive: freeing their memory would add ordering beyond the call's own.
inline std::vector<ferry::tensor>& kept() {
  static std::vector<ferry::tensor> all;
  return all;
}
inline ferry::tensor keep(const ferry::tensor& t) {
  kept().push_back(t.slice(0));  // a separate tensor, so that the use count of the memory shows other users
  return t;
}

/// Uses a kernel of the program, which does not record its stream with the memory.
inline void overwrite(const ferry::tensor& t, unsigned char value) {
  const ferry::stream on = ferry::current_stream(t.device());
  ferry::operations_of(t.device().kind)
      .fill(t.device(), t.data(), value, static_cast<std::size_t>(t.numel()), on.handle());
}

constexpr auto records = fake_cuda::call::event_record;
constexpr auto waits = fake_cuda::call::stream_wait_event;

inline const ferry::device_map there_and_back{{"cuda:0", "cuda:1"}};

// Omits the nth call of a kind while armed; 0: none. Counts the calls.
class left_out {
 public:
  left_out(fake_cuda::call what, unsigned nth) : what_(what), nth_(nth) {}
  void arm() {
    made_ = fake_cuda::calls(what_);
    if (nth_ != 0) fake_cuda::skip(what_, nth_);
  }
  void disarm() {
    fake_cuda::fail_nothing();
    made_ = fake_cuda::calls(what_) - made_;
  }
  [[nodiscard]] std::uint64_t made() const { return made_; }

 private:
  const fake_cuda::call what_;
  const unsigned nth_;
  std::uint64_t made_ = 0;
};

inline bool has_no_other_users(const ferry::tensor& t) {
  const auto own = std::count_if(kept().begin(), kept().end(),
                                 [&](const ferry::tensor& each) { return each.storage().same_as(t.storage()); });
  return t.storage().use_count() == static_cast<std::size_t>(own);
}

// The serving threads release their tensors asynchronously, which would be counted, too.
inline void release_kept() {
  references_test::await([] { return std::all_of(kept().begin(), kept().end(), has_no_other_users); });
  kept().clear();
}

// Does something with calls and devices; returns whether all values read were correct.
using scenario = std::function<bool(left_out&, unsigned char value)>;

struct expected_calls {
  fake_cuda::call what;
  unsigned count;
  std::set<unsigned> implied;  // redundant ones, implied by others
};

// Missing order is also a data race, which the thread sanitizer reports: with it nothing is omitted.
constexpr bool races_are_errors = ferry_test::thread_sanitized;

inline void check_each_is_needed(const scenario& run, const std::vector<expected_calls>& expected) {
  const ferry_test::captured_log quiet;
  constexpr std::array orders{fake_cuda::schedule::oldest_first, fake_cuda::schedule::newest_first,
                              fake_cuda::schedule::random};
  unsigned char value = 0;
  std::uint64_t made = 0;
  const auto right = [&](fake_cuda::schedule how, fake_cuda::call what, unsigned nth) {
    fake_cuda::set_schedule(how);
    value = static_cast<unsigned char>(value % 90 + 1);
    left_out one(what, nth);
    const bool as_expected = run(one, value);
    made = one.made();
    release_kept();
    settle();
    return as_expected;
  };
  for (const auto& [what, count, implied] : expected) {
    CAPTURE(static_cast<int>(what));
    for (const auto how : orders) CHECK(right(how, what, 0));
    CHECK(made == count);
    if (races_are_errors) continue;
    std::string unseen;
    for (unsigned nth = 1; nth <= count; ++nth) {
      if (implied.contains(nth)) continue;
      bool wrong = false;
      // The devices must be slower than the host to reveal it; how much slower is unknown.
      for (const unsigned delay : {200U, 2'000U, 16'000U}) {
        fake_cuda::set_delay(delay);
        for (int round = 0; round != 40 && !wrong; ++round) {
          for (const auto how : orders) wrong = wrong || !right(how, what, nth);
        }
        if (wrong) break;
      }
      fake_cuda::set_delay(200);
      if (!wrong) unseen += std::to_string(nth) + " ";
    }
    CHECK(unseen == "");
  }
  fake_cuda::set_schedule(fake_cuda::schedule::random);
}

}  // namespace device_calls
