// Sparse tensors in messages and files.

#include <cstddef>
#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <cereal/archives/binary.hpp>
#include <cereal/archives/json.hpp>

#include <ferry/ops/sparse.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/wire/serialize.hpp>

#include "expect_error.hpp"

namespace sparse_archive_test {

using ferry::dims;
using ferry::dtype;
using ferry::errc;
using ferry::sparse_tensor;
using ferry::tensor;

namespace {

sparse_tensor rows() {
  return {ferry::tensor_of<std::int64_t>({{3, 1, 3}}), ferry::tensor_of({{1.f, 2.f}, {3.f, 4.f}, {5.f, 6.f}}), {5, 2}};
}

// The encoding, by hand.
struct claimed {
  std::uint8_t record = 1;
  std::vector<std::int64_t> shape{5, 2};
  tensor indices = rows().indices();
  tensor values = rows().values();
  std::uint64_t rank = shape.size();

  template <class Archive>
  void save(Archive& archive) const {
    archive(record, rank);
    for (const std::int64_t each : shape) archive(each);
    archive(indices, values);
  }
  template <class Archive>
  void load(Archive&) {}
};

sparse_tensor decoded(const claimed& claims) {
  const ferry::serialized message = ferry::serialize(claims);
  return ferry::deserialize<sparse_tensor>(message);
}
void refused(std::string_view why, const claimed& claims) {
  expect_error(errc::malformed, why, [&] { (void)decoded(claims); });
}

template <class Out, class In>
sparse_tensor through_file(const sparse_tensor& value) {
  std::stringstream file;
  {
    Out archive(file);
    archive(value);
  }
  In archive(file);
  sparse_tensor back;
  archive(back);
  return back;
}

}  // namespace

TEST_CASE("sparse tensors: indices and values travel, in messages and files") {
  for (const sparse_tensor& each : {rows(), rows().coalesce(), sparse_tensor(),
                                    sparse_tensor::from_dense(ferry::tensor_of({{0.0, 1.0}, {2.0, 0.0}}), 2),
                                    sparse_tensor(ferry::empty({1, 0}, dtype::i64), ferry::empty({0, 2}), {5, 2})}) {
    const ferry::serialized message = ferry::serialize(each);
    CHECK(message.tensors.size() == (each.defined() ? 2 : 0));
    const auto back = ferry::deserialize<sparse_tensor>(message);
    CHECK(equal(back, each));
    CHECK(equal(through_file<cereal::BinaryOutputArchive, cereal::BinaryInputArchive>(each), each));
    CHECK(equal(through_file<cereal::JSONOutputArchive, cereal::JSONInputArchive>(each), each));
    if (!each.defined()) continue;
    CHECK(back.is_coalesced() == each.is_coalesced());
    CHECK(back.nnz() == each.nnz());
  }
  const auto list = ferry::deserialize<std::vector<sparse_tensor>>(ferry::serialize(std::vector{rows(), rows()}));
  REQUIRE(list.size() == 2);
  CHECK(equal(list[1], rows()));
  // A part of a larger tensor is sent alone, and a repeated row as often as it counts.
  const tensor large = ferry::ones({1024, 1024});
  const sparse_tensor part(ferry::tensor_of<std::int64_t>({{7}}), large.narrow(0, 3, 1), {1024, 1024});
  CHECK(ferry::packed_bytes(ferry::pack(ferry::serialize(part).tensors.at(1))).size() == 4096);
  const sparse_tensor repeated(ferry::tensor_of<std::int64_t>({{1, 2}}), ferry::ones({1, 2}).expand({2, 2}), {5, 2});
  CHECK(equal(ferry::deserialize<sparse_tensor>(ferry::serialize(repeated)), repeated));
}

TEST_CASE("sparse tensors: what is none is refused") {
  CHECK(equal(decoded({}), rows()));
  refused("record of kind 3", {.record = 3});
  refused("33 axes", {.rank = 33});
  refused("[5, 3]", {.shape = {5, 3}});
  refused("index 3", {.shape = {3, 2}});
  refused("", {.shape = {-5, 2}});
  refused("do not ascend", {.record = 2});
  refused("undefined", {.indices = tensor()});
  refused("undefined", {.values = tensor()});
  refused("f32", {.indices = ferry::zeros({1, 3})});
  refused("index -1", {.indices = ferry::tensor_of<std::int64_t>({{0, -1, 0}})});
  refused("values of shape [2, 2]", {.values = ferry::ones({2, 2})});
  // A few bytes that claim any number of values.
  const std::int64_t many = std::int64_t{1} << 40;
  refused("share memory", {.indices = ferry::zeros({1, 1}, dtype::i64).expand({1, many}),
                           .values = ferry::zeros({1, 2}).expand({many, 2})});
  refused("", {.shape = {many, many}, .indices = ferry::zeros({2, 1}, dtype::i64), .values = ferry::ones({1})});
}

TEST_CASE("sparse tensors: no part of an encoding is one") {
  const ferry::serialized whole = ferry::serialize(rows());
  const std::span<const std::byte> bytes(whole.bytes.data(), whole.bytes.size());
  for (std::size_t size = 0; size != bytes.size(); ++size) {
    sparse_tensor into;
    CHECK_THROWS_AS(ferry::decode_values(bytes.first(size), whole.tensors, {}, into), ferry::error);
    CHECK_FALSE(into.defined());
  }
  sparse_tensor into;
  CHECK_THROWS_AS(ferry::decode_values(bytes, std::span(whole.tensors).first(1), {}, into), ferry::error);
  CHECK_FALSE(into.defined());
}

}  // namespace sparse_archive_test
