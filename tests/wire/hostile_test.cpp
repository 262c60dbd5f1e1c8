// Bytes from a hostile peer or one with other types: an error or a value, never a crash or a large allocation.

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include <doctest/doctest.h>
#include <cereal/types/deque.hpp>
#include <cereal/types/forward_list.hpp>
#include <cereal/types/list.hpp>
#include <cereal/types/map.hpp>
#include <cereal/types/set.hpp>
#include <cereal/types/unordered_map.hpp>
#include <cereal/types/unordered_set.hpp>
#include <cereal/types/valarray.hpp>
#include <cereal/types/variant.hpp>

#include <ferry/tensor/factories.hpp>
#include <ferry/wire/message.hpp>
#include <ferry/wire/serialize.hpp>

#include "errors.hpp"
#include "flat_message.hpp"
#include "pointer_types.hpp"
#include "wire_types.hpp"

namespace hostile_test {

using ferry::errc;

namespace {

ferry::serialized count_only(std::uint64_t count) { return ferry::serialize(count); }

template <class T>
errc decode_count(std::uint64_t count) {
  return kind_of([&] { (void)ferry::deserialize<T>(count_only(count)); });
}

/// Decodes; true if there was a value. Exceptions other than ferry::error, std::bad_alloc among them, fail the test.
template <class... Ts>
bool decodes(std::span<const std::byte> bytes, std::span<const ferry::tensor> tensors) {
  // Otherwise long lists of elements without bytes would take nearly all of the time.
  constexpr ferry::wire_limits limits{.max_decoded_bytes = 1U << 20U};
  try {
    std::tuple<Ts...> values;
    std::apply([&](Ts&... each) { ferry::decode_values(bytes, tensors, limits, each...); }, values);
    return true;
  } catch (const ferry::error&) {
    return false;
  } catch (const std::invalid_argument&) {  // of the test types' own serialisers (std::stoi)
    return false;
  } catch (const std::out_of_range&) {
    return false;
  } catch (const sample::user_error&) {
    return false;
  }
}

using everything =
    std::tuple<std::vector<double>, std::map<std::string, std::vector<int>>, std::variant<int, std::string>,
               std::optional<std::string>, std::vector<bool>, std::unordered_map<int, std::string>,
               std::vector<sample::nothing>, sample::versioned, sample::by_member>;

}  // namespace

TEST_CASE("a count without elements behind it is refused before memory is allocated") {
  for (const std::uint64_t count : {std::uint64_t{1} << 30, std::uint64_t{1} << 40, std::uint64_t{1} << 61,
                                    std::uint64_t{1} << 63, std::numeric_limits<std::uint64_t>::max()}) {
    CAPTURE(count);
    CHECK(decode_count<std::vector<double>>(count) == errc::truncated);
    CHECK(decode_count<std::string>(count) == errc::truncated);
    CHECK(decode_count<std::vector<bool>>(count) == errc::truncated);
    CHECK(decode_count<std::vector<std::string>>(count) == errc::truncated);
    CHECK(decode_count<std::vector<sample::nothing>>(count) == errc::limit_exceeded);
    CHECK(decode_count<std::vector<std::unique_ptr<int>>>(count) == errc::limit_exceeded);
    CHECK(decode_count<std::list<int>>(count) == errc::limit_exceeded);
    CHECK(decode_count<std::forward_list<int>>(count) == errc::limit_exceeded);
    CHECK(decode_count<std::deque<sample::nothing>>(count) == errc::limit_exceeded);
    CHECK(decode_count<std::unordered_set<int>>(count) == errc::limit_exceeded);
    CHECK(decode_count<std::unordered_map<int, int>>(count) == errc::limit_exceeded);
    CHECK(decode_count<std::map<int, int>>(count) == errc::limit_exceeded);
    CHECK(decode_count<std::set<int>>(count) == errc::limit_exceeded);
    CHECK(decode_count<std::valarray<double>>(count) == errc::limit_exceeded);
  }
}

TEST_CASE("elements without bytes are charged to the budget of decoded memory") {
  ferry::wire_limits limits;
  limits.max_decoded_bytes = 1000;
  const auto some = ferry::serialize(std::vector<sample::nothing>(1000));
  const auto more = ferry::serialize(std::vector<sample::nothing>(1001));
  CHECK(ferry::deserialize<std::vector<sample::nothing>>(some, limits).size() == 1000);
  CHECK(kind_of([&] { (void)ferry::deserialize<std::vector<sample::nothing>>(more, limits); }) == errc::limit_exceeded);
  // The budget is for all containers of a payload together.
  const auto twice = ferry::serialize(std::vector<sample::nothing>(600), std::vector<sample::nothing>(600));
  CHECK(kind_of([&] {
          (void)ferry::deserialize<std::vector<sample::nothing>, std::vector<sample::nothing>>(twice, limits);
        }) == errc::limit_exceeded);
  // Objects behind pointers count, too.
  std::vector<std::unique_ptr<sample::by_member>> pointers(20);
  for (auto& p : pointers) p = std::make_unique<sample::by_member>();
  CHECK(kind_of([&] {
          (void)ferry::deserialize<std::vector<std::unique_ptr<sample::by_member>>>(ferry::serialize(pointers), limits);
        }) == errc::limit_exceeded);
}

TEST_CASE("a shared pointer cannot be made to refer to an object of another type") {
  auto number = std::make_shared<int>(7);
  auto text = std::make_shared<std::string>("text");
  auto encoded = ferry::serialize(number, text);
  // id 2, new: the string. Make it a reference to object 1, an int.
  encoded.bytes.resize(8);
  encoded.bytes.push_back(std::byte{1});
  encoded.bytes.resize(12);
  CHECK(kind_of([&] { (void)ferry::deserialize<std::shared_ptr<int>, std::shared_ptr<std::string>>(encoded); }) ==
        errc::malformed);
  CHECK(kind_of([&] { (void)ferry::deserialize<std::shared_ptr<int>, std::shared_ptr<int>>(encoded); }) == errc{});
  encoded.bytes[8] = std::byte{9};  // an object that was never sent
  CHECK(kind_of([&] { (void)ferry::deserialize<std::shared_ptr<int>, std::shared_ptr<int>>(encoded); }) ==
        errc::malformed);
}

TEST_CASE("an object cannot be referred to while its load_and_construct is reading it") {
  // A new object 1 that refers, in its own constructor arguments, to object 1.
  const auto encoded = ferry::serialize(std::uint32_t{0x80000001}, std::uint32_t{1});
  CHECK(kind_of([&] { (void)ferry::deserialize<std::shared_ptr<sample::constructed_from_pointer>>(encoded); }) ==
        errc::malformed);
}

TEST_CASE("an encoding cut short anywhere is an error") {
  const everything value{{1, 2}, {{"a", {1}}}, "x", "y", {true}, {{1, "z"}}, {{}, {}}, {1, 2}, {3, "w", {4}}};
  const auto encoded = ferry::serialize(value);
  for (std::size_t size = 0; size < encoded.bytes.size(); ++size) {
    CAPTURE(size);
    CHECK_FALSE(decodes<everything>(std::span(encoded.bytes).first(size), {}));
  }
}

TEST_CASE("flipped bits anywhere give an error or a value") {
  std::mt19937_64 random(20240229);  // NOLINT: deterministic
  const ferry::tensor tensor = ferry::arange(3);
  auto shared = std::make_shared<std::string>("s");
  std::vector<std::unique_ptr<sample::shape>> shapes;
  shapes.push_back(std::make_unique<sample::circle>(1));
  shapes.push_back(std::make_unique<sample::square>(2));
  shapes.push_back(std::make_unique<sample::circle>(3));
  const auto encoded =
      ferry::serialize(everything{{1, 2}, {{"a", {1}}}, "x", "y", {true}, {{1, "z"}}, {{}, {}}, {1, 2}, {3, "w", {4}}},
                       shapes, std::vector{shared, shared}, sample::with_tensors{"t", tensor, {tensor}},
                       sample::boxed{1, {"n", tensor, {}}}, std::make_unique<sample::link>());
  const auto try_decode = [&](std::span<const std::byte> bytes) {
    return decodes<everything, std::vector<std::unique_ptr<sample::shape>>, std::vector<std::shared_ptr<std::string>>,
                   sample::with_tensors, sample::boxed, std::unique_ptr<sample::link>>(bytes, encoded.tensors);
  };
  REQUIRE(try_decode(encoded.bytes));
  std::size_t values = 0;
  for (std::size_t bit = 0; bit < encoded.bytes.size() * 8; ++bit) {
    auto changed = encoded.bytes;
    changed[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    values += try_decode(changed) ? 1 : 0;
  }
  for (int round = 0; round < 20000; ++round) {
    auto changed = encoded.bytes;
    const int count = 1 + static_cast<int>(random() % 8);
    for (int i = 0; i < count; ++i) {
      changed[random() % changed.size()] = round % 2 == 0 ? static_cast<std::byte>(random()) : std::byte{0xff};
    }
    values += try_decode(changed) ? 1 : 0;
  }
  CHECK(values > 0);
}

TEST_CASE("flipped bits anywhere in a whole message give an error or a value") {
  std::mt19937_64 random(7);  // NOLINT: deterministic
  ferry::outgoing_message message;
  ferry::encode_values<std::string, std::vector<ferry::tensor>>(
      message.bytes, message.tensors, "text",
      std::vector{ferry::arange(6).view({2, 3}), ferry::ones({3, 1, 2}), ferry::full({}, 1.0)});
  message.add_extension(3, false, std::as_bytes(std::span("record")));
  const auto flat = flatten(message);
  ferry::wire_limits limits;
  limits.max_message_bytes = 1 << 20;
  const auto try_decode = [&](std::span<const std::byte> bytes) {
    try {
      const auto inbound = unflatten(bytes, limits);
      ferry::check_extensions(inbound.extensions, limits);
      std::string text;
      std::vector<ferry::tensor> tensors;
      ferry::decode_values(inbound.payload, inbound.tensors, limits, text, tensors);
      return true;
    } catch (const ferry::error&) {
      return false;
    }
  };
  REQUIRE(try_decode(flat));
  for (std::size_t bit = 0; bit < flat.size() * 8; ++bit) {
    auto changed = flat;
    changed[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    (void)try_decode(changed);
  }
  for (int round = 0; round < 20000; ++round) {
    auto changed = flat;
    for (std::uint64_t i = 0, count = 1 + random() % 8; i < count; ++i) {
      changed[random() % changed.size()] = static_cast<std::byte>(random());
    }
    (void)try_decode(changed);
  }
}

}  // namespace hostile_test
