#pragma once

// The gradient of one leaf: dense, or the sum of rows.

#include <mutex>
#include <vector>

#include <ferry/ops/sparse.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::detail {

/// Thread-safe. On devices, additions and reads are on the current stream of the thread.
class kept_gradient {
 public:
  [[nodiscard]] tensor dense() const;
  /// Undefined unless the gradient is sparse.
  [[nodiscard]] sparse_tensor rows() const;
  [[nodiscard]] bool has_rows() const;
  /// These replace what there is.
  void set(tensor gradient);
  void set_rows(const sparse_tensor& gradient);
  /// Adds in place, or takes it over if it is the first and no other handle exists.
  void add(tensor&& more);
  /// The same for rows, which stay rows unless there is a dense gradient.
  void add_rows(std::vector<sparse_tensor>&& more);

 private:
  mutable std::mutex mutex_;                 // guards the next two
  tensor dense_;                             // undefined while there are rows
  mutable std::vector<sparse_tensor> rows_;  // the sparse gradient is their sum; joined when it is read
};

}  // namespace ferry::inline v0::detail
