#include <ferry/rpc/detail/foreign_awaiter.hpp>

#include <ferry/rpc/future.hpp>

namespace ferry::inline v0::detail {

struct suspended_in_context::substitute {
  struct promise_type {
    // Tells the coroutine that it has been resumed.
    struct beginning {
      promise_type& self;
      [[nodiscard]] bool await_ready() const noexcept { return false; }
      void await_suspend(std::coroutine_handle<>) const noexcept {}
      void await_resume() const noexcept { std::exchange(self.owner, nullptr)->substitute_ = nullptr; }
    };

    explicit promise_type(suspended_in_context* of) noexcept : owner(of) {}
    promise_type(const promise_type&) = delete;
    promise_type& operator=(const promise_type&) = delete;
    ~promise_type() {
      if (!owner) return;
      owner->substitute_ = nullptr;
      owner->waiter_.destroy();  // *owner is part of its frame
    }
    substitute get_return_object() noexcept { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
    [[nodiscard]] beginning initial_suspend() noexcept { return {*this}; }
    [[nodiscard]] std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { std::terminate(); }  // run_coroutine() throws nothing

    suspended_in_context* owner;  // null once resumed or dismissed
  };
  std::coroutine_handle<promise_type> handle;
};

suspended_in_context::substitute suspended_in_context::make(suspended_in_context* self) {
  const context_ptr context = std::move(self->context_);
  if (context) {
    const context_scope scope(context.get(), std::move(self->values_));
    run_coroutine(self->waiter_);  // destroys *self
  } else {
    const context_values_scope scope(std::move(self->values_));
    run_coroutine(self->waiter_);
  }
  co_return;
}

std::coroutine_handle<> suspended_in_context::suspend(std::coroutine_handle<> waiter) {
  waiter_ = waiter;
  context_ = thread_context() ? current_context() : context_ptr();
  values_ = current_values();
  substitute_ = make(this).handle;
  return substitute_;
}

void suspended_in_context::dismiss() noexcept {
  if (!substitute_) return;
  const auto unused =
      std::coroutine_handle<substitute::promise_type>::from_address(std::exchange(substitute_, nullptr).address());
  unused.promise().owner = nullptr;
  unused.destroy();
}

}  // namespace ferry::inline v0::detail
