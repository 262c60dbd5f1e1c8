// What parameters may be, and what arrives in them.

#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include <doctest/doctest.h>
#include <cereal/types/map.hpp>
#include <cereal/types/memory.hpp>
#include <cereal/types/variant.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "noise.hpp"

namespace arguments_test {

using ferry_test::cluster;
using ferry_test::noise;

struct point {
  int x = 0;
  int y = 0;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(x, y);
  }
  friend bool operator==(const point&, const point&) = default;
};

// With every kind of member function.
struct counter {
  int value = 0;
  std::string label = {};

  counter() = default;
  explicit counter(int start) : value(start) {}
  counter(std::string name, int start) : value(start), label(std::move(name)) {}
  template <class Archive>
  void serialize(Archive& archive) {
    archive(value, label);
  }

  [[nodiscard]] int get() const { return value; }
  int add(int more) { return value += more; }
  [[nodiscard]] int plus(int more) const noexcept { return value + more; }
  int take() && { return value; }
  int here() & { return value; }
  [[nodiscard]] int look() const& { return value; }
  [[nodiscard]] counter scaled(const point& by) const { return counter(label, value * by.x * by.y); }
  static int twice(const counter& self) { return 2 * self.value; }
  static counter from(std::string name) { return counter(std::move(name), 7); }
};

// An aggregate: made with braces.
struct pair_of {
  int first = 0;
  std::string second = {};
  template <class Archive>
  void serialize(Archive& archive) {
    archive(first, second);
  }
};

struct layer {
  std::string name;
  ferry::tensor weight;
  std::vector<ferry::tensor> history;
  std::map<std::string, ferry::tensor> extra;
  std::optional<ferry::tensor> bias;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, weight, history, extra, bias);
  }
};

// Its own serialisation uses the library's.
struct envelope {
  layer content;
  template <class Archive>
  void save(Archive& archive) const {
    archive(ferry::serialize(content, 42));
  }
  template <class Archive>
  void load(Archive& archive) {
    ferry::serialized inside;
    archive(inside);
    auto [decoded, number] = ferry::deserialize<layer, int>(inside);
    if (number != 42) throw std::runtime_error("the envelope holds something else");
    content = std::move(decoded);
  }
};

int sum(const std::vector<int>& values) { return std::accumulate(values.begin(), values.end(), 0); }
int by_value(std::vector<int> values) { return sum(values); }
int by_rvalue(std::vector<int>&& values) {
  const std::vector<int> taken = std::move(values);
  return sum(taken);
}
std::size_t view_length(std::string_view text) { return text.size(); }
double span_of_three(std::span<const double, 3> values) { return values[0] + 10 * values[1] + 100 * values[2]; }
std::size_t texts_of_two(std::span<const std::string, 2> texts) { return texts[0].size() + 10 * texts[1].size(); }
double span_sum(std::span<const double> values) { return std::accumulate(values.begin(), values.end(), 0.0); }
int unwrap(std::unique_ptr<int> value) { return value ? *value : -1; }
int unwrap_reference(const std::unique_ptr<int>& value) { return value ? *value : -1; }
std::unique_ptr<point> wrap(std::unique_ptr<point>&& value) { return std::move(value); }
point mirrored(const point& p) { return {p.y, p.x}; }
std::string everything(const std::map<std::string, std::vector<int>>& map, const std::tuple<int, std::string>& tuple,
                       const std::variant<int, std::string>& variant, const std::optional<double>& optional,
                       const std::array<short, 3>& array, const std::pair<char, bool>& pair) {
  return std::to_string(map.at("a").at(1)) + std::get<1>(tuple) + std::get<std::string>(variant) +
         (optional ? "some" : "none") + std::to_string(array[2]) + pair.first + (pair.second ? "t" : "f");
}
layer echo_layer(layer value) { return value; }
envelope echo_envelope(envelope value) { return value; }
std::size_t length(const std::vector<char>& bytes) { return bytes.size(); }
std::vector<char> echo_bytes(std::vector<char> bytes) { return bytes; }
ferry::tensor echo(ferry::tensor t) { return t; }
std::vector<std::int64_t> strides_of(const ferry::tensor& t) {
  std::vector<std::int64_t> result;
  for (std::size_t axis = 0; axis != t.rank(); ++axis) result.push_back(t.strides()[axis]);
  return result;
}
std::int64_t storage_bytes(const ferry::tensor& t) { return static_cast<std::int64_t>(t.storage().size()); }
bool same_twice(const ferry::tensor& a, const ferry::tensor& b) { return equal(a, b); }
ferry::worker_info echo_info(ferry::worker_info info) { return info; }

