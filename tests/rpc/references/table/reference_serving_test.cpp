// References at workers that serve only a list of functions.

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <cereal/types/string.hpp>
#include <cereal/types/vector.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "references.hpp"

namespace reference_serving_test {

using ferry::any_rref;
using ferry::errc;
using ferry::rref;
using ferry_test::cluster;
using namespace references_test;
using namespace std::chrono_literals;

int unlisted(int value) { return value; }
void nothing() {}

TEST_CASE("a worker with a list: remote, calls on references and fetching work for listed functions only") {
  cluster group(3, {.configure = [](ferry::worker_config& config) {
                  if (config.rank != 1) return;
                  config.serve = ferry::serve_list<add, plus, nothing, fetch, twice, refuse, ferry::make<counter, int>,
                                                   &counter::add, ferry::make<pinned, std::string>>;
                }});
  const auto unknown = [](auto&& use) { expect_error(errc::unknown_method, "list of methods", use); };
  {
    const rref<int> sum = group[0].remote<add>("worker1", 1, 2);
    CHECK(sum.to_here() == 3);
    CHECK(sum.to_here_async().get() == 3);
    CHECK(sum.rpc_sync<plus>(4) == 7);
    const rref<int> more = sum.remote<plus>(5);
    CHECK(more.to_here() == 8);
    CHECK(any_rref(sum).type().get() == ferry::type_name<int>());
    group[0].remote<nothing>("worker1").to_here();

    const auto c = group[0].remote<ferry::make<counter>>("worker1", 10);
    CHECK(c.rpc_sync<&counter::add>(1) == 11);
    CHECK(c.rpc_async<&counter::add>(1).get() == 12);
    c.notify<&counter::add>(1);
    CHECK(c.remote<&counter::add>(1).to_here() >= 13);
    CHECK(c.rpc_sync<twice>() >= 26);
    CHECK(any_rref(c).type().get() == ferry::type_name<counter>());
    unknown([&] { (void)c.rpc_sync<&counter::value>(); });
    unknown([&] { (void)c.rpc_async<&counter::value>().get(); });
    unknown([&] { (void)c.remote<&counter::value>().to_here(); });
    unknown([&] { c.remote<&counter::value>().created().get(); });

    const auto p = group[0].remote<ferry::make<pinned>>("worker1", "stays");
    p.created().get();
    unknown([&] { (void)p.rpc_sync<&pinned::text>(); });

    const rref<int> refused = group[0].remote<unlisted>("worker1", 1);
    unknown([&] { refused.created().get(); });
    unknown([&] { (void)refused.to_here(); });
    unknown([&] { (void)group[0].remote<ferry::make<tracked>>("worker1", 1).created().get(); });

    // References can be sent through it, and are counted there.
    CHECK(group[0].rpc_sync<fetch>("worker1", sum) == 3);
    const rref<int> elsewhere = group[0].remote<unlisted>("worker2", 6);
    CHECK(group[0].rpc_sync<fetch>("worker1", elsewhere) == 6);
    CHECK(group[2].rpc_sync<fetch>("worker1", group[2].remote<unlisted>("worker0", 7)) == 7);
  }
  await_no_references(group);
}

TEST_CASE("a worker that serves no functions takes part in reference counting") {
  cluster group(3, {.configure = [](ferry::worker_config& config) {
                  if (config.rank == 1) config.serve = ferry::serve_list<>;
                }});
  {
    const rref<int> sum = group[1].remote<add>("worker2", 1, 2);
    CHECK(sum.to_here() == 3);
    CHECK(group[1].rpc_sync<fetch>("worker0", sum) == 3);
    const rref<int> passed_on = group[1].rpc_sync<make_there>("worker0", "worker2", 5);
    CHECK(passed_on.to_here() == 5);
    for (const std::string_view part : {"worker_info(id=1, name=worker1)", "does not contain this one"}) {
      expect_error(errc::unknown_method, part, [&] { (void)group[0].remote<add>("worker1", 1, 2).to_here(); });
      expect_error(errc::unknown_method, part, [&] { (void)group[1].remote<add>("worker1", 1, 2).to_here(); });
    }
  }
  await_no_references(group);
}

TEST_CASE("references are counted, and let go of, at an owner that takes small messages") {
  for (const std::uint64_t most : {1024, 16384}) {
    CAPTURE(most);
    cluster group(2, {.configure = [most](ferry::worker_config& config) {
                    if (config.name == "worker1") config.transport.limits.max_message_bytes = most;
                  }});
    std::vector<rref<int>> all;
    for (int i = 0; i != 1500; ++i) all.push_back(group[0].remote<add>("worker1", i, 1));
    CHECK(all.back().to_here() == 1500);
    all.clear();
    await_no_references(group);
  }
}

}  // namespace reference_serving_test
