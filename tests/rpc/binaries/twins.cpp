// Two functions under one id: init_rpc refuses to start, and this program prints why.

#include <cstdio>
#include <exception>

#include <ferry/ferry.hpp>

namespace twins {

int first(int value) { return value; }
int second(int value) { return value + 1; }

#ifdef FERRY_TEST_TWIN_STATIC
static int hidden(int value) { return value; }
int call_hidden() { return ferry::rpc_sync<hidden>(0, 1); }
int call_other_hidden();  // of twins_other.cpp
#endif

}  // namespace twins

int main() {
  try {
#ifdef FERRY_TEST_TWIN_STATIC
    if (ferry::is_initialized()) return twins::call_hidden() + twins::call_other_hidden();
#else
    ferry::serve<ferry::named<"twin", twins::first>, ferry::named<"twin", twins::second> >();
#endif
    ferry::worker self =
        ferry::init_rpc({.name = "worker0", .rank = 0, .world_size = 1, .init_method = "tcp://127.0.0.1:1"});
    std::puts("it started");
  } catch (const std::exception& e) {
    std::puts(e.what());
  }
  return 0;
}
