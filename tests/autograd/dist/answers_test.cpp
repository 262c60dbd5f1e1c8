// How gradients come back: in requests of their own, or in the answer that a worker waits for anyway.

#include <array>
#include <atomic>
#include <memory>
#include <string_view>

#include <ferry/rpc/interceptor.hpp>

#include "dist_test.hpp"

namespace answers_test {

using namespace dist_test;

tensor times(const tensor& a, const tensor& b) { return a * b; }
tensor kept;
void keep(const tensor& a) { kept = a; }
tensor times_kept(const tensor& b) { return kept * b; }
tensor times_at_worker2(const tensor& a, const tensor& b) { return ferry::rpc_sync<times>("worker2", a * 2.0, b); }
// Its result is computed from what worker0 sends to it in turn.
tensor through_worker0(const tensor& a, const tensor& b) { return ferry::rpc_sync<times>("worker0", a, b) * 3.0; }

// Counts the requests of passes that a worker sends.
class gradient_counter final : public ferry::interceptor {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "gradient counter"; }
  std::unique_ptr<ferry::caller_hooks> on_request(ferry::outgoing_request& request) override {
    if (request.method() == "ferry/autograd/gradients") ++count;
    return nullptr;
  }
  std::atomic<int> count{0};
};

namespace {

struct counted_group {
  std::array<std::shared_ptr<gradient_counter>, 3> counters{
      std::make_shared<gradient_counter>(), std::make_shared<gradient_counter>(), std::make_shared<gradient_counter>()};
  cluster group{3, {.configure = [this](ferry::worker_config& config) {
                  config.interceptors = {counters[static_cast<std::size_t>(config.name.back() - '0')]};
                }}};
  [[nodiscard]] std::array<int, 3> counts() const {
    return {counters[0]->count, counters[1]->count, counters[2]->count};
  }
};

using counts_of_three = std::array<int, 3>;

}  // namespace

TEST_CASE("the gradients that a worker's part ends with travel in its answer") {
  counted_group all;
  const tensor a = leaf({1, 2});
  const tensor b = leaf({3, 4});
  for (const auto mode : {dist::backward_mode::smart, dist::backward_mode::fast}) {
    const counts_of_three before = all.counts();
    const dist::context context(all.group[0]);
    context.backward(ferry::sum(all.group[0].rpc_sync<times>("worker1", a, b)), {.mode = mode});
    CHECK(numbers(context.gradients().at(a)) == vec{3, 4});
    CHECK(numbers(context.gradients().at(b)) == vec{1, 2});
    CHECK(all.counts() == counts_of_three{before[0] + 1, before[1], before[2]});
  }
}

TEST_CASE("one answer has the gradients of several messages") {
  counted_group all;
  const tensor a = leaf({1, 2});
  const tensor b = leaf({3, 4});
  {
    const dist::context context(all.group[0]);
    all.group[0].rpc_sync<keep>("worker1", a);
    context.backward(ferry::sum(all.group[0].rpc_sync<times_kept>("worker1", b)));
    CHECK(numbers(context.gradients().at(a)) == vec{3, 4});
    CHECK(numbers(context.gradients().at(b)) == vec{1, 2});
  }
  CHECK(all.counts() == counts_of_three{1, 0, 0});
  kept = {};
}

TEST_CASE("answers lead on: through two workers, and back to the one that asked") {
  counted_group all;
  const tensor a = leaf({1, 2});
  const tensor b = leaf({3, 4});
  {
    const dist::context context(all.group[0]);
    context.backward(ferry::sum(all.group[0].rpc_sync<times_at_worker2>("worker1", a, b)));
    CHECK(numbers(context.gradients().at(a)) == vec{6, 8});
    CHECK(numbers(context.gradients().at(b)) == vec{2, 4});
    CHECK(all.counts() == counts_of_three{1, 1, 0});
  }
  const dist::context context(all.group[0]);
  context.backward(ferry::sum(all.group[0].rpc_sync<through_worker0>("worker1", a, b)));
  CHECK(numbers(context.gradients().at(a)) == vec{9, 12});
  CHECK(numbers(context.gradients().at(b)) == vec{3, 6});
  // worker1 sends worker0 gradients in a request, since a message of its own is to come back; the last ones go in the answer if
  // that request has been answered by then.
  CHECK(all.counts()[0] == 3);
  CHECK(all.counts()[1] >= 2);
  CHECK(all.counts()[1] <= 3);
}

TEST_CASE("a part that waits for a third worker gives all gradients back once, in requests or in its answer") {
  counted_group all;
  const tensor a = leaf({1, 2});
  const tensor b = leaf({3, 4});
  const dist::context context(all.group[0]);
  const tensor direct = all.group[0].rpc_sync<times>("worker1", a, b);
  const tensor nested = all.group[0].rpc_sync<times_at_worker2>("worker1", a, b);
  context.backward(ferry::sum(direct + nested));
  CHECK(numbers(context.gradients().at(a)) == vec{9, 12});
  CHECK(numbers(context.gradients().at(b)) == vec{3, 6});
  // Both of worker1's messages to worker0 may go in requests: another answer is missing when each has its gradients.
  CHECK(all.counts()[0] == 2);
  CHECK(all.counts()[1] >= 1);
  CHECK(all.counts()[1] <= 3);
  CHECK(all.counts()[2] == 0);
}

}  // namespace answers_test
