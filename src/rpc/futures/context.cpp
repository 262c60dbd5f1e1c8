#include <ferry/rpc/context.hpp>

#include <memory>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/device/current.hpp>

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
      streams_(context && context != previous_ ? std::span<const stream>(context->streams())
                                               : std::span<const stream>()) {}
// The values of the scope are released here, while its context still lives: they may need the code of its method.
context_scope::~context_scope() {
  detail::thread_state& thread = detail::current_thread;
  thread.context = previous_;
  detail::thread_values::exchange(thread, std::move(former_values_));
}

namespace detail {

struct streams_scope::former_streams {
  std::vector<stream> streams;
  release_in_current_order order;
};

void streams_scope::enter(std::span<const stream> now) noexcept {
  try {
    auto former = std::make_unique<former_streams>();
    former->streams.reserve(now.size());
    former_ = former.release();
  } catch (const std::exception& problem) {  // without memory the current streams stay as they are
    log(log_level::error, problem.what());
    return;
  }
  for (const stream& each : now) {
    try {
      former_->streams.push_back(set_current_stream(each));
    } catch (const std::exception& problem) {
      log(log_level::error, problem.what());
    }
  }
}

void streams_scope::leave() noexcept {
  const std::unique_ptr<former_streams> former(former_);
  while (!former->streams.empty()) {
    try {
      set_current_stream(former->streams.back());
    } catch (const std::exception& problem) {
      log(log_level::error, problem.what());
    }
    former->streams.pop_back();
  }
}

void set_root_context(context_ptr context) {
  std::lock_guard lock(root_mutex);
  root_context() = std::move(context);
}
}  // namespace detail

}  // namespace ferry::inline v0
