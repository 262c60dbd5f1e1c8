#include <ferry/profiler/latency_histogram.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ferry::inline v0::profiler {

static_assert(latency_histogram::lower_bound(latency_histogram::buckets) ==
              static_cast<std::uint64_t>(latency_histogram::longest.count()) + 1);

void latency_histogram::add(std::chrono::nanoseconds duration, std::uint64_t times) {
  if (times == 0) return;
  const std::int64_t ns = std::clamp<std::int64_t>(duration.count(), 0, longest.count());
  add_to_bucket(bucket_of(static_cast<std::uint64_t>(ns)), times);
  sum_ns_ += static_cast<std::uint64_t>(ns) * times;
}

void latency_histogram::add_to_bucket(std::size_t bucket, std::uint64_t times) {
  if (times == 0) return;
  if (counts_.size() <= bucket) counts_.resize(bucket + 1);
  counts_[bucket] += times;
  count_ += times;
}

latency_histogram& latency_histogram::merge(const latency_histogram& other) {
  if (counts_.size() < other.counts_.size()) counts_.resize(other.counts_.size());
  for (std::size_t i = 0; i != other.counts_.size(); ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
  sum_ns_ += other.sum_ns_;
  return *this;
}

// What was not counted here before stays zero.
latency_histogram& latency_histogram::subtract(const latency_histogram& earlier) noexcept {
  const std::size_t both = std::min(counts_.size(), earlier.counts_.size());
  for (std::size_t i = 0; i != both; ++i) {
    const std::uint64_t taken = std::min(counts_[i], earlier.counts_[i]);
    counts_[i] -= taken;
    count_ -= taken;
  }
  sum_ns_ -= std::min(sum_ns_, earlier.sum_ns_);
  shrink();
  return *this;
}

// Equal histograms have equal members.
void latency_histogram::shrink() noexcept {
  while (!counts_.empty() && counts_.back() == 0) counts_.pop_back();
}

void latency_histogram::recount() noexcept {
  if (counts_.size() > buckets) counts_.resize(buckets);
  shrink();
  count_ = std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0});
}

std::chrono::nanoseconds latency_histogram::mean() const noexcept {
  return std::chrono::nanoseconds(count_ == 0 ? 0 : static_cast<std::int64_t>(sum_ns_ / count_));
}

std::chrono::nanoseconds latency_histogram::quantile(double rank) const noexcept {
  if (count_ == 0) return {};
  const double wanted = std::ceil(std::clamp(rank, 0.0, 1.0) * static_cast<double>(count_));
  const std::uint64_t place = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wanted), 1, count_);
  std::uint64_t seen = 0;
  std::size_t bucket = 0;
  while ((seen += counts_[bucket]) < place) ++bucket;
  const std::uint64_t first = lower_bound(bucket);
  const std::uint64_t last = lower_bound(bucket + 1) - 1;
  return std::chrono::nanoseconds(static_cast<std::int64_t>(first + (last - first) / 2));
}

std::uint64_t latency_histogram::count_below(std::chrono::nanoseconds limit) const noexcept {
  if (limit.count() <= 0) return 0;
  if (limit > longest) return count_;
  const std::size_t end = std::min(bucket_of(static_cast<std::uint64_t>(limit.count())), counts_.size());
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i != end; ++i) sum += counts_[i];
  return sum;
}

}  // namespace ferry::inline v0::profiler
