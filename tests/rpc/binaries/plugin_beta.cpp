// A plug-in that shares a method with another one.

#include "plugin_methods.hpp"

namespace beta {
const ferry::provide<ferry::named<"plugins.shared", plugin_test::in_plugins>, plugin_test::everywhere> methods;
}  // namespace beta
