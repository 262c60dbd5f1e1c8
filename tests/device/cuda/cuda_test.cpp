#include <ferry/device/cuda.hpp>

#include <filesystem>

#include <doctest/doctest.h>

namespace cuda_test {

TEST_CASE("CUDA devices are counted without a failure, whatever the machine has") {
  using traits = ferry::device_traits<ferry::cuda>;
  const int count = traits::count();
  CHECK(count >= 0);
  CHECK(traits::count() == count);
  // The driver creates one of these for each GPU; without the control device there is no driver.
  if (!std::filesystem::exists("/dev/nvidiactl") && !std::filesystem::exists("/dev/dxg")) CHECK(count == 0);
}

}  // namespace cuda_test
