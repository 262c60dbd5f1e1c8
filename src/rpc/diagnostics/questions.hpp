#pragma once

// What observers may ask a worker. Floors above add kinds of questions of their own.

#include <string>
#include <string_view>

#include <ferry/backend/observer_question.hpp>

namespace ferry::inline v0::detail {

class worker_core;

struct question_kind {
  std::string_view what;  ///< has static storage duration
  /// Throws what is then told to the observer. Runs on a thread that may block, one question of an observer at a time.
  std::string (*answer)(worker_core& worker, std::string_view argument, observer_state& state) = nullptr;
  /// It neither blocks nor takes long: it is answered on the thread that reads.
  bool at_once = false;
};

/// During static initialisation.
void add_question(const question_kind& kind);
/// Null: there is none.
[[nodiscard]] const question_kind* find_question(std::string_view what) noexcept;

}  // namespace ferry::inline v0::detail
