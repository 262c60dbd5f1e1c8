#include "questions.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ferry/base/log.hpp>

#include "../worker/worker_core.hpp"
#include "snapshot_archive.hpp"

namespace ferry::inline v0::detail {
namespace {

std::vector<question_kind>& question_kinds() {
  static auto* instance = new std::vector<question_kind>;  // outlives static destruction on purpose
  return *instance;
}

std::string answer_clock(worker_core&, std::string_view, observer_state&) {
  return std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now().time_since_epoch()).count());
}

std::string answer_snapshot(worker_core& worker, std::string_view argument, observer_state&) {
  const byte_buffer bytes = encode_snapshot(worker.snapshot("observed", argument == "events"));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const bool own_questions_added = [] {
  add_question({.what = "clock", .answer = &answer_clock, .at_once = true});
  add_question({.what = "snapshot", .answer = &answer_snapshot});
  return true;
}();

void answer_question(worker_core& worker, const question_kind& kind, observer_question& question) noexcept {
  try {
    question.answer(kind.answer(worker, question.argument(), question.state()));
  } catch (const error& e) {
    question.refuse(e.kind(), e.message());
  } catch (const std::bad_alloc&) {
    question.refuse(errc::out_of_memory, "no memory for the answer");
  } catch (const std::exception& e) {
    question.refuse(errc::system_failure, e.what());
  }
}

}  // namespace

void add_question(const question_kind& kind) { question_kinds().push_back(kind); }

const question_kind* find_question(std::string_view what) noexcept {
  const auto& all = question_kinds();
  const auto found = std::find_if(all.begin(), all.end(), [&](const question_kind& each) { return each.what == what; });
  return found == all.end() ? nullptr : &*found;
}

void worker_core::on_question(std::shared_ptr<observer_question> question) noexcept {
  const question_kind* const kind = find_question(question->what());
  if (!kind) {
    return question->refuse(errc::unknown_method, "this release of ferry answers no question of that name");
  }
  if (kind->at_once) return answer_question(*this, *kind, *question);
  try {
    if (!run_record_work([this, kind, question] { answer_question(*this, *kind, *question); }))
      question->refuse(errc::shutting_down, "the worker has ended");
  } catch (const std::exception& e) {
    question->refuse(errc::out_of_memory, e.what());
  }
}

}  // namespace ferry::inline v0::detail
