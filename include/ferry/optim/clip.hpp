#pragma once

// Bounds on gradients before a step. Those named clip_grad_ take parameters and write the gradients that these have
// (ferry::grad(), and the rows of ferry::sparse_grad(), which is coalesced first), the others take gradients; undefined ones are left
// out. The writes are in place, outside of the graph, on the current stream of each gradient's device, and the host does not wait
// (except for a norm of gradients on the CPU and on devices, and for the rows of a sparse gradient on a device).
//
// Errors: errc::invalid_argument for a bound that is negative or not a number; errc::bad_dtype, errc::bad_device,
// errc::bad_shape for gradients that cannot be written: of other types than f32 and f64, on a device without kernels, with
// elements that share memory. Nothing was written then. Threads: as for any write.

#include <span>

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// Elements above `limit` in magnitude become limit or -limit. NaN stays.
void clip_value_(std::span<const tensor> gradients, double limit);
void clip_grad_value_(std::span<const tensor> parameters, double limit);

/// The norm of all gradients as one vector (the root of the sum of the squares of all elements, in f64), as it was before;
/// f64 without axes, on the device of the first gradient: item<double>() of a CPU tensor is the number. Each gradient is
/// multiplied by min(1, most / (norm + 1e-6)), as in PyTorch: Pascanu et al., On the difficulty of training recurrent neural
/// networks, 2013. A norm that is not finite is returned, too: gradients become 0 or NaN then. With an infinite bound they stay as they
/// are.
///
/// The sum is made in an order that depends on shapes and devices alone: it is the same in each run.
tensor clip_norm_(std::span<const tensor> gradients, double most);
tensor clip_grad_norm_(std::span<const tensor> parameters, double most);

}  // namespace ferry::inline v0
