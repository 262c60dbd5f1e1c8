// Channel selection for device pairs, and the conformance suite over every channel.

#include <ferry/test_kit/channel_conformance.hpp>

#include "fake_cuda.hpp"
#include "tests/device/queue_device.hpp"

namespace channel_test {

namespace {

using ferry::device;

constexpr device gpu(int index) { return {ferry::device_kind::cuda, index}; }

struct inline_under_test {
  using tag = ferry::inline_tensors;
  static device from() { return {}; }
  static device to() { return {}; }
  static std::string missing() { return {}; }
};

template <class Tag, int From, int To>
struct cuda_under_test {
  using tag = Tag;
  static device from() { return From < 0 ? device() : gpu(From); }
  static device to() { return To < 0 ? device() : gpu(To); }
  static std::string missing() { return {}; }
};

// Between devices of a user-defined kind.
template <class Tag>
struct queue_under_test {
  using tag = Tag;
  static device from() { return {ferry::device_traits<queue_device>::kind, 0}; }
  static device to() { return {ferry::device_traits<queue_device>::kind, 1}; }
  static std::string missing() { return {}; }
};

// A user-defined channel with a higher priority.
struct fast_lane {};

}  // namespace

}  // namespace channel_test

template <>
struct ferry::channel_traits<channel_test::fast_lane> {
  static constexpr std::string_view name = "fast_lane";
  static constexpr int priority = 1000;
  static std::string unusable(const channel_path& path) {
    return path.from == path.to ? std::string() : "it connects devices of the same name only";
  }
  static tensor copy(const tensor& packed, device, const stream&) { return packed; }
};

namespace channel_test {

TEST_CASE("inline conforms") { ferry::test_kit::channel_conformance<inline_under_test>(); }
TEST_CASE("inproc conforms: from CPU to CPU") {
  ferry::test_kit::channel_conformance<cuda_under_test<ferry::inproc_tensors, -1, -1>>();
}
TEST_CASE("inproc conforms: from a device to another") {
  ferry::test_kit::channel_conformance<cuda_under_test<ferry::inproc_tensors, 0, 1>>();
}
TEST_CASE("inproc conforms: from a device to the CPU") {
  ferry::test_kit::channel_conformance<cuda_under_test<ferry::inproc_tensors, 0, -1>>();
}
TEST_CASE("cuda_staged conforms: from a device to another") {
  ferry::test_kit::channel_conformance<cuda_under_test<ferry::cuda_staged, 0, 1>>();
}
TEST_CASE("cuda_staged conforms: from a device to the CPU") {
  ferry::test_kit::channel_conformance<cuda_under_test<ferry::cuda_staged, 2, -1>>();
}
TEST_CASE("cuda_staged conforms: from the CPU to a device") {
  ferry::test_kit::channel_conformance<cuda_under_test<ferry::cuda_staged, -1, 5>>();
}

TEST_CASE("inproc conforms: between devices of a user-defined kind") {
  ferry::register_devices<queue_device>();
  ferry::test_kit::channel_conformance<queue_under_test<ferry::inproc_tensors>>();
}
TEST_CASE("cuda_staged conforms: between devices of a user-defined kind") {
  ferry::register_devices<queue_device>();
  ferry::test_kit::channel_conformance<queue_under_test<ferry::cuda_staged>>();
}

TEST_CASE("the best usable channel is chosen, and those skipped report why they are unusable") {
  const auto name_of = [](const ferry::channel_path& path) {
    const ferry::channel_factory* found = ferry::find_channel(path);
    return found ? std::string(found->name) : "none";
  };
  CHECK(name_of({{}, {}, false, false, "not here"}) == "inline");
  CHECK(name_of({{}, {}, true, true, ""}) == "inproc");
  CHECK(name_of({{}, {}, false, true, "", ""}) == "shm");
  CHECK(name_of({{}, {}, false, true, "", "it is not shared"}) == "inline");
  CHECK(name_of({gpu(0), gpu(1), true, true, ""}) == "inproc");
  CHECK(name_of({gpu(0), gpu(1), false, true, ""}) == "cuda_staged");
  CHECK(name_of({gpu(0), gpu(1), false, true, "", ""}) == "cuda_ipc");
  CHECK(name_of({gpu(0), gpu(1), false, false, "not here", ""}) == "none");
  CHECK(name_of({gpu(0), {}, false, true, "", ""}) == "cuda_staged");
  CHECK(name_of({{}, gpu(3), false, true, ""}) == "cuda_staged");
  CHECK(name_of({{}, gpu(3), false, false, "not here"}) == "none");

  const auto none = ferry::choose_channel(ferry::known_channels(), {gpu(0), {}, false, false, "the peer is too old"});
  CHECK(none.used == nullptr);
  REQUIRE(none.skipped.size() == 5);
  CHECK(none.skipped[0].name == "inproc");
  CHECK(none.skipped[1].name == "cuda_ipc");
  CHECK(none.skipped[2].name == "shm");
  CHECK(none.skipped[4].name == "cuda_staged");
  CHECK(none.skipped[4].reason == "the peer is too old");

  const auto more = ferry::channel_list<ferry::cuda_staged, fast_lane, ferry::inproc_tensors>::factories();
  const auto own = ferry::choose_channel(more, {gpu(0), gpu(0), false, true, ""});
  REQUIRE(own.used);
  CHECK(own.used->name == "fast_lane");
  const auto staged = ferry::choose_channel(more, {gpu(0), gpu(1), false, true, ""});
  REQUIRE(staged.used);
  CHECK(staged.used->name == "cuda_staged");
  REQUIRE(staged.skipped.size() == 2);
  CHECK(staged.skipped[0].name == "fast_lane");
  CHECK(staged.skipped[0].reason == "it connects devices of the same name only");
}

}  // namespace channel_test