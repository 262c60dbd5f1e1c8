#include <ferry/base/method_name.hpp>

#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

// In no namespace of its own: what is tested are names.
namespace {

struct value {};
double dot(const std::vector<double>&, const std::vector<double>&) { return 0; }
int overloaded(int) { return 0; }
int overloaded(double) noexcept { return 0; }
value noexcept_function(value a, const std::vector<value>&, value) noexcept { return a; }
template <class T>
T add(T a, T) {
  return a;
}

struct model {
  int overloaded(int) { return 0; }
  [[nodiscard]] int overloaded(int) const noexcept { return 0; }
  virtual int run(std::string) { return 0; }
  virtual ~model() = default;
};
struct other {
  int overloaded(int) { return 0; }
};

}  // namespace

static int internal(int) { return 0; }

TEST_CASE(
    "functions of one name and other types share a part of their names; template arguments and substitutions are no "
    "such part") {
  using ferry::detail::name_without_types;
  CHECK(name_without_types("_Z3sigi.FdiE") == "_Z3sig");
  CHECK(name_without_types("_ZL3sigi.FdiE") == "_ZL3sig");
  CHECK(name_without_types("_ZN2ns12_GLOBAL__N_13sigEd.FddE") == "_ZN2ns12_GLOBAL__N_13sigE");
  CHECK(name_without_types("_ZNK2ns7counter4bumpEi.M") == "_ZNK2ns7counter4bumpE");
  CHECK(name_without_types("sig.FdiE") == "sig");
  for (const char* whole : {"_Z7largestIdET_S0_.FddE", "_ZN2ns7largestIdEEvT_.FvdE", "_ZNS1_9constructIS5_iEE.F",
                            "_ZplRK1aS1_.F", "_Z99sigi.F", "_Z", "_ZN.F", "_ZNK.F", ""})
    CHECK(name_without_types(whole) == whole);
}

TEST_CASE("a method's identity distinguishes every function from every other") {
  const std::vector<std::string> names = {
      ferry::mangled_name<dot>(),
      ferry::mangled_name<internal>(),
      ferry::mangled_name<static_cast<int (*)(int)>(overloaded)>(),
      ferry::mangled_name<static_cast<int (*)(double)>(overloaded)>(),
      ferry::mangled_name<add<int>>(),
      ferry::mangled_name<add<double>>(),
      ferry::mangled_name<static_cast<int (model::*)(int)>(&model::overloaded)>(),
      ferry::mangled_name<static_cast<int (model::*)(int) const>(&model::overloaded)>(),
      ferry::mangled_name<&model::run>(),
      ferry::mangled_name<&other::overloaded>(),
  };
  CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
  CHECK(&ferry::mangled_name<dot>() == &ferry::mangled_name<&dot>());
}

TEST_CASE("the identity does not depend on how the function was named") {
  using plain = value (*)(value, const std::vector<value>&, value);
  CHECK(ferry::mangled_name<noexcept_function>() == ferry::mangled_name<static_cast<plain>(noexcept_function)>());
}

TEST_CASE("a method's readable name is its qualified name") {
  CHECK(ferry::method_name<internal>() == "internal");
  CHECK(ferry::method_name<dot>() == "(anonymous namespace)::dot");
  CHECK(ferry::method_name<add<int>>() == "(anonymous namespace)::add<int>");
  CHECK(ferry::method_name<&model::run>() == "(anonymous namespace)::model::run");
  CHECK(ferry::method_name<static_cast<int (model::*)(int) const>(&model::overloaded)>() ==
        "(anonymous namespace)::model::overloaded");
  CHECK(ferry::method_name<static_cast<int (*)(double)>(overloaded)>() == "(anonymous namespace)::overloaded");
}
