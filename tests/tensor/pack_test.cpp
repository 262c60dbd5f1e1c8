#include <ferry/tensor/pack.hpp>

#include <cstring>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"

namespace pack_test {

using ferry::dims;
using ferry::dtype;
using ferry::errc;
using ferry::tensor;

namespace {

// Like a transport: only dtype, shape, strides and the packed bytes are transferred.
tensor round_trip(const tensor& t) {
  const tensor packed = ferry::pack(t);
  const auto bytes = ferry::packed_bytes(packed);
  const tensor arrived = ferry::empty_packed(packed.dtype(), packed.shape(), packed.strides());
  const auto into = ferry::writable_packed_bytes(arrived);
  REQUIRE(into.size() == bytes.size());
  if (!bytes.empty()) std::memcpy(into.data(), bytes.data(), bytes.size());
  CHECK(arrived.shape() == t.shape());
  CHECK(ferry::equal(arrived, t));
  return arrived;
}

}  // namespace

TEST_CASE("a dense tensor is packed as it is") {
  const tensor t = ferry::arange(24).view({2, 3, 4});
  CHECK(ferry::pack(t).same_as(t));
  CHECK(ferry::packed_bytes(t).data() == t.data());
  CHECK(ferry::packed_bytes(t).size() == t.nbytes());
  CHECK(round_trip(t).is_contiguous());
}

TEST_CASE("[row 38] a transposed tensor stays transposed") {
  const tensor t = ferry::arange(24).view({2, 3, 4}).permute({2, 0, 1});
  CHECK(!t.is_contiguous());
  CHECK(ferry::pack(t).same_as(t));
  const tensor arrived = round_trip(t);
  CHECK(arrived.strides() == t.strides());
  CHECK(!arrived.is_contiguous());
  CHECK(ferry::equal(arrived, t.contiguous()));

  const tensor part = t.slice(0, 1, 4, 2).narrow(2, 1, 2);  // gaps as well: they close, the order stays
  const tensor part_arrived = round_trip(part);
  CHECK(part_arrived.strides() == dims{1, 4, 2});
  CHECK(part_arrived.storage().size() == part.nbytes());
}

TEST_CASE("[row 88] only the visible elements are sent") {
  const tensor whole = ferry::zeros({1024, 1024});
  const tensor row = whole.select(0, 7);
  CHECK(ferry::pack(row).same_as(row));  // not even copied
  CHECK(ferry::packed_bytes(row).size() == 4096);
  CHECK(ferry::packed_bytes(row).data() == row.data());
  CHECK(round_trip(row).storage().size() == 4096);
  const tensor column = whole.select(1, 7);
  CHECK(ferry::pack(column).storage().size() == 4096);
  CHECK(round_trip(column).strides() == dims{1});
  CHECK(ferry::packed_bytes(whole.narrow(0, 3, 2)).size() == 8192);
}

TEST_CASE("[row 89] borrowed memory is copied, owned foreign memory is not") {
  std::vector<float> memory{1, 2, 3, 4};
  const tensor borrowed = ferry::from_blob(memory.data(), {2, 2}, dtype::f32);
  const tensor packed = ferry::pack(borrowed);
  CHECK(!packed.same_as(borrowed));
  CHECK(packed.storage().owns_memory());
  memory[0] = 9;
  CHECK(packed.at<float>(0, 0) == 1);
  CHECK(ferry::pack(borrowed.transpose(0, 1)).strides() == dims{1, 2});
  const tensor owned = ferry::from_blob(memory.data(), {2, 2}, dtype::f32, [](void*) {});
  CHECK(ferry::pack(owned).same_as(owned));
}

TEST_CASE("axes of stride 0 are sent once") {
  const tensor t = ferry::arange(3).view({1, 3, 1}).expand({1000, 3, 500});
  CHECK(ferry::is_packed(t));
  CHECK(ferry::pack(t).same_as(t));
  CHECK(ferry::packed_bytes(t).size() == 24);
  const tensor arrived = round_trip(t);
  CHECK(arrived.strides() == dims{0, 1, 0});
  CHECK(arrived.storage().size() == 24);

  const tensor gaps = ferry::arange(6).view({3, 2}).select(1, 1).unsqueeze(0).expand({4, 3});
  CHECK(!ferry::is_packed(gaps));
  expect_error(errc::bad_shape, "are not one block; pack() it first", [&] { (void)ferry::packed_bytes(gaps); });
  const tensor packed = ferry::pack(gaps);
  CHECK(packed.strides() == dims{0, 1});
  CHECK(packed.storage().size() == 24);
  CHECK(round_trip(gaps).strides() == dims{0, 1});
}

TEST_CASE("overlapping windows are sent element by element") {
  const tensor windows = ferry::arange(6).as_strided({4, 3}, {1, 1}, 0);
  CHECK(!ferry::is_packed(windows));
  CHECK(ferry::pack(windows).storage().size() == windows.nbytes());
  CHECK(round_trip(windows).at<std::int64_t>(3, 2) == 5);
}

TEST_CASE("every dtype, no axes and no elements") {
  for (int code = 1; code != 15; ++code) {
    const auto type = static_cast<dtype>(code);
    const tensor t = ferry::arange(0, 10, 1, type).view({2, 5});
    round_trip(t);
    round_trip(t.transpose(0, 1));
    round_trip(t.slice(1, 0, 5, 2));
    round_trip(t.select(1, 3));
    CHECK(round_trip(t.select(0, 0).select(0, 1)).rank() == 0);
    CHECK(round_trip(ferry::zeros({0, 3}, type)).numel() == 0);
    CHECK(round_trip(ferry::zeros({0, 0}, type)).shape() == dims{0, 0});
  }
}

TEST_CASE("strides of axes without distinct elements are not taken from the peer") {
  const auto huge = std::numeric_limits<std::int64_t>::max();
  const tensor t = ferry::empty_packed(dtype::f32, dims{1, 3, 1}, dims{huge, 1, huge});
  CHECK(t.strides() == dims{3, 1, 1});
  CHECK(ferry::empty_packed(dtype::f32, dims{2, 0}, dims{huge, huge}).strides() == dims{1, 1});
}

TEST_CASE("shapes and strides off the wire are checked before allocating") {
  const auto huge = std::numeric_limits<std::int64_t>::max();
  const auto refuse = [](const dims& shape, const dims& strides, const char* text) {
    expect_error(errc::bad_shape, text, [&] { (void)ferry::empty_packed(dtype::f32, shape, strides); });
    expect_error(errc::bad_shape, text, [&] { (void)ferry::packed_size(dtype::f32, shape, strides); });
  };
  refuse({2, 3}, {3}, "2 sizes and 1 strides");
  refuse({2, -3}, {3, 1}, "is negative");
  refuse({2, 3}, {-3, 1}, "do not make one dense block");
  refuse({1}, {-1}, "do not make one dense block");
  refuse({2, 3}, {4, 1}, "do not make one dense block");
  refuse({2, 3}, {1, 1}, "do not make one dense block");
  refuse({2, 3}, {2, 1}, "do not make one dense block");
  refuse({4}, {2}, "do not make one dense block");
  refuse({huge, huge}, {0, 0}, "more elements than fit");
  refuse({huge, 2}, {0, 1}, "more elements than fit");
  refuse({huge}, {1}, "more bytes than fit");
  refuse({huge}, {0}, "more bytes than fit");
  refuse({0, huge, huge}, {0, 0, 0}, "more elements than fit");
  const std::vector<std::int64_t> long_list(33, 1);
  expect_error(errc::bad_shape, "33 sizes", [&] { (void)ferry::empty_packed(dtype::f32, long_list, long_list); });
  expect_error(errc::bad_dtype, "99 is not the number of a dtype",
               [] { (void)ferry::empty_packed(static_cast<dtype>(99), dims{1}, dims{1}); });
  CHECK(ferry::packed_size(dtype::f64, dims{2, 3}, dims{1, 2}) == 48);
  CHECK(ferry::packed_size(dtype::f64, dims{std::int64_t{1} << 40}, dims{0}) == 8);
}

}  // namespace pack_test
