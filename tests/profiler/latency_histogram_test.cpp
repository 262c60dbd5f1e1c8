// Counts of durations: quantiles against sorted lists, and sums of histograms.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/profiler/latency_histogram.hpp>
#include <ferry/wire/serialize.hpp>

namespace histogram_test {

using ferry::profiler::latency_histogram;
using std::chrono::nanoseconds;

// Durations of all sizes: their logarithms are spread evenly.
std::vector<std::int64_t> durations(std::size_t count, std::uint64_t seed, double most_bits) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> bits(0, most_bits);
  std::vector<std::int64_t> all(count);
  for (std::int64_t& each : all) each = static_cast<std::int64_t>(std::exp2(bits(random)));
  return all;
}

latency_histogram histogram_of(const std::vector<std::int64_t>& all) {
  latency_histogram result;
  for (const std::int64_t each : all) result.add(nanoseconds(each));
  return result;
}

TEST_CASE(
    "the buckets of a histogram follow each other without gaps, and none is wider than an eighth of where it begins") {
  for (std::size_t bucket = 0; bucket != latency_histogram::buckets; ++bucket) {
    const std::uint64_t first = latency_histogram::lower_bound(bucket);
    const std::uint64_t last = latency_histogram::lower_bound(bucket + 1) - 1;
    REQUIRE(last >= first);
    REQUIRE(latency_histogram::bucket_of(first) == bucket);
    REQUIRE(latency_histogram::bucket_of(last) == bucket);
    REQUIRE((first < 16 || (last - first + 1) * 8 <= first));
  }
  CHECK(latency_histogram::lower_bound(latency_histogram::buckets) - 1 ==
        static_cast<std::uint64_t>(latency_histogram::longest.count()));
  CHECK(latency_histogram::bucket_of(~std::uint64_t{0}) == latency_histogram::buckets - 1);
}

TEST_CASE("a quantile is within the stated error of the duration with that rank in a sorted list") {
  for (const double most_bits : {5.0, 20.0, 43.9}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{2}, std::size_t{100}, std::size_t{5000}}) {
      std::vector<std::int64_t> all = durations(count, count, most_bits);
      const latency_histogram found = histogram_of(all);
      std::sort(all.begin(), all.end());
      CHECK(found.count() == count);
      std::int64_t sum = 0;
      for (const std::int64_t each : all) sum += each;
      CHECK(found.sum().count() == sum);
      CHECK(found.mean().count() == sum / static_cast<std::int64_t>(count));
      for (const double rank : {0.0, 0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0}) {
        const auto place = static_cast<std::size_t>(std::ceil(rank * static_cast<double>(count)));
        const auto exact = static_cast<double>(all[std::max<std::size_t>(place, 1) - 1]);
        const auto told = static_cast<double>(found.quantile(rank).count());
        CAPTURE(rank);
        CHECK(std::abs(told - exact) <= latency_histogram::relative_error * exact);
      }
    }
  }
}

TEST_CASE("how many durations lie below a power of two is exact") {
  const std::vector<std::int64_t> all = durations(4000, 3, 43.9);
  const latency_histogram found = histogram_of(all);
  for (unsigned bit = 0; bit != 44; ++bit) {
    const std::int64_t limit = std::int64_t{1} << bit;
    const auto below = std::count_if(all.begin(), all.end(), [&](std::int64_t each) { return each < limit; });
    CHECK(found.count_below(nanoseconds(limit)) == static_cast<std::uint64_t>(below));
  }
  CHECK(found.count_below(nanoseconds(0)) == 0);
  CHECK(found.count_below(nanoseconds(-1)) == 0);
  CHECK(found.count_below(nanoseconds::max()) == found.count());
}

TEST_CASE("histograms can be added in any order, and what was added can be taken away") {
  const latency_histogram a = histogram_of(durations(700, 1, 43));
  const latency_histogram b = histogram_of(durations(300, 2, 20));
  const latency_histogram c = histogram_of(durations(50, 3, 10));
  latency_histogram left = a;
  left.merge(b).merge(c);
  latency_histogram right = b;
  right.merge(c);
  latency_histogram other = a;
  other.merge(right);
  CHECK(left == other);
  latency_histogram turned = c;
  turned.merge(b).merge(a);
  CHECK(left == turned);
  CHECK(left.count() == 1050);
  CHECK(left.sum() == a.sum() + b.sum() + c.sum());
  CHECK(latency_histogram(left).subtract(a) == right);
  CHECK(latency_histogram(left).subtract(right) == a);
  CHECK(latency_histogram(left).subtract(left) == latency_histogram());
}

TEST_CASE("a histogram has zeros where it is empty, and takes what is out of its range as the nearest") {
  latency_histogram found;
  CHECK(found.quantile(0.5).count() == 0);
  CHECK(found.mean().count() == 0);
  found.add(nanoseconds(5), 0);
  CHECK(found == latency_histogram());
  found.add(nanoseconds(-7));
  CHECK(found.quantile(1).count() == 0);
  found.add(nanoseconds::max(), 2);
  CHECK(found.count() == 3);
  const auto longest = static_cast<double>(latency_histogram::longest.count());
  CHECK(static_cast<double>(found.quantile(1).count()) >= longest * (1 - latency_histogram::relative_error));
  CHECK(found.quantile(7) == found.quantile(1));
  CHECK(found.quantile(-7).count() == 0);
}

TEST_CASE("a histogram can be sent") {
  const latency_histogram sent = histogram_of(durations(500, 9, 40));
  const auto read = ferry::deserialize<latency_histogram>(ferry::serialize(sent));
  CHECK(read == sent);
  CHECK(read.quantile(0.9) == sent.quantile(0.9));
}

}  // namespace histogram_test
