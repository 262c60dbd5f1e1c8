#pragma once

// Gradients of which members have rows: tables of embeddings. Each member gets those of all, and averages them.

#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

#include <ferry/base/time.hpp>
#include <ferry/group/process_group.hpp>
#include <ferry/ops/sparse.hpp>
#include <ferry/rpc/context_values.hpp>
#include <ferry/rpc/future.hpp>
#include <ferry/tensor/dims.hpp>
#include <ferry/tensor/tensor.hpp>

#include "ddp_buckets.hpp"

namespace ferry::inline v0::detail {

/// The rows of all members, on their way.
struct gathered_rows {
  std::vector<std::int64_t> counts;  ///< by rank
  future<tensor> indices;            ///< [members, the largest count]
  future<tensor> values;             ///< [members, the largest count, dense axes...]
  dims shape;                        ///< of the whole gradient

  void wait() const;
};

/// Makes three collectives, whatever happens: how many rows there are, for which it waits, then the rows. Throws the first problem;
/// what is left is made within the values that `refusing` gives, which let it fail on every member.
gathered_rows gather_rows(const process_group& group, const sparse_tensor& own, timeout limit,
                          const std::function<context_values(const std::exception_ptr& problem)>& refusing);
/// In its place, within values that let collectives fail. They are of the kinds that members make which do not refuse: these would
/// end with a mismatch.
void refuse_rows(const process_group& group, const gradient_bucket& bucket, timeout limit);

/// Waits for them. Coalesced on the CPU; in the order of ranks on a device, where the host does not wait.
sparse_tensor average_of(const gathered_rows& all);

/// No rows of a gradient like `whole`.
sparse_tensor no_rows(const tensor& whole);

}  // namespace ferry::inline v0::detail
