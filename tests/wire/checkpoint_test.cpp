// Tensors and encoded values in cereal's own archives: files, not messages.

#include <array>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/generator.hpp>
#include <ferry/wire/serialize.hpp>

#include "archive_formats.hpp"
#include "expect_error.hpp"
#include "wire_types.hpp"

namespace checkpoint_test {

using ferry::dims;
using ferry::dtype;
using ferry::errc;
using ferry::tensor;

using ferry_test::binary;
using ferry_test::json;
using ferry_test::portable;
using ferry_test::xml;

namespace {

bool same_bytes(const tensor& a, const tensor& b) {
  const auto left = ferry::packed_bytes(a);
  const auto right = ferry::packed_bytes(b);
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::equal(left.begin(), left.end(), right.begin(), right.end());
}

// The contents of a binary archive of a tensor, hand-written.
struct by_hand {
  std::uint8_t type = 9;
  std::vector<std::int64_t> shape{2, 2};
  std::vector<std::int64_t> strides{2, 1};
  std::vector<float> elements{1, 2, 3, 4};
  std::uint64_t claimed_rank = 0;  // instead of the list's length

  [[nodiscard]] std::string text() const {
    std::ostringstream file;
    cereal::BinaryOutputArchive archive(file);
    archive(type);
    for (const auto* list : {&shape, &strides}) {
      archive(cereal::make_size_tag(claimed_rank != 0 ? claimed_rank : std::uint64_t{list->size()}));
      for (const std::int64_t value : *list) archive(value);
    }
    archive(cereal::binary_data(elements.data(), elements.size() * sizeof(float)));
    return file.str();
  }
};

}  // namespace

TEST_CASE_TEMPLATE("every dtype, shape and view comes back from a file", Format, binary, portable, json, xml) {
  for (int code = 1; code <= 14; ++code) {
    const auto type = static_cast<dtype>(code);
    CAPTURE(ferry::dtype_name(type));
    const tensor t = ferry::arange(0, 6, 1).to(type).view({2, 3});
    CHECK(same_bytes(Format::template read<tensor>(Format::write(t)), t));
  }
  for (int count = 0; count != 5; ++count) {  // every length that base64 pads differently
    const tensor t = ferry::arange(0, count, 1, dtype::u8);
    CHECK(ferry::equal(Format::template read<tensor>(Format::write(t)), t));
  }
  const tensor whole = ferry::arange(24).view({2, 3, 4});
  for (const tensor& view : {whole.transpose(0, 2), whole.slice(2, 1, 4, 2), whole.select(1, 2), whole.narrow(0, 1, 1),
                             whole.select(0, 0).select(0, 0).select(0, 3), ferry::zeros({0, 3}),
                             ferry::zeros({3, 0, 2}), ferry::tensor_of(3.5), ferry::ones({1, 3}).expand({4, 3})}) {
    const tensor back = Format::template read<tensor>(Format::write(view));
    CHECK(ferry::equal(back, view));
    CHECK(back.dtype() == view.dtype());
    CHECK(back.storage().size() <= view.nbytes());
  }
  CHECK_FALSE(Format::template read<tensor>(Format::write(tensor())).defined());
}

TEST_CASE_TEMPLATE("a struct with tensors and encoded values come back from a file", Format, binary, portable, json,
                   xml) {
  const sample::with_tensors model{"model", ferry::arange(6).view({2, 3}), {tensor(), ferry::ones({2})}};
  const auto back = Format::template read<sample::with_tensors>(Format::write(model));
  CHECK(back.name == "model");
  CHECK(ferry::equal(back.weight, model.weight));
  REQUIRE(back.more.size() == 2);
  CHECK_FALSE(back.more[0].defined());
  CHECK(ferry::equal(back.more[1], model.more[1]));

  const ferry::serialized kept = ferry::serialize(model, 7);
  const auto again = Format::template read<ferry::serialized>(Format::write(kept));
  CHECK(again.bytes == kept.bytes);
  const auto [inner, number] = ferry::deserialize<sample::with_tensors, int>(again);
  CHECK(number == 7);
  CHECK(ferry::equal(inner.weight, model.weight));
  CHECK(Format::template read<ferry::serialized>(Format::write(ferry::serialized{})).bytes.empty());
}

TEST_CASE("the text of a tensor is what the documentation says") {
  const std::string text = json::write(ferry::tensor_of({1.F, 2.F}));
  CHECK(text.find("\"dtype\": 9") != std::string::npos);
  CHECK(text.find("\"shape\": [\n            2\n        ]") != std::string::npos);
  CHECK(text.find("\"data\": \"AACAPwAAAEA=\"") != std::string::npos);
}

TEST_CASE("large tensors come back, read in pieces") {
  ferry::manual_seed(7);
  for (const std::int64_t bytes :
       {std::int64_t{16} << 20, (std::int64_t{16} << 20) + 1, (std::int64_t{64} << 20) + 3}) {
    const tensor t = ferry::empty({bytes}, dtype::u8);
    auto* at = t.data<std::uint8_t>();
    for (std::int64_t i = 0; i != bytes; ++i) at[i] = static_cast<std::uint8_t>(i * 2654435761U >> 13);
    CHECK(ferry::equal(binary::read<tensor>(binary::write(t)), t));
  }
}

TEST_CASE("a binary file with wrong counts ends in an error, and allocates no memory for absent data") {
  CHECK(binary::read<tensor>(by_hand{}.text()).at<float>(1, 0) == 3);
  const auto refuse = [](std::string_view words, auto&& change) {
    by_hand file;
    change(file);
    expect_error(errc::malformed, words, [&] { (void)binary::read<tensor>(file.text()); });
  };
  refuse("unknown dtype 77", [](by_hand& f) { f.type = 77; });
  refuse("4611686018427387904 axes", [](by_hand& f) { f.claimed_rank = std::uint64_t{1} << 62; });
  refuse("33 axes", [](by_hand& f) { f.shape = f.strides = std::vector<std::int64_t>(33, 1); });
  refuse("", [](by_hand& f) { f.shape = {2}; });
  refuse("", [](by_hand& f) { f.shape = {-1, 2}; });
  refuse("", [](by_hand& f) { f.shape = {std::int64_t{1} << 40, std::int64_t{1} << 40}; });
  refuse("", [](by_hand& f) { f.strides = {3, 1}; });  // not dense
  refuse("", [](by_hand& f) { f.strides = {-2, 1}; });
  refuse("bool has an element", [](by_hand& f) { f.type = 1; });
  // 4 EiB, 1 TiB and 16 MiB that are absent: the archive ends early.
  for (const std::int64_t rows : {std::int64_t{1} << 59, std::int64_t{1} << 37, std::int64_t{1} << 21}) {
    by_hand file;
    file.shape = {rows, 2};
    CHECK_THROWS_AS((void)binary::read<tensor>(file.text()), cereal::Exception);
  }
  // Every prefix of a valid file.
  const std::string good = by_hand{}.text();
  for (std::size_t length = 0; length != good.size(); ++length) {
    CHECK_THROWS_AS((void)binary::read<tensor>(good.substr(0, length)), cereal::Exception);
  }
}

TEST_CASE("a text file with wrong counts ends in an error") {
  const std::string good = json::write(ferry::tensor_of({1.F, 2.F}));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
  const auto refuse = [&](std::string_view words, const std::string& from, const std::string& to) {
    expect_error(errc::malformed, words, [&] { (void)json::read<tensor>(changed(from, to)); });
  };
  const std::string shape = "\"shape\": [\n            2";
  refuse("8796093022208 bytes comes with 12 characters", shape, "\"shape\": [\n            2199023255552");
  refuse("4 bytes comes with 12 characters", shape, "\"shape\": [\n            1");
  refuse("", shape, "\"shape\": [\n            -2");
  refuse("is not base64", "AACAPw", "AA*APw");
  refuse("comes with 8 characters", "AACAPwAAAEA=", "AACAPwAA");
  refuse("comes with 0 characters", "AACAPwAAAEA=", "");
  refuse("unknown dtype 200", "\"dtype\": 9", "\"dtype\": 200");
  CHECK_THROWS_AS((void)json::read<tensor>(changed("\"data\"", "\"none\"")), cereal::Exception);
}

TEST_CASE("encoded values whose file claims a wrong size end in an error") {
  for (const std::uint64_t claimed : {std::uint64_t{1} << 62, std::uint64_t{1} << 40, std::uint64_t{100}}) {
    std::ostringstream file;
    {
      cereal::BinaryOutputArchive archive(file);
      archive(claimed);
    }
    CHECK_THROWS_AS((void)binary::read<ferry::serialized>(file.str()), cereal::Exception);
    std::ostringstream list;
    {
      cereal::BinaryOutputArchive archive(list);
      archive(std::uint64_t{0}, claimed);  // so many tensors
    }
    CHECK_THROWS_AS((void)binary::read<ferry::serialized>(list.str()), cereal::Exception);
  }
}

TEST_CASE("encoded values that were altered: an error or a value, within the limits") {
  const sample::with_tensors model{"model", ferry::arange(6), {ferry::ones({2})}};
  ferry::serialized good = ferry::serialize(model, std::vector<std::string>{"a", "b"});
  const auto decode = [](const ferry::serialized& from) {
    (void)ferry::deserialize<sample::with_tensors, std::vector<std::string>>(
        from.bytes, from.tensors, {.max_decoded_bytes = 1 << 16, .max_depth = 8});
  };
  decode(good);
  for (std::size_t at = 0; at != good.bytes.size(); ++at) {
    for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      ferry::serialized changed = good;
      changed.bytes[at] = static_cast<std::byte>(value);
      try {
        decode(changed);
      } catch (const ferry::error& e) {
        const bool expected =
            e.kind() == errc::truncated || e.kind() == errc::malformed || e.kind() == errc::limit_exceeded;
        CHECK_MESSAGE(expected, e.what());
      }
    }
    ferry::serialized cut = good;
    cut.bytes.resize(at);
    CHECK_THROWS_AS(decode(cut), ferry::error);
  }
  // Counts that would need more than the limits allow are refused before anything is allocated.
  const ferry::serialized many = ferry::serialize(std::vector<std::uint64_t>(1 << 14));
  expect_error(errc::limit_exceeded, "max_decoded_bytes",
               [&] { (void)ferry::deserialize<std::vector<std::uint64_t>>(many, {.max_decoded_bytes = 1 << 16}); });
}

}  // namespace checkpoint_test
