#include <ferry/tensor/shared_allocator.hpp>

#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/operations.hpp>

#include "processes.hpp"

namespace shared_allocator_test {

namespace {

using ferry::shared_allocator;
using ferry::tensor;

constexpr std::int64_t large = static_cast<std::int64_t>(ferry::least_shared);

// Prints what such a process can share.
const ferry_test::role asking("says what it shares", [](const std::vector<std::string>&) {
  const tensor t = shared_allocator().zeros({large});
  ferry_test::tell_parent((shared_allocator().owns(t) ? "shares " : "does not share ") +
                          std::to_string(shared_allocator().stats().capacity_bytes >> 20U));
  ferry_test::tell_parent(std::string(shared_allocator().obstacle()));
  return t.numel() == large ? 0 : 1;
});

}  // namespace

TEST_CASE("large tensors of the shared allocator are in shared memory, small ones are not") {
  const auto before = shared_allocator().stats();
  CHECK(before.capacity_bytes != 0);
  CHECK(shared_allocator().obstacle().empty());
  {
    const tensor a = shared_allocator().empty({large}, ferry::dtype::u8);
    const tensor b = shared_allocator().zeros({large, 2});
    CHECK(shared_allocator().owns(a));
    CHECK(shared_allocator().owns(b));
    CHECK(shared_allocator().owns(b.slice(0, 1)));
    CHECK(b.at<float>(large - 1, 1) == 0);
    CHECK(b.dtype() == ferry::dtype::f32);
    CHECK_FALSE(shared_allocator().owns(shared_allocator().empty({large - 1}, ferry::dtype::u8)));
    CHECK_FALSE(shared_allocator().owns(ferry::zeros({large})));
    CHECK_FALSE(shared_allocator().owns(tensor()));
    const auto now = shared_allocator().stats();
    CHECK(now.blocks == before.blocks + 2);
    CHECK(now.used_bytes == before.used_bytes + 9 * static_cast<std::size_t>(large));
  }
  CHECK(shared_allocator().stats().blocks == before.blocks);
  shared_allocator().trim();
  CHECK(shared_allocator().stats().cached_bytes == 0);
}

TEST_CASE("a copy in shared memory has the elements of the tensor, also of a view") {
  const tensor t = ferry::arange(0, 4 * large, 1, ferry::dtype::f32).view({2 * large, 2});
  const tensor copy = shared_allocator().copy(t);
  CHECK(shared_allocator().owns(copy));
  CHECK(ferry::equal(copy, t));
  const tensor turned = shared_allocator().copy(t.transpose(0, 1));
  CHECK(shared_allocator().owns(turned));
  CHECK(ferry::equal(turned, t.transpose(0, 1)));
  t.fill_(0);
  CHECK(copy.at<float>(1, 1) == 3);
}

TEST_CASE("within a scope the thread makes tensors in shared memory, results included") {
  const auto shared = [](const tensor& t) { return shared_allocator().owns(t); };
  const tensor outside = ferry::ones({large});
  {
    const ferry::shared_memory_scope scope;
    CHECK(shared(ferry::zeros({large})));
    CHECK(shared(outside.clone()));
    {
      const ferry::shared_memory_scope inner;
      CHECK(shared(outside.clone()));
    }
    CHECK(shared(outside.clone()));
    CHECK_FALSE(shared(ferry::zeros({4})));
    bool elsewhere = true;
    std::thread([&] { elsewhere = shared(ferry::zeros({large})); }).join();
    CHECK_FALSE(elsewhere);
  }
  CHECK_FALSE(shared(outside.clone()));
}

TEST_CASE("the environment says how much can be shared, and a wrong value is not taken for another") {
  const auto answer = [](const std::string& value) {
    ferry_test::child_process child(
        {.role = "says what it shares", .arguments = {}, .environment = {{"FERRY_SHARED_MEMORY", value}}});
    std::string said = child.read_line();
    said += ": " + child.read_line();
    CHECK(child.wait() == 0);
    return said;
  };
  CHECK(answer("48") == "shares 48: ");
  CHECK(answer("0") == "does not share 0: FERRY_SHARED_MEMORY is 0");
  const std::string usual = answer("");
  CHECK(usual.starts_with("shares "));
  for (const char* wrong : {"much", "-1", "12 ", "99999999999999999999", "1048577"}) CHECK(answer(wrong) == usual);
}

}  // namespace shared_allocator_test
