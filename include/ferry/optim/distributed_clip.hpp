#pragma once

// A bound on the gradients of a context, on all workers together.

#include <vector>

#include <ferry/autograd/dist/context.hpp>
#include <ferry/optim/owner_errors.hpp>
#include <ferry/rpc/rref.hpp>
#include <ferry/rpc/to.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// The norm of the gradients that these parameters have in the context, as one vector, as it was before. Each gradient is multiplied by
/// min(1, most / (norm + 1e-6)), in place, at the parameter's owner: as clip_grad_norm_() of one worker's parameters. Those without a
/// gradient, or that require none, are left out; a parameter that is there twice counts once. A norm that is not finite is returned, too:
/// gradients become 0 or NaN then. With an infinite bound they stay as they are.
///
/// One call to each owner for the norms, and, unless the norm is within the bound, one for the rest. The owners wait for their devices: the
/// norm goes through the host. Equal workers and parameters give the same norm in each run.
///
/// Throws errc::invalid_argument for a bound that is negative or not a number, for an empty reference, and if neither this worker nor
/// an owner has the context; owner_errors with what an owner throws: nothing was written if that was in the first call. Threads: as for
/// any write; passes of the context and steps come before or after it.
double clip_grad_norm_(dist_autograd::context_id in, const std::vector<rref<tensor>>& parameters, double most,
                       const call_options& calls = {});

}  // namespace ferry::inline v0
