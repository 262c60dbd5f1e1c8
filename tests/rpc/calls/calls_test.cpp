// The plain forms of a call: what the destination runs and what comes back.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "noise.hpp"

namespace calls_test {

using ferry_test::cluster;
using ferry_test::worker_name;

ferry::tensor plus(const ferry::tensor& a, const ferry::tensor& b) {
  const ferry::tensor x = a.contiguous();
  const ferry::tensor y = b.contiguous();
  ferry::tensor sum = ferry::empty_like(x);
  for (std::int64_t i = 0; i != sum.numel(); ++i) sum.data<float>()[i] = x.data<float>()[i] + y.data<float>()[i];
  return sum;
}
ferry::tensor add_scalar(ferry::tensor a, double b) { return plus(a, ferry::full(a.shape(), b)); }
// The indices of the elements that are not zero.
ferry::tensor nonzero(ferry::tensor a) {
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i != a.numel(); ++i) {
    if (a.contiguous().data<float>()[i] != 0) indices.push_back(i);
  }
  return ferry::from_vector(indices);
}
ferry::tensor matrix_product(const ferry::tensor& a, const ferry::tensor& b) {
  const std::int64_t n = a.size(0);
  ferry::tensor product = ferry::zeros({n, b.size(1)});
  for (std::int64_t i = 0; i != n; ++i) {
    for (std::int64_t k = 0; k != a.size(1); ++k) {
      for (std::int64_t j = 0; j != b.size(1); ++j) product.at<float>(i, j) += a.at<float>(i, k) * b.at<float>(k, j);
    }
  }
  return product;
}
int my_id() { return ferry::get_worker_info().id().value; }
std::string my_name() { return ferry::get_worker_info().name(); }
ferry::worker_id next_to(ferry::worker_id id) { return {id.value + 1}; }
int caller_id() { return ferry::this_call().caller().value; }
int sum_of_eight(int a, short b, long c, unsigned char d, float e, double f, bool g, const std::string& h) {
  return a + b + static_cast<int>(c) + d + static_cast<int>(e) + static_cast<int>(f) + (g ? 1 : 0) + std::stoi(h);
}
std::atomic<int> nothings{0};
void nothing() { ++nothings; }
int plus_one(int value) noexcept { return value + 1; }
template <class T>
T largest(const std::vector<T>& values) {
  return *std::max_element(values.begin(), values.end());
}
std::string overloaded(int) { return "int"; }
std::string overloaded(const std::string&) { return "string"; }
inline int inline_function(int value) { return -value; }

struct inbox {
  std::mutex mutex;
  std::vector<std::pair<int, int>> messages;  // from, value
};
inbox inboxes[8];
int deliver(int value) {
  inbox& own = inboxes[my_id()];
  std::lock_guard lock(own.mutex);
  own.messages.emplace_back(ferry::this_call().caller().value, value);
  return value;
}

// Shorter than anything else: runs on the thread that received the request.
int tiny(int value) { return value ^ 1; }

}  // namespace calls_test

template <>
struct ferry::method_traits<&calls_test::tiny> {
  static constexpr bool inline_handler = true;
};

