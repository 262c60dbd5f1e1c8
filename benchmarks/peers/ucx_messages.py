#!/usr/bin/env python3
"""Round trips of UCX's messages with tags, which both sides poll for, as UCX's own ucx_perftest measures them.

usage: ucx_messages.py about
       ucx_messages.py TRANSPORT BYTES CALLER_CPU CALLEE_CPU WINDOW_MS    (prints the median in microseconds)
"""
import os
import shutil
import socket
import subprocess
import sys
import time

TOOL = "ucx_perftest"
TRANSPORTS = {"tcp": "tcp", "shm": "posix"}


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


def answers(port):
    """Connecting would be taken for the client: look whether the server listens."""
    wanted = f":{port:04X}"
    with open("/proc/net/tcp", encoding="ascii") as table:
        return any(line.split()[1].endswith(wanted) and line.split()[3] == "0A" for line in table.readlines()[1:])


def round_trip(transport, size, caller, callee, window_ms):
    port = free_port()
    environment = dict(os.environ, UCX_TLS=TRANSPORTS[transport] + ",self", UCX_WARN_UNUSED_ENV_VARS="n")
    # About as many as fit into the window, at 5 and 0.3 us each.
    iterations = max(1000, int(window_ms * 1000 / (5 if transport == "tcp" else 0.3)))
    arguments = [TOOL, "-t", "tag_lat", "-s", str(size), "-n", str(iterations), "-w", "1000", "-p", str(port), "-f", "-v"]
    server = subprocess.Popen(arguments + ["-c", callee], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        until = time.monotonic() + 20
        while not answers(port):
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{TOOL} does not serve: " + server.communicate(timeout=5)[1].decode())
            time.sleep(0.005)
        client = subprocess.run(arguments + ["-c", caller, "127.0.0.1"], env=environment, capture_output=True, text=True,
                                timeout=100, check=True)
    finally:
        server.kill()
        server.wait()
    # iterations, then the 50th percentile of one way
    return 2 * float(client.stdout.strip().splitlines()[-1].split(",")[1])


def main():
    if not shutil.which(TOOL):
        return 1
    if sys.argv[1:] == ["about"]:
        words = subprocess.run(["ucx_info", "-v"], capture_output=True, text=True, check=True).stdout.split()
        version = next((word for word in words if word[0].isdigit()), "of an unknown version")
        print(f"UCX {version} ({TOOL}: untyped messages with tags, both sides poll all the time)")
        return 0
    if len(sys.argv) != 6 or sys.argv[1] not in TRANSPORTS:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    print(round_trip(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], float(sys.argv[5])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
