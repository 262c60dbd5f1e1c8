#include <ferry/rpc/promise.hpp>

namespace ferry::inline v0::detail {

void throw_promise_satisfied() {
  throw_error(errc::promise_satisfied,
              "a promise can only be completed once, and this one already has a value or an error; use try_set_value() "
              "where several may come first");
}
void throw_promise_empty() { throw_error(errc::no_state, "a promise that was moved from was used"); }
void break_promise(future_state_base& state) noexcept {
  state.try_set_error(
      make_error(errc::promise_broken, "the promise was destroyed before it was given a value or an error"));
}

}  // namespace ferry::inline v0::detail
