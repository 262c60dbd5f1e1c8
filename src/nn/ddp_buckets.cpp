#include "ddp_buckets.hpp"

#include <algorithm>

namespace ferry::inline v0::detail {

std::vector<gradient_bucket> plan_buckets(const std::vector<gradient_size>& parameters, std::size_t first,
                                          std::size_t bytes) {
  std::vector<gradient_bucket> buckets;
  for (std::size_t i = parameters.size(); i-- != 0;) {
    const gradient_size& each = parameters[i];
    const auto dense = std::count_if(buckets.begin(), buckets.end(), [](const auto& bucket) { return !bucket.rows; });
    const std::size_t limit = dense <= 1 ? first : bytes;
    const bool fits =
        !buckets.empty() && !each.rows && !buckets.back().rows && buckets.back().type == each.type &&
        buckets.back().where == each.where &&
        static_cast<std::size_t>(buckets.back().elements + each.elements) * dtype_size(each.type) <= limit;
    if (!fits) buckets.push_back({.type = each.type, .where = each.where, .rows = each.rows});
    gradient_bucket& into = buckets.back();
    into.members.push_back(i);
    into.offsets.push_back(into.elements);
    into.elements += each.elements;
  }
  return buckets;
}

bucket_readiness::bucket_readiness(const std::vector<gradient_bucket>& buckets, std::size_t parameters)
    : bucket_of_(parameters) {
  for (std::size_t i = 0; i != buckets.size(); ++i) {
    for (const std::size_t each : buckets[i].members) bucket_of_[each] = i;
    sizes_.push_back(buckets[i].members.size());
  }
  marked_.resize(parameters);
  reset();
}

std::size_t bucket_readiness::mark(std::size_t parameter) {
  if (marked_[parameter]) return ready_;
  marked_[parameter] = true;
  --left_;
  --missing_[bucket_of_[parameter]];
  while (ready_ != missing_.size() && missing_[ready_] == 0) ++ready_;
  return ready_;
}

void bucket_readiness::reset() {
  missing_ = sizes_;
  std::fill(marked_.begin(), marked_.end(), false);
  left_ = marked_.size();
  ready_ = 0;
}

}  // namespace ferry::inline v0::detail
