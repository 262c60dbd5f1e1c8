// Tensors of calls within the process: given ones are handed over, all others are copied.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/tensor/hooks.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"

namespace handover_test {

using ferry::tensor;
using ferry_test::cluster;
using place = std::uint64_t;

namespace {

place place_of(const tensor& t) { return reinterpret_cast<place>(t.data()); }
tensor fresh(double value = 3) { return ferry::full({100, 10}, value); }
ferry_test::cluster_options over(const std::string& transport) {
  return {.configure = [=](ferry::worker_config& config) { config.transports = {transport}; }};
}

}  // namespace

struct batch {
  tensor inputs;
  std::vector<tensor> labels;
  std::string name;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(inputs, labels, name);
  }
};

/// Borrows the memory of its tensor.
struct borrowing {
  std::vector<float> own = std::vector<float>(1000, 4.0F);

  template <class Archive>
  void save(Archive& archive) const {
    archive(ferry::from_blob(const_cast<float*>(own.data()), {1000}, ferry::dtype::f32));
  }
  template <class Archive>
  void load(Archive& archive) {
    tensor t;
    archive(t);
    own.assign(t.data<float>(), t.data<float>() + t.numel());
  }
};

place where(const tensor& t) { return place_of(t); }
place where_after_writing(tensor t) {
  t.fill_(7);
  return place_of(t);
}
std::vector<place> where_all(const std::vector<tensor>& all) {
  std::vector<place> result;
  for (const tensor& each : all) result.push_back(place_of(each));
  return result;
}
std::vector<place> where_batch(const batch& b) {
  auto result = where_all(b.labels);
  result.push_back(place_of(b.inputs));
  return result;
}
std::pair<place, place> where_among(const std::vector<tensor>& all, const tensor& one) {
  return {place_of(all.at(1)), place_of(one)};
}
std::pair<place, place> where_both(const tensor& a, const tensor& b) { return {place_of(a), place_of(b)}; }
float sum_of(const borrowing& b) {
  float sum = 0;
  for (const float each : b.own) sum += each;
  return sum;
}
ferry::task<place> where_later(tensor t) {
  co_await ferry::rpc_async<where>(ferry::this_call().caller(), t);
  co_return place_of(t);
}

std::promise<place> noted;
void note(const tensor& t) { noted.set_value(place_of(t)); }

// Results, and where the handler made them.
std::mutex mutex;
std::vector<place> made;
void remember(const tensor& t) {
  const std::lock_guard lock(mutex);
  made.push_back(place_of(t));
}
tensor make_one() {
  tensor t = fresh();
  remember(t);
  return t;
}
std::tuple<tensor, std::vector<tensor>> make_several() { return {make_one(), {make_one(), make_one()}}; }
batch make_batch() {
  batch result{make_one(), {}, "made"};
  result.labels.push_back(make_one());
  return result;
}
std::tuple<tensor, tensor> make_twice() {
  const tensor t = make_one();
  return {t, t};
}
std::tuple<tensor, tensor> make_with_view() {
  const tensor t = make_one();
  return {t, t.transpose(0, 1)};
}
tensor make_part() { return make_one().narrow(0, 0, 50); }
ferry::task<tensor> make_later() {
  tensor t = make_one();
  co_await ferry::rpc_async<make_batch>(ferry::this_call().caller());
  co_return t;
}
ferry::future<tensor> kept_future;
ferry::future<tensor> make_in_future() {
  ferry::promise<tensor> promise;
  promise.set_value(make_one());
  return kept_future = promise.get_future();
}
tensor kept;
tensor make_and_keep() { return kept = make_one(); }
const tensor& give_kept() { return kept; }
tensor echo(tensor t) { return t; }
tensor echo_of_reference(const tensor& t) { return t; }

struct holder {
  tensor value;
  holder() = default;
  explicit holder(tensor t) : value(std::move(t)) {}
  place set(tensor t) {
    value = std::move(t);
    return place_of(value);
  }
  [[nodiscard]] place where() const { return place_of(value); }
  [[nodiscard]] tensor get() const { return value; }
  tensor take() { return std::move(value); }

