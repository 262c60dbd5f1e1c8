// Which tensors a connection within the process hands over, and which it copies.

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <ferry/tensor/hooks.hpp>
#include <ferry/test_kit/transport_conformance.hpp>

namespace inproc_handover_test {

namespace {

using namespace ferry::test_kit;
using ferry::tensor;

struct inproc_under_test {
  using tag = ferry::inproc;
  static ferry::transport_options options() { return {}; }
};

tensor counted(std::int64_t rows, std::int64_t columns) {
  const tensor all = ferry::empty({rows, columns});
  for (std::int64_t i = 0; i != rows * columns; ++i) all.data<float>()[i] = static_cast<float>(i);
  return all;
}

// What arrives of a message with these tensors.
std::vector<tensor> sent(linked_pair<inproc_under_test>& pair, std::vector<tensor> all) {
  pair.near_end->send(make_message(1, 8, std::move(all)));
  return std::move(pair.far_log->take(1).at(0).tensors);
}
tensor sent(linked_pair<inproc_under_test>& pair, tensor&& one) {
  std::vector<tensor> all;
  all.push_back(std::move(one));
  return sent(pair, std::move(all)).at(0);
}

struct no_hooks final : ferry::tensor_hooks {
  void viewed(const ferry::operation&, const tensor&, tensor&) override {}
  void mutated(const ferry::operation&, const tensor&, std::span<const tensor>) override {}
  void computed(const ferry::operation&, std::span<const tensor>, std::span<tensor>) override {}
  [[nodiscard]] bool requires_grad(const tensor&) const noexcept override { return false; }
};

}  // namespace

TEST_CASE("a tensor that the message alone refers to is handed over") {
  linked_pair<inproc_under_test> pair;
  for (const std::int64_t rows : {0, 1, 3, 1000}) {
    CAPTURE(rows);
    tensor t = counted(rows, 5);
    const tensor expected = t.clone();
    t.fill_(1).copy_(expected);
    const void* const memory = t.data();
    const tensor there = sent(pair, std::move(t));
    if (rows != 0) CHECK(there.data() == memory);
    CHECK(equal(there, expected));
    CHECK(there.version() == 0);  // as a copy
    CHECK(there.use_count() == 1);
    CHECK(there.storage().use_count() == 1);
  }
}

TEST_CASE("it keeps the order of its strides, and is handed over as a view of all of its memory") {
  linked_pair<inproc_under_test> pair;
  const auto check = [&](tensor view, const ferry::dims& strides) {
    const tensor like = view.clone();
    const void* const memory = view.data();
    const tensor there = sent(pair, std::move(view));
    CHECK(there.data() == memory);
    CHECK(equal(there, like));
    CHECK(there.strides() == strides);
  };
  tensor t = counted(3, 5);
  t = t.transpose(0, 1);  // the only handle of the block
  check(std::move(t), {1, 5});
  t = counted(3, 5);
  t = t.view({15});
  check(std::move(t), {1});
  t = counted(1, 5);
  t = t.transpose(0, 1);
  check(std::move(t), {1, 1});
  t = counted(1, 4);
  t = t.expand({3, 4});
  check(std::move(t), {0, 1});
}

TEST_CASE("of a tensor that others can reach the receiver gets a copy") {
  linked_pair<inproc_under_test> pair;
  const auto check_copied = [&](tensor t) {
    const tensor expected = t.clone();
    const void* const memory = t.data();
    const tensor there = sent(pair, std::move(t));
    CHECK(there.data() != memory);
    CHECK(equal(there, expected));
    CHECK(there.storage().size() == static_cast<std::size_t>(there.numel()) * sizeof(float));
    CHECK_FALSE(there.has_slot());
  };
  SUBCASE("another handle") {
    const tensor kept = counted(3, 5);
    check_copied(kept);
    CHECK(equal(kept, counted(3, 5)));
  }
  SUBCASE("a weak handle") {
    tensor t = counted(3, 5);
    const ferry::weak_tensor watched = t;
    check_copied(std::move(t));
    CHECK(watched.expired());
  }
  SUBCASE("a view of the same memory") {
    tensor t = counted(3, 5);
    const tensor row = t.select(0, 1);
    check_copied(std::move(t));
    CHECK(row.at<float>(2) == 7);
  }
  SUBCASE("a handle of the memory") {
    tensor t = counted(3, 5);
    const ferry::storage kept = t.storage();
    check_copied(std::move(t));
  }
  SUBCASE("hooks") {
    tensor t = counted(3, 5);
    t.set_slot(std::make_shared<no_hooks>());
    check_copied(std::move(t));
  }
  SUBCASE("memory of another allocator") {
    auto memory = std::make_shared<std::vector<float>>(6, 2.5F);
    check_copied(ferry::from_blob(memory->data(), {2, 3}, {3, 1}, ferry::dtype::f32, memory));
    CHECK(memory.use_count() == 1);
  }
  SUBCASE("a part of its memory, which would keep all of it") {
    tensor t = counted(3, 5);
    t = t.narrow(0, 0, 2);  // the only handle of the block
    check_copied(std::move(t));
    t = counted(3, 5);
    t = t.narrow(0, 1, 2);
    check_copied(std::move(t));
    t = counted(3, 5);
    t = t.slice(1, 0, ferry::to_end, 2);
    check_copied(std::move(t));
  }
}

TEST_CASE("two views of one block in a message arrive as two tensors, each with memory of its own") {
  linked_pair<inproc_under_test> pair;
  std::vector<tensor> both;
  both.push_back(counted(3, 5));
  both.push_back(both[0].transpose(0, 1));
  const auto there = sent(pair, std::move(both));
  REQUIRE(there.size() == 2);
  CHECK_FALSE(there[0].storage().same_as(there[1].storage()));
  CHECK(equal(there[0], counted(3, 5)));
  CHECK(equal(there[1], counted(3, 5).transpose(0, 1)));
  there[0].fill_(0);
  CHECK(equal(there[1], counted(3, 5).transpose(0, 1)));
}

TEST_CASE("a tensor that is handed over counts as unwritten as one that is copied does") {
  linked_pair<inproc_under_test> pair;
  pair.far_log->on_arrival = [](ferry::connection& from, ferry::inbound_message&) { from.pause_reading(); };
  pair.near_end->send(make_message(0, 8));
  REQUIRE(pair.far_log->take(1).size() == 1);
  std::vector<tensor> all;
  all.push_back(counted(100, 100));
  const std::vector<tensor> kept = {counted(100, 100)};
  pair.near_end->send(make_message(1, 8, std::move(all)));
  const std::uint64_t of_one = pair.near_end->unwritten_bytes();
  CHECK(of_one > 100 * 100 * sizeof(float));
  pair.near_end->send(make_message(2, 8, kept));
  CHECK(pair.near_end->unwritten_bytes() == 2 * of_one);
  pair.far_log->on_arrival = {};
  pair.far_end->resume_reading();
  CHECK(pair.far_log->take(2).size() == 2);
}

}  // namespace inproc_handover_test
