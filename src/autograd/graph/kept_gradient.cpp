#include <cstdint>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include <ferry/autograd/detail/memory.hpp>
#include <ferry/ops/arithmetic.hpp>
#include <ferry/ops/sparse.hpp>

#include "gradient_record.hpp"

namespace ferry::inline v0::detail {

tensor gradient_record::gradient() const {
  std::lock_guard lock(mutex_);
  return gradient_;
}

void gradient_record::set_gradient(tensor gradient) {
  std::vector<sparse_tensor> former;  // destroyed outside of the lock, as the former gradient, or by its other owners
  std::lock_guard lock(mutex_);
  std::swap(gradient_, gradient);
  std::swap(rows_, former);
}

void gradient_record::add_gradient(tensor&& more) {
  std::lock_guard lock(mutex_);
  if (gradient_.defined()) {
    add_(gradient_, more);
    return;
  }
  // Row-major, as the optimizers and the wire want it; a leaf of another layout has its gradient in this one, too.
  tensor whole = is_only_owner(more) ? std::move(more) : more.clone();
  for (const sparse_tensor& each : rows_) add_(whole, each);
  rows_.clear();
  gradient_ = std::move(whole);
}

bool gradient_record::has_sparse_gradient() const {
  std::lock_guard lock(mutex_);
  return !rows_.empty();
}

sparse_tensor gradient_record::sparse_gradient() const {
  std::lock_guard lock(mutex_);
  if (rows_.empty()) return {};
  if (rows_.size() != 1) rows_ = {concatenate(rows_)};
  return rows_.front();
}

void gradient_record::set_sparse_gradient(const sparse_tensor& gradient) {
  std::vector<sparse_tensor> rows;
  if (gradient.defined()) rows.push_back(gradient);
  tensor former;
  std::lock_guard lock(mutex_);
  std::swap(gradient_, former);
  std::swap(rows_, rows);
}

void gradient_record::add_rows(std::vector<sparse_tensor>&& more) {
  std::lock_guard lock(mutex_);
  if (gradient_.defined()) {
    for (const sparse_tensor& each : more) add_(gradient_, each);
    return;
  }
  std::move(more.begin(), more.end(), std::back_inserter(rows_));
  std::int64_t entries = 0;
  for (const sparse_tensor& each : rows_) entries += each.nnz();
  // Half of them are more than were left the last time: the cost of bringing them together is that of adding them.
  if (rows_.size() != 1 && entries / 2 > rows_.front().shape()[0]) rows_ = {concatenate(rows_).coalesce()};
}

}  // namespace ferry::inline v0::detail
