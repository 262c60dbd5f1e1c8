// A plug-in with another function under a name of alpha's.

#include "plugin_methods.hpp"

namespace rival {

int thrice(int value) { return value + value + value; }

const ferry::provide<ferry::named<"alpha.triple", thrice>, ferry::named<"rival.thrice", thrice>> methods;

}  // namespace rival