namespace {
bool equal_layers(const layer& a, const layer& b) {
  if (a.name != b.name || !equal(a.weight, b.weight) || a.history.size() != b.history.size()) return false;
  for (std::size_t i = 0; i != a.history.size(); ++i) {
    if (!equal(a.history[i], b.history[i])) return false;
  }
  if (a.extra.size() != b.extra.size() || a.bias.has_value() != b.bias.has_value()) return false;
  for (const auto& [key, value] : a.extra) {
    if (!equal(value, b.extra.at(key))) return false;
  }
  return !a.bias || equal(*a.bias, *b.bias);
}
layer some_layer() {
  return {"first", noise({8, 4}), {noise({2}, 2), noise({0, 3}), noise({}, 3)}, {{"k", noise({5}, 4)}}, noise({4}, 5)};
}
}  // namespace

TEST_CASE("[row 30] user types travel; constructors, member functions and static ones can be called") {
  cluster group(2);
  ferry::worker& self = group[0];
  CHECK(self.rpc_sync<mirrored>("worker1", point{1, 2}) == point{2, 1});

  const counter made = self.rpc_sync<ferry::make<counter>>("worker1", "label", 5);
  CHECK(made.value == 5);
  CHECK(made.label == "label");
  CHECK(self.rpc_sync<ferry::make<counter>>("worker1").value == 0);
  CHECK(self.rpc_sync<ferry::make<counter>>("worker1", 3).value == 3);
  CHECK(self.rpc_async<ferry::make<counter, std::string, int>>("worker1", "fixed", 6.0).get().value == 6);
  CHECK(self.rpc_sync<ferry::make<pair_of>>("worker1", 4, "four").second == "four");

  CHECK(self.rpc_sync<&counter::get>("worker1", made) == 5);
  CHECK(self.rpc_sync<&counter::add>("worker1", made, 3) == 8);
  CHECK(self.rpc_sync<&counter::plus>("worker1", made, 3) == 8);
  CHECK(self.rpc_sync<&counter::take>("worker1", made) == 5);
  CHECK(self.rpc_sync<&counter::here>("worker1", made) == 5);
  CHECK(self.rpc_sync<&counter::look>("worker1", made) == 5);
  CHECK(made.value == 5);
  const counter scaled = self.rpc_async<&counter::scaled>("worker1", made, point{2, 3}).get();
  CHECK(scaled.value == 30);
  CHECK(scaled.label == "label");
  CHECK(self.rpc_sync<&counter::twice>("worker1", made) == 10);
  CHECK(self.rpc_sync<counter::from>("worker1", "x").label == "x");
}

