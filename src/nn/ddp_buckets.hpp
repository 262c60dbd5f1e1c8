#pragma once

// Which gradients travel together, and when they are all there. Pure.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ferry/device/device.hpp>
#include <ferry/tensor/dtype.hpp>

namespace ferry::inline v0::detail {

struct gradient_size {
  std::int64_t elements = 0;
  dtype type = {};
  device where = {};
  bool rows = false;  ///< it travels as rows, alone
};

struct gradient_bucket {
  dtype type = {};
  device where = {};
  bool rows = false;  ///< without memory of its own
  std::int64_t elements = 0;
  std::vector<std::size_t> members = {};   ///< indices of parameters
  std::vector<std::int64_t> offsets = {};  ///< of each, in elements
};

/// From the last parameter to the first, as their gradients are complete in a pass: the first bucket has up to `first` bytes, the
/// others up to `bytes`, or one parameter. Of one dtype and device each; what travels as rows has one of its own.
std::vector<gradient_bucket> plan_buckets(const std::vector<gradient_size>& parameters, std::size_t first,
                                          std::size_t bytes);

/// Counts the gradients of a pass.
class bucket_readiness {
 public:
  bucket_readiness(const std::vector<gradient_bucket>& buckets, std::size_t parameters);
  /// A gradient is there. Returns how many buckets may travel now: the first so many, in their order, so that all members make
  /// one sequence. A second gradient of the same parameter counts once.
  std::size_t mark(std::size_t parameter);
  [[nodiscard]] bool complete() const noexcept { return left_ == 0; }
  [[nodiscard]] bool begun() const noexcept { return left_ != marked_.size(); }
  [[nodiscard]] bool has(std::size_t parameter) const { return marked_[parameter]; }
  void reset();

 private:
  std::vector<std::size_t> bucket_of_;
  std::vector<std::size_t> sizes_;
  std::vector<std::size_t> missing_;
  std::vector<bool> marked_;
  std::size_t left_ = 0;
  std::size_t ready_ = 0;
};

}  // namespace ferry::inline v0::detail
