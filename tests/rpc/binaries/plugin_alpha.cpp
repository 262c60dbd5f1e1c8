// A plug-in: what it provides can be called while it is loaded.

#include "plugin_methods.hpp"

#include <memory>
#include <stdexcept>

using namespace plugin_test;

namespace alpha {

int triple(int value) { return 3 * value; }
std::string greet(const std::string& who) { return "hello " + who; }

int blocking() { return ferry::rpc_sync<wait_for_gate>("worker0"); }
ferry::task<int> coroutine() {
  const int first = co_await ferry::rpc_async<wait_for_gate>("worker0");
  co_return first + co_await ferry::rpc_async<wait_for_gate>("worker0");
}
ferry::future<int> continued() {
  return ferry::rpc_async<wait_for_gate>("worker0").then([](int value) { return value + 1; });
}
int leaving() {
  (void)ferry::rpc_async<wait_for_gate>("worker0");
  return 1;
}
void call_back(std::uint64_t address) {
  reinterpret_cast<void (*)()>(address)();  // NOLINT(performance-no-int-to-ptr): it crossed a call
}
struct own_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void fail() { throw own_error("of the plug-in"); }

struct registered_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void fail_as_registered() { throw registered_error("of the plug-in, registered"); }

}  // namespace alpha

template <>
struct ferry::exception_traits<alpha::registered_error> {
  static constexpr std::string_view name = "alpha::registered_error";
  static std::string encode(const alpha::registered_error&) { return {}; }
  static alpha::registered_error decode(std::string_view what, std::string_view) {
    return alpha::registered_error(std::string(what));
  }
};

namespace alpha {

const bool exceptions_registered = (ferry::register_exceptions<registered_error>(), true);

// What makes g++ give a library symbols that are unique in the process: the static variables of templates and inline
// functions.
template <class T>
const std::shared_ptr<T>& kept() {
  static const auto instance = std::make_shared<T>();
  return instance;
}
int uses_unique_symbols() { return *kept<int>(); }

const ferry::provide<ferry::named<"alpha.triple", triple>, ferry::named<"alpha.greet", greet>,
                     ferry::named<"alpha.blocking", blocking>, ferry::named<"alpha.coroutine", coroutine>,
                     ferry::named<"alpha.continued", continued>, ferry::named<"alpha.leaving", leaving>,
                     ferry::named<"alpha.call_back", call_back>, ferry::named<"alpha.fail", fail>,
                     ferry::named<"alpha.fail_as_registered", fail_as_registered>, everywhere,
                     ferry::named<"plugins.shared", in_plugins>>
    methods;

}  // namespace alpha
