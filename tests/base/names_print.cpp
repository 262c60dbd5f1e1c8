// Prints names and fingerprints: names_compare.sh builds it with several compilers and compares the output.

#include <array>
#include <chrono>
#include <complex>
#include <cstdio>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <cereal/cereal.hpp>

#include <ferry/base/method_name.hpp>
#include <ferry/base/type_name.hpp>

namespace app {
struct value {
  int x = 0;
};
enum class color : short { red };
enum plain_color { green };
template <class T>
struct box {
  T get(T t, int) const { return t; }
  static box make(const box& b) noexcept { return b; }
};
double dot(const std::vector<double>&, const std::vector<double>&) { return 0; }
value mix(value a, const std::vector<value>&, const std::string&, value) noexcept { return a; }
int pick(int) { return 0; }
int pick(const std::map<std::string, value>&) noexcept { return 0; }
static int internal(std::string_view) { return 0; }
template <int N, class T>
T scaled(T t, box<T>) {
  return t;
}
namespace {
int hidden(value, value) { return 0; }
}  // namespace
struct model {
  explicit model(int) {}
  virtual ~model() = default;
  virtual value forward(value v) { return v; }
  [[nodiscard]] value peek(std::vector<value>, value v) const noexcept { return v; }
  [[nodiscard]] value glance(std::vector<value>, value v) const noexcept { return v; }
  value refs(value v) & { return v; }
  static std::string title(std::string s) { return s; }
  int operator()(int x) { return x; }
  template <class T>
  T apply(T t, const model&) {
    return t;
  }
};
struct derived : model {
  using model::model;
  value forward(value v) override { return v; }
};
std::string text_of(int) { return {}; }
std::string text_of(std::string_view) noexcept { return {}; }
std::optional<std::vector<std::string>> texts() { return {}; }
std::pair<std::string, value> text_and_value(value) { return {}; }
struct named {
  std::string name() const { return {}; }
  std::string label(value, value) const noexcept { return {}; }
  static std::string kind() { return {}; }
  std::string operator()(int) { return {}; }
};
template <class T>
struct printer {
  std::string print(const T&) const { return {}; }
};
// Tags of the application's own: of a type, of a function, and of a function because of its result.
struct [[gnu::abi_tag("v2")]] tagged {};
tagged make_tagged(int) { return {}; }
[[gnu::abi_tag("v3")]] int also_tagged(tagged) { return 0; }
}  // namespace app
std::string app_text() { return {}; }
extern "C" int app_c_function(int x) { return x; }
CEREAL_CLASS_VERSION(app::value, 2)

template <class T>
void type() {
  const std::string name = ferry::type_name<T>();
  std::printf("%s %016llx\n", name.c_str(), static_cast<unsigned long long>(ferry::fingerprint(name)));
}
template <auto F>
void method() {
  std::printf("%s %s\n", ferry::mangled_name<F>().c_str(), ferry::method_name<F>().c_str());
}

int main() {
  type<long>();
  type<long long>();
  type<char>();
  type<std::string>();
  type<std::map<std::string, std::vector<app::value>>>();
  type<std::unordered_map<int, std::list<std::string>>>();
  type<std::tuple<app::color, app::plain_color, std::optional<double>, std::variant<int, std::monostate>>>();
  type<std::array<std::complex<float>, 3>>();
  type<std::chrono::steady_clock::time_point>();
  type<std::shared_ptr<app::box<app::model>>>();
  std::puts(ferry::signature_text<double(const std::vector<double>&, std::string_view)>().c_str());

  method<app::dot>();
  method<app::mix>();
  method<static_cast<app::value (*)(app::value, const std::vector<app::value>&, const std::string&, app::value)>(
      app::mix)>();
  method<static_cast<int (*)(int)>(app::pick)>();
  method<static_cast<int (*)(const std::map<std::string, app::value>&)>(app::pick)>();
  method<app::internal>();
  method<app::hidden>();
  method<app_c_function>();
  method<app::scaled<3, app::value>>();
  method<app::scaled<-1, std::string>>();
  method<&app::model::forward>();
  method<&app::derived::forward>();
  method<&app::model::peek>();
  method<static_cast<app::value (app::model::*)(std::vector<app::value>, app::value) const>(&app::model::glance)>();
  method<&app::model::refs>();
  method<&app::model::title>();
  method<&app::model::operator()>();
  method<&app::model::apply<std::vector<app::value>>>();
  method<&app::box<std::string>::get>();
  method<&app::box<app::value>::make>();
  method<static_cast<std::string (*)(int)>(app::text_of)>();
  method<static_cast<std::string (*)(std::string_view)>(app::text_of)>();
  method<app::texts>();
  method<&app::text_and_value>();
  method<&app::named::name>();
  method<&app::named::label>();
  method<&app::named::kind>();
  method<&app::named::operator()>();
  method<&app::printer<app::value>::print>();
  method<app::make_tagged>();
  method<app::also_tagged>();
  method<app_text>();
}
