#include "flight_time.hpp"

#include <fstream>
#include <string>

namespace ferry::inline v0::detail {
namespace {

// The kernel monitors the counter, and selects another clock source if it is unstable or differs between processors.
bool kernel_trusts_the_counter() {
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string name;
  return static_cast<bool>(std::getline(file, name)) && name == "tsc";
}

}  // namespace

const bool flight_time::counter_is_good = kernel_trusts_the_counter();

}  // namespace ferry::inline v0::detail