  template <class Archive>
  void serialize(Archive& archive) {
    archive(value);
  }
};

namespace {

// What goes with the first call is copied: only then it is known to stay within the process. Free functions call for the
// worker that started last, which may be either.
const ferry::worker& connected(cluster& group) {
  for (const char* to : {"worker0", "worker1"}) {
    (void)group[0].rpc_sync<where>(to, fresh());
    (void)ferry::rpc_sync<where>(to, fresh());
  }
  return group[0];
}

}  // namespace

TEST_CASE("an rvalue tensor is handed over to a method of the same process") {
  cluster group(2);
  const ferry::worker& self = connected(group);
  for (const std::string to : {"worker1", "worker0"}) {
    CAPTURE(to);
    tensor t = fresh();
    place memory = place_of(t);
    CHECK(self.rpc_sync<where>(to, std::move(t)) == memory);
    CHECK_FALSE(t.defined());

    t = fresh();
    memory = place_of(t);
    CHECK(self.rpc_sync<where_after_writing>(to, std::move(t)) == memory);
    t = fresh();
    memory = place_of(t);
    CHECK(self.rpc_async<where>(to, std::move(t)).get() == memory);
    t = fresh();
    memory = place_of(t);
    CHECK(self.rpc_sync<where_later>(to, std::move(t)) == memory);

    t = fresh();
    memory = place_of(t);
    noted = {};
    self.notify<note>(to, std::move(t));
    CHECK(noted.get_future().get() == memory);

    t = fresh();
    memory = place_of(t);
    CHECK(ferry::rpc_sync<where>(to, std::move(t)) == memory);
    CHECK_FALSE(t.defined());
  }
}

TEST_CASE("so are the tensors of containers and of values of users") {
  cluster group(2);
  const ferry::worker& self = connected(group);
  std::vector<tensor> all;
  for (int i = 0; i != 3; ++i) all.push_back(fresh(i));
  std::vector<place> expected = where_all(all);
  CHECK(self.rpc_sync<where_all>("worker1", std::move(all)) == expected);

  batch b{fresh(), {}, "a name of more than a few characters"};
  b.labels.push_back(fresh(1));
  expected = where_batch(b);
  CHECK(self.rpc_sync<where_batch>("worker1", std::move(b)) == expected);

  tensor first = fresh();
  const tensor second = fresh(2);
  const place given = place_of(first);
  const auto [a, c] = self.rpc_sync<where_both>("worker1", std::move(first), second);
  CHECK(a == given);
  CHECK(c != place_of(second));
}

TEST_CASE("an argument that the caller keeps is copied, and neither side sees what the other one writes") {
  cluster group(2);
  const ferry::worker& self = connected(group);
  tensor t = fresh();
  CHECK(self.rpc_sync<where_after_writing>("worker1", t) != place_of(t));
  CHECK(self.rpc_sync<where_after_writing>("worker1", std::as_const(t)) != place_of(t));
  CHECK(self.rpc_async<where_after_writing>("worker1", t).get() != place_of(t));
  CHECK(equal(t, fresh()));
  const tensor also = t;
  const place memory = place_of(t);
  CHECK(self.rpc_sync<where_after_writing>("worker1", std::move(t)) != memory);
  CHECK(equal(also, fresh()));
  CHECK(self.rpc_sync<where_after_writing>("worker1", also.view({1000})) != memory);
  CHECK(self.rpc_sync<where_after_writing>("worker1", also.narrow(0, 0, 3)) != memory);
  CHECK(equal(also, fresh()));

  const std::vector<tensor> all{also, also.transpose(0, 1)};
  for (const place each : self.rpc_sync<where_all>("worker1", all)) CHECK(each != memory);
  CHECK(all.size() == 2);
  CHECK(all[0].same_as(also));
}

TEST_CASE("a tensor that comes twice is one tensor at the callee, handed over with its last handle") {
  cluster group(2);
  const ferry::worker& self = connected(group);
  tensor t = fresh();
  place memory = place_of(t);
  const tensor kept_here = t;
  auto both = self.rpc_sync<where_both>("worker1", t, std::move(t));
  CHECK(both.first == both.second);
  CHECK(both.first != memory);

  t = fresh();
  memory = place_of(t);
  both = self.rpc_sync<where_both>("worker1", t, std::move(t));
  CHECK(both.first == both.second);
  CHECK(both.first == memory);
}

