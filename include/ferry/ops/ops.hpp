#pragma once

// All operations on tensors, and the list of their descriptors. What tensors themselves do (views, copies, writes) is in
// <ferry/tensor/operations.hpp>.

#include <ferry/ops/arithmetic.hpp>
#include <ferry/ops/linear.hpp>
#include <ferry/ops/matmul.hpp>
#include <ferry/ops/sum.hpp>
#include <ferry/tensor/operation.hpp>

namespace ferry::inline v0 {

using operations = operation_list<op::add, op::add_scalar, op::sub, op::mul, op::mul_scalar, op::add_, op::add_scalar_,
                                  op::sub_, op::mul_, op::mul_scalar_, op::sum, op::matmul, op::linear>;

}  // namespace ferry::inline v0
