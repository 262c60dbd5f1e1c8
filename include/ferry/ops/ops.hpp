#pragma once

// All operations on tensors, and the list of their descriptors. What tensors themselves do (views, copies, writes) is in
// <ferry/tensor/operations.hpp>.

#include <ferry/ops/arithmetic.hpp>
#include <ferry/ops/comparison.hpp>
#include <ferry/ops/elementwise.hpp>
#include <ferry/ops/extremes.hpp>
#include <ferry/ops/indexing.hpp>
#include <ferry/ops/joining.hpp>
#include <ferry/ops/linear.hpp>
#include <ferry/ops/losses.hpp>
#include <ferry/ops/matmul.hpp>
#include <ferry/ops/normalization.hpp>
#include <ferry/ops/sampling.hpp>
#include <ferry/ops/softmax.hpp>
#include <ferry/ops/sparse.hpp>
#include <ferry/ops/sum.hpp>
#include <ferry/tensor/operation.hpp>

namespace ferry::inline v0 {

using operations =
    operation_list<op::add, op::add_scalar, op::sub, op::mul, op::mul_scalar, op::add_, op::add_scalar_, op::sub_,
                   op::mul_, op::mul_scalar_, op::neg, op::abs, op::relu, op::minimum, op::maximum, op::exp, op::log,
                   op::sqrt, op::pow_scalar, op::pow, op::div, op::div_scalar, op::bce_with_logits, op::clamp, op::tanh,
                   op::sigmoid, op::silu, op::softplus, op::gelu, op::gelu_tanh, op::eq, op::ne, op::lt, op::le, op::gt,
                   op::ge, op::where, op::masked_fill, op::sum, op::softmax, op::log_softmax, op::logsumexp,
                   op::extreme, op::topk, op::gather, op::scatter_add, op::scatter_add_, op::embedding, op::cat,
                   op::matmul, op::linear>;

}  // namespace ferry::inline v0
