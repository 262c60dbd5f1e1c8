#!/usr/bin/env python3
"""What benchmarks/ddp_rpc.cpp measures, by torch: tables of embeddings on parameter servers, reached by torch.distributed.rpc
(TensorPipe) with distributed autograd and DistributedOptimizer, and dense layers that DistributedDataParallel averages over gloo.

usage: torch_ddp_rpc.py [--trainers N] [--servers N] ...       prints one JSON object a line, as benchmarks/ddp_rpc --json does
       torch_ddp_rpc.py --raw ...                              prints lines for benchmarks/ddp_rpc --compare torch

Every process gets all options. --start DIRECTORY has the weights to begin with and the batches of an epoch, which
benchmarks/ddp_rpc --check torch writes; each loss is printed then. Needs a torch with TensorPipe and gloo."""

import argparse
import array
import json
import multiprocessing
import os
import random
import socket
import sys
import time

DENSE_INPUTS = 512
BATCHES = 10  # of an epoch


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", type=int, default=8)
    parser.add_argument("--servers", type=int, default=8)
    parser.add_argument("--embeddings", type=int, default=300, help="rows of a table")
    parser.add_argument("--dim", type=int, default=0, help="columns of a table; 0: as many as fit")
    parser.add_argument("--warmup", type=int, default=5, help="epochs that do not count")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--concurrent", action="store_true", help="a batch is looked up in all tables at once")
    parser.add_argument("--sparse", action="store_true", help="sparse gradients of the tables")
    parser.add_argument("--adagrad", action="store_true", help="Adagrad for the tables")
    parser.add_argument("--cuda", action="store_true", help="tables and dense layers on device 0, by device maps")
    parser.add_argument("--threads", type=int, default=1, help="of torch in each process; 0: its default")
    parser.add_argument("--start", default="", metavar="DIRECTORY")
    parser.add_argument("--raw", action="store_true")
    options = parser.parse_args()
    if options.dim == 0:
        options.dim = DENSE_INPUTS // options.servers
    if options.dim * options.servers != DENSE_INPUTS:
        sys.exit(f"torch_ddp_rpc: the tables' columns together are not the {DENSE_INPUTS} inputs of the dense layers")
    return options


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


# A server's side ------------------------------------------------------------------------------------------------------


def place(options):
    return "cuda:0" if options.cuda else "cpu"


def floats(path, begin, count):
    import torch

    with open(path, "rb") as file:
        file.seek(4 * begin)
        return torch.frombuffer(bytearray(file.read(4 * count)), dtype=torch.float32)


class table:
    def __init__(self, options, number):
        import torch

        self.bag = torch.nn.EmbeddingBag(options.embeddings, options.dim, mode="sum", sparse=options.sparse)
        if options.start:
            size = options.embeddings * options.dim
            weight = floats(os.path.join(options.start, "weights"), number * size, size)
            self.bag.weight.data.copy_(weight.view_as(self.bag.weight))
        self.bag.to(place(options))

    def forward(self, indices, offsets):
        device = self.bag.weight.device
        return self.bag(indices.to(device), offsets.to(device))

    def parameters(self):
        import torch.distributed.rpc as rpc

        return [rpc.RRef(each) for each in self.bag.parameters()]


# A trainer's side -----------------------------------------------------------------------------------------------------


def dense_layers(options):
    from torch import nn

    layers = nn.Sequential(nn.Linear(DENSE_INPUTS, 256), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 64),
                           nn.Linear(64, 32), nn.Linear(32, 8))
    if options.start:
        at = options.servers * options.embeddings * options.dim
        for each in layers.parameters():
            each.data.copy_(floats(os.path.join(options.start, "weights"), at, each.numel()).view_as(each))
            at += each.numel()
    return layers.to(place(options))


def make_batch(source, options):
    import torch

    n = source.randint(20, 50)
    indices = [source.randrange(options.embeddings) for _ in range(n)]
    offsets = []
    start = 0
    while start < n:
        offsets.append(start)
        start += source.randint(1, 10)
    targets = [source.randrange(8) for _ in offsets]
    return torch.tensor(indices), torch.tensor(offsets), torch.tensor(targets, device=place(options))


def stored_batches(options, rank):
    """n, the number of bags, the indices, the offsets, the targets; 64 bits each, batch after batch."""
    import torch

    with open(os.path.join(options.start, f"batches{rank}"), "rb") as file:
        numbers = array.array("q", file.read()).tolist()
    batches = []
    at = 0
    while at != len(numbers):
        n, bags = numbers[at:at + 2]
        at += 2
        parts = []
        for count in (n, bags, bags):
            parts.append(torch.tensor(numbers[at:at + count]))
            at += count
        batches.append((parts[0], parts[1], parts[2].to(place(options))))
    return batches


