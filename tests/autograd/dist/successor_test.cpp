// A worker that takes the place of another one, with its name and id: what belonged to that one is not taken for its own.

#include <algorithm>
#include <cstdint>
#include <vector>

#include <ferry/rpc/named.hpp>

#include "autograd/dist/message_set.hpp"
#include "autograd/dist/pass_messages.hpp"
#include "dist_test.hpp"
#include "tests/rpc/worker/dynamic_group.hpp"

namespace successor_test {

using namespace dist_test;
using dynamic_group_test::config_of;
using dynamic_group_test::meeting_place;
using ferry::detail::release_message;

// In a context of the caller.
void pass_of_callee(const tensor& x) { dist::backward(ferry::sum(x * 3.0)); }

// Of a leaf that the callee makes.
tensor own_doubled() { return leaf({1, 2}) * 2.0; }

void release(ferry::worker& at, const release_message& what) {
  const ferry::context_values_scope outside{ferry::context_values()};
  at.rpc_sync<ferry::named<"ferry/autograd/release", ferry::detail::serve_release>>(at.id(), what);
}

// The host knows it when this returns: it has been called.
ferry::worker next_peer(const meeting_place& place) {
  const ferry::context_values_scope outside{ferry::context_values()};
  ferry::worker peer = ferry::init_rpc(config_of(place.method, "peer", 1));
  (void)peer.rpc_sync<twice>("host", ferry::tensor_of({1.}));
  return peer;
}

TEST_CASE("a late release of a worker's context leaves those of its successor alone") {
  meeting_place place;
  ferry::worker host = ferry::init_rpc(config_of(place.method, "host", 0));
  const tensor a = leaf({1, 2});
  std::vector<std::uint64_t> earlier;  // contexts of predecessors
  std::vector<std::uint64_t> own;
  const auto use = [&](ferry::worker& peer) {
    const dist::context context(peer);
    (void)peer.rpc_sync<twice>("host", a);
    own.push_back(context.id().value);
    // As if these had been on their way for that long: each alone, and with those that its maker made before or after it.
    for (const std::uint64_t each : earlier) {
      CHECK(each != context.id().value);
      const std::uint64_t some = std::min<std::uint64_t>(each & ferry::detail::last_message_number, 1000);
      release(host, {each, each, each});
      release(host, {each, each, each + some});
      release(host, {each, each - some, each});
    }
    CHECK(dist::exists(context.id(), host));
    context.backward(ferry::sum(peer.rpc_sync<twice>("host", a)));
    CHECK(numbers(context.gradients().at(a)) == vec{2, 2});
  };
  for (int round = 0; round != 4; ++round) {
    ferry::worker peer = next_peer(place);
    for (int i = 0; i != 3; ++i) use(peer);
    await([&] { return contexts(host) == 0; });
    earlier.insert(earlier.end(), own.begin(), own.end());
    own.clear();
    peer.shutdown();
  }
  host.shutdown();
}

TEST_CASE("a result of a worker that is gone has no gradient from its successor") {
  meeting_place place;
  ferry::worker host = ferry::init_rpc(config_of(place.method, "host", 0));
  ferry::worker first = next_peer(place);
  {
    const dist::context context(host);
    const tensor lost = host.rpc_sync<own_doubled>("peer");
    REQUIRE(lost.requires_grad());
    first.shutdown();
    ferry::worker second = next_peer(place);
    const tensor found = host.rpc_sync<own_doubled>("peer");
    CHECK_THROWS_AS(context.backward(ferry::sum(lost)), ferry::error);
    CHECK(dist::get_gradients(context.id(), second).empty());
    context.backward(ferry::sum(found));
    CHECK(dist::get_gradients(context.id(), second).size() == 1);
    second.shutdown();
  }
  host.shutdown();
}

TEST_CASE("a successor begins passes of its own in a context in which its predecessor did") {
  meeting_place place;
  ferry::worker host = ferry::init_rpc(config_of(place.method, "host", 0));
  {
    const tensor a = leaf({1, 2});
    const dist::context context(host);
    for (int round = 1; round != 6; ++round) {
      ferry::worker peer = next_peer(place);
      host.rpc_sync<pass_of_callee>("peer", a);
      CHECK(numbers(context.gradients().at(a)) == vec{3. * round, 3. * round});
      peer.shutdown();
    }
  }
  host.shutdown();
}

}  // namespace successor_test
