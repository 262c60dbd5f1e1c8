#pragma once

// Collectives of a process_group that gradients go through. They block, give new tensors, and leave their inputs as they are.
//
//   ferry::tensor loss = ferry::all_reduce(group, ferry::mean(error), ferry::reduce_op::avg);
//   ferry::backward(loss);      // on every member
//
// The gradient of a collective is a collective again: every member must go back through it, so it must pass a tensor that
// requires a gradient, and in one order. Members that go back through collectives of one kind and shape in different orders get
// errc::group_mismatch, one that does not go back is named when the limit expires. Errors are those of process_group; in a pass
// they end the pass.

#include <ferry/base/time.hpp>
#include <ferry/group/process_group.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// The sum or average of the tensors of all members. Gradient: that of all members, combined in the same way. Throws
/// errc::invalid_argument for other reductions of a tensor that requires a gradient.
[[nodiscard]] tensor all_reduce(const process_group& group, const tensor& t, reduce_op op = reduce_op::sum,
                                timeout limit = {});
/// The root's elements. The others pass a tensor of its shape, whose elements do not matter. Gradient: at the root the sum of
/// those of all members, elsewhere zero.
[[nodiscard]] tensor broadcast(const process_group& group, const tensor& t, int root, timeout limit = {});
/// The tensors of all members, by rank, along a new first axis. Gradient: the sum of those that all members have for this one.
[[nodiscard]] tensor all_gather(const process_group& group, const tensor& t, timeout limit = {});

}  // namespace ferry::inline v0
