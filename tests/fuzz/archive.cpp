// The payload of requests and replies. Input: u8 which types it holds, u8 number of tensors beside it, then the payload.
//
// What was decoded is encoded and decoded once more. Most types have one encoding for each value, so the first encoding
// must be the input itself; others (sets out of order, older class versions, the mark of a unique_ptr) must be stable from
// then on.

#include <array>
#include <bitset>
#include <chrono>
#include <complex>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>

#include <cereal/types/bitset.hpp>
#include <cereal/types/chrono.hpp>
#include <cereal/types/complex.hpp>
#include <cereal/types/deque.hpp>
#include <cereal/types/list.hpp>
#include <cereal/types/map.hpp>
#include <cereal/types/memory.hpp>
#include <cereal/types/polymorphic.hpp>
#include <cereal/types/set.hpp>
#include <cereal/types/unordered_map.hpp>
#include <cereal/types/variant.hpp>

#include <ferry/tensor/factories.hpp>

#include "../wire/pointer_types.hpp"
#include "../wire/wire_types.hpp"
#include "targets.hpp"

namespace fuzz {
namespace archive_target {
namespace {

// A graph that may have cycles, which the fuzzer's search for leaks must not mistake for a fault of the archive.
struct vertex {
  vertex() { alive().insert(this); }
  ~vertex() { alive().erase(this); }
  vertex(const vertex&) = delete;
  vertex& operator=(const vertex&) = delete;
  static std::set<vertex*>& alive() {
    static std::set<vertex*> all;
    return all;
  }
  static void cut_all() {
    std::vector<std::shared_ptr<vertex>> keep;
    for (vertex* each : alive()) {
      for (auto& edge : each->edges) keep.push_back(std::move(edge));
      each->edges.clear();
    }
  }

