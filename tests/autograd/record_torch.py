#!/usr/bin/env python3
"""Records values and gradients of operations, computed by PyTorch in f64, for torch_test.cpp.

usage: record_torch.py > torch_values.hpp     (with Debian's python3-torch)

Each case has inputs; what it computes is multiplied by weights and summed, and that sum is differentiated.
"""
import math

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


def varied(shape, seed, low=-1.0, high=1.0):
    count = math.prod(shape)
    numbers = [low + (high - low) * (math.sin(seed + 1.7 * i) + 1) / 2 for i in range(count)]
    return torch.tensor(numbers).reshape(shape)


def integers(shape, numbers):
    return torch.tensor(numbers, dtype=torch.int64).reshape(shape)


X = varied((3, 4), 0.5, -2, 2)
Y = varied((4,), 1.5, -2, 2)
POSITIVE = varied((3, 4), 0.5, 0.5, 2.5)
PLACES = integers((2, 4), [2, 0, 2, 1, 0, 0, 1, 2])
BAGS = integers((5,), [1, 3, 1, 0, 2])
OFFSETS = integers((3,), [0, 2, 2])
MASK = torch.tensor([True, False, True, True])

CASES = {
    "add": ((X, Y), lambda a, b: torch.add(a, b, alpha=2)),
    "sub": ((X, Y), lambda a, b: torch.sub(a, b, alpha=2)),
    "mul": ((X, Y), torch.mul),
    "div": ((X, varied((4,), 1.5, 0.5, 2)), torch.div),
    "neg": ((X,), torch.neg),
    "pow_scalar": ((POSITIVE,), lambda a: torch.pow(a, 2.5)),
    "pow": ((POSITIVE, Y), torch.pow),
    "exp": ((X,), torch.exp),
    "log": ((POSITIVE,), torch.log),
    "sqrt": ((POSITIVE,), torch.sqrt),
    "abs": ((X,), torch.abs),
    "clamp": ((X,), lambda a: torch.clamp(a, -0.6, 0.55)),
    "minimum": ((X, Y), torch.minimum),
    "maximum": ((X, Y), torch.maximum),
    "maximum_of_equals": ((X, X.clone()), torch.maximum),
    "tanh": ((X,), torch.tanh),
    "sigmoid": ((X,), torch.sigmoid),
    "relu": ((X,), torch.relu),
    "silu": ((X,), F.silu),
    "softplus": ((X,), lambda a: F.softplus(a, 2, 1.5)),
    "gelu": ((X,), F.gelu),
    "gelu_tanh": ((X,), lambda a: F.gelu(a, approximate="tanh")),
    "softmax": ((X,), lambda a: torch.softmax(a, 1)),
    "softmax_first_axis": ((X,), lambda a: torch.softmax(a, 0)),
    "log_softmax": ((X,), lambda a: torch.log_softmax(a, 1)),
    "logsumexp": ((X,), lambda a: torch.logsumexp(a, 0)),
    "matmul": ((X, varied((4, 2), 2.5)), torch.matmul),
    "matmul_of_batches": ((varied((2, 1, 3, 4), 0.5), varied((3, 4, 2), 2.5)), torch.matmul),
    "matmul_of_vectors": ((Y, varied((4,), 2.5)), torch.matmul),
    "linear": ((X, varied((2, 4), 2.5), varied((2,), 3.5)), F.linear),
    "sum": ((X,), lambda a: torch.sum(a, 0)),
    "mean": ((X,), lambda a: torch.mean(a, 1, keepdim=True)),
    "max": ((X,), lambda a: torch.max(a, 1)[0]),
    "min_of_all": ((X,), torch.min),
    "topk": ((X,), lambda a: torch.topk(a, 2)[0]),
    "index_select": ((X, BAGS[:3] % 3), lambda a, i: torch.index_select(a, 0, i)),
    "gather": ((X, PLACES), lambda a, i: torch.gather(a, 0, i)),
    "index_add": ((X, BAGS[:3] % 3, varied((3, 4), 3.5)), lambda a, i, s: torch.index_add(a, 0, i, s, alpha=0.5)),
    "scatter_add": ((X, PLACES, varied((2, 4), 3.5)), lambda a, i, s: torch.scatter_add(a, 0, i, s)),
    "where": ((MASK, X, Y), torch.where),
    "masked_fill": ((X, MASK), lambda a, m: a.masked_fill(m, 2)),
    "cat": ((X, Y.reshape(1, 4)), lambda a, b: torch.cat([a, b], 0)),
    "stack": ((X, varied((3, 4), 2.5)), lambda a, b: torch.stack([a, b], 1)),
    "split": ((X,), lambda a: torch.split(a, 3, 1)[1]),
    "embedding": ((X, PLACES), lambda w, i: F.embedding(i, w)),
    "embedding_bag_sum": ((varied((4, 3), 0.5), BAGS, OFFSETS), lambda w, i, o: F.embedding_bag(i, w, o, mode="sum")),
    "embedding_bag_mean": ((varied((4, 3), 0.5), BAGS, OFFSETS), lambda w, i, o: F.embedding_bag(i, w, o, mode="mean")),
    "embedding_bag_max": ((varied((4, 3), 0.5), BAGS, OFFSETS), lambda w, i, o: F.embedding_bag(i, w, o, mode="max")),
    "layer_norm": ((X, Y, varied((4,), 2.5)), lambda a, w, b: F.layer_norm(a, (4,), w, b)),
    "mse_loss": ((X, varied((3, 4), 2.5)), F.mse_loss),
    "huber_loss": ((X, varied((3, 4), 2.5)), lambda a, b: F.huber_loss(a, b, delta=0.8)),
    "cross_entropy": ((X, integers((3,), [3, 0, 2])), F.cross_entropy),
    "cross_entropy_ignoring": ((X, integers((3,), [3, -100, 2])), lambda a, t: F.cross_entropy(a, t, ignore_index=-100)),
    "nll_loss": ((X, integers((3,), [3, 0, 2])), lambda a, t: F.nll_loss(a, t, reduction="sum")),
    "bce_with_logits": ((torch.where(MASK, X * 5, torch.tensor(0.0)), varied((3, 4), 2.5, 0, 1)), F.binary_cross_entropy_with_logits),
    "one_hot": ((PLACES,), lambda i: F.one_hot(i, 3)),
    "argmax": ((X,), lambda a: torch.argmax(a, 0)),
}


def line(kind, t):
    if t.dtype == torch.float64:
        name, numbers = "f64", [repr(x) for x in t.reshape(-1).tolist()]
    else:
        name, numbers = ("bool" if t.dtype == torch.bool else "i64"), [str(int(x)) for x in t.reshape(-1).tolist()]
    print(kind, name, t.dim(), *t.shape, *numbers)


def main():
    print(f"#pragma once\n\n// By record_torch.py, of PyTorch {torch.__version__}.\n")
    print('inline constexpr const char* torch_values = R"(')
    for name, (inputs, function) in CASES.items():
        inputs = [t.clone().requires_grad_(t.dtype == torch.float64) for t in inputs]
        result = function(*inputs)
        print("case", name)
        for t in inputs:
            line("input", t.detach())
        line("result", result.detach())
        if result.requires_grad:
            weights = varied(tuple(result.shape), 0.3)
            (result * weights).sum().backward()
            line("weights", weights)
            for t in inputs:
                if t.dtype == torch.float64:
                    line("gradient", t.grad)
    print(')";')


main()
