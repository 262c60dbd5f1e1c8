#include <ferry/rpc/context.hpp>

#include <algorithm>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/device/current.hpp>

#include "../../device/lazy_streams.hpp"
#include "../../device/memory/release_order.hpp"
#include "thread_values.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

std::mutex root_mutex;
context_ptr& root_context() {
  static auto* instance = new context_ptr;  // outlives static destruction on purpose
  return *instance;
}

}  // namespace
}  // namespace detail

call_context::call_context(std::shared_ptr<ferry::executor> threads, ferry::deadline until, worker_id caller)
    : executor_(std::move(threads)), deadline_(until), caller_(caller) {}

call_context::~call_context() = default;

void call_context::set_streams(std::vector<stream> streams, const std::vector<device>& others) {
  std::vector<device> later;
  for (const device& each : others) {
    const bool has_one =
        std::any_of(streams.begin(), streams.end(), [&](const stream& own) { return own.device() == each; });
    if (!has_one) later.push_back(each);
  }
  streams_ = std::move(streams);
  if (!later.empty()) later_ = std::make_unique<detail::lazy_streams>(std::move(later));
}

std::vector<stream> call_context::streams() const {
  std::vector<stream> result = streams_;
  if (!later_) return result;
  const std::vector<stream> taken = later_->taken();
  result.insert(result.end(), taken.begin(), taken.end());
  return result;
}

bool call_context::has_stream(device where) const {
  return (later_ && later_->covers(where)) ||
         std::any_of(streams_.begin(), streams_.end(), [&](const stream& own) { return own.device() == where; });
}

stream call_context::take_stream(device where) const {
  for (const stream& own : streams_) {
    if (own.device() == where) return own;
  }
  if (later_ && later_->covers(where)) return later_->take(where);
  throw_error(errc::bad_device, fmt::format("the call has no stream on {}", to_string(where)));
}

std::stop_token call_context::stop_token() {
  std::lock_guard lock(mutex_);
  if (!stop_source_) {
    stop_source_ = std::make_unique<std::stop_source>();
    if (stopped_.load(std::memory_order_acquire)) stop_source_->request_stop();
  }
  return stop_source_->get_token();
}

void call_context::request_stop() noexcept {
  stopped_.store(true, std::memory_order_release);
  std::stop_source source(std::nostopstate);
  {
    std::lock_guard lock(mutex_);
    if (!stop_source_) return;
    source = *stop_source_;
  }
  source.request_stop();  // callbacks run outside the lock
}

context_ptr current_context() {
  if (detail::current_thread.context) {
    return context_ptr::share(detail::current_thread.context);
  }
  std::lock_guard lock(detail::root_mutex);
  return detail::root_context();
}

call_context* thread_context() noexcept { return detail::current_thread.context; }

context_scope::context_scope(call_context* context, context_values values) noexcept
    : previous_(std::exchange(detail::current_thread.context, context)),
      former_values_(detail::thread_values::exchange(detail::current_thread, std::move(values))),
      streams_(context && context != previous_ ? context : nullptr) {}
// The values of the scope are released here, while its context still lives: they may need the code of its method.
context_scope::~context_scope() {
  detail::thread_state& thread = detail::current_thread;
  thread.context = previous_;
  detail::thread_values::exchange(thread, std::move(former_values_));
}

namespace detail {

struct streams_scope::former_streams {
  std::vector<stream_choice> choices;
  std::optional<device_guard> current;
  release_in_current_order order;
};

streams_scope::streams_scope(const call_context* context) noexcept {
  if (context && context->has_streams()) enter(context->streams_, context->later_.get(), true);
}

void streams_scope::enter(std::span<const stream> now, lazy_streams* later, bool first_is_current) noexcept {
  try {
    auto former = std::make_unique<former_streams>();
    former->choices.reserve(now.size() + (later ? later->devices().size() : 0));
    former_ = former.release();
  } catch (const std::exception& problem) {  // without memory the current streams stay as they are
    log(log_level::error, problem.what());
    return;
  }
  const auto attempt = [](const auto& step) {
    try {
      step();
    } catch (const std::exception& problem) {
      log(log_level::error, problem.what());
    }
  };
  for (const stream& each : now) attempt([&] { former_->choices.push_back(choose_stream(each)); });
  if (later) {
    for (const device& each : later->devices())
      attempt([&] { former_->choices.push_back(choose_lazily(each, *later)); });
  }
  if (first_is_current && !now.empty()) attempt([&] { former_->current.emplace(now.front().device()); });
}

void streams_scope::leave() noexcept {
  const std::unique_ptr<former_streams> former(former_);
  former->current.reset();
  while (!former->choices.empty()) {
    restore_choice(former->choices.back());
    former->choices.pop_back();
  }
}

void set_root_context(context_ptr context) {
  std::lock_guard lock(root_mutex);
  root_context() = std::move(context);
}
}  // namespace detail

}  // namespace ferry::inline v0
