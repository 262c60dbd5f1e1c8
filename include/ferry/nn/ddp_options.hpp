#pragma once

// What data-parallel training of ferry's modules (ddp.hpp) and of those of other libraries has in common.

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <ferry/base/time.hpp>
#include <ferry/group/process_group.hpp>
#include <ferry/rpc/future.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

namespace nn {

/// How a bucket of gradients becomes the average of those of all members: begins it and returns the future of it, of the same
/// shape and dtype. It makes the same collectives on every member. The bucket may be written; it lives until the future is
/// complete. For a pass that has failed at this member it is called with zeros, within context values that let all collectives made
/// under them fail.
using bucket_transport = std::function<future<tensor>(const process_group& group, const tensor& bucket, timeout limit)>;
/// An all_reduce; the default.
[[nodiscard]] bucket_transport average_in_place();
/// Gradients travel as bf16: half of the bytes for f32, with 8 bits of precision.
[[nodiscard]] bucket_transport average_as_bf16();

struct ddp_options {
  std::size_t bucket_bytes = std::size_t{25} << 20U;
  std::size_t first_bucket_bytes = std::size_t{1} << 20U;  ///< of the gradients that are complete first
  /// Parameters that the outputs of the calls before a pass do not depend on take part with zeros. Costs a walk through the graph
  /// of each call. Outputs are the tensors in what the module returns: it may be a tensor, a range, tuple, optional, variant or pointer
  /// of them, a reference to one of this worker, or a type with a serialiser and without references; a call that returns another throws
  /// errc::invalid_argument.
  bool find_unused = false;
  bucket_transport transport = {};  ///< empty: average_in_place()
  timeout limit = {};               ///< of each collective; unset: that of the group
};

}  // namespace nn

namespace detail {

class ddp_core;
void begin_forward(ddp_core& core);
[[nodiscard]] bool finds_unused(const ddp_core& core) noexcept;
bool set_sync(ddp_core& core, bool now) noexcept;
void begin_join(ddp_core& core);
void finish_join(ddp_core& core);
void abandon_join(ddp_core& core) noexcept;

/// Runs `body` between the beginning and the end of a join.
template <class Body>
void join_with(ddp_core& core, Body& body) {
  begin_join(core);
  try {
    body();
  } catch (...) {
    abandon_join(core);
    throw;
  }
  finish_join(core);
}

}  // namespace detail

namespace nn {

/// While it lives, passes add to gradients without averages.
class [[nodiscard]] no_sync_scope {
 public:
  explicit no_sync_scope(std::shared_ptr<detail::ddp_core> core);
  ~no_sync_scope();
  no_sync_scope(const no_sync_scope&) = delete;
  no_sync_scope& operator=(const no_sync_scope&) = delete;

 private:
  std::shared_ptr<detail::ddp_core> core_;
  bool former_;
};

}  // namespace nn
}  // namespace ferry::inline v0