TEST_CASE("parameters by value, reference and rvalue, views and spans") {
  cluster group(2);
  ferry::worker& self = group[0];
  const std::vector<int> values{1, 2, 3};
  CHECK(self.rpc_sync<sum>("worker1", values) == 6);
  CHECK(self.rpc_sync<by_value>("worker1", values) == 6);
  CHECK(self.rpc_sync<by_rvalue>("worker1", values) == 6);
  CHECK(self.rpc_async<by_rvalue>("worker1", std::vector{4, 5}).get() == 9);

  const std::string text = "text";
  CHECK(self.rpc_sync<view_length>("worker1", "four") == 4);
  CHECK(self.rpc_sync<view_length>("worker1", text) == 4);
  CHECK(self.rpc_sync<view_length>("worker1", std::string_view("a\0b", 3)) == 3);
  CHECK(self.rpc_sync<view_length>("worker1", "") == 0);

  const std::array<double, 3> numbers{1, 2, 3.5};
  const double plain[] = {1, 1};
  CHECK(self.rpc_sync<span_sum>("worker1", numbers) == 6.5);
  // Of a span of fixed extent the receiver decodes exactly as many elements.
  CHECK(self.rpc_sync<span_of_three>("worker1", std::array{1., 2., 3.}) == 321);
  const double three[] = {1, 2, 3};
  CHECK(self.rpc_sync<span_of_three>("worker1", three) == 321);
  CHECK(self.rpc_sync<span_of_three>("worker1", std::span<const double, 3>(three)) == 321);
  CHECK(self.rpc_sync<texts_of_two>("worker1", std::array<std::string, 2>{"a", "bc"}) == 21);
  CHECK(self.rpc_sync<span_sum>("worker1", plain) == 2);
  CHECK(self.rpc_sync<span_sum>("worker1", std::vector<double>{}) == 0);
  CHECK(self.rpc_sync<span_sum>("worker1", std::span<const double>(numbers).first(1)) == 1);
}

TEST_CASE("move-only arguments and results") {
  cluster group(2);
  ferry::worker& self = group[0];
  CHECK(self.rpc_sync<unwrap>("worker1", std::make_unique<int>(7)) == 7);
  CHECK(self.rpc_sync<unwrap>("worker1", std::unique_ptr<int>()) == -1);
  CHECK(self.rpc_async<unwrap_reference>("worker1", std::make_unique<int>(8)).get() == 8);
  const auto back = self.rpc_sync<wrap>("worker1", std::make_unique<point>(point{3, 4}));
  REQUIRE(back);
  CHECK(*back == point{3, 4});
  auto later = self.rpc_async<wrap>("worker1", std::make_unique<point>(point{5, 6}));
  CHECK(*later.get() == point{5, 6});
}

TEST_CASE("containers, tuples, variants and optionals") {
  cluster group(2);
  CHECK(group[0].rpc_sync<everything>("worker1", std::map<std::string, std::vector<int>>{{"a", {1, 2}}},
                                      std::tuple(1, std::string("t")), std::variant<int, std::string>("v"),
                                      std::optional<double>(), std::array<short, 3>{1, 2, 3},
                                      std::pair('c', true)) == "2tvnone3ct");
  const ferry::worker_info info = group[0].info();
  CHECK(group[0].rpc_sync<echo_info>("worker1", info) == info);
  CHECK(group[0].rpc_sync<echo_info>("worker1", ferry::worker_info()) == ferry::worker_info());
}

TEST_CASE("tensors inside user types and containers arrive whole and in order") {
  cluster group(2);
  const layer sent = some_layer();
  CHECK(equal_layers(group[0].rpc_sync<echo_layer>("worker1", sent), sent));
  CHECK(equal_layers(group[0].rpc_async<echo_layer>("worker1", sent).get(), sent));
}

TEST_CASE("[row 37] a user type whose serialisation uses the library's own travels with its tensors") {
  cluster group(2);
  const envelope sent{some_layer()};
  CHECK(equal_layers(group[0].rpc_sync<echo_envelope>("worker1", sent).content, sent.content));
  CHECK(equal_layers(group[0].rpc_async<echo_envelope>("worker1", sent).get().content, sent.content));
}

