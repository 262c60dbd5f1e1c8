#pragma once

// What was seen, as text for people and as JSON.

#include <chrono>
#include <string>

#include "diagnosis.hpp"
#include "observation.hpp"

namespace ferry_top {

/// A table of the workers, with rates since `before`, which may be empty; then the calls that wait longest, and the
/// findings. Lines end with a newline.
[[nodiscard]] std::string table(const observation& before, const observation& now, const diagnosis& found,
                                std::chrono::nanoseconds older_than);
/// The same as one JSON object.
[[nodiscard]] std::string summary_json(const observation& before, const observation& now, const diagnosis& found);
/// The flight records of all workers with the offsets of their clocks, and the findings, as JSON.
[[nodiscard]] std::string dump_json(const observation& of, const diagnosis& found);
/// What workers did last that have left a flight file: their calls that had not ended, and the last events.
[[nodiscard]] std::string post_mortem_text(const observation& of);
/// A line for each finding; "Nothing conspicuous" if there is none.
[[nodiscard]] std::string findings_text(const diagnosis& found, std::chrono::nanoseconds older_than);

}  // namespace ferry_top
