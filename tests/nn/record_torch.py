#!/usr/bin/env python3
"""Records what PyTorch's modules compute in f64: prints tests/nn/torch_modules.hpp.

Each case has parameters, by PyTorch's names, and inputs. The result, times weights, is summed up and differentiated. Debian:
apt-get install python3-torch.

    /usr/bin/python3 tests/nn/record_torch.py > tests/nn/torch_modules.hpp
"""
import math

import torch
from torch import nn

torch.set_default_dtype(torch.float64)


def varied(shape, seed):
    return torch.tensor([math.sin(seed + 1.7 * i) for i in range(math.prod(shape))]).reshape(shape)


def integers(shape, numbers):
    return torch.tensor(numbers, dtype=torch.int64).reshape(shape)


class Residual(nn.Module):
    """A module of modules."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        y = self.norm(x)
        for layer in self.layers:
            y = torch.tanh(layer(y))
        return x + y * self.scale


X = varied((3, 4), 0.5)
CUBE = varied((2, 3, 4), 0.5)
H = varied((3, 2), 1.5)
PLACES = integers((2, 3), [2, 0, 4, 2, 1, 0])
BAG = integers((5,), [1, 3, 1, 0, 2])
OFFSETS = integers((3,), [0, 2, 2])

CASES = {
    "linear": (nn.Linear(4, 3), (X,)),
    "linear_of_a_cube": (nn.Linear(4, 3), (CUBE,)),
    "linear_of_a_vector": (nn.Linear(4, 3), (X[0],)),
    "linear_without_bias": (nn.Linear(4, 3, bias=False), (X,)),
    "embedding": (nn.Embedding(5, 3), (PLACES,)),
    "embedding_with_padding": (nn.Embedding(5, 3, padding_idx=2), (PLACES,)),
    "embedding_bag_sum": (nn.EmbeddingBag(5, 3, mode="sum"), (PLACES,)),
    "embedding_bag_mean": (nn.EmbeddingBag(5, 3), (BAG, OFFSETS)),
    "embedding_bag_max": (nn.EmbeddingBag(5, 3, mode="max"), (BAG, OFFSETS)),
    "layer_norm": (nn.LayerNorm(4), (X,)),
    "layer_norm_of_two_axes": (nn.LayerNorm((3, 4), eps=1e-2), (CUBE,)),
    "layer_norm_without_weight": (nn.LayerNorm(4, elementwise_affine=False), (X,)),
    "dropout_in_use": (nn.Dropout(0.5).eval(), (X,)),
    "gru_cell": (nn.GRUCell(4, 2), (X, H)),
    "gru_cell_without_state": (nn.GRUCell(4, 2), (X,)),
    "gru_cell_without_bias": (nn.GRUCell(4, 2, bias=False), (X[0], H[0])),
    "sequential": (nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2), nn.Sigmoid()), (X,)),
    "residual": (Residual(), (X,)),
}


def line(kind, t):
    if t.dtype == torch.float64:
        name, numbers = "f64", [repr(x) for x in t.reshape(-1).tolist()]
    else:
        name, numbers = "i64", [str(x) for x in t.reshape(-1).tolist()]
    print(kind, name, t.dim(), *t.shape, *numbers)


def main():
    print(f"#pragma once\n\n// By record_torch.py, of PyTorch {torch.__version__}.\n")
    print('inline constexpr const char* torch_modules = R"(')
    for name, (module, inputs) in CASES.items():
        print("case", name)
        for seed, (key, parameter) in enumerate(module.named_parameters()):
            parameter.data = varied(tuple(parameter.shape), 0.1 + seed)
            line("parameter " + key, parameter.detach())
        inputs = [t.clone().requires_grad_(t.dtype == torch.float64) for t in inputs]
        result = module(*inputs)
        weights = varied(tuple(result.shape), 0.3)
        (result * weights).sum().backward()
        for t in inputs:
            line("input", t.detach())
        line("result", result.detach())
        line("weights", weights)
        for _, parameter in module.named_parameters():
            line("gradient", parameter.grad)
        for t in inputs:
            if t.dtype == torch.float64:
                line("input_gradient", t.grad)
    print(')";')


if __name__ == "__main__":
    main()
