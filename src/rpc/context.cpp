#include <ferry/rpc/context.hpp>

namespace ferry::inline v0 {
namespace {

thread_local call_context* entered_context = nullptr;

std::mutex root_mutex;
context_ptr& root_context() {
  static auto* instance = new context_ptr;  // outlives static destruction on purpose
  return *instance;
}

}  // namespace

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

std::shared_ptr<void> call_context::get_slot(slot which) const {
  std::lock_guard lock(mutex_);
  return slots_ ? (*slots_)[which] : nullptr;
}

void call_context::set_slot(slot which, std::shared_ptr<void> value) {
  std::lock_guard lock(mutex_);
  if (!slots_) slots_ = std::make_unique<std::array<std::shared_ptr<void>, slot_count>>();
  (*slots_)[which].swap(value);
}

context_ptr current_context() {
  if (entered_context) {
    return context_ptr::share(entered_context);
  }
  std::lock_guard lock(root_mutex);
  return root_context();
}

call_context* thread_context() noexcept { return entered_context; }

context_scope::context_scope(call_context* context) noexcept : previous_(std::exchange(entered_context, context)) {}
context_scope::~context_scope() { entered_context = previous_; }

namespace detail {
void set_root_context(context_ptr context) {
  std::lock_guard lock(root_mutex);
  root_context() = std::move(context);
}
}  // namespace detail

}  // namespace ferry::inline v0
