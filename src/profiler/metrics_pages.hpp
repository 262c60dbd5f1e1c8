#pragma once

// Metrics for people: one page for each question.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <ferry/profiler/metrics.hpp>

namespace ferry::inline v0::detail {

enum class page_form : std::uint8_t { text, html };

/// The page at that path, "/slow", with what was counted since the metrics began. Empty: there is no such page.
std::optional<std::string> metrics_page(const profiler::metrics_snapshot& of, std::string_view path, page_form form);
[[nodiscard]] bool is_metrics_page(std::string_view path) noexcept;

}  // namespace ferry::inline v0::detail
