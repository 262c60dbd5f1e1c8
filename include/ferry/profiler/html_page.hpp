#pragma once

// Profiles as a page for a browser.

#include <chrono>
#include <cstddef>
#include <string>

#include <ferry/profiler/profile.hpp>

namespace ferry::inline v0::profiler {

struct page_options {
  std::string title = "Profile";
  /// Drawn in the timeline: the longest ones. The page says how many it leaves out.
  std::size_t events = 4000;
  /// Of the table of events by name: those with the largest totals.
  std::size_t rows = 40;
  /// As trace_options::largest_uncertainty.
  std::chrono::nanoseconds largest_uncertainty = std::chrono::milliseconds(10);
};

/// One HTML file that answers where the time went: the share of each worker, which of them computed longest, what the longest event
/// took its time for, a timeline of all threads with arrows from calls to their handlers, errors, events by name, and how well the
/// clocks are known. It loads nothing from elsewhere, and is shown without scripts, too; with them the timeline can be magnified. The
/// text is well-formed XML. Throws errc::invalid_argument as chrome_trace() does.
///
///     std::ofstream("profile.html") << ferry::profiler::html_page(recorded.finish());
[[nodiscard]] std::string html_page(const profile& from, const page_options& how = {});

}  // namespace ferry::inline v0::profiler
