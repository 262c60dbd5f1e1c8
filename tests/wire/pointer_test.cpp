#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/wire/serialize.hpp>

#include "errors.hpp"
#include "hex.hpp"
#include "pointer_types.hpp"

namespace pointer_test {

namespace {

template <class T>
T round_trip(const T& value) {
  return ferry::deserialize<T>(ferry::serialize(value));
}

}  // namespace

TEST_CASE("shared pointers keep their aliasing within one message") {
  auto shared = std::make_shared<std::string>("one");
  std::vector<std::shared_ptr<std::string>> list{shared, nullptr, shared, std::make_shared<std::string>("two")};
  const auto back = round_trip(list);
  REQUIRE(back.size() == 4);
  CHECK(back[0] == back[2]);
  CHECK(back[1] == nullptr);
  CHECK(*back[3] == "two");

  // across arguments
  const auto [a, b] =
      ferry::deserialize<std::shared_ptr<std::string>, std::shared_ptr<std::string>>(ferry::serialize(shared, shared));
  CHECK(a == b);

  // a struct and its first member have one address, but are two objects
  auto pair = std::make_shared<std::pair<int, int>>(1, 2);
  const std::shared_ptr<int> first(pair, &pair->first);
  const auto [whole, part] =
      ferry::deserialize<std::shared_ptr<std::pair<int, int>>, std::shared_ptr<int>>(ferry::serialize(pair, first));
  CHECK(whole->second == 2);
  CHECK(*part == 1);
}

TEST_CASE("objects that refer to each other in a cycle keep the cycle") {
  auto first = std::make_shared<sample::node>();
  first->value = 1;
  first->other = std::make_shared<sample::node>();
  first->other->other = first;
  const auto back = round_trip(first);
  CHECK(back->value == 1);
  CHECK(back->other->other == back);
  first->other->other = nullptr;
  back->other->other = nullptr;
}

TEST_CASE("pointers to polymorphic types keep the derived type") {
  std::vector<std::unique_ptr<sample::shape>> shapes;
  shapes.push_back(std::make_unique<sample::circle>(2.0));
  shapes.push_back(std::make_unique<sample::square>(3.0));
  shapes.push_back(nullptr);
  const auto back = ferry::deserialize<std::vector<std::unique_ptr<sample::shape>>>(ferry::serialize(shapes));
  REQUIRE(back.size() == 3);
  CHECK(back[0]->area() == 12.0);
  CHECK(back[1]->area() == 9.0);
  CHECK(back[2] == nullptr);

  const std::shared_ptr<sample::shape> unknown = std::make_shared<sample::unregistered>();
  CHECK(kind_of([&] { (void)ferry::serialize(unknown); }) == ferry::errc::not_serialisable);
}

TEST_CASE("types without a default constructor are sent behind pointers by load_and_construct") {
  CHECK(round_trip(std::make_unique<sample::constructed>(7))->value == 7);
  CHECK(round_trip(std::make_shared<sample::constructed>(8))->value == 8);
}

TEST_CASE("a value nested too deep is an error on both sides") {
  auto chain = std::make_unique<sample::link>();
  for (int i = 0; i < 200; ++i) {
    auto next = std::make_unique<sample::link>();
    next->next = std::move(chain);
    chain = std::move(next);
  }
  CHECK(kind_of([&] { (void)ferry::serialize(chain); }) == ferry::errc::limit_exceeded);

  chain = nullptr;
  for (int i = 0; i < 20; ++i) {
    auto next = std::make_unique<sample::link>();
    next->next = std::move(chain);
    chain = std::move(next);
  }
  const auto encoded = ferry::serialize(chain);
  ferry::wire_limits shallow;
  shallow.max_depth = 10;
  CHECK(kind_of([&] { (void)ferry::deserialize<std::unique_ptr<sample::link>>(encoded, shallow); }) ==
        ferry::errc::limit_exceeded);
  CHECK(ferry::deserialize<std::unique_ptr<sample::link>>(encoded) != nullptr);
}

TEST_CASE("pointers are encoded as the protocol specifies") {
  CHECK(hex(ferry::serialize(std::unique_ptr<int>())) == "00");
  CHECK(hex(ferry::serialize(std::make_unique<int>(5))) == "0105000000");
  const auto shared = std::make_shared<std::uint8_t>(std::uint8_t{9});
  CHECK(hex(ferry::serialize(shared, std::shared_ptr<std::uint8_t>(), shared)) ==
        "01000080"
        "09"
        "00000000"
        "01000000");
  const std::unique_ptr<sample::shape> derived = std::make_unique<sample::square>(0.0);
  CHECK(hex(ferry::serialize(derived)) ==
        "01000080"
        "0e00000000000000"
        "73616d706c653a3a737175617265"
        "01"
        "0000000000000000");
  CHECK(hex(ferry::serialize(std::make_unique<sample::square>(0.0))) ==
        "00000040"
        "01"
        "0000000000000000");
}

TEST_CASE("a type without a default constructor can be sent only behind a pointer") {
  static_assert(!ferry::wire_serialisable<sample::constructed>);
  static_assert(ferry::wire_serialisable<std::unique_ptr<sample::constructed>>);
  static_assert(ferry::wire_serialisable<std::vector<std::unique_ptr<sample::shape>>>);
}

}  // namespace pointer_test
