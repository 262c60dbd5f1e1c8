#include <ferry/wire/serialize.hpp>

#include <array>
#include <bitset>
#include <chrono>
#include <complex>
#include <deque>
#include <forward_list>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <valarray>
#include <variant>
#include <vector>

#include <doctest/doctest.h>
#include <cereal/types/atomic.hpp>
#include <cereal/types/bitset.hpp>
#include <cereal/types/chrono.hpp>
#include <cereal/types/complex.hpp>
#include <cereal/types/deque.hpp>
#include <cereal/types/forward_list.hpp>
#include <cereal/types/list.hpp>
#include <cereal/types/map.hpp>
#include <cereal/types/memory.hpp>
#include <cereal/types/queue.hpp>
#include <cereal/types/set.hpp>
#include <cereal/types/unordered_map.hpp>
#include <cereal/types/unordered_set.hpp>
#include <cereal/types/valarray.hpp>
#include <cereal/types/variant.hpp>

#include "errors.hpp"
#include "hex.hpp"
#include "wire_types.hpp"

namespace archive_test {

namespace {

template <class T>
T round_trip(const T& value) {
  static_assert(ferry::wire_serialisable<T>);
  return ferry::deserialize<T>(ferry::serialize(value));
}
template <class T>
void check_round_trip(const T& value) {
  CAPTURE(ferry::type_name<T>());
  CHECK((round_trip(value) == value));
}

}  // namespace

TEST_CASE("numbers are little-endian at their own width") {
  CHECK(hex(ferry::serialize(1, std::int16_t{-2}, std::uint8_t{255}, true, 'a')) == "01000000feffff0161");
  CHECK(hex(ferry::serialize(1.5)) == "000000000000f83f");
  CHECK(hex(ferry::serialize(std::string("hi"))) == "02000000000000006869");
  CHECK(hex(ferry::serialize(std::vector<std::uint16_t>{1, 2})) == "020000000000000001000200");
  CHECK(hex(ferry::serialize(std::optional<int>{})) == "01");
  CHECK(hex(ferry::serialize(sample::colour::green)) == "01");
  CHECK(hex(ferry::serialize(std::optional<std::uint8_t>{7})) == "0007");
  CHECK(hex(ferry::serialize(std::variant<int, std::uint8_t>{std::uint8_t{7}})) == "0100000007");
  CHECK(hex(ferry::serialize(std::bitset<9>{0b1'0000'0011})) == "03c080");
  CHECK(hex(ferry::serialize(std::map<char, char>{{'a', 'b'}})) == "01000000000000006162");
  CHECK(hex(ferry::serialize(std::chrono::seconds{2})) == "0200000000000000");
  CHECK(hex(ferry::serialize(ferry::tensor())) == "ffffffff");
  CHECK(hex(ferry::serialize()).empty());
  check_round_trip(std::numeric_limits<std::int64_t>::min());
  check_round_trip(std::numeric_limits<double>::denorm_min());
  check_round_trip(sample::colour::green);
  check_round_trip(U'x');
}

TEST_CASE("standard types round-trip") {
  check_round_trip(std::string());
  check_round_trip(std::string(100000, 'x'));
  check_round_trip(std::u16string(u"h\u00e9"));
  check_round_trip(std::vector<double>{1, 2, 3});
  check_round_trip(std::vector<std::byte>{std::byte{1}});
  check_round_trip(std::vector<bool>{true, false, true});
  check_round_trip(std::vector<std::string>{"a", "", "ccc"});
  check_round_trip(std::array<int, 3>{1, 2, 3});
  check_round_trip(std::array<int, 0>{});
  check_round_trip(std::array<std::string, 0>{});
  check_round_trip(std::array<std::string, 2>{"a", "b"});
  check_round_trip(std::tuple<int, std::string, std::optional<double>>{1, "x", 2.5});
  check_round_trip(std::pair<int, std::vector<int>>{1, {2}});
  check_round_trip(std::map<std::string, std::vector<int>>{{"a", {1}}, {"b", {}}});
  check_round_trip(std::multimap<int, int>{{1, 1}, {1, 1}, {2, 3}});
  check_round_trip(std::unordered_map<int, std::string>{{1, "x"}, {2, "y"}});
  check_round_trip(std::set<int>{3, 1, 2});
  check_round_trip(std::unordered_set<std::string>{"x", "y"});
  check_round_trip(std::list<int>{1, 2});
  check_round_trip(std::deque<std::string>{"a"});
  check_round_trip(std::forward_list<int>{1, 2, 3});
  check_round_trip(std::variant<int, std::string>{"x"});
  check_round_trip(std::complex<double>{1, 2});
  check_round_trip(std::bitset<70>{5});
  check_round_trip(std::chrono::milliseconds{5});
  check_round_trip(std::chrono::system_clock::time_point{std::chrono::seconds{7}});
  CHECK(round_trip(std::valarray<float>{1, 2, 3}).sum() == 6);
  std::priority_queue<int> queue;
  queue.push(3);
  CHECK(round_trip(queue).top() == 3);
  CHECK(*round_trip(std::make_unique<int>(4)) == 4);
  CHECK(round_trip(std::unique_ptr<int>()) == nullptr);
}

TEST_CASE("long sequences of numbers are copied whole") {
  std::vector<std::int32_t> numbers(100'003);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int32_t>(i * 7);
  check_round_trip(numbers);
  // behind one byte, so not aligned
  const auto [flag, back] = ferry::deserialize<bool, std::vector<std::int32_t>>(ferry::serialize(true, numbers));
  CHECK(flag);
  CHECK(back == numbers);
}

TEST_CASE("views are written as what the receiver makes of them") {
  const std::vector<int> numbers{1, 2, 3};
  CHECK(hex(ferry::serialize(std::string_view("abc"))) == hex(ferry::serialize(std::string("abc"))));
  CHECK(hex(ferry::serialize(std::span<const int>(numbers))) == hex(ferry::serialize(numbers)));
  const std::vector<std::string> words{"a", "bc"};
  CHECK(hex(ferry::serialize(std::span<const std::string>(words))) == hex(ferry::serialize(words)));

  ferry::byte_buffer bytes;
  std::vector<ferry::tensor> tensors;
  ferry::encode_values<std::string, std::vector<int>, double, std::optional<int>>(bytes, tensors, "abc",
                                                                                  std::array{1, 2}, 7, 3);
  std::string text;
  std::vector<int> list;
  double number = 0;
  std::optional<int> maybe;
  ferry::decode_values(bytes.bytes(), tensors, {}, text, list, number, maybe);
  CHECK(text == "abc");
  CHECK(list == std::vector{1, 2});
  CHECK(number == 7);
  CHECK(maybe == 3);
}

TEST_CASE("user types are serialised by serialize, by save and load, by save_minimal, and with versions") {
  check_round_trip(sample::by_member{1, "x", {2.5}});
  check_round_trip(sample::by_free_function{3, {"y"}});
  check_round_trip(sample::by_save_and_load{42});
  check_round_trip(sample::minimal{"z"});
  check_round_trip(std::vector<sample::versioned>{{1, 2}, {3, 4}});
  CHECK(hex(ferry::serialize(sample::versioned{1, 2})) ==
        "03000000"
        "01000000"
        "02000000");
  check_round_trip(std::vector<sample::nothing>(5));
}

TEST_CASE("what a user's serialiser throws passes through") {
  CHECK_THROWS_AS((void)ferry::serialize(sample::throws_on_save{}), sample::user_error);
  CHECK_THROWS_AS((void)ferry::deserialize<sample::throws_on_load>(ferry::serialize(sample::throws_on_load{})),
                  sample::user_error);
}

TEST_CASE("bytes and types that do not fit are distinguished") {
  const auto two = ferry::serialize(1, 2);
  CHECK(kind_of([&] { (void)ferry::deserialize<int>(two); }) == ferry::errc::malformed);
  CHECK(kind_of([&] { (void)ferry::deserialize<int, int, int>(two); }) == ferry::errc::truncated);
  CHECK(kind_of([&] { (void)ferry::deserialize<bool>(ferry::serialize(std::uint8_t{2})); }) == ferry::errc::malformed);
  CHECK(kind_of([&] { (void)ferry::deserialize<std::array<bool, 2>>(ferry::serialize(std::uint16_t{0x0201})); }) ==
        ferry::errc::malformed);
  CHECK(kind_of([&] { (void)ferry::deserialize<std::variant<int, bool>>(ferry::serialize(7)); }) ==
        ferry::errc::malformed);
  CHECK(kind_of([&] { (void)ferry::deserialize<std::variant<int, bool>>(ferry::serialize(-1)); }) ==
        ferry::errc::malformed);
}

TEST_CASE("types that cannot be sent are rejected at compile time") {
  static_assert(!ferry::wire_serialisable<int*>);
  static_assert(!ferry::wire_serialisable<std::vector<const char*>>);
  static_assert(!ferry::wire_serialisable<std::map<int, void*>>);
  static_assert(!ferry::wire_serialisable<std::tuple<int, sample::mute>>);
  static_assert(!ferry::wire_serialisable<long double>);
  static_assert(!ferry::wire_serialisable<std::optional<std::string_view>>);
  static_assert(!ferry::wire_serialisable<std::function<int()>>);
  static_assert(ferry::wire_serialisable<ferry::tensor>);
}

}  // namespace archive_test
