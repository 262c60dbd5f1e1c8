"""The layout of the source tree: floors, rooms, and a sentence for each. The floor check and the picture of docs/architecture.md
read it from here."""

import os
import pathlib

# (folder, what it holds, library). Floors of one entry stand beside each other and do not include each other.
FLOORS = [
    [("base", "errors, ids, bytes, time, log and trace hooks, type and method names, addresses and descriptors")],
    [("device", "devices, streams and events, `device_traits` for `cpu` and `cuda`, memory of the host and of devices")],
    [("tensor", "element types, storage, the tensor handle and its slot, views, copies, factories, how operations are declared and run, "
                "`tensor_traits` for foreign tensor types")],
    [("ops", "operations on tensors: a descriptor, a function and its kernels each"),
     ("wire", "frames, archives over contiguous memory, messages: header, payload, extension records, tensors beside it; limits")],
    [("transport", "connections that move messages: `tcp`, `unix`, `inproc`; channels that move the bytes of tensors: `inline`, `inproc`, "
                   "`cuda_staged`; the reactor")],
    [("store", "key-value stores for the rendezvous of workers: `tcp`, `file`, `hash`, prefixes")],
    [("backend", "`backend_traits`, options, device maps and their checks, the abstract agent, the native backend, static and dynamic "
                 "groups, failure detection")],
    [("rpc", "methods, futures, tasks, calls, the call context, references, workers")],
    [("group", "collectives over workers")],
    [("autograd", "gradients: the graph, backward passes, the formulas of operations")],
    [("nn", "modules: structs that name their parameters, layers, how parameters begin, checkpoints, modules of other workers"),
     ("optim", "optimizers: an algorithm each as a pure function, the classes that make steps of it on one worker and on several, schedules, "
               "bounds on gradients")],
    [("profiler", "profiles: what code does at a worker and at those that it calls; traces and tables of that"), ("adapters", "bridges to other libraries: Asio, Eigen, libtorch, mdspan, spans")],
]

# The rooms (sub-folders) of a floor below src/, from the inside out. A file includes headers of its own room, of the floor's own
# folder and of the rooms before its own in this list.
ROOMS = {
    "base": [("net", "socket addresses, host names and options of sockets")],
    "device": [
        ("memory", "pools of host memory, page-locked memory, staging of copies"),
        ("cuda", "the table of CUDA runtime functions, contexts, memory pools"),
        ("start", "what devices make before the first call"),
    ],
    "ops": [
        ("cpu", "kernels for the instruction sets of CPUs, the seam for products of matrices, libraries for them"),
    ],
    "transport": [
        ("reactor", "the threads that wait for descriptors, timers and devices"),
        ("shm", "rings in shared memory, and how their memory is handed over"),
        ("channels", "how the bytes of tensors travel: staged through page-locked memory, lent, copied within a process"),
        ("streams", "connections over byte streams: reading, writing, the framing of messages"),
        ("sockets", "addresses, listeners, handshakes; tcp, unix and shm"),
        ("inproc", "connections within a process"),
    ],
    "store": [
        ("memory", "the key table; stores within a process, and prefixes"),
        ("file", "the file store and its log"),
        ("tcp", "the TCP store: client, server, protocol"),
        ("launch", "init methods, launchers' environments, rendezvous"),
    ],
    "backend": [
        ("devices", "device maps: checks, records, placement"),
        ("links", "what a worker keeps of each peer: outgoing and incoming links, control connections, flow limits, leases"),
        ("failure", "declaring workers dead, fencing"),
        ("membership", "the group: static ones, dynamic ones and their log, look-up of members, records in the store"),
        ("observers", "tools that watch the group: what they ask, the members as the store has them"),
        ("agent", "the native agent and its core, options, routes"),
    ],
    "rpc": [
        ("futures", "futures, promises, tasks, the call context and context values"),
        ("methods", "the method table, exceptions that keep their type, plug-ins"),
        ("pipeline", "what passes with calls: interceptors, observers, attachments, the library's own clients"),
        ("calls", "outgoing calls: synchronous, asynchronous, one-way; the life of a call and what it reports"),
        ("serving", "incoming calls, their answers, and the threads that run handlers"),
        ("references/protocol", "the counting of references as a value type without I/O, its records and messages"),
        ("objects", "objects at their owner: turns, order on devices"),
        ("references/table", "the references of a worker: the table, handles, calls on objects, the exchange with other workers"),
        ("diagnostics", "open calls, the flight recorder and its records"),
        ("worker", "the worker: start, shutdown, what its parts share"),
    ],
    "autograd": [
        ("derivatives", "the formulas of operations, and the table of them"),
        ("graph", "nodes, what the slots of tensors keep, what operations put into the graph"),
        ("engine", "passes back through the graph"),
        ("dist", "contexts, what goes with calls, passes through several workers, the seam of engines"),
    ],
    "adapters": [
        ("libtorch", "tensors of libtorch, and its graph in distributed passes: a library of its own"),
    ],
}

# The class whose member functions fill several rooms of a floor: sources may include its header wherever they stand.
HUB = {
    "rpc": "src/rpc/worker/worker_core.hpp",
}

# Rooms and public headers that know nothing of what attaches to calls, and the words that would show otherwise.
IGNORANT = {
    "places": ["src/rpc/futures", "src/rpc/methods", "src/rpc/pipeline", "src/rpc/calls", "src/rpc/serving",
               "include/ferry/rpc/call.hpp", "include/ferry/rpc/context.hpp", "include/ferry/rpc/detail/incoming_call.hpp",
               "include/ferry/rpc/detail/call_lifecycle.hpp", "include/ferry/rpc/detail/reply_writer.hpp"],
    "words": r"reference_\w+|references_of|handed_references|owned_(object|value)|object_(turns|order|uses|visit|call|id)|"
             r"turn_waits|call_chain|rref|<ferry/rpc/rref",
}

# Sources below src/ that are no part of a library as one file: compiled several times, with flags of their own.
COMPILED_APART = ["ops/cpu/instruction_set_kernels.cpp"]


def torch_flags():
    """The compiler's flags for libtorch (in $LIBTORCH, or the system's), or None if it is not here."""
    for root in filter(None, [os.environ.get("LIBTORCH"), "/usr"]):
        api = pathlib.Path(root, "include/torch/csrc/api/include")
        if (api / "torch/version.h").is_file():
            return [*([] if root == "/usr" else ["-isystem", f"{root}/include"]), "-isystem", str(api)]
    return None


# Libraries as one file that meet another library: what gives the flags for that, or None if it is not here.
ONE_FILE_FLAGS = {"ferry_libtorch.cpp": torch_flags}
