// The small values that functions on tensors take.

#include <ferry/wire/value_archive.hpp>

#include <complex>
#include <cstdint>
#include <sstream>
#include <vector>

#include <doctest/doctest.h>
#include <cereal/archives/binary.hpp>
#include <cereal/archives/json.hpp>
#include <ferry/wire/serialize.hpp>

#include "errors.hpp"

namespace value_archive_test {

using ferry::device;
using ferry::dims;
using ferry::errc;
using ferry::scalar;

static_assert(ferry::wire_serialisable<dims> && ferry::wire_serialisable<scalar> && ferry::wire_serialisable<device>);

bool same(const scalar& a, const scalar& b) {
  return a.type() == b.type() && a.is_integral() == b.is_integral() &&
         (!a.is_integral() || a.integer() == b.integer()) && a.real() == b.real() && a.imag() == b.imag();
}

const std::vector<scalar> numbers{scalar(), true, -7, std::int64_t{1} << 62, 0.25, std::complex<double>(1, -2)};
const std::vector<dims> shapes{{}, {3}, {0, 5}, {1, 2, 3, 4, 5, 6, 7, 8}, dims(ferry::max_rank, 1)};
const std::vector<device> devices{{}, {ferry::device_kind::cuda, 3}, {ferry::first_foreign_kind, 1}};

TEST_CASE("shapes, numbers and devices travel as they are") {
  for (const scalar& each : numbers) CHECK(same(ferry::deserialize<scalar>(ferry::serialize(each)), each));
  for (const dims& each : shapes) CHECK(ferry::deserialize<dims>(ferry::serialize(each)) == each);
  for (const device& each : devices) CHECK(ferry::deserialize<device>(ferry::serialize(each)) == each);
  const auto [shape, number] = ferry::deserialize<dims, scalar>(ferry::serialize(shapes[3], numbers[4]));
  CHECK(shape == shapes[3]);
  CHECK(same(number, numbers[4]));
}

TEST_CASE("any archive takes shapes, numbers and devices") {
  std::stringstream binary;
  std::stringstream text;
  {
    cereal::BinaryOutputArchive to_binary(binary);
    cereal::JSONOutputArchive to_text(text);
    for (const scalar& each : numbers) {
      to_binary(each);
      to_text(each);
    }
    for (const dims& each : shapes) {
      to_binary(each);
      to_text(each);
    }
    for (const device& each : devices) {
      to_binary(each);
      to_text(each);
    }
  }
  cereal::BinaryInputArchive from_binary(binary);
  cereal::JSONInputArchive from_text(text);
  const auto read = [&](auto& value, auto&& check) {
    from_binary(value);
    CHECK(check(value));
    value = {};
    from_text(value);
    CHECK(check(value));
  };
  for (const scalar& each : numbers) {
    scalar found = 1.5;
    read(found, [&](const scalar& value) { return same(value, each); });
  }
  for (const dims& each : shapes) {
    dims found;
    read(found, [&](const dims& value) { return value == each; });
  }
  for (const device& each : devices) {
    device found{ferry::device_kind::cuda, 9};
    read(found, [&](const device& value) { return value == each; });
  }
}

TEST_CASE("what is no shape or number is refused") {
  auto number = ferry::serialize(scalar(1));
  number.bytes[0] = std::byte{4};
  CHECK(kind_of([&] { (void)ferry::deserialize<scalar>(number); }) == errc::malformed);
  auto shape = ferry::serialize(dims{1, 2});
  shape.bytes[0] = std::byte{33};
  CHECK_THROWS_AS((void)ferry::deserialize<dims>(shape), ferry::error);
  shape.bytes[0] = std::byte{3};  // more than there is
  CHECK_THROWS_AS((void)ferry::deserialize<dims>(shape), ferry::error);
  number = ferry::serialize(scalar(0.5));
  number.bytes.pop_back();
  CHECK_THROWS_AS((void)ferry::deserialize<scalar>(number), ferry::error);
}

}  // namespace value_archive_test
