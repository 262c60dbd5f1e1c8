#include <ferry/ferry.hpp>

namespace twins {

static int hidden(int value) { return -value; }
int call_other_hidden() { return ferry::rpc_sync<hidden>(0, 1); }

}  // namespace twins
