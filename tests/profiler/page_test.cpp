// The page of a profile. trace_test.py parses one of a real run.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <doctest/doctest.h>

#include <ferry/base/error.hpp>
#include <ferry/profiler.hpp>

#include "event_of.hpp"
#include "expect_error.hpp"
#include "profiler/html_text.hpp"

namespace page_test {

namespace profiler = ferry::profiler;
using ferry::errc;
using ferry::range_kind;
using profiler::event;
using profiler::profile;
using profiler_test::event_of;

// worker 0 calls worker 1.
profile small_profile() {
  profile made;
  made.node = 0;
  made.ended_ns = 10'000;
  made.workers = {"first", "second <&\">"};
  made.events.push_back(event_of("step", range_kind::user, 0, 1, 0, 0, 10'000));
  made.events.push_back(event_of("rpc_sync#f(first -> second)", range_kind::call, 0, 2, 1, 1'000, 9'000));
  made.events.push_back(
      event_of("rpc_sync#f(first -> second)#remote_op: f", range_kind::handler, 1, 3, 2, 3'000, 7'000));
  made.events[2].remote = true;
  made.events[2].uncertainty_ns = 500;
  made.events[2].failed = true;
  made.events[2].error = "it went <wrong>";
  made.clocks.push_back({1, -2'500, 500, 1});
  return made;
}

std::size_t count_of(const std::string& page, std::string_view what) {
  std::size_t count = 0;
  for (std::size_t at = page.find(what); at != std::string::npos; at = page.find(what, at + 1)) ++count;
  return count;
}
bool has(const std::string& page, std::string_view what) { return page.find(what) != std::string::npos; }
std::string html_of(std::string_view text) {
  std::string made;
  ferry::detail::append_html(made, text);
  return made;
}

TEST_CASE("the page of a profile answers where the time went") {
  const std::string page = profiler::html_page(small_profile(), {.title = "A run"});
  CHECK(has(page, "<title>A run</title>"));
  CHECK(has(page, "10.0 us on the clock of first, 3 events of 2 workers."));
  CHECK(has(page, "second &lt;&amp;&quot;&gt;, thread 11"));
  CHECK_FALSE(has(page, "second <"));
  CHECK(has(page, "it went &lt;wrong&gt;"));
  CHECK(count_of(page, "class=\"bar") == 3);
  CHECK(count_of(page, "class=\"bar failed\"") == 1);
  CHECK(count_of(page, "class=\"arrow\"") == 2);
  CHECK(has(page, "x=\"10.0000%\" width=\"80.0000%\""));  // the call
  CHECK(has(page, "What the longest event took its time for"));
  CHECK(has(page, "-2.5 us"));  // the clock
  CHECK_FALSE(has(page, "Not everything is here"));
}

TEST_CASE("the page says what it leaves out") {
  profile many = small_profile();
  many.lost = 7;
  for (std::uint64_t i = 0; i != 100; ++i) {
    const auto at = static_cast<std::int64_t>(100 * i);
    many.events.push_back(event_of("part " + std::to_string(i), range_kind::user, 0, 10 + i, 1, at, at + 10));
  }
  const std::string page = profiler::html_page(many, {.events = 20, .rows = 5});
  CHECK(has(page, "7 events lost, 0 unfinished"));
  CHECK(count_of(page, "class=\"bar") == 20);
  CHECK(has(page, "20 of 103 events are drawn: the longest"));
  CHECK(has(page, "<p>and 98 more</p>"));
  // Of events that overlap, as many as there are lanes.
  profile wide;
  wide.node = 0;
  wide.ended_ns = 1'000;
  for (std::uint64_t i = 0; i != 60; ++i) {
    wide.events.push_back(event_of("call", range_kind::call, 0, i + 1, 0, static_cast<std::int64_t>(i), 1'000));
  }
  const std::string lanes = profiler::html_page(wide);
  CHECK(count_of(lanes, "class=\"bar") < 60);
  CHECK(has(lanes, "of 60 events are drawn"));
}

TEST_CASE("a profile without events has a page") {
  const std::string page = profiler::html_page({});
  CHECK(has(page, "0 events of 0 workers"));
  CHECK(has(page, "</html>"));
}

TEST_CASE("a page of clocks that are not known well enough is refused") {
  expect_error(errc::invalid_argument, "page_options", [] {
    (void)profiler::html_page(small_profile(), {.largest_uncertainty = std::chrono::nanoseconds(499)});
  });
  CHECK_NOTHROW((void)profiler::html_page(small_profile(), {.largest_uncertainty = std::chrono::nanoseconds(500)}));
}

TEST_CASE("names become text of HTML, whatever they hold") {
  CHECK(html_of("a<b>&\"c\"") == "a&lt;b&gt;&amp;&quot;c&quot;");
  CHECK(html_of("tab\tline\n") == "tab\tline\n");
  CHECK(html_of(std::string_view("\0\x01\x1b\x7f", 4)) == "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  CHECK(html_of("\xc3\xa4\xe2\x82\xac") == "\xc3\xa4\xe2\x82\xac");
  CHECK(html_of("\xff\xc3") == "\xef\xbf\xbd\xef\xbf\xbd");
  CHECK(html_of("\xef\xbf\xbf!") == "\xef\xbf\xbd!");  // U+FFFF is no character of XML
}

}  // namespace page_test
