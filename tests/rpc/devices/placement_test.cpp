// Where the tensors of calls and of their results arrive: by device maps, or by a call's placement.

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/wire/message.hpp>

#include "expect_error.hpp"
#include "rpc/pipeline/placement_record.hpp"
#include "rpc/worker/worker_core.hpp"
#include "with_devices.hpp"

namespace placement_test {

using namespace device_maps_test;
using ferry::device;
using ferry::device_map;
using ferry::errc;
using ferry::tensor;

tensor twice(const tensor& t) { return t * 2.0; }
int count(const std::vector<tensor>& all) { return static_cast<int>(all.size()); }
tensor make_on(int index) { return index < 0 ? ferry::ones({2}) : tensor_on(gpu(index)); }
ferry::future<tensor> make_later(int index) {
  ferry::promise<tensor> made;
  made.set_value(make_on(index));
  return made.get_future();
}
struct on_device {
  explicit on_device(int index) : value(make_on(index)) {}
  [[nodiscard]] tensor get() const { return value; }
  tensor value;
};

namespace {

using namespace placement_test;
using prepare = std::function<void(with_devices_options&)>;

// Two workers, the first one with four devices, the second one with two.
struct pair_of_workers {
  explicit pair_of_workers(prepare first = nullptr, prepare second = nullptr) {
    const auto member_of = [&](int rank, prepare how) {
      return member{{.name = ferry_test::worker_name(rank),
                     .rank = rank,
                     .world_size = 2,
                     .init_method = "file://" + directory.file("store"),
                     .num_worker_threads = 4},
                    [rank, how = std::move(how)](with_devices_options& options) {
                      options.count = rank == 0 ? 4 : 2;
                      if (how) how(options);
                    }};
    };
    workers = start_all({member_of(0, std::move(first)), member_of(1, std::move(second))});
    for (const auto& each : workers) {
      if (each.error) std::rethrow_exception(each.error);
    }
  }
  ~pair_of_workers() {
    ferry_test::run_together({[&] { workers[0].worker.shutdown(); }, [&] { workers[1].worker.shutdown(); }});
  }
  pair_of_workers(const pair_of_workers&) = delete;
  pair_of_workers& operator=(const pair_of_workers&) = delete;
  ferry::worker& operator[](std::size_t rank) { return workers[rank].worker; }