def train(tables, rank, options):
    import torch
    import torch.distributed.autograd as dist_autograd
    from torch import nn
    from torch.distributed.optim import DistributedOptimizer
    from torch.distributed.rpc import RRef

    dense = nn.parallel.DistributedDataParallel(dense_layers(options))
    far = [each for t in tables for each in t.rpc_sync(timeout=0).parameters()]
    near = [RRef(each) for each in dense.parameters()]
    if options.adagrad:
        optimizers = [DistributedOptimizer(torch.optim.Adagrad, far, lr=0.05),
                      DistributedOptimizer(torch.optim.SGD, near, lr=0.05)]
    else:
        optimizers = [DistributedOptimizer(torch.optim.SGD, far + near, lr=0.05)]
    criterion = nn.CrossEntropyLoss()
    source = random.Random(rank)
    stored = stored_batches(options, rank) if options.start else None

    def look_up(indices, offsets):
        if options.concurrent:
            pending = [t.rpc_async(timeout=0).forward(indices, offsets) for t in tables]
            return torch.cat([each.wait() for each in pending], 1)
        return torch.cat([t.rpc_sync(timeout=0).forward(indices, offsets) for t in tables], 1)

    seconds = []
    losses = []
    samples = 0
    phases = [0, 0, 0]  # forward, backward, step
    for epoch in range(options.warmup + options.epochs):
        of_epoch = 0
        begin = time.perf_counter()
        for i in range(BATCHES):
            indices, offsets, targets = stored[i] if stored else make_batch(source, options)
            times = [time.perf_counter()]
            with dist_autograd.context() as context:
                loss = criterion(dense(look_up(indices, offsets)), targets)
                times.append(time.perf_counter())
                dist_autograd.backward(context, [loss])
                times.append(time.perf_counter())
                for each in optimizers:
                    each.step(context)
                times.append(time.perf_counter())
            if epoch >= options.warmup:
                phases = [phases[k] + times[k + 1] - times[k] for k in range(3)]
            of_epoch += targets.numel()
            if stored:
                losses.append(loss.item())
        took = time.perf_counter() - begin
        if epoch >= options.warmup:
            seconds.append(took)
            samples += of_epoch
        if rank == 0 and options.raw:
            print("epoch", epoch + 1, flush=True)
    return seconds, samples, phases, losses


# Processes ------------------------------------------------------------------------------------------------------------


def lead(rpc, options):
    tables = [rpc.remote(f"ps{i}", table, args=(options, i), timeout=0) for i in range(options.servers)]
    pending = [rpc.rpc_async(f"trainer{i}", train, args=(tables, i, options), timeout=0)
               for i in range(options.trainers)]
    rate = 0
    epochs = []
    for rank, each in enumerate(pending):
        seconds, samples, phases, losses = each.wait()
        rate += samples / sum(seconds)
        epochs += seconds
        if options.raw:
            print("trainer", rank, samples, *(repr(s) for s in phases + seconds), flush=True)
            if losses:
                print("losses", rank, *(repr(l) for l in losses), flush=True)
    if not options.raw:
        name = f"torch_ddp_rpc/{options.trainers}+{options.servers}"
        epochs.sort()
        for what, value, unit in (("samples", rate, "samples/s"), ("p50", epochs[len(epochs) // 2] * 1e3, "ms/epoch")):
            print(json.dumps({"name": f"{name}/{what}", "value": value, "unit": unit, "baseline": None,
                              "baseline_value": None, "ratio": None, "n": len(epochs)}), flush=True)


def run(rank, options, rpc_port, group_port):
    import torch
    import torch.distributed as dist
    import torch.distributed.rpc as rpc

    if options.threads:
        torch.set_num_threads(options.threads)
    world = options.trainers + options.servers + 1
    backend = rpc.TensorPipeRpcBackendOptions(num_worker_threads=16, rpc_timeout=0,
                                              init_method=f"tcp://127.0.0.1:{rpc_port}")
    trainer = rank < options.trainers
    if trainer:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{group_port}", rank=rank,
                                world_size=options.trainers)
        if options.cuda:
            for i in range(options.servers):
                backend.set_device_map(f"ps{i}", {0: 0})
    name = f"trainer{rank}" if trainer else "master" if rank == world - 1 else f"ps{rank - options.trainers}"
    rpc.init_rpc(name, rank=rank, world_size=world, rpc_backend_options=backend)
    if name == "master":
        lead(rpc, options)
    rpc.shutdown()


def describe(torch, options):
    with open("/proc/self/maps", encoding="utf-8") as maps:
        libraries = {line.split()[-1] for line in maps if "blas" in line or "mkl_" in line}
    blas = ", ".join(sorted(os.path.realpath(each) for each in libraries)) or "a BLAS of its own"
    return (f"torch {torch.__version__}, {blas}, {torch.get_num_threads() if not options.threads else options.threads} "
            f"thread(s) a process; RPC: TensorPipe with its default transports; DDP: gloo over TCP")


def main():
    options = parse()
    os.environ.setdefault("GLOG_minloglevel", "2")
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
        os.environ["OPENBLAS_NUM_THREADS"] = str(options.threads)
    try:
        import torch
        import torch.multiprocessing as processes
    except ImportError as problem:
        sys.exit(f"torch_ddp_rpc: torch is not installed for {sys.executable}: {problem}")
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_gloo_available() and dist.rpc.is_available()):
        sys.exit("torch_ddp_rpc: this torch has no gloo or no RPC")
    if options.cuda and not torch.cuda.is_available():
        sys.exit("torch_ddp_rpc: --cuda: no GPU, or a torch without CUDA")
    if options.raw:
        print("library", describe(torch, options), flush=True)
    else:
        print(describe(torch, options), file=sys.stderr)
    # Forked from a process that has imported torch, so that the others do not have to.
    multiprocessing.set_forkserver_preload(["torch", "torch.distributed.rpc", "torch.distributed.optim"])
    processes.start_processes(run, args=(options, free_port(), free_port()), start_method="forkserver",
                              nprocs=options.trainers + options.servers + 1)


if __name__ == "__main__":
    main()
