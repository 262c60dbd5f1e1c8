// A tensor's id, its number of handles, weak handles, tensors as keys.

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/tensor.hpp>

namespace identity_test {

using ferry::tensor;
using ferry::weak_tensor;

TEST_CASE("an id is that of the tensor, not of the handle or the storage") {
  const tensor a = ferry::zeros({2});
  const tensor copy = a;
  CHECK(copy.id() == a.id());
  CHECK(a.view({2}).id() != a.id());
  CHECK(a.clone().id() != a.id());
  CHECK(tensor().id() == 0);
  CHECK(a.id() != 0);
  tensor moved = ferry::zeros({1});
  const std::uintptr_t id = moved.id();
  const tensor target = std::move(moved);
  CHECK(target.id() == id);
}

TEST_CASE("use_count counts handles") {
  CHECK(tensor().use_count() == 0);
  const tensor a = ferry::zeros({2});
  CHECK(a.use_count() == 1);
  {
    const tensor copy = a;
    CHECK(a.use_count() == 2);
    const tensor view = a.view({2});
    CHECK(a.use_count() == 2);
    CHECK(a.storage().use_count() == 2);
  }
  const weak_tensor weak = a;
  CHECK(a.use_count() == 1);
}

TEST_CASE("a weak handle gives the tensor as long as there is one") {
  weak_tensor weak;
  CHECK(weak.expired());
  CHECK(!weak.lock().defined());
  CHECK(weak.id() == 0);
  std::uintptr_t id = 0;
  {
    const tensor t = ferry::tensor_of({1.F, 2.F});
    id = t.id();
    weak = t;
    CHECK(!weak.expired());
    CHECK(weak.lock().same_as(t));
    CHECK(weak.lock().at<float>(1) == 2);
    CHECK(t.use_count() == 1);
  }
  CHECK(weak.expired());
  CHECK(!weak.lock().defined());
  CHECK(weak.id() == id);
  CHECK(weak_tensor(tensor()).expired());
}

TEST_CASE("a weak handle keeps the id, and neither elements nor slot") {
  int released = 0;
  float memory = 1;
  weak_tensor weak;
  {
    const tensor t = ferry::from_blob(&memory, {1}, ferry::dtype::f32, [&](void*) { ++released; });
    weak = t;
  }
  CHECK(released == 1);
  std::vector<tensor> others;  // of the same size, from the same thread: the allocator would give the address again
  for (int i = 0; i != 100; ++i) {
    others.push_back(ferry::zeros({1}));
    CHECK(others.back().id() != weak.id());
  }
  const weak_tensor copy = weak;
  weak = weak_tensor();
  CHECK(copy.expired());
  CHECK(copy.id() != 0);
}

TEST_CASE("tensors are keys by identity") {
  std::unordered_map<tensor, int, std::hash<tensor>, ferry::same_tensor> numbers;
  const tensor a = ferry::ones({2});
  const tensor equal = ferry::ones({2});
  numbers[a] = 1;
  numbers[equal] = 2;
  const tensor copy = a;
  CHECK(numbers.at(copy) == 1);
  CHECK(numbers.size() == 2);
  CHECK(!numbers.contains(a.view({2})));
  std::unordered_set<weak_tensor, std::hash<weak_tensor>, ferry::same_tensor> seen;
  CHECK(seen.insert(a).second);
  CHECK(!seen.insert(copy).second);
  CHECK(seen.insert(equal).second);
}

TEST_CASE("lock races with the last handle: it gives a whole tensor or none") {
  for (int round = 0; round != 200; ++round) {
    tensor t = ferry::full({16}, round, ferry::dtype::i32);
    const weak_tensor weak = t;
    std::atomic<bool> begin{false};
    std::vector<std::thread> threads;
    for (int n = 0; n != 2; ++n) {
      threads.emplace_back([&weak, &begin, round] {
        const weak_tensor own = weak;
        while (!begin.load()) std::this_thread::yield();
        for (int i = 0; i != 20; ++i) {
          const tensor got = own.lock();
          if (got.defined() && got.at<std::int32_t>(15) != round) FAIL_CHECK("the elements were released");
        }
      });
    }
    begin = true;
    t = tensor();
    for (std::thread& thread : threads) thread.join();
    CHECK(weak.expired());
  }
}

}  // namespace identity_test
