#pragma once

// The tensors of a collective, cut into pieces and parts.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::detail {

/// One axis, contiguous, on the CPU, without slots; all of one dtype. Of tensors on devices only the pieces under way are on the
/// CPU: those of `staged`.
struct group_buffers {
  std::vector<tensor> whole;  ///< by part; of a shared one, `parts` parts
  std::vector<bool> scratch;  ///< by element of `whole`: belongs to the library, nothing waits for its reads
  int parts = 0;              ///< the number of parts of a piece
  bool shared = false;        ///< the parts of a piece are shares of one piece of whole[0]
  std::int64_t chunk = 1;     ///< the most elements of a part of a piece
  std::int64_t piece_count = 1;
  std::int64_t elements = 0;  ///< of each element of `whole`
  /// Empty, or by piece and element of `whole`: its elements there, while its lane runs. A piece is used by the thread of its lane
  /// only.
  std::vector<std::vector<tensor>> staged;

  /// Cuts `elements`, of each part or (shared) of the one tensor.
  void cut(std::int64_t count) noexcept {
    elements = count;
    piece_count = count == 0 ? 1 : (count + piece_size() - 1) / piece_size();
  }
  /// The most elements of a piece, in one element of `whole`.
  [[nodiscard]] std::int64_t piece_size() const noexcept { return shared ? chunk * parts : chunk; }
  /// The elements before a piece, and in it.
  [[nodiscard]] std::int64_t begin_of(std::int64_t piece) const noexcept { return piece * piece_size(); }
  [[nodiscard]] std::int64_t size_of(std::int64_t piece) const noexcept {
    return std::max<std::int64_t>(0, std::min(piece_size(), elements - begin_of(piece)));
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
    const std::size_t number = shared ? 0 : static_cast<std::size_t>(part);
    const tensor& t = staged.empty() ? whole[number] : staged[static_cast<std::size_t>(piece)][number];
    const std::int64_t begin = staged.empty() ? begin_of(piece) : 0;
    const std::int64_t count = size_of(piece);
    if (!shared) return {&t, begin, count};
    const std::int64_t first = count * part / parts;
    return {&t, begin + first, count * (part + 1) / parts - first};
  }
};

}  // namespace ferry::inline v0::detail
