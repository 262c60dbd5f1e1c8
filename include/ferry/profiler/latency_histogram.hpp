#pragma once

// How long things took: counts of durations by size.

#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ferry::inline v0::profiler {

/// Counts durations in buckets that double in width every eight: what it says of one is right to a sixteenth, from nanoseconds to
/// hours. All histograms have the same buckets, so that those of several workers and times can be added and subtracted. A value.
class latency_histogram {
 public:
  /// What quantile() gives is no further from the duration of that rank than this share of it; longer ones than `longest` count as
  /// that.
  static constexpr double relative_error = 1.0 / 16;
  static constexpr std::chrono::nanoseconds longest{(std::int64_t{1} << 44U) - 1};  // 4.9 hours

  /// Negative ones count as zero.
  void add(std::chrono::nanoseconds duration, std::uint64_t times = 1);
  /// Adds what the other one has counted. Associative and commutative.
  latency_histogram& merge(const latency_histogram& other);
  /// Takes away what an earlier reading of the same histogram has counted.
  latency_histogram& subtract(const latency_histogram& earlier) noexcept;

  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// Of all durations; exact.
  [[nodiscard]] std::chrono::nanoseconds sum() const noexcept {
    return std::chrono::nanoseconds(static_cast<std::int64_t>(sum_ns_));
  }
  /// Zero if it is empty.
  [[nodiscard]] std::chrono::nanoseconds mean() const noexcept;
  /// The duration that the share `rank` (0 to 1) of all durations does not exceed: 0.5 gives the median. Zero if it is empty.
  [[nodiscard]] std::chrono::nanoseconds quantile(double rank) const noexcept;
  /// How many were below `limit`: exact for a power of two of nanoseconds (and for each bound of a bucket), else one bucket more or
  /// less.
  [[nodiscard]] std::uint64_t count_below(std::chrono::nanoseconds limit) const noexcept;

  friend bool operator==(const latency_histogram&, const latency_histogram&) = default;

  template <class Archive>
  void save(Archive& archive) const {
    archive(counts_, sum_ns_);
  }
  /// A peer cannot make one that is inconsistent.
  template <class Archive>
  void load(Archive& archive) {
    archive(counts_, sum_ns_);
    recount();
  }

  // For the library: the buckets. Below 16 ns one for each, then eight for each power of two.
  static constexpr unsigned first_octave = 4;
  static constexpr unsigned octaves = 40;
  static constexpr std::size_t buckets = 16 + std::size_t{octaves} * 8;
  [[nodiscard]] static constexpr std::size_t bucket_of(std::uint64_t ns) noexcept {
    if (ns < 16) return static_cast<std::size_t>(ns);
    const auto octave = static_cast<unsigned>(std::bit_width(ns)) - 1;
    if (octave >= first_octave + octaves) return buckets - 1;
    return 16 + (octave - first_octave) * 8 + ((ns >> (octave - 3)) & 7U);
  }
  /// The smallest duration of a bucket; of `buckets`, what follows the longest.
  [[nodiscard]] static constexpr std::uint64_t lower_bound(std::size_t bucket) noexcept {
    if (bucket < 16) return bucket;
    const std::uint64_t eighth = (bucket - 16) % 8;
    return (8 + eighth) << ((bucket - 16) / 8 + first_octave - 3);
  }
  void add_to_bucket(std::size_t bucket, std::uint64_t times);
  void add_to_sum(std::uint64_t ns) noexcept { sum_ns_ += ns; }

 private:
  void shrink() noexcept;
  void recount() noexcept;

  std::vector<std::uint64_t> counts_;  // by bucket, up to the last that is not zero
  std::uint64_t count_ = 0;
  std::uint64_t sum_ns_ = 0;
};

}  // namespace ferry::inline v0::profiler
