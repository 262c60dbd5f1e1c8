#include <ferry/rpc/future.hpp>

#include <string>

#include <ferry/base/log.hpp>

#include "../../base/what_of.hpp"

namespace ferry::inline v0::detail {

void throw_no_state(const char* operation) {
  throw_error(errc::no_state, std::string("future::") + operation +
                                  "() on an empty future: it was default-constructed, moved from, or emptied by an "
                                  "earlier std::move(f).get()");
}
void throw_null_callback(const char* operation) {
  throw_error(errc::invalid_argument, std::string("future::") + operation + "() needs a callback, but got a null one");
}
void throw_not_ready() {
  throw_error(errc::no_state, "future::value() before the result is there; use get() to wait for it");
}
void throw_empty_inner() {
  throw_error(errc::no_state, "the callback given to future::then() returned an empty future");
}
void log_callback_error() noexcept {
  try {
    std::string what = "an exception that is no std::exception";
    try {
      std::rethrow_exception(detail::current_error());
    } catch (const std::exception& e) {
      what = what_of(e);
    } catch (...) {  // its type offers no description
    }
    log(log_level::error,
        "a callback of future::add_done_callback() threw, and its error reaches no other handler: " + what);
  } catch (const std::bad_alloc&) {
    log(log_level::error, "a callback of future::add_done_callback() threw");
  }
}

}  // namespace ferry::inline v0::detail