TEST_CASE("[row 38] views arrive with their elements in the same stride order, compacted, in both directions") {
  cluster group(2);
  ferry::worker& self = group[0];
  const ferry::tensor base = noise({6, 8});
  const auto check = [&](const ferry::tensor& view, std::initializer_list<std::int64_t> strides) {
    CHECK(self.rpc_sync<strides_of>("worker1", view) == std::vector<std::int64_t>(strides));
    const ferry::tensor back = self.rpc_sync<echo>("worker1", view);
    CHECK(equal(back, view));
    CHECK(equal(back, view.contiguous()));
    CHECK(strides_of(back) == std::vector<std::int64_t>(strides));
  };
  check(base, {8, 1});
  check(base.transpose(0, 1), {1, 8});
  check(base.transpose(0, 1).slice(0, 1, 3), {1, 2});
  check(base.slice(1, 0, ferry::to_end, 2), {4, 1});
  check(base.select(1, 3), {1});
  check(base.narrow(0, 2, 3).select(0, 1), {1});
  check(base.select(0, 0).unsqueeze(0).expand({4, 8}), {0, 1});
  CHECK(self.rpc_sync<storage_bytes>("worker1", base.select(0, 2)) < 6 * 8 * 4);
  CHECK_FALSE(self.rpc_sync<echo>("worker1", base.transpose(0, 1)).is_contiguous());
}

TEST_CASE("undefined, empty and 0-d tensors, and every dtype") {
  cluster group(2);
  ferry::worker& self = group[0];
  CHECK_FALSE(self.rpc_sync<echo>("worker1", ferry::tensor()).defined());
  for (const ferry::dims& shape : {ferry::dims{0}, ferry::dims{3, 0, 2}, ferry::dims{}}) {
    const ferry::tensor t = ferry::ones(shape);
    const ferry::tensor back = self.rpc_sync<echo>("worker1", t);
    CHECK(back.shape() == shape);
    CHECK(equal(back, t));
  }
  using ferry::dtype;
  for (const dtype type : {dtype::bool_, dtype::u8, dtype::i8, dtype::i16, dtype::i32, dtype::i64, dtype::f16,
                           dtype::bf16, dtype::f32, dtype::f64, dtype::c64, dtype::c128}) {
    CAPTURE(static_cast<int>(type));
    const ferry::tensor t = ferry::ones({3, 5}, type);
    const ferry::tensor back = self.rpc_sync<echo>("worker1", t);
    CHECK(back.dtype() == type);
    CHECK(equal(back, t));
  }
  const ferry::tensor t = noise({4});
  CHECK(self.rpc_sync<same_twice>("worker1", t, t));
}

TEST_CASE("foreign memory travels") {
  cluster group(2);
  std::vector<float> memory{1, 2, 3, 4};
  const ferry::tensor t = ferry::from_blob(memory.data(), {2, 2}, ferry::dtype::f32);
  auto pending = group[0].rpc_async<echo>("worker1", t);
  CHECK(equal(pending.get(), ferry::tensor_of({{1.F, 2.F}, {3.F, 4.F}})));
}

TEST_CASE("payloads and tensors of many megabytes, over every transport") {
  for (const char* name : {"inproc", "shm", "unix", "tcp"}) {
    CAPTURE(name);
    cluster group(2, {.configure = [&](ferry::worker_config& config) { config.transports = {name}; }});
    ferry::worker& self = group[0];
    std::vector<char> bytes(70'000);
    std::iota(bytes.begin(), bytes.end(), static_cast<char>(0));
    CHECK(self.rpc_sync<echo_bytes>("worker1", bytes) == bytes);
    CHECK(self.rpc_sync<length>("worker1", std::vector<char>((std::size_t{65} << 20U) + 3)) ==
          (std::size_t{65} << 20U) + 3);
    const ferry::tensor large = noise({16, 1024, 1024});  // 64 MiB
    CHECK(equal(self.rpc_sync<echo>("worker1", large), large));
    auto there = self.rpc_async<echo>("worker1", large);
    auto small = self.rpc_async<sum>("worker1", std::vector{1, 2});
    CHECK(small.get() == 3);
    CHECK(equal(there.get(), large));
  }
}

}  // namespace arguments_test
