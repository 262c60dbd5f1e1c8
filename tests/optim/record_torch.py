#!/usr/bin/env python3
"""Records trajectories of PyTorch's optimizers: prints tests/optim/torch_trajectories.hpp.

Two parameters of f64, [2, 2] and [1], are led for 20 steps by the gradient of (sum of a * (p - b)^2) / 2, that is a * (p - b).
The second parameter has no gradient in steps 3 and 4. Debian: apt-get install python3-torch.

    /usr/bin/python3 tests/optim/record_torch.py | clang-format-16 > tests/optim/torch_trajectories.hpp
"""

import torch

STEPS = 20
START = ([[1.0, -2.0], [0.5, 3.0]], [-1.5])
SCALE = ([[1.0, 0.3], [2.5, 0.7]], [1.5])
GOAL = ([[0.2, 0.1], [-0.4, 2.0]], [0.7])

CONFIGURATIONS = {
    "sgd_plain": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "sgd_nesterov": lambda p: torch.optim.SGD(p, lr=0.01, momentum=1, weight_decay=1, nesterov=True),
    "adagrad_plain": lambda p: torch.optim.Adagrad(p, lr=0.5),
    "adagrad_full": lambda p: torch.optim.Adagrad(
        p, lr=0.5, lr_decay=0.1, weight_decay=0.02, initial_accumulator_value=0.3, eps=1e-6),
    "adam_plain": lambda p: torch.optim.Adam(p, lr=0.1),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=0.2, betas=(0.8, 0.9), weight_decay=0.05, amsgrad=True),
    "adamw_plain": lambda p: torch.optim.AdamW(p, lr=0.1),
    "adamw_amsgrad": lambda p: torch.optim.AdamW(p, lr=0.2, betas=(0.8, 0.9), weight_decay=0.05, amsgrad=True),
    "adadelta_plain": lambda p: torch.optim.Adadelta(p),
    "adadelta_decay": lambda p: torch.optim.Adadelta(p, lr=0.7, rho=0.8, eps=1e-3, weight_decay=0.1),
    "rmsprop_plain": lambda p: torch.optim.RMSprop(p, lr=0.05),
    "rmsprop_full": lambda p: torch.optim.RMSprop(
        p, lr=0.02, alpha=0.9, weight_decay=0.1, momentum=0.8, centered=True, eps=1e-3),
    "adamax_plain": lambda p: torch.optim.Adamax(p, lr=0.1),
    "adamax_decay": lambda p: torch.optim.Adamax(p, lr=0.1, betas=(0.7, 0.9), weight_decay=0.2),
    "rprop_plain": lambda p: torch.optim.Rprop(p, lr=0.1),
    "rprop_bounds": lambda p: torch.optim.Rprop(p, lr=0.1, etas=(0.4, 1.5), step_sizes=(0.01, 0.3)),
}


def tensors(of):
    return [torch.tensor(values, dtype=torch.float64) for values in of]


def trajectory(make):
    """A row of all elements for each step."""
    parameters = [p.requires_grad_() for p in tensors(START)]
    optimizer = make(parameters)
    values = []
    for step in range(STEPS):
        for index, (parameter, scale, goal) in enumerate(zip(parameters, tensors(SCALE), tensors(GOAL))):
            without = index == 1 and step in (3, 4)
            parameter.grad = None if without else scale * (parameter.detach() - goal)
        optimizer.step()
        values.append([value for parameter in parameters for value in parameter.detach().flatten().tolist()])
    return values


def main():
    print("#pragma once\n")
    print(f"// Recorded by record_torch.py from PyTorch {torch.__version__}: all elements of the parameters after each of 20 steps.\n")
    print("#include <array>\n\nnamespace torch_trajectories {\n")
    print(f"constexpr int steps = {STEPS};\n\nusing trajectory = std::array<double, {STEPS * 5}>;\n")
    for name, make in CONFIGURATIONS.items():
        values = ",\n".join(", ".join(f"{value:.14e}" for value in row) for row in trajectory(make))
        print(f"constexpr trajectory {name}{{{values}}};\n")
    print("}  // namespace torch_trajectories")


if __name__ == "__main__":
    main()