TEST_CASE(
    "values that own the memory of their tensors live until it was copied, and rvalues without tensors are left "
    "alone") {
  cluster group(2);
  (void)connected(group);
  borrowing b;
  CHECK(group[0].rpc_sync<sum_of>("worker1", std::move(b)) == 4000);
  CHECK(group[0].rpc_sync<sum_of>("worker1", borrowing()) == 4000);
  batch empty;
  empty.name = std::string(100, 'n');
  expect_error(ferry::errc::unknown_worker, "nowhere",
               [&] { (void)group[0].rpc_sync<where_batch>("nowhere", std::move(empty)); });
  CHECK(empty.name.size() == 100);
}

TEST_CASE("an argument is not taken by a call that cannot be sent") {
  cluster group(2);
  tensor t = fresh();
  expect_error(ferry::errc::unknown_worker, "nowhere",
               [&] { (void)group[0].rpc_sync<where>("nowhere", std::move(t)); });
  REQUIRE(t.defined());
  CHECK(equal(t, fresh()));

  (void)connected(group);
  std::vector<tensor> many(ferry::wire_limits().max_tensors + 1);
  for (tensor& each : many) each = ferry::zeros({1});
  expect_error(ferry::errc::limit_exceeded, "tensors",
               [&] { (void)group[0].rpc_sync<where_all>("worker1", std::move(many)); });
  REQUIRE(many.size() == ferry::wire_limits().max_tensors + 1);
  CHECK(many.front().defined());
}

TEST_CASE("an argument that is part of another is given with it") {
  cluster group(2);
  std::vector<tensor> all{fresh(1), fresh(2)};
  const place second = place_of(all[1]);
  CHECK(connected(group).rpc_sync<where_among>("worker1", std::move(all), std::move(all[1])) ==
        std::pair<place, place>{second, second});
}

TEST_CASE("a result that the handler has made is handed over") {
  cluster group(2);
  const ferry::worker& self = connected(group);
  made.clear();
  const auto is_made = [&](const tensor& t) {
    CHECK(equal(t, fresh()));
    const std::lock_guard lock(mutex);
    return std::find(made.begin(), made.end(), place_of(t)) != made.end();
  };
  std::vector<tensor> results;  // their memory is not used again
  const auto check = [&](tensor t) {
    CHECK(is_made(t));
    results.push_back(std::move(t));
  };
  check(self.rpc_sync<make_one>("worker1"));
  check(self.rpc_sync<make_one>("worker0"));
  check(self.rpc_async<make_one>("worker1").get());
  check(self.rpc_sync<make_later>("worker1"));
  auto [one, others] = self.rpc_sync<make_several>("worker1");
  check(std::move(one));
  for (tensor& each : others) check(std::move(each));
  batch b = self.rpc_sync<make_batch>("worker1");
  CHECK(b.name == "made");
  check(std::move(b.inputs));
  check(std::move(b.labels.at(0)));
}

TEST_CASE("a result that the handler keeps, or only part of a block, is copied") {
  cluster group(2);
  const ferry::worker& self = group[0];
  made.clear();
  const tensor copy = self.rpc_sync<make_and_keep>("worker1");
  CHECK(place_of(copy) != place_of(kept));
  copy.fill_(0);
  CHECK(equal(kept, fresh()));
  CHECK(place_of(self.rpc_sync<give_kept>("worker1")) != place_of(kept));
  CHECK(equal(kept, fresh()));

  const tensor later = self.rpc_sync<make_in_future>("worker1");
  CHECK(place_of(later) != place_of(kept_future.value()));
  CHECK(equal(kept_future.value(), fresh()));

  const tensor part = self.rpc_sync<make_part>("worker1");
  CHECK(part.storage().size() == part.nbytes());
  CHECK(equal(part, fresh().narrow(0, 0, 50)));

  const auto [a, b] = self.rpc_sync<make_twice>("worker1");
  CHECK(a.same_as(b));
  const auto [base, view] = self.rpc_sync<make_with_view>("worker1");
  base.fill_(0);
  CHECK(equal(view, fresh().transpose(0, 1)));
  kept = {};
  kept_future = {};
}

