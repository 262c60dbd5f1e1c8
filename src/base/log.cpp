#include <ferry/base/log.hpp>

#include <cstdlib>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>

#include <unistd.h>

#include "peer_log.hpp"
#include "printable.hpp"
#include "standard_error.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

log_level level_from_environment() noexcept {
  const char* value = std::getenv("FERRY_LOG");
  std::string_view text = value ? value : "";
  if (text == "debug") return log_level::debug;
  if (text == "info") return log_level::info;
  if (text == "error") return log_level::error;
  if (text == "off") return log_level::off;
  if (!text.empty() && text != "warning") {
    try {
      write_line_or_drop("ferry warning: FERRY_LOG='" + std::string(text) +
                         "' is none of debug, info, warning, error, off\n");
    } catch (const std::bad_alloc&) {
      return log_level::warning;
    }
  }
  return log_level::warning;
}

std::atomic<int>& current_level() noexcept {
  static std::atomic<int> level{static_cast<int>(level_from_environment())};
  return level;
}

void write_to_stderr(log_level level, std::string_view text, void*) {
  static constexpr const char* names[] = {"debug", "info", "warning", "error", "off"};
  try {
    std::string line = "ferry[" + std::to_string(::getpid()) + "] " + names[static_cast<int>(level)] + ": ";
    // Names and texts of peers: no control character reaches the terminal, and only the first line looks like one of ferry.
    if (text.ends_with('\n')) text.remove_suffix(1);
    for (const char each : printable_lines(text)) {
      line += each;
      if (each == '\n') line += "  ";
    }
    line += '\n';
    write_line_or_drop(line);
  } catch (const std::bad_alloc&) {
    write_line_or_drop("ferry: out of memory: a line was lost\n");
  }
}

template <class Sink>
struct hook {
  explicit hook(Sink first) noexcept : sink(first) {}
  Sink sink;
  void* user = nullptr;
  std::shared_mutex mutex{};
};

hook<log_sink>& log_hook() {
  static auto* instance = new hook<log_sink>{write_to_stderr};  // deliberately outlives static destruction
  return *instance;
}
hook<trace_sink>& trace_hook() {
  static auto* instance = new hook<trace_sink>{nullptr};
  return *instance;
}

}  // namespace
}  // namespace detail

void set_log_sink(log_sink sink, void* user) noexcept {
  auto& hook = detail::log_hook();
  std::unique_lock lock(hook.mutex);
  hook.sink = sink ? sink : detail::write_to_stderr;
  hook.user = user;
  detail::forget_left_out_lines();
}

void set_log_level(log_level level) noexcept { detail::current_level().store(static_cast<int>(level)); }
log_level get_log_level() noexcept {
  return static_cast<log_level>(detail::current_level().load(std::memory_order_relaxed));
}

void log(log_level level, std::string_view text) noexcept {
  if (!log_enabled(level)) return;
  auto& hook = detail::log_hook();
  std::shared_lock lock(hook.mutex);
  hook.sink(level, text, hook.user);
}

void set_trace_sink(trace_sink sink, void* user) noexcept {
  auto& hook = detail::trace_hook();
  std::unique_lock lock(hook.mutex);
  hook.sink = sink;
  hook.user = user;
  detail::tracing.store(sink != nullptr);
}

namespace detail {
std::atomic<bool> tracing{false};
void trace(const trace_event& event) noexcept {
  auto& hook = trace_hook();
  std::shared_lock lock(hook.mutex);
  if (hook.sink) hook.sink(event, hook.user);
}
}  // namespace detail

}  // namespace ferry::inline v0
