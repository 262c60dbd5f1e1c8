#include <ferry/rpc/detail/foreign_awaiter.hpp>

#include <ferry/rpc/future.hpp>

namespace ferry::inline v0::detail {

struct suspended_with_values::substitute {
  struct promise_type {
    // Tells the coroutine that it has been resumed.
    struct beginning {
      promise_type& self;
      [[nodiscard]] bool await_ready() const noexcept { return false; }
      void await_suspend(std::coroutine_handle<>) const noexcept {}
      void await_resume() const noexcept { std::exchange(self.owner, nullptr)->substitute_ = nullptr; }
    };

    explicit promise_type(suspended_with_values* of) noexcept : owner(of) {}
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

    suspended_with_values* owner;  // null once resumed or dismissed
  };
  std::coroutine_handle<promise_type> handle;
};

suspended_with_values::substitute suspended_with_values::make(suspended_with_values* self) {
  const context_values_scope scope(std::move(self->values_));
  run_coroutine(self->waiter_);  // destroys *self
  co_return;
}

std::coroutine_handle<> suspended_with_values::suspend(std::coroutine_handle<> waiter) {
  waiter_ = waiter;
  values_ = current_values();
  substitute_ = make(this).handle;
  return substitute_;
}

void suspended_with_values::dismiss() noexcept {
  if (!substitute_) return;
  const auto unused =
      std::coroutine_handle<substitute::promise_type>::from_address(std::exchange(substitute_, nullptr).address());
  unused.promise().owner = nullptr;
  unused.destroy();
}

}  // namespace ferry::inline v0::detail
