#include "kept_gradient.hpp"

#include <cstdint>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include <ferry/autograd/detail/memory.hpp>
#include <ferry/ops/arithmetic.hpp>
#include <ferry/ops/sparse.hpp>

namespace ferry::inline v0::detail {

tensor kept_gradient::dense() const {
  std::lock_guard lock(mutex_);
  return dense_;
}

void kept_gradient::set(tensor gradient) {
  std::vector<sparse_tensor> former;  // destroyed outside of the lock, as the former gradient, or by its other owners
  std::lock_guard lock(mutex_);
  std::swap(dense_, gradient);
  std::swap(rows_, former);
}

void kept_gradient::add(tensor&& more) {
  std::lock_guard lock(mutex_);
  if (dense_.defined()) {
    add_(dense_, more);
    return;
  }
  // Row-major, as the optimizers and the wire want it; a leaf of another layout has its gradient in this one, too.
  tensor whole = is_only_owner(more) ? std::move(more) : more.clone();
  for (const sparse_tensor& each : rows_) add_(whole, each);
  rows_.clear();
  dense_ = std::move(whole);
}

bool kept_gradient::has_rows() const {
  std::lock_guard lock(mutex_);
  return !rows_.empty();
}

sparse_tensor kept_gradient::rows() const {
  std::lock_guard lock(mutex_);
  if (rows_.empty()) return {};
  if (rows_.size() != 1) rows_ = {concatenate(rows_)};
  return rows_.front();
}

void kept_gradient::set_rows(const sparse_tensor& gradient) {
  std::vector<sparse_tensor> rows;
  if (gradient.defined()) rows.push_back(gradient);
  tensor former;
  std::lock_guard lock(mutex_);
  std::swap(dense_, former);
  std::swap(rows_, rows);
}

void kept_gradient::add_rows(std::vector<sparse_tensor>&& more) {
  std::lock_guard lock(mutex_);
  if (dense_.defined()) {
    for (const sparse_tensor& each : more) add_(dense_, each);
    return;
  }
  std::move(more.begin(), more.end(), std::back_inserter(rows_));
  std::int64_t entries = 0;
  for (const sparse_tensor& each : rows_) entries += each.nnz();
  // Half of them are more than were left the last time: the cost of bringing them together is that of adding them.
  if (rows_.size() != 1 && entries / 2 > rows_.front().shape()[0]) rows_ = {concatenate(rows_).coalesce()};
}

}  // namespace ferry::inline v0::detail
