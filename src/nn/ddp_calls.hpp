#pragma once

// With ddp_options::find_unused: which parameters the outputs of calls of the module depend on.

#include <cstddef>
#include <memory>
#include <vector>

#include <ferry/autograd/dist/engine.hpp>

#include "ddp_model.hpp"

namespace ferry::inline v0::detail {

class worker_core;

/// A call of the module.
struct noted_call {
  std::vector<std::weak_ptr<void>> outputs = {};
  std::vector<std::size_t> unused = {};  ///< of the trained parts, ascending
};

/// Walks from the outputs to the leaves, and from what came from other workers on to what was sent to them for it.
[[nodiscard]] noted_call note_of_call(const std::vector<held_edge>& outputs, const std::vector<ddp_part>& trained,
                                      worker_core& worker);

/// The calls since the last pass. Not thread-safe.
class noted_calls {
 public:
  void add(noted_call&& call);
  /// The parameters that none of them depends on; none if there was no call.
  [[nodiscard]] std::vector<std::size_t> take_unused();
  void clear() noexcept { calls_.clear(); }

 private:
  std::vector<noted_call> calls_;
};

}  // namespace ferry::inline v0::detail
