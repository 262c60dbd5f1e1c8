#include <doctest/doctest.h>

#include <ferry/test_kit/device_conformance.hpp>

#include "queue_device.hpp"

namespace conformance_test {

TEST_CASE("the CPU conforms") { ferry::test_kit::device_conformance<ferry::cpu>(); }

TEST_CASE("a user-defined kind of device conforms") {
  ferry::register_devices<queue_device>();
  ferry::test_kit::device_conformance<queue_device>();
}

}  // namespace conformance_test
