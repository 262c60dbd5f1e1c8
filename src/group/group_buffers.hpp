#pragma once

// The tensors of a collective, cut into pieces and parts.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::detail {

/// One axis, contiguous, on the CPU, without slots; all of one dtype.
struct group_buffers {
  std::vector<tensor> whole;  ///< by part; of a shared one, `parts` parts
  std::vector<bool> scratch;  ///< by element of `whole`: belongs to the library, nothing waits for its reads
  int parts = 0;              ///< the number of parts of a piece
  bool shared = false;        ///< the parts of a piece are shares of one piece of whole[0]
  std::int64_t chunk = 1;     ///< the most elements of a part of a piece
  std::int64_t piece_count = 1;

  /// Cuts `elements`, of each part or (shared) of the one tensor.
  void cut(std::int64_t elements) noexcept {
    const std::int64_t each = shared ? chunk * parts : chunk;
    piece_count = elements == 0 ? 1 : (elements + each - 1) / each;
  }
  [[nodiscard]] bool is_scratch(int part) const { return scratch[shared ? 0 : static_cast<std::size_t>(part)]; }

  struct range {
    const tensor* of = nullptr;
    std::int64_t first = 0;
    std::int64_t count = 0;
    [[nodiscard]] void* data() const {
      return static_cast<std::byte*>(of->data()) + static_cast<std::size_t>(first) * dtype_size(of->dtype());
    }
    /// Of its own, over the same elements.
    [[nodiscard]] tensor view() const { return of->narrow(0, first, count); }
  };
  [[nodiscard]] range at(std::int64_t piece, int part) const {
    const tensor& t = whole[shared ? 0 : static_cast<std::size_t>(part)];
    const std::int64_t each = shared ? chunk * parts : chunk;
    const std::int64_t begin = piece * each;
    const std::int64_t count = std::max<std::int64_t>(0, std::min(each, t.numel() - begin));
    if (!shared) return {&t, begin, count};
    const std::int64_t first = count * part / parts;
    return {&t, begin + first, count * (part + 1) / parts - first};
  }
};

}  // namespace ferry::inline v0::detail
