#include <ferry/wire/tensor_archive.hpp>

#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <cereal/archives/binary.hpp>
#include <cereal/types/map.hpp>

#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/hooks.hpp>
#include <ferry/wire/serialize.hpp>

#include "errors.hpp"
#include "wire_types.hpp"

namespace other_library {
struct matrix {
  std::vector<float> elements;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(elements);
  }
};

// Keeps the tensor that it arrived as.
struct variable {
  ferry::tensor value;
};
}  // namespace other_library

template <>
struct ferry::tensor_traits<other_library::matrix> {
  static tensor to_tensor(const other_library::matrix& value) { return from_vector(value.elements); }
  static other_library::matrix from_tensor(tensor t) {
    if (t.rank() != 1) throw_error(errc::bad_shape, "a matrix of this test has one axis");
    return {{t.data<float>(), t.data<float>() + t.numel()}};
  }
};

template <>
struct ferry::tensor_traits<other_library::variable> {
  static tensor to_tensor(const other_library::variable& value) { return value.value; }
  static other_library::variable from_tensor(tensor t) { return {std::move(t)}; }
};

namespace tensor_archive_test {

using ferry::errc;
using ferry::tensor;

namespace {

struct silent_slot final : ferry::tensor_hooks {
  int calls = 0;
  void viewed(const ferry::operation&, const tensor&, tensor&) override { ++calls; }
  void mutated(const ferry::operation&, const tensor&, std::span<const tensor>) override { ++calls; }
  void computed(const ferry::operation&, std::span<const tensor>, std::span<tensor>) override { ++calls; }
  [[nodiscard]] bool requires_grad(const tensor&) const noexcept override { return true; }
};

}  // namespace

TEST_CASE("tensors anywhere in the values are sent beside the payload, in order") {
  const tensor a = ferry::arange(3);
  const tensor b = ferry::ones({2});
  const auto encoded = ferry::serialize(sample::with_tensors{"m", a, {b, tensor()}}, std::map<int, tensor>{{1, a}});
  REQUIRE(encoded.tensors.size() == 2);
  CHECK(encoded.tensors[0].same_as(a));
  CHECK(encoded.tensors[1].same_as(b));
  const auto [model, map] = ferry::deserialize<sample::with_tensors, std::map<int, tensor>>(encoded);
  CHECK(model.weight.same_as(a));
  CHECK(model.more.at(0).same_as(b));
  CHECK_FALSE(model.more.at(1).defined());
  CHECK(map.at(1).same_as(model.weight));
  CHECK(ferry::type_name<std::vector<tensor>>() == "vector<tensor>");
}

TEST_CASE("one tensor many times is one tensor, whatever their number") {
  std::vector<tensor> list;
  for (int i = 0; i < 100; ++i) list.push_back(ferry::zeros({i % 3 == 0 ? 0 : 1}));
  const std::size_t distinct = list.size();
  for (std::size_t i = 0; i < distinct; ++i) list.push_back(list[i]);
  const auto encoded = ferry::serialize(list);
  CHECK(encoded.tensors.size() == distinct);
  const auto back = ferry::deserialize<std::vector<tensor>>(encoded);
  for (std::size_t i = 0; i < distinct; ++i) CHECK(back[i].same_as(back[i + distinct]));
}

TEST_CASE("tensor indices that no encoder writes are refused") {
  auto encoded = ferry::serialize(ferry::arange(1), ferry::arange(2));
  const auto decode = [&] { (void)ferry::deserialize<tensor, tensor>(encoded); };
  CHECK(kind_of(decode) == errc{});
  encoded.bytes[4] = std::byte{2};  // beyond the table
  CHECK(kind_of(decode) == errc::malformed);
  encoded.bytes[4] = std::byte{0};  // the second tensor belongs to no value
  CHECK(kind_of(decode) == errc::malformed);
  encoded.bytes[0] = std::byte{1};  // out of order
  CHECK(kind_of(decode) == errc::malformed);
  encoded = ferry::serialize(ferry::arange(1));
  encoded.tensors.clear();
  CHECK(kind_of([&] { (void)ferry::deserialize<tensor>(encoded); }) == errc::malformed);
}

TEST_CASE("[row 37] an object whose own serialiser uses the public serialiser travels with its tensors") {
  const tensor w = ferry::arange(4);
  const sample::boxed box{5, {"inner", w, {w}}};
  const auto encoded = ferry::serialize(std::vector{box, box}, w);
  CHECK(encoded.tensors.size() == 1);
  const auto [list, outer] = ferry::deserialize<std::vector<sample::boxed>, tensor>(encoded);
  REQUIRE(list.size() == 2);
  CHECK(list[1].inner.name == "inner");
  CHECK(list[1].inner.more.at(0).same_as(outer));
  CHECK(ferry::equal(outer, w));
}

TEST_CASE("a foreign tensor type is sent as a tensor, whatever its own serialiser") {
  const other_library::matrix matrix{{1, 2, 3}};
  const auto encoded = ferry::serialize(std::vector{matrix, matrix});
  REQUIRE(encoded.tensors.size() == 2);
  CHECK(encoded.tensors[0].at<float>(1) == 2);
  const auto back = ferry::deserialize<std::vector<other_library::matrix>>(encoded);
  CHECK(back.at(1).elements == matrix.elements);
  // The same tensor, decoded as ferry's type.
  CHECK(ferry::deserialize<std::vector<tensor>>(encoded).at(0).same_as(encoded.tensors[0]));
  CHECK(ferry::signature_text<void(std::vector<other_library::matrix>)>() == "void(vector<tensor>)");
  CHECK(kind_of([] {
          (void)ferry::deserialize<other_library::matrix>(ferry::serialize(ferry::zeros({2, 2})));
        }) == errc::bad_shape);
}

TEST_CASE("a foreign tensor that came twice has memory of its own, and the slot of the first") {
  using other_library::variable;
  const tensor w = ferry::arange(4);
  const auto encoded = ferry::serialize(std::vector{variable{w}, variable{w}, variable{w}});
  REQUIRE(encoded.tensors.size() == 1);
  const auto slot = std::make_shared<silent_slot>();
  encoded.tensors[0].set_slot(slot);  // as an interceptor does before the arguments are decoded
  const auto back = ferry::deserialize<std::vector<variable>>(encoded);
  REQUIRE(back.size() == 3);
  for (const variable& each : back) {
    CHECK(each.value.slot() == slot);
    CHECK(ferry::equal(each.value, w));
  }
  CHECK(back[1].value.data() != back[0].value.data());
  CHECK(back[1].value.data() != back[2].value.data());
  CHECK(slot->calls == 0);
}

TEST_CASE("sending and storing a tensor is nothing that its slot hears of") {
  const tensor strided = ferry::arange(8).slice(0, 0, 8, 2);
  const auto slot = std::make_shared<silent_slot>();
  strided.set_slot(slot);
  std::stringstream file;
  {
    cereal::BinaryOutputArchive archive(file);
    archive(strided);
  }
  const auto encoded = ferry::serialize(strided);
  CHECK(encoded.tensors.at(0).slot() == slot);
  CHECK(slot->calls == 0);
}

}  // namespace tensor_archive_test