TEST_CASE("what a method returns of its parameters comes back without a copy, if it takes them by value") {
  cluster group(2);
  const ferry::worker& self = connected(group);
  tensor t = fresh();
  const place memory = place_of(t);
  t = self.rpc_sync<echo>("worker1", std::move(t));
  CHECK(place_of(t) == memory);
  t = self.rpc_async<echo>("worker1", std::move(t)).get();
  CHECK(place_of(t) == memory);
  // The parameter lives until the answer is sent. Another tensor: the future may have had a handle on that one a moment longer, so
  // that it would be copied, and its memory be free for the answer.
  tensor u = fresh();
  const place before = place_of(u);
  u = self.rpc_sync<echo_of_reference>("worker1", std::move(u));
  CHECK(place_of(u) != before);
  CHECK(equal(u, fresh()));
}

TEST_CASE("objects of other workers take tensors, and give copies") {
  cluster group(2);
  const ferry::worker& self = connected(group);
  tensor t = fresh();
  place memory = place_of(t);
  const auto object = self.remote<ferry::make<holder>>("worker1", std::move(t));
  CHECK_FALSE(t.defined());
  CHECK(object.rpc_sync<&holder::where>() == memory);
  const tensor copy = object.rpc_sync<&holder::get>();
  CHECK(place_of(copy) != memory);
  CHECK(place_of(object.to_here().value) != memory);
  copy.fill_(0);
  CHECK(equal(object.to_here().value, fresh()));

  t = fresh();
  memory = place_of(t);
  CHECK(object.rpc_sync<&holder::set>(std::move(t)) == memory);
  t = fresh();
  memory = place_of(t);
  CHECK(object.rpc_sync<&holder::set>({.timeout = std::chrono::seconds(50)}, std::move(t)) == memory);
  t = fresh();
  memory = place_of(t);
  const ferry::call_options options;
  CHECK(object.rpc_async<&holder::set>(options, std::move(t)).get() == memory);
  t = fresh();
  CHECK(object.rpc_sync<&holder::set>(ferry::call_options(), t) != place_of(t));
  t = fresh();
  memory = place_of(t);
  object.notify<&holder::set>(std::move(t));
  while (object.rpc_sync<&holder::where>() != memory) std::this_thread::yield();
  CHECK(place_of(object.rpc_sync<&holder::take>()) == memory);
}

TEST_CASE("over a socket an rvalue arrives, and is left alone") {
  cluster group(2, over("unix"));
  const ferry::worker& self = connected(group);
  tensor t = fresh();
  CHECK(equal(self.rpc_sync<echo>("worker1", std::move(t)), fresh()));
  CHECK(t.defined());
  batch b{fresh(), {fresh(1)}, "b"};
  CHECK(self.rpc_sync<where_batch>("worker1", std::move(b)).size() == 2);
  CHECK(b.inputs.defined());
}

namespace {

struct watching final : ferry::tensor_hooks {
  std::atomic<int> writes{0};
  void viewed(const ferry::operation&, const tensor&, tensor&) override {}
  void mutated(const ferry::operation&, const tensor&, std::span<const tensor>) override { ++writes; }
  void computed(const ferry::operation&, std::span<const tensor>, std::span<tensor>) override {}
  [[nodiscard]] bool requires_grad(const tensor&) const noexcept override { return false; }
};

}  // namespace

TEST_CASE("hooks in the slot of a tensor do not get to the callee") {
  cluster group(2);
  const auto hooks = std::make_shared<watching>();
  tensor t = fresh();
  const place memory = place_of(t);
  t.set_slot(hooks);
  CHECK(connected(group).rpc_sync<where_after_writing>("worker1", std::move(t)) != memory);
  CHECK(hooks->writes == 0);
}

}  // namespace handover_test
