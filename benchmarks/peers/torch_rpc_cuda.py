#!/usr/bin/env python3
"""What benchmarks/cuda.cpp measures between two processes on one GPU, by torch.distributed.rpc with device maps.

usage: torch_rpc_cuda.py [--repeats N] [--quick]       prints one JSON object a line, as benchmarks/cuda --json does

Needs a torch with CUDA and TensorPipe, and a GPU; without them it says so and fails."""

import argparse
import json
import os
import socket
import statistics
import sys
import time

SIZES = {"4KiB": 4 << 10, "64KiB": 64 << 10, "1MiB": 1 << 20, "2MiB": 2 << 20, "16MiB": 16 << 20, "256MiB": 256 << 20}


def numel(t):
    return t.numel()


def worked_on(t):
    result = t
    for _ in range(10):
        result = result * 1.5 + t
    return result


def worked_on_and_waited_for(t):
    import torch

    result = worked_on(t)
    torch.cuda.current_stream().synchronize()
    return result


def start(name, rank):
    import torch.distributed.rpc as rpc

    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=8, rpc_timeout=60)
    options.set_device_map("callee" if name == "caller" else "caller", {0: 0})
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)
    return rpc


def serve(environment):
    os.environ.update(environment)
    start("callee", 1).shutdown()


def per_call(calls, call):
    """Microseconds of each of a row of calls, for whose end the host waits once."""
    import torch

    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e6 / calls


def median(repeats, calls, call):
    per_call(calls, call)
    return statistics.median(per_call(calls, call) for _ in range(repeats))


def figure(name, value, unit, baseline, baseline_value, n):
    print(json.dumps({"name": "torch_rpc_cuda/" + name, "value": value, "unit": unit, "baseline": baseline,
                      "baseline_value": baseline_value, "ratio": value / baseline_value, "n": n}), flush=True)


def measure(rpc, options):
    import torch

    gpu = torch.device("cuda:0")
    for name, size in SIZES.items():
        if options.quick and size > 1 << 20:
            continue
        calls = 3 if options.quick else 5 if size > 16 << 20 else 50
        t = torch.zeros(size // 4, device=gpu)
        other = torch.empty_like(t)
        pinned = torch.empty(size // 4, pin_memory=True)

        def through_host():
            pinned.copy_(t, non_blocking=True)
            other.copy_(pinned, non_blocking=True)

        value = median(options.repeats, calls, lambda: rpc.rpc_sync("callee", numel, (t,)))
        plain = median(options.repeats, calls, through_host)
        figure(f"bandwidth/{name}", size / value / 1000, "GB/s", "cudaMemcpyAsync to the host and back",
               size / plain / 1000, calls * options.repeats)
    t = torch.zeros(1 << 20, device=gpu)
    calls = 3 if options.quick else 100

    def waited_for():
        rpc.rpc_sync("callee", worked_on_and_waited_for, (t,))
        torch.cuda.current_stream().synchronize()

    value = median(options.repeats, calls, lambda: rpc.rpc_sync("callee", worked_on, (t,)))
    other = median(options.repeats, calls, waited_for)
    figure("reply/in-order", value, "us", "answered after the host has waited", other, calls * options.repeats)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    try:
        import torch
        import torch.multiprocessing as processes
    except ImportError as problem:
        sys.exit(f"torch_rpc_cuda: torch is not installed: {problem}")
    if not torch.cuda.is_available():
        sys.exit("torch_rpc_cuda: no GPU, or a torch without CUDA: there is nothing to measure")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(environment)
    callee = processes.get_context("spawn").Process(target=serve, args=(environment,))
    callee.start()
    rpc = start("caller", 0)
    try:
        measure(rpc, options)
    finally:
        rpc.shutdown()
        callee.join()


if __name__ == "__main__":
    main()
