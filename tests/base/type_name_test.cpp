#include <ferry/base/type_name.hpp>

#include <array>
#include <bitset>
#include <chrono>
#include <complex>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include <doctest/doctest.h>
#include <cereal/cereal.hpp>

namespace app {
struct model {};
struct versioned {};
struct renamed {};
enum class color : std::uint8_t { red };
template <class T, int N>
struct fixed {};
template <class T>
struct box {
  template <class U>
  struct inner {};
};
template <class T>
struct my_allocator : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = my_allocator<U>;
  };
};
namespace {
struct hidden {};
}  // namespace
}  // namespace app

CEREAL_CLASS_VERSION(app::versioned, 3)
template <>
struct ferry::type_name_traits<app::renamed> {
  static constexpr std::string_view name = "app.old_name";
};

namespace type_name_test {

using ferry::signature_text;
using ferry::type_name;

TEST_CASE("builtin types are named by width and sign") {
  CHECK(type_name<bool>() == "bool");
  CHECK(type_name<char>() == "char");
  CHECK(type_name<signed char>() == "i8");
  CHECK(type_name<unsigned char>() == "u8");
  CHECK(type_name<short>() == "i16");
  CHECK(type_name<int>() == "i32");
  CHECK(type_name<long>() == (sizeof(long) == 8 ? "i64" : "i32"));
  CHECK(type_name<long long>() == "i64");
  CHECK(type_name<std::size_t>() == (sizeof(std::size_t) == 8 ? "u64" : "u32"));
  CHECK(type_name<float>() == "f32");
  CHECK(type_name<double>() == "f64");
  CHECK(type_name<char16_t>() == "char16");
  CHECK(type_name<void>() == "void");
  CHECK(type_name<const int&>() == "i32");
}

TEST_CASE("standard containers are named by structure, without what std fills in") {
  CHECK(type_name<std::string>() == "string");
  CHECK(type_name<std::string_view>() == "string");
  CHECK(type_name<std::span<const float>>() == "vector<f32>");
  CHECK(type_name<std::vector<double>>() == "vector<f64>");
  CHECK(type_name<std::vector<double, app::my_allocator<double>>>() == "vector<f64,app::my_allocator<f64>>");
  CHECK(type_name<std::map<std::string, int>>() == "map<string,i32>");
  CHECK(type_name<std::map<int, int, std::greater<int>>>() == "map<i32,i32,greater<i32>>");
  CHECK(type_name<std::unordered_map<int, std::vector<std::string>>>() == "unordered_map<i32,vector<string>>");
  CHECK(type_name<std::set<long long>>() == "set<i64>");
  CHECK(type_name<std::unordered_set<int>>() == "unordered_set<i32>");
  CHECK(type_name<std::list<int>>() == "list<i32>");
  CHECK(type_name<std::deque<int>>() == "deque<i32>");
  CHECK(type_name<std::array<float, 4>>() == "array<f32,4>");
  CHECK(type_name<float[4]>() == "f32[4]");
  CHECK(type_name<std::bitset<9>>() == "bitset<9>");
  CHECK(type_name<std::complex<float>>() == "complex<f32>");
  CHECK(type_name<std::tuple<>>() == "tuple<>");
  CHECK(type_name<std::tuple<int, std::pair<bool, char>>>() == "tuple<i32,pair<bool,char>>");
  CHECK(type_name<std::optional<std::variant<std::monostate, int>>>() == "optional<variant<monostate,i32>>");
  CHECK(type_name<std::unique_ptr<int>>() == "unique_ptr<i32>");
  CHECK(type_name<std::shared_ptr<const int>>() == "shared_ptr<i32>");
  CHECK(type_name<std::chrono::milliseconds>() == "duration<i64,ratio<1,1000>>");
  CHECK(type_name<std::chrono::system_clock::time_point>() ==
        "time_point<system_clock,duration<i64,ratio<1,1000000000>>>");
}

TEST_CASE("user types are named by qualified name and class version") {
  CHECK(type_name<app::model>() == "app::model");
  CHECK(type_name<app::versioned>() == "app::versioned@3");
  CHECK(type_name<std::vector<app::versioned>>() == "vector<app::versioned@3>");
  CHECK(type_name<app::renamed>() == "app.old_name");
  CHECK(type_name<app::color>() == "app::color:u8");
  CHECK(type_name<app::box<long long>>() == "app::box<i64>");
  CHECK(type_name<app::box<int>::inner<bool>>() == "app::box<int>::inner<bool>");
  CHECK(type_name<app::fixed<double, 3>>() == "app::fixed<double,3>");
  CHECK(type_name<app::hidden>() == "app::(anonymous namespace)::hidden");
}

TEST_CASE("a signature is written with the types that are sent") {
  CHECK(signature_text<double(const std::vector<double>&, const std::vector<double>&)>() ==
        "f64(vector<f64>, vector<f64>)");
  CHECK(signature_text<void()>() == "void()");
  CHECK(signature_text<int(std::string_view, std::span<const int>, app::model&&) noexcept>() ==
        "i32(string, vector<i32>, app::model)");
}

TEST_CASE("fingerprints are fixed numbers") {
  static_assert(ferry::fingerprint("") != 0);
  static_assert(ferry::fingerprint("f64(vector<f64>)") != ferry::fingerprint("f64(vector<f32>)"));
  CHECK(ferry::fingerprint("f64(vector<f64>, vector<f64>)") == 0x9b912f2ff3ed9d8dU);
}

TEST_CASE("readable names have no inline namespace of ferry") {
  using ferry::detail::readable_names;
  CHECK(readable_names("map<ferry::v0::tensor,ferry::v0::detail::box>") == "map<ferry::tensor,ferry::detail::box>");
  CHECK(readable_names("app::ferry::v0::tensor") == "app::ferry::v0::tensor");
  CHECK(readable_names("my_ferry::v0::tensor") == "my_ferry::v0::tensor");
  CHECK(readable_names("ferry::v0") == "ferry::v0");
  CHECK(readable_names("").empty());
}

}  // namespace type_name_test
