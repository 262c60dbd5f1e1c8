// Public names, stubs and lists of what is served, inside one program.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <cereal/types/memory.hpp>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"

namespace names_test {

using ferry::errc;
using ferry::named;
using ferry::stub;
using ferry_test::captured_log;
using ferry_test::cluster;

double dot(const std::vector<double>& a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i != a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
std::string shout(std::string_view text) noexcept { return std::string(text) + "!"; }
ferry::task<int> later(int value) { co_return value + 1; }
ferry::future<int> promised(std::unique_ptr<int> value) { return ferry::make_ready_future(*value); }
ferry::tensor twice(const ferry::tensor& t) {
  ferry::tensor result = t.clone();
  for (std::int64_t i = 0; i != result.numel(); ++i) result.data<float>()[i] *= 2;
  return result;
}
void nothing() {}
int plain(int value) { return value; }
int other(int value) { return -value; }
int tiny(int value) { return value + 5; }

struct counter {
  counter() = default;
  explicit counter(int begin) : value(begin) {}
  int value = 0;
  [[nodiscard]] int plus(int more) const { return value + more; }
  template <class Archive>
  void serialize(Archive& archive) {
    archive(value);
  }
};

}  // namespace names_test

template <>
struct ferry::method_traits<&names_test::tiny> {
  static constexpr bool inline_handler = true;
};

namespace names_test {

namespace {

template <auto Named, auto Stub>
bool same_method() {
  const ferry::detail::method_entry& a = ferry::detail::usable_method<Named>();
  const ferry::detail::method_entry& b = ferry::detail::usable_method<Stub>();
  return a.id == b.id && a.signature == b.signature && a.serve && !b.serve;
}

}  // namespace

TEST_CASE("a stub is the named method, in whatever form the parameters and the result are written") {
  using vec = std::vector<double>;
  CHECK(same_method<named<"dot", dot>, stub<"dot", double(vec, vec)>>());
  CHECK(same_method<named<"dot", dot>, stub<"dot", double(const vec&, vec&&)>>());
  CHECK(same_method<named<"dot", dot>, stub<"dot", double(std::span<const double>, std::span<const double>)>>());
  CHECK(same_method<named<"dot", dot>, stub<"dot", ferry::task<double>(vec, vec) noexcept>>());
  CHECK(same_method<named<"shout", shout>, stub<"shout", std::string(std::string)>>());
  CHECK(same_method<named<"shout", shout>, stub<"shout", std::string(const std::string&)>>());
  CHECK(same_method<named<"later", later>, stub<"later", int(int)>>());
  CHECK(same_method<named<"later", later>, stub<"later", ferry::future<int>(const int&)>>());
  CHECK(same_method<named<"plus", &counter::plus>, stub<"plus", int(counter, int)>>());
  CHECK(same_method<named<"make", ferry::make<counter, int>>, stub<"make", counter(int)>>());
  CHECK_FALSE(same_method<named<"dot", dot>, stub<"dots", double(vec, vec)>>());
  CHECK_FALSE(same_method<named<"dot", dot>, stub<"dot", float(vec, vec)>>());
  CHECK_FALSE(same_method<named<"dot", dot>, stub<"dot", double(vec)>>());
}

TEST_CASE("a public name is a method of its own, which the function's own name is not") {
  const auto& by_name = ferry::detail::usable_method<named<"plain", plain>>();
  const auto& by_itself = ferry::detail::usable_method<plain>();
  CHECK(by_name.id != by_itself.id);
  CHECK(by_name.name == "plain");
  CHECK(by_itself.name == "names_test::plain");
  CHECK(by_name.id == ferry::fingerprint("name:plain"));
  CHECK(ferry::detail::usable_method<named<"tiny", tiny>>().inline_handler);
  CHECK_FALSE(by_name.inline_handler);
}

TEST_CASE("named methods and stubs are called in every form") {
  cluster group(2);
  const std::vector<double> a{1, 2, 3};
  CHECK(group[0].rpc_sync<named<"dot", dot>>("worker1", a, a) == 14);
  CHECK(group[0].rpc_sync<stub<"dot", double(std::vector<double>, std::vector<double>)>>("worker1", a, a) == 14);
  CHECK(ferry::rpc_sync<stub<"shout", std::string(std::string_view)>>("worker1", "hey") == "hey!");
  CHECK(group[0].rpc_async<stub<"later", int(int)>>("worker1", 1).get() == 2);
  CHECK(group[0].rpc_async<stub<"promised", int(std::unique_ptr<int>)>>("worker1", std::make_unique<int>(7)).get() ==
        7);
  CHECK(group[0].rpc_sync<named<"promised", promised>>("worker1", std::make_unique<int>(8)) == 8);
  const ferry::tensor t = ferry::full({3}, 1.5F);
  CHECK(group[0].rpc_sync<named<"twice", twice>>(1, t).data<float>()[2] == 3);
  CHECK(group[0].rpc_sync<stub<"twice", ferry::tensor(ferry::tensor)>>(1, t).data<float>()[2] == 3);
  CHECK(group[0].rpc_sync<stub<"make", counter(int)>>("worker1", 5).value == 5);
  CHECK(group[0].rpc_sync<named<"plus", &counter::plus>>("worker1", counter(1), 2) == 3);
  CHECK(group[0].rpc_sync<stub<"plus", int(counter, int)>>("worker1", counter(1), 2) == 3);
  CHECK(group[0].rpc_sync<stub<"tiny", int(int)>>("worker1", 1) == 6);
  group[0].rpc_sync<named<"nothing", nothing>>("worker1");
  group[0].rpc_sync<stub<"nothing", void()>>("worker1");
  group[0].notify<named<"nothing", nothing>>("worker1");
  group[0].notify<stub<"nothing", void()>>("worker1");
}

TEST_CASE("a callee with another signature is an error with the name and both signatures") {
  captured_log log;
  cluster group(2);
  using wrong = std::vector<std::string>(std::int64_t);
  for (const char* part : {"'shout'", "the caller has 'shout' as vector<string>(i64), the callee as string(string)",
                           "worker_info(id=1, name=worker1)"}) {
    expect_error(errc::signature_mismatch, part, [&] { (void)group[0].rpc_sync<stub<"shout", wrong>>("worker1", 1); });
    expect_error(errc::signature_mismatch, part,
                 [&] { (void)group[0].rpc_async<stub<"shout", wrong>>("worker1", 1).get(); });
  }
  CHECK(log.has("shout", "signature_mismatch"));
}

TEST_CASE("[row 50] a stub of a method that no worker has is an error that says so") {
  captured_log log;
  cluster group(2);
  for (const char* part : {"no method 'nowhere' void(i32)", "worker_info(id=1, name=worker1)"}) {
    expect_error(errc::unknown_method, part, [&] { group[0].rpc_sync<stub<"nowhere", void(int)>>("worker1", 1); });
    expect_error(errc::unknown_method, part,
                 [&] { group[0].rpc_async<stub<"nowhere", void(int)>>("worker1", 1).get(); });
  }
  group[0].notify<stub<"nowhere", void(int)>>("worker1", 1);
  CHECK(group[0].rpc_sync<plain>("worker1", 1) == 1);
}

TEST_CASE("a worker with a list serves that and nothing else; one without serves all") {
  captured_log log;
  cluster group(3, {.configure = [](ferry::worker_config& config) {
                  if (config.rank == 1) config.serve = ferry::serve_list<plain, named<"shout", shout>, &counter::plus>;
                  if (config.rank == 2) config.serve = ferry::serve_list<>;
                }});
  CHECK(group[0].rpc_sync<plain>("worker1", 1) == 1);
  CHECK(group[0].rpc_sync<stub<"shout", std::string(std::string)>>("worker1", "a") == "a!");
  CHECK(group[0].rpc_sync<&counter::plus>("worker1", counter(1), 1) == 2);
  for (const char* part : {"'names_test::other' i32(i32)", "serves a list", "worker_info(id=1, name=worker1)"}) {
    expect_error(errc::unknown_method, part, [&] { (void)group[0].rpc_sync<other>("worker1", 1); });
    expect_error(errc::unknown_method, part, [&] { (void)group[0].rpc_async<other>("worker1", 1).get(); });
  }
  group[0].notify<other>("worker1", 1);
  expect_error(errc::unknown_method, "serves a list",
               [&] { (void)group[0].rpc_sync<shout>("worker1", "by its own name"); });
  expect_error(errc::unknown_method, "serves a list", [&] { (void)group[1].rpc_sync<other>("worker1", 1); });
  expect_error(errc::unknown_method, "serves a list", [&] { (void)group[0].rpc_sync<plain>("worker2", 1); });
  CHECK(group[1].rpc_sync<other>("worker0", 1) == -1);
  CHECK(group[2].rpc_sync<named<"twice", twice>>("worker0", ferry::full({1}, 1.0F)).data<float>()[0] == 2);
}

}  // namespace names_test
