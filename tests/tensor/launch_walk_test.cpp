#include <tensor/launch_walk.hpp>

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

#include <tensor/kernels.hpp>

namespace launch_walk_test {

namespace {

using namespace ferry::detail;

template <std::size_t N>
walk<N> make_walk(const std::vector<std::int64_t>& shape, const std::vector<std::array<std::int64_t, N>>& steps,
                  const std::array<std::byte*, N>& start) {
  walk<N> plan{};
  plan.rank = shape.size();
  for (std::size_t axis = 0; axis != shape.size(); ++axis) {
    plan.shape[axis] = shape[axis];
    plan.steps[axis] = steps[axis];
  }
  plan.start = start;
  return plan;
}

// Starts nothing, but calls the function at once.
struct here {
  template <class F, class Index>
  static int launch(CUstream_st*, Index count, const F& function) {
    for (Index i = 0; i != count; ++i) function(i);
    return 0;
  }
};
constexpr tensor_kernels kernels = make_tensor_kernels<here>();

}  // namespace

TEST_CASE("the parts of a walk visit each element once, and have no more than is allowed") {
  std::vector<std::byte> memory(3 * 5 * 7);
  const auto plan = make_walk<1>({3, 5, 7}, {{35}, {7}, {1}}, {memory.data()});
  for (const std::int64_t most : {1, 2, 10, 34, 104, 105, 1000}) {
    CAPTURE(most);
    std::map<const std::byte*, int> visits;
    const int status = for_each_part(plan, most, [&](const walk<1>& part) {
      CHECK(element_count(part) <= most);
      for (std::int64_t i = 0; i != element_count(part); ++i) ++visits[locate(part, i)[0]];
      return 0;
    });
    CHECK(status == 0);
    CHECK(visits.size() == memory.size());
    for (const auto& [address, times] : visits) CHECK(times == 1);
  }
  int calls = 0;
  CHECK(for_each_part(plan, 10, [&](const walk<1>&) { return ++calls == 2 ? 719 : 0; }) == 719);
  CHECK(calls == 2);
}

TEST_CASE("an index of 32 bits finds the elements that one of 64 does") {
  std::vector<std::byte> memory(1000);
  const auto plan = make_walk<2>({4, 3, 5}, {{100, 1}, {-7, 4}, {2, 12}}, {memory.data() + 100, memory.data()});
  for (std::int64_t i = 0; i != element_count(plan); ++i) {
    CHECK(locate(plan, i) == locate(plan, static_cast<std::uint32_t>(i)));
  }
}

TEST_CASE("contiguous memory is walked by 16 bytes, and what does not fill them by elements") {
  alignas(16) std::array<std::byte, 1024> memory{};
  const auto parts_of = [](const walk<1>& plan, std::size_t size) {
    std::vector<std::pair<std::size_t, std::int64_t>> parts;
    CHECK(launch_wide<1>(nullptr, plan, size, [&](CUstream_st*, const walk<1>& part, std::size_t wide) {
            parts.emplace_back(wide, element_count(part));
            return 0;
          }) == 0);
    return parts;
  };
  using parts = std::vector<std::pair<std::size_t, std::int64_t>>;
  std::byte* const at = memory.data();
  CHECK(parts_of(make_walk<1>({64}, {{4}}, {at}), 4) == parts{{16, 16}});
  CHECK(parts_of(make_walk<1>({67}, {{4}}, {at}), 4) == parts{{16, 16}, {4, 3}});
  CHECK(parts_of(make_walk<1>({3}, {{4}}, {at}), 4) == parts{{4, 3}});
  CHECK(parts_of(make_walk<1>({16}, {{16}}, {at}), 16) == parts{{16, 16}});
  CHECK(parts_of(make_walk<1>({64}, {{8}}, {at}), 4) == parts{{4, 64}});      // with gaps
  CHECK(parts_of(make_walk<1>({64}, {{4}}, {at + 8}), 4) == parts{{8, 32}});  // not where 16 bytes may begin
  CHECK(parts_of(make_walk<1>({64}, {{4}}, {at + 4}), 4) == parts{{4, 64}});
  CHECK(parts_of(make_walk<1>({4, 16}, {{48}, {1}}, {at}), 1) == parts{{16, 4}});  // rows
  CHECK(parts_of(make_walk<1>({4, 16}, {{40}, {1}}, {at}), 1) == parts{{8, 8}});
  CHECK(parts_of(make_walk<1>({4, 18}, {{40}, {1}}, {at}), 1) == parts{{2, 36}});
}

TEST_CASE("kernels copy and fill blocks of any size at any address") {
  alignas(16) std::array<unsigned char, 300> from{};
  std::iota(from.begin(), from.end(), static_cast<unsigned char>(1));
  for (const std::size_t size : {1, 2, 4, 8, 16}) {
    for (std::size_t shift = 0; shift < 32; shift += size) {
      for (std::int64_t count = 1; count * static_cast<std::int64_t>(size) + 32 <= 250; count += 3) {
        alignas(16) std::array<unsigned char, 300> to{};
        const auto bytes = static_cast<std::size_t>(count) * size;
        const auto step = static_cast<std::int64_t>(size);
        auto* const target = reinterpret_cast<std::byte*>(to.data()) + shift;
        auto* const source = reinterpret_cast<std::byte*>(from.data());
        REQUIRE(kernels.copy(nullptr, make_walk<2>({count}, {{step, step}}, {target, source}), size) == 0);
        REQUIRE(std::memcmp(target, source, bytes) == 0);
        REQUIRE((to[shift + bytes] == 0 && (shift == 0 || to[shift - 1] == 0)));
        kernel_element value{};
        for (std::size_t i = 0; i != size; ++i) value.bytes[i] = static_cast<unsigned char>(200 + i);
        REQUIRE(kernels.fill(nullptr, make_walk<1>({count}, {{step}}, {target}), value, size) == 0);
        for (std::size_t i = 0; i != bytes; ++i) REQUIRE(to[shift + i] == 200 + i % size);
        REQUIRE((to[shift + bytes] == 0 && (shift == 0 || to[shift - 1] == 0)));
      }
    }
  }
}

}  // namespace launch_walk_test
