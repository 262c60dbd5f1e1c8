#pragma once

// Tables of vectors that are looked up by index.

#include <cstdint>
#include <optional>

#include <ferry/device/device.hpp>
#include <ferry/ops/indexing.hpp>
#include <ferry/tensor/dtype.hpp>
#include <ferry/tensor/generator.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::nn {

struct embedding_options {
  std::optional<std::int64_t> padding =
      {};                        ///< a row that begins with zeros and has no gradient; negative: from the end
  bool sparse_gradient = false;  ///< ferry::sparse_grad() of the rows that were used, instead of ferry::grad()
  ferry::dtype dtype = ferry::dtype::f32;  ///< or f64
  ferry::device device = {};
};

/// The rows of a table at indices. The table begins with standard normal numbers.
struct embedding {
  tensor weight;                        ///< [count, width]
  std::optional<std::int64_t> padding;  ///< counted from 0
  bool sparse_gradient;

  /// Throws errc::bad_shape unless both sizes are at least 1, errc::invalid_argument for a padding that is no row, errc::bad_dtype,
  /// errc::bad_device.
  embedding(std::int64_t count, std::int64_t width, const embedding_options& with = {},
            generator& source = default_generator());

  /// i64 [...] -> [..., width]. Throws as ferry::embedding().
  [[nodiscard]] tensor operator()(const tensor& indices) const;

  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("weight", weight);
  }
};

struct embedding_bag_options {
  bag_mode mode = bag_mode::mean;
  bool sparse_gradient = false;            ///< as in embedding_options
  ferry::dtype dtype = ferry::dtype::f32;  ///< or f64
  ferry::device device = {};
};

/// One row for each bag of indices: the sum, mean or maximum of the rows of the table there. The table begins with standard normal
/// numbers.
struct embedding_bag {
  tensor weight;  ///< [count, width]
  bag_mode mode;
  bool sparse_gradient;

  /// Throws errc::bad_shape unless both sizes are at least 1, errc::bad_dtype, errc::bad_device.
  embedding_bag(std::int64_t count, std::int64_t width, const embedding_bag_options& with = {},
                generator& source = default_generator());

  /// i64 [bags, size] -> [bags, width]. Throws as ferry::embedding_bag().
  [[nodiscard]] tensor operator()(const tensor& indices) const;
  /// i64 [indices] in bags that begin at the offsets, i64 [bags] on the CPU -> [bags, width].
  [[nodiscard]] tensor operator()(const tensor& indices, const tensor& offsets) const;

  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("weight", weight);
  }
};

}  // namespace ferry::inline v0::nn