  ferry_test::watchdog limit{"a test of placements"};
  ferry_test::temporary_directory directory;
  std::vector<ferry_test::started> workers;
};

// The target devices of tensors on these devices; empty: all stay on the CPU.
std::vector<device> targets(ferry::worker& from, int to, bool response, const std::vector<device>& tensors,
                            const device_map* placement = nullptr) {
  const ferry::agent& agent = from.core()->agent();
  ferry::outgoing_message message;
  for (const device each : tensors) message.tensors.push_back(tensor_on(each));
  if (response) {
    agent.place_response(ferry::worker_id{to}, message, placement);
  } else {
    agent.place_request(ferry::worker_id{to}, message, placement);
  }
  return message.targets;
}

constexpr device host;

std::vector<float> values(const tensor& t) { return {t.data<float>(), t.data<float>() + t.numel()}; }

}  // namespace

TEST_CASE("[row 197] a map from CPU to CPU does not change where tensors and results arrive") {
  pair_of_workers group([](auto& o) { o.set_device_map("worker1", {{"cpu", "cpu"}}); });
  const tensor t = ferry::tensor_of({1.F, 2.F});
  CHECK(group[0].rpc_sync<twice>("worker1", t).device() == host);
  CHECK(values(group[0].rpc_sync<twice>("worker1", t)) == std::vector{2.F, 4.F});
  CHECK(values(group[1].rpc_sync<twice>("worker0", t)) == std::vector{2.F, 4.F});
  const device_map same{{"cpu", "cpu"}};
  CHECK(values(group[1].rpc_async<twice>({"worker0", {.placement = same}}, t).get()) == std::vector{2.F, 4.F});
  CHECK(values(group[0].remote<twice>({"worker1", {.placement = same}}, t).to_here()) == std::vector{2.F, 4.F});
}

TEST_CASE("a message for an ended incarnation gets no targets, and no error of the maps of the id's new worker") {
  pair_of_workers group([](auto& o) { o.set_device_map("worker1", {{1, 0}}); });
  const ferry::agent& agent = group[0].core()->agent();
  const ferry::incarnation_id incarnation = group[1].core()->agent().incarnation();
  const ferry::worker_id there{1};
  for (const bool response : {false, true}) {
    const auto place = [&](device tensor_is_on, ferry::incarnation_id of) {
      ferry::outgoing_message message;
      message.tensors.push_back(tensor_on(tensor_is_on));
      if (response) {
        agent.place_response({there, of}, message, nullptr);
      } else {
        agent.place_request({there, of}, message, nullptr);
      }
      return message.targets;
    };
    expect_error(errc::bad_device, "", [&] { (void)place(gpu(2), incarnation); });
    CHECK(place(gpu(2), {incarnation.value + 1}).empty());
    CHECK(place(gpu(1), {incarnation.value + 1}).empty());
    if (!response) CHECK(place(gpu(1), incarnation).size() == 1);
  }
}

TEST_CASE("[row 205] a tensor on a device without a map is an error at once, in every form of a call") {
  pair_of_workers group([](auto& o) { o.set_device_map("worker1", {{1, 0}}); });
  const tensor there = tensor_on(gpu(0));
  for (int to : {0, 1}) {
    CAPTURE(to);
    const std::string words =
        "tensor 0 of the request is on cuda:0: only CPU tensors are supported by default; move it "
        "to the CPU, or configure a device map (set_device_map): Request device mapping is not "
        "available for destination worker" +
        std::to_string(to) + "; device cuda:0";
    expect_error(errc::bad_device, words, [&] { (void)group[0].rpc_sync<twice>(to, there); });
    expect_error(errc::bad_device, words, [&] { (void)group[0].rpc_async<twice>(to, there); });
    expect_error(errc::bad_device, words, [&] { (void)group[0].remote<twice>(to, there); });
    expect_error(errc::bad_device, words, [&] { group[0].notify<twice>(to, there); });
  }
  expect_error(errc::bad_device, "tensor 1 of the request is on cuda:2", [&] {
    (void)group[0].rpc_sync<count>("worker1", std::vector{ferry::ones({1}), tensor_on(gpu(2))});
  });
  CHECK(group[0].rpc_sync<twice>("worker1", ferry::ones({1})).item<float>() == 2);
  CHECK(group[1].rpc_sync<twice>("worker0", ferry::ones({1})).item<float>() == 2);
}

TEST_CASE("[row 206] such errors use up no threads and no call slots, however many there are") {
  pair_of_workers group;
  const tensor there = tensor_on(gpu(0));
  for (int round = 0; round != 20; ++round) {
    expect_error(errc::bad_device, "Request device mapping is not available",
                 [&] { (void)group[0].rpc_sync<twice>("worker1", there); });
  }
  CHECK(group[0].debug_info("agent.client_active_calls") == "0");
  CHECK(group[0].rpc_sync<twice>("worker1", ferry::ones({1})).item<float>() == 2);
}

TEST_CASE("[row 208] a result on a device without a map is the error of the call, or of the fetch") {
  pair_of_workers group;
  const std::string_view words = "Response device mapping is not available for destination worker0; device cuda:0";
  for (int round = 0; round != 10; ++round) {
    expect_error(errc::bad_device, words, [&] { (void)group[0].rpc_sync<make_on>("worker1", 0); });
    expect_error(errc::bad_device, words, [&] { (void)group[0].rpc_async<make_on>("worker1", 0).get(); });
    expect_error(errc::bad_device, words, [&] { (void)group[0].rpc_sync<make_later>("worker1", 0); });
    const auto kept = group[0].remote<make_on>("worker1", 0);
    expect_error(errc::bad_device, words, [&] { (void)kept.to_here(); });
    const auto object = group[0].remote<ferry::make<on_device>>("worker1", 0);
    expect_error(errc::bad_device, words, [&] { (void)object.rpc_sync<&on_device::get>(); });
  }
  CHECK(group[0].rpc_sync<make_on>("worker1", -1).device() == host);
  CHECK(group[1].rpc_sync<make_on>("worker0", -1).device() == host);
}

TEST_CASE("maps choose where each tensor of a message arrives") {
  pair_of_workers group(
      [](auto& o) {
        o.set_device_map("worker1", {{0, 1}, {3, 0}, {"cpu", "cpu"}});
        o.set_device_map("worker0", {{0, 1}, {1, 0}});
      },
      [](auto& o) {
        o.set_device_map("worker0", {{"cpu", 2}, {1, "cpu"}});
      });
  CHECK(targets(group[0], 1, false, {host, gpu(3), gpu(0)}) == std::vector{host, gpu(0), gpu(1)});
  CHECK(targets(group[1], 0, true, {host, gpu(0), gpu(1)}) == std::vector{host, gpu(3), gpu(0)});
  CHECK(targets(group[1], 0, false, {host, gpu(1), host}) == std::vector{gpu(2), host, gpu(2)});
  CHECK(targets(group[0], 1, true, {gpu(2), host}) == std::vector{host, gpu(1)});
  CHECK(targets(group[0], 0, false, {gpu(1), host}) == std::vector{gpu(0), host});
  CHECK(targets(group[0], 0, true, {gpu(1), host}) == std::vector{gpu(0), host});
  CHECK(targets(group[1], 1, false, {host}).empty());
  CHECK(targets(group[0], 1, false, {}).empty());
  expect_error(errc::bad_device, "Request device mapping is not available for destination worker1; device cuda:1", [&] {
    (void)targets(group[0], 1, false, {gpu(0), gpu(1)});
  });
  expect_error(errc::bad_device, "Response device mapping is not available for destination worker1; device cuda:0",
               [&] { (void)targets(group[0], 1, true, {gpu(0)}); });
}

TEST_CASE("a result on a device that the worker did not declare is refused") {
  pair_of_workers group(nullptr, [](auto& o) { o.set_devices({1}); });
  const device_map way_back{{0, 2}, {1, 3}};
  CHECK(targets(group[1], 0, true, {gpu(1)}, &way_back) == std::vector{gpu(3)});
  expect_error(
      errc::bad_device,
      "user-function output tensor 0 is on device cuda:0, which is not one of the input tensor devices [cuda:1]",
      [&] { (void)targets(group[1], 0, true, {gpu(0)}, &way_back); });
}

TEST_CASE("a placement replaces the map for one call, and is checked as maps are") {
  pair_of_workers group([](auto& o) { o.set_device_map("worker1", {{0, 0}, {1, 1}}); });
  const device_map placement{{2, 1}, {"cpu", 0}};
  CHECK(targets(group[0], 1, false, {gpu(2), host}, &placement) == std::vector{gpu(1), gpu(0)});
  CHECK(targets(group[0], 1, false, {gpu(0)}) == std::vector{gpu(0)});
  expect_error(errc::bad_device, "Request device mapping is not available for destination worker1; device cuda:0",
               [&] { (void)targets(group[0], 1, false, {gpu(0)}, &placement); });
  const tensor t = ferry::ones({1});
  const auto refused = [&](std::string_view words, const device_map& map) {
    expect_error(errc::invalid_argument, words, [&] {
      (void)group[0].rpc_sync<twice>({"worker1", {.placement = map}}, t);
    });
    expect_error(errc::invalid_argument, words, [&] {
      (void)group[0].rpc_async<twice>({"worker1", {.placement = map}}, t);
    });
    expect_error(errc::invalid_argument, words, [&] {
      (void)group[0].remote<twice>({"worker1", {.placement = map}}, t);
    });
  };
  refused(
      "the placement of a call: worker worker0 has source devices with invalid indices in its device map for worker1; "
      "device map = {cuda:4: cuda:0}, device count = 4 cuda",
      {{4, 0}});
  refused(
      "target devices with invalid indices in its device map for worker1; device map = {cuda:0: cuda:2}, device count "
      "= 2 cuda",
      {{0, 2}});
  const device_map two_to_one = device_map::merged({{gpu(0), gpu(0)}, {gpu(1), gpu(0)}});
  refused("duplicated target devices", two_to_one);
  // Also if no argument is a tensor: the map for the result could not be inverted.
  expect_error(errc::invalid_argument, "duplicated target devices", [&] {
    (void)group[0].rpc_sync<make_on>({"worker1", {.placement = two_to_one}}, -1);
  });
  // References, and calls through them, have no placement.
  const auto object = group[0].remote<ferry::make<on_device>>("worker1", -1);
  CHECK(object.rpc_sync<&on_device::get>().device() == host);
  CHECK(group[0].rpc_sync<twice>({"worker1", {.placement = device_map()}}, t).item<float>() == 2);
}

TEST_CASE("the inverse of a placement is sent with the call") {
  using namespace ferry::detail;
  ferry::outgoing_message message;
  add_placement_record(message, {{0, 1}, {"cpu", 0}, {2, "cpu"}});
  const ferry::extension_records records(message.bytes.bytes().subspan(ferry::frame_header::encoded_size));
  const auto content = records.find(placement_record_type);
  REQUIRE(content);
  CHECK(read_placement_record(*content) == device_map{{1, 0}, {0, "cpu"}, {"cpu", 2}});

  // The callee has no map for the caller, but knows the target of its result.
  pair_of_workers group;
  const device_map placement{{3, "cpu"}, {2, 1}};
  expect_error(errc::bad_device, "cuda:3", [&] {
    (void)group[0].rpc_sync<make_on>({"worker1", {.placement = placement}}, -1);
  });
  expect_error(errc::bad_device, "Response device mapping is not available for destination worker0; device cuda:0",
               [&] {
                 (void)group[0].rpc_sync<make_on>({"worker1", {.placement = placement}}, 0);
               });
  CHECK(group[0].rpc_sync<make_on>("worker1", -1).device() == host);
}

}  // namespace placement_test
