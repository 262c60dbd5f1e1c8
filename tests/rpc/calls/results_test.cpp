// What methods may return.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <cereal/types/map.hpp>
#include <cereal/types/memory.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "noise.hpp"

namespace results_test {

using ferry_test::cluster;
using ferry_test::noise;

std::map<std::string, std::vector<ferry::tensor>> tensors(int count) {
  std::map<std::string, std::vector<ferry::tensor>> result;
  for (int i = 0; i != count; ++i) result[std::to_string(i)] = {noise({i}), noise({i, i})};
  return result;
}
const std::string& kept() {
  static const std::string text(1000, 'k');
  return text;
}
std::string_view viewed() { return kept(); }
std::unique_ptr<int> owned(int value) { return std::make_unique<int>(value); }
std::optional<ferry::tensor> maybe(bool there) { return there ? std::optional(noise({3})) : std::nullopt; }
std::vector<ferry::worker_info> everybody() { return ferry::get_worker_infos(); }
ferry::future<std::unique_ptr<int>> owned_later(int value) {
  ferry::promise<std::unique_ptr<int>> promise;
  promise.set_value(std::make_unique<int>(value));
  return promise.get_future();
}
ferry::task<void> nothing_later() { co_return; }
ferry::task<std::string> said(std::string_view text, const std::vector<int>& numbers) {
  const std::string again = co_await ferry::rpc_async<viewed>(ferry::this_call().caller());
  // What the parameters refer to is still there after the wait.
  co_return std::string(text) + std::to_string(numbers.at(1)) + std::to_string(again.size());
}
ferry::future<std::size_t> measured(const std::string& text) {
  return ferry::rpc_async<viewed>(ferry::this_call().caller()).then([&text](const std::string& other) {
    return text.size() + other.size();
  });
}
bool flag(bool value) { return !value; }
std::vector<bool> flags(std::vector<bool> values) {
  values.flip();
  return values;
}
enum class colour : std::uint8_t { red, green };
colour other(colour value) { return value == colour::red ? colour::green : colour::red; }

TEST_CASE("results: containers of tensors, references, views, move-only values, nothing") {
  cluster group(2);
  ferry::worker& self = group[0];
  const auto received = self.rpc_sync<tensors>("worker1", 5);
  REQUIRE(received.size() == 5);
  for (const auto& [name, both] : tensors(5)) {
    REQUIRE(received.at(name).size() == 2);
    CHECK(equal(received.at(name)[0], both[0]));
    CHECK(equal(received.at(name)[1], both[1]));
  }
  CHECK(self.rpc_sync<kept>("worker1") == kept());
  static_assert(std::is_same_v<decltype(self.rpc_sync<viewed>("worker1")), std::string>);
  CHECK(self.rpc_sync<viewed>("worker1") == kept());
  CHECK(*self.rpc_sync<owned>("worker1", 5) == 5);
  CHECK(*self.rpc_async<owned>("worker1", 6).get() == 6);
  CHECK(*self.rpc_sync<owned_later>("worker1", 7) == 7);
  CHECK(equal(*self.rpc_sync<maybe>("worker1", true), noise({3})));
  CHECK_FALSE(self.rpc_sync<maybe>("worker1", false));
  self.rpc_sync<nothing_later>("worker1");
  self.rpc_async<nothing_later>("worker1").get();
  CHECK(self.rpc_sync<everybody>("worker1") == self.workers());
  CHECK(self.rpc_sync<flag>("worker1", false));
  CHECK(self.rpc_sync<flags>("worker1", std::vector<bool>{true, false}) == std::vector<bool>{false, true});
  CHECK(self.rpc_sync<other>("worker1", colour::red) == colour::green);
}

TEST_CASE("what the parameters refer to lives until a coroutine or a future has answered") {
  cluster group(2);
  CHECK(group[0].rpc_sync<said>("worker1", std::string(100, 'x'), std::vector{1, 2}) ==
        std::string(100, 'x') + "21000");
  CHECK(group[0].rpc_async<measured>("worker1", std::string(500, 'x')).get() == 1500);
}

TEST_CASE("a result whose future was dropped is dropped") {
  cluster group(2);
  auto pending = group[0].rpc_async<tensors>("worker1", 3);
  pending = {};
  CHECK(group[0].rpc_sync<tensors>("worker1", 1).size() == 1);
}

}  // namespace results_test
