// What observers ask to record a worker's process: "begin recording" and "end recording".

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/profiler/process_scope.hpp>

#include "../base/parse_number.hpp"
#include "../rpc/diagnostics/questions.hpp"
#include "../rpc/worker/worker_core.hpp"
#include "profile_archive.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::string_view kept_scope = "process scope";

// "<shapes> <memory> <device times> <events per thread>", numbers.
profiler::options options_of_question(std::string_view argument) {
  const auto next = [&] {
    const std::size_t space = argument.find(' ');
    const auto value = parse_number<std::size_t>(argument.substr(0, space));
    argument.remove_prefix(space == std::string_view::npos ? argument.size() : space + 1);
    if (!value) throw_error(errc::invalid_argument, "the options of a recording are four numbers");
    return *value;
  };
  constexpr std::size_t most_events = std::size_t{1} << 16U;
  profiler::options how;
  how.remote = false;  // each process is asked for its own
  how.shapes = next() != 0;
  how.memory = next() != 0;
  how.device_times = next() != 0;
  how.events_per_thread = next();
  if (how.events_per_thread == 0 || how.events_per_thread > most_events) {
    throw_error(errc::invalid_argument, fmt::format("a recording keeps 1 to {} events of a thread", most_events));
  }
  return how;
}

std::atomic<bool> recording_for_observer{false};

// What an observer records; one at a time in a process, since each takes memory. It ends with the observer's connection.
struct observer_recording {
  observer_recording(worker_core& core, const profiler::options& how) : scope(core, how) { scope.enter(); }
  observer_recording(const observer_recording&) = delete;
  observer_recording& operator=(const observer_recording&) = delete;
  ~observer_recording() { recording_for_observer.store(false); }
  profiler::process_scope scope;
};

std::string begin_recording(worker_core& core, std::string_view argument, observer_state& state) {
  const profiler::options how = options_of_question(argument);
  if (recording_for_observer.exchange(true)) {
    throw_error(errc::resource_exhausted, "this process is being recorded for an observer already");
  }
  std::shared_ptr<observer_recording> begun;
  try {
    begun = std::make_shared<observer_recording>(core, how);
  } catch (...) {
    recording_for_observer.store(false);
    throw;
  }
  state.keep(kept_scope, std::move(begun));
  return {};
}

std::string end_recording(worker_core&, std::string_view, observer_state& state) {
  const auto recorded = std::static_pointer_cast<observer_recording>(state.take(kept_scope));
  if (!recorded) throw_error(errc::invalid_argument, "nothing is being recorded for this observer");
  const byte_buffer bytes = encode_profile(recorded->scope.exit());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const bool recording_questions_added = [] {
  add_question({.what = "begin recording", .answer = &begin_recording});
  add_question({.what = "end recording", .answer = &end_recording});
  return true;
}();

}  // namespace
}  // namespace ferry::inline v0::detail