namespace calls_test {

TEST_CASE("[row 24] calls by name and by worker_info give the same results") {
  cluster group(2);
  ferry::worker& self = group[0];
  const ferry::worker_info info = self.get_worker_info("worker1");
  const ferry::tensor ones = ferry::ones({3, 2});
  const ferry::tensor mixed = ferry::tensor_of({1.F, 0.F, 0.F, 5.F});
  const ferry::tensor twos = ferry::full({3, 2}, 2.F);
  CHECK(equal(self.rpc_sync<plus>("worker1", ones, ones), twos));
  CHECK(equal(self.rpc_sync<plus>(info, ones, ones), twos));
  CHECK(equal(self.rpc_sync<add_scalar>("worker1", ones, 1), twos));
  CHECK(equal(self.rpc_sync<add_scalar>(info, ones, 1.0), twos));
  CHECK(equal(self.rpc_sync<nonzero>("worker1", mixed), ferry::tensor_of<std::int64_t>({0, 3})));
  CHECK(equal(self.rpc_sync<nonzero>(info, mixed), ferry::tensor_of<std::int64_t>({0, 3})));
}

TEST_CASE("a literal 0 is an id, wherever a name or an id is asked for") {
  cluster group(2);
  ferry::worker& self = group[1];
  CHECK(self.get_worker_info(0).name() == "worker0");
  CHECK(self.get_worker_info(1L).name() == "worker1");
  CHECK(ferry::get_worker_info(0).name() == "worker0");
  CHECK(self.route(0).transport == self.route("worker0").transport);
  CHECK(self.metadata(0).empty());
  CHECK(self.device_map_to(0).empty());
  CHECK(self.device_map_back_to(0).empty());
  expect_error(ferry::errc::unknown_worker, "7", [&] { (void)self.get_worker_info(7); });
  expect_error(ferry::errc::unknown_worker, "", [&] { (void)self.get_worker_info(std::int64_t{1} << 32U); });
}

TEST_CASE("[row 25] a call by id runs on exactly that worker") {
  cluster group(4);
  group.each([](ferry::worker& self) {
    for (int id = 0; id != 4; ++id) {
      if (self.rpc_sync<my_id>(id) != id) throw std::runtime_error("ran elsewhere");
      if (self.rpc_sync<next_to>(id, ferry::worker_id{id}) != id + 1) throw std::runtime_error("not the id");
      if (self.rpc_sync<my_name>(id) != worker_name(id)) throw std::runtime_error("has another name");
      if (self.rpc_sync<caller_id>(id) != self.id().value) throw std::runtime_error("came from another worker");
    }
  });
}

TEST_CASE("[row 26] an asynchronous call gives a future of the result") {
  cluster group(2);
  const ferry::future<ferry::tensor> sum = group[0].rpc_async<plus>("worker1", ferry::ones({2}), ferry::ones({2}));
  CHECK(sum.wait_for(std::chrono::seconds(60)));
  CHECK(sum.ready());
  CHECK(equal(sum.get(), ferry::full({2}, 2.F)));
  CHECK(equal(ferry::rpc_async<plus>("worker0", ferry::ones({2}), ferry::ones({2})).get(), ferry::full({2}, 2.F)));
}

TEST_CASE("[row 28] in a ring of calls every worker receives the value of its predecessor") {
  cluster group(4);
  group.each([](ferry::worker& self) {
    const int rank = self.id().value;
    if (self.rpc_sync<deliver>((rank + 1) % 4, 100 + rank) != 100 + rank) throw std::runtime_error("wrong echo");
  });
  for (int rank = 0; rank != 4; ++rank) {
    REQUIRE(inboxes[rank].messages.size() == 1);
    const int before = (rank + 3) % 4;
    CHECK(inboxes[rank].messages[0] == std::pair(before, 100 + before));
    inboxes[rank].messages.clear();
  }
}

TEST_CASE("[row 29] functions of the standard library and user functions, with any number of arguments") {
  cluster group(2);
  ferry::worker& self = group[0];
  CHECK(self.rpc_sync<static_cast<double (*)(double)>(&std::sqrt)>("worker1", 9.0) == 3.0);
  CHECK(self.rpc_sync<static_cast<int (*)(int)>(&std::abs)>("worker1", -4) == 4);
  CHECK(self.rpc_sync<sum_of_eight>("worker1", 1, 2, 3, 4, 5.0F, 6.0, true, "8") == 30);
  CHECK(self.rpc_async<sum_of_eight>("worker1", 1, 2, 3, 4, 5.0F, 6.0, false, std::string("8")).get() == 29);
  CHECK(self.rpc_sync<plus_one>("worker1", 1) == 2);
  CHECK(self.rpc_sync<&plus_one>("worker1", 'a') == 98);
  CHECK(self.rpc_sync<largest<int>>("worker1", std::vector{1, 9, 3}) == 9);
  CHECK(self.rpc_sync<largest<std::string>>("worker1", std::vector<std::string>{"b", "c", "a"}) == "c");
  CHECK(self.rpc_sync<static_cast<std::string (*)(int)>(&overloaded)>("worker1", 1) == "int");
  CHECK(self.rpc_sync<static_cast<std::string (*)(const std::string&)>(&overloaded)>("worker1", "x") == "string");
  CHECK(self.rpc_sync<inline_function>("worker1", 3) == -3);
}

TEST_CASE("[row 32] a function without a result completes its call with nothing") {
  cluster group(2);
  nothings = 0;
  group[0].rpc_sync<nothing>("worker1");
  const ferry::future<void> pending = group[0].rpc_async<nothing>("worker1");
  pending.get();
  pending.wait();
  CHECK(pending.ready());
  CHECK(nothings == 2);
  static_assert(std::is_void_v<decltype(group[0].rpc_sync<nothing>("worker1"))>);
}

TEST_CASE("[row 33] a user function takes and gives tensors") {
  cluster group(2);
  const ferry::tensor a = ferry_test::noise({4, 3});
  const ferry::tensor b = ferry_test::noise({4, 3});
  CHECK(equal(group[0].rpc_sync<plus>("worker1", a, b), plus(a, b)));
  CHECK(equal(group[1].rpc_async<plus>("worker0", a, b).get(), plus(a, b)));
}

TEST_CASE("[row 34] 100 asynchronous calls with tensors from 0x0 to 99x99 give the right results in order") {
  cluster group(2);
  std::vector<ferry::future<ferry::tensor>> sums;
  for (int n = 0; n != 100; ++n) {
    sums.push_back(
        group[0].rpc_async<plus>("worker1", ferry::ones({n, n}), ferry::full({n, n}, static_cast<float>(n))));
  }
  for (int n = 0; n != 100; ++n) {
    const ferry::tensor sum = sums[static_cast<std::size_t>(n)].get();
    CHECK(equal(sum, ferry::full({n, n}, static_cast<float>(n + 1))));
  }
}

TEST_CASE("[row 40] 1000 asynchronous calls in flight complete") {
  cluster group(2);
  std::vector<ferry::future<int>> results;
  for (int i = 0; i != 1000; ++i) results.push_back(group[0].rpc_async<plus_one>("worker1", i));
  for (int i = 0; i != 1000; ++i) CHECK(results[static_cast<std::size_t>(i)].get() == i + 1);
}

TEST_CASE("[row 41] 20 asynchronous calls that compute on 100x100 matrices complete") {
  cluster group(2);
  const ferry::tensor a = ferry_test::noise({100, 100});
  const ferry::tensor b = ferry_test::noise({100, 100});
  const ferry::tensor expected = matrix_product(a, b);
  std::vector<ferry::future<ferry::tensor>> products;
  // Sanitizers make of each product a matter of seconds.
  const ferry::to there("worker1", {.timeout = ferry::no_timeout});
  for (int i = 0; i != 20; ++i) products.push_back(group[0].rpc_async<matrix_product>(there, a, b));
  for (const ferry::tensor& product : ferry::wait_all(std::move(products))) CHECK(equal(product, expected));
}

TEST_CASE("many threads call at once, between all workers") {
  cluster group(3);
  std::vector<std::function<void()>> callers;
  for (int i = 0; i != 8; ++i) {
    callers.emplace_back([&group, i] {
      ferry::worker& self = group[i % 3];
      for (int call = 0; call != 50; ++call) {
        const int to = (i + call) % 3;
        if (self.rpc_sync<plus_one>(to, call) != call + 1) throw std::runtime_error("wrong result");
        std::vector<ferry::future<int>> pending;
        for (int k = 0; k != 4; ++k) pending.push_back(self.rpc_async<plus_one>(to, k));
        for (int k = 0; k != 4; ++k) {
          if (pending[static_cast<std::size_t>(k)].get() != k + 1) throw std::runtime_error("wrong result");
        }
      }
    });
  }
  ferry_test::run_together(callers);
}

TEST_CASE("a handler that is marked as short runs without a place of its own") {
  cluster group(2, {.configure = [](ferry::worker_config& config) { config.num_worker_threads = 1; }});
  CHECK(group[0].rpc_sync<tiny>("worker1", 4) == 5);
  std::vector<ferry::future<int>> results;
  for (int i = 0; i != 100; ++i) results.push_back(group[0].rpc_async<tiny>("worker1", i));
  for (int i = 0; i != 100; ++i) CHECK(results[static_cast<std::size_t>(i)].get() == (i ^ 1));
}

TEST_CASE("calls go over every transport") {
  for (const char* name : {"inproc", "shm", "unix", "tcp"}) {
    CAPTURE(name);
    cluster group(2, {.configure = [&](ferry::worker_config& config) { config.transports = {name}; }});
    group.each([](ferry::worker& self) {
      const int other = 1 - self.id().value;
      for (int i = 0; i != 50; ++i) {
        if (self.rpc_sync<plus_one>(other, i) != i + 1) throw std::runtime_error("wrong result");
      }
      const ferry::tensor big = ferry_test::noise({300, 300});
      if (!equal(self.rpc_sync<add_scalar>(other, big, 0), big)) throw std::runtime_error("wrong tensor");
      std::vector<ferry::future<int>> results;
      for (int i = 0; i != 200; ++i) results.push_back(self.rpc_async<plus_one>(other, i));
      for (int i = 0; i != 200; ++i) {
        if (results[static_cast<std::size_t>(i)].get() != i + 1) throw std::runtime_error("wrong result");
      }
    });
  }
}

}  // namespace calls_test