  std::int32_t value = 0;
  std::vector<std::shared_ptr<vertex>> edges;
  std::weak_ptr<vertex> back;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(value, edges, back);
  }
};

enum class form { exact, stable, sized };

template <class T>
struct encoding {
  std::vector<std::byte> content;
  std::vector<ferry::tensor> tensors;
};

template <class... Ts>
encoding<std::tuple<Ts...>> encode(const std::tuple<Ts...>& values) {
  ferry::byte_buffer out;
  encoding<std::tuple<Ts...>> result;
  std::apply([&](const Ts&... each) { ferry::encode_values<Ts...>(out, result.tensors, each...); }, values);
  result.content.assign(out.data(), out.data() + out.size());
  return result;
}

template <class... Ts>
void decode(bytes content, std::span<const ferry::tensor> tensors, std::tuple<Ts...>& values) {
  std::apply([&](Ts&... each) { ferry::decode_values(content, tensors, limits, each...); }, values);
}

template <form Form, class... Ts>
void check(bytes content, std::span<const ferry::tensor> tensors) {
  accepted([&] {
    std::tuple<Ts...> values;
    try {
      decode(content, tensors, values);
    } catch (const std::invalid_argument&) {
      return;  // what serialisers throw passes through, and cereal's for bitset throws this for a text of other than 0 and 1
    }
    const auto first = encode(values);
    require(first.tensors.size() == tensors.size(), "all tensors belong to a value");
    for (std::size_t i = 0; i != tensors.size(); ++i) {
      require(first.tensors[i].same_as(tensors[i]), "tensors keep their identity");
    }
    if constexpr (Form == form::exact)
      require(same(first.content, content), "a value encodes to what it was decoded from");
    std::tuple<Ts...> again;
    decode(first.content, first.tensors, again);
    const auto second = encode(again);
    if constexpr (Form == form::sized) {
      require(second.content.size() == first.content.size(), "the size of an encoding is stable");
    } else {
      require(same(second.content, first.content), "an encoding is stable");
    }
  });
}

template <class... Ts>
void add_seed(const seed_sink& sink, std::string_view name, std::uint8_t which, const std::tuple<Ts...>& values) {
  const auto out = encode(values);
  sink(name, seed().number(which).number(static_cast<std::uint8_t>(out.tensors.size())).add(out.content));
}

// The signatures, by number.
using nested = std::vector<std::vector<std::map<std::string, std::optional<std::pair<std::int32_t, std::string>>>>>;
using choice = std::variant<std::int32_t, std::string, std::vector<double>, std::tuple<bool, char>, sample::by_member>;
using shapes = std::vector<std::unique_ptr<sample::shape>>;
using shared_shapes = std::vector<std::shared_ptr<sample::shape>>;
using numbers = std::tuple<std::int8_t, std::uint16_t, std::int32_t, std::uint64_t, float, double, bool, char>;

using runner = void (*)(bytes, std::span<const ferry::tensor>);
constexpr runner runners[] = {
    check<form::stable, nested>,
    check<form::exact, choice, std::vector<choice>>,
    check<form::stable, shapes>,
    check<form::stable, shared_shapes, std::shared_ptr<sample::shape>>,
    check<form::stable, std::vector<sample::versioned>, sample::versioned>,
    check<form::exact, std::vector<std::shared_ptr<vertex>>, std::weak_ptr<vertex>>,
    check<form::stable, sample::link, std::unique_ptr<sample::link>>,
    check<form::stable, std::shared_ptr<sample::constructed_from_pointer>, std::unique_ptr<sample::constructed>>,
    check<form::stable, std::vector<bool>, std::bitset<19>, std::complex<double>, std::chrono::nanoseconds,
          std::deque<std::string>, std::list<std::vector<std::uint8_t>>, std::set<std::int16_t>>,
    check<form::sized, std::unordered_map<std::string, std::vector<std::int32_t>>>,
    check<form::exact, sample::with_tensors, std::vector<ferry::tensor>>,
    check<form::stable, std::vector<sample::nothing>, std::vector<std::unique_ptr<sample::nothing>>,
          std::list<std::vector<sample::nothing>>>,
    check<form::exact, std::u16string, std::wstring, std::vector<std::byte>, std::array<bool, 5>, sample::colour>,
    check<form::exact, numbers, std::vector<std::string>, std::vector<std::array<std::int16_t, 3>>>,
    check<form::exact, std::vector<sample::by_member>, sample::by_free_function, sample::minimal>,
    check<form::exact, ferry::serialized, std::string>,
};

void run(bytes input) {
  source from(input);
  const auto which = from.number<std::uint8_t>() % std::size(runners);
  const auto count = from.number<std::uint8_t>() % 4;
  std::vector<ferry::tensor> tensors;
  for (int i = 0; i != count; ++i) tensors.push_back(ferry::zeros({2, i}));
  runners[which](from.rest(), tensors);
  vertex::cut_all();
}

void seeds(const seed_sink& sink) {
  using std::string;
  const string text = "text";
  add_seed(sink, "nested", 0, std::tuple{nested{{{{"a", std::pair{1, text}}, {"b", std::nullopt}}}, {}}});
  add_seed(sink, "variant", 1,
           std::tuple{choice{text}, std::vector<choice>{1, std::vector{1.5}, std::tuple{true, 'c'},
                                                        sample::by_member{1, text, {2.5}}}});
  shapes figures;
  figures.push_back(std::make_unique<sample::circle>(1.5));
  figures.push_back(std::make_unique<sample::square>(2.5));
  figures.push_back(nullptr);
  figures.push_back(std::make_unique<sample::circle>(3.5));
  add_seed(sink, "polymorphic", 2, std::tuple{std::move(figures)});
  const auto circle = std::make_shared<sample::circle>(1.5);
  add_seed(sink, "polymorphic-shared", 3,
           std::tuple{shared_shapes{circle, std::make_shared<sample::square>(2.5), nullptr, circle},
                      std::shared_ptr<sample::shape>(circle)});
  add_seed(sink, "versioned", 4, std::tuple{std::vector<sample::versioned>{{1, 2}, {3, 4}}, sample::versioned{5, 6}});
  const auto a = std::make_shared<vertex>();
  const auto b = std::make_shared<vertex>();
  a->edges = {a, b};
  b->edges = {a, nullptr};
  b->back = a;
  add_seed(sink, "graph", 5, std::tuple{std::vector{a, b}, std::weak_ptr<vertex>(b)});
  vertex::cut_all();
  auto chain = std::make_unique<sample::link>();
  chain->next = std::make_unique<sample::link>();
  add_seed(sink, "chain", 6, std::tuple{sample::link{}, std::move(chain)});
  add_seed(sink, "constructed", 7,
           std::tuple{std::make_shared<sample::constructed_from_pointer>(
                          std::make_shared<sample::constructed_from_pointer>(nullptr)),
                      std::make_unique<sample::constructed>(5)});
  add_seed(
      sink, "standard", 8,
      std::tuple{std::vector{true, false}, std::bitset<19>(0x2a5a5), std::complex{1., 2.}, std::chrono::nanoseconds(5),
                 std::deque{text}, std::list{std::vector<std::uint8_t>{1, 2}}, std::set<std::int16_t>{3, 1}});
  add_seed(sink, "unordered", 9,
           std::tuple{std::unordered_map<string, std::vector<std::int32_t>>{{"a", {1}}, {"b", {}}}});
  const auto tensor = ferry::zeros({2});
  add_seed(sink, "tensors", 10,
           std::tuple{sample::with_tensors{text, tensor, {ferry::zeros({3}), tensor, {}}}, std::vector{tensor}});
  std::vector<std::unique_ptr<sample::nothing>> pointers;
  pointers.push_back(std::make_unique<sample::nothing>());
  pointers.push_back(nullptr);
  add_seed(
      sink, "empty-types", 11,
      std::tuple{std::vector<sample::nothing>(3), std::move(pointers), std::list{std::vector<sample::nothing>(2)}});
  add_seed(sink, "blocks", 12,
           std::tuple{std::u16string(u"ab"), std::wstring(L"c"), std::vector{std::byte{1}},
                      std::array{true, false, true, false, true}, sample::colour::green});
  add_seed(sink, "numbers", 13,
           std::tuple{numbers{-1, 2, -3, 4, 5.f, 6., true, 'c'}, std::vector{text, string()},
                      std::vector{std::array<std::int16_t, 3>{1, 2, 3}}});
  add_seed(sink, "members", 14,
           std::tuple{std::vector{sample::by_member{1, text, {2.5}}}, sample::by_free_function{2, {text}},
                      sample::minimal{text}});
  add_seed(sink, "serialized", 15, std::tuple{ferry::serialize(text, tensor), text});
}

}  // namespace
}  // namespace archive_target

const target archive{"archive", &archive_target::run, &archive_target::seeds};

}  // namespace fuzz
