#include <doctest/doctest.h>

#include <ferry/device/cuda.hpp>
#include <ferry/test_kit/device_conformance.hpp>

#include "fake_cuda.hpp"

namespace cuda_conformance_test {

TEST_CASE("CUDA conforms, streams in any order") { ferry::test_kit::device_conformance<ferry::cuda>(); }

TEST_CASE("CUDA conforms, the newest stream first") {
  fake_cuda::set_schedule(fake_cuda::schedule::newest_first);
  ferry::test_kit::device_conformance<ferry::cuda>();
  fake_cuda::set_schedule(fake_cuda::schedule::random);
}

}  // namespace cuda_conformance_test
